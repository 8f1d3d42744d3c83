"""Cache of the directories of imported zip archives: read again only after a change.

Spark has each task call `importlib.invalidate_caches`. Before Python 3.12 this reads an archive's directory at once,
and once for each package in it (python/cpython#103200). With pyspark.zip that was a third of the CPU time of a mirror's
executors.
"""

from __future__ import annotations

import sys
import zipimport
from pathlib import Path
from weakref import WeakKeyDictionary

_read: WeakKeyDictionary[zipimport.zipimporter, tuple[int, int, int]] = WeakKeyDictionary()
_invalidate = zipimport.zipimporter.invalidate_caches


def keep_directories() -> None:
    """Keep the directories of unchanged archives in this process."""
    if sys.version_info < (3, 12):
        # mypy can't express that a class of the standard library gets another method.
        zipimport.zipimporter.invalidate_caches = _if_changed  # type: ignore[assignment,method-assign]


def _if_changed(importer: zipimport.zipimporter) -> None:
    try:
        status = Path(importer.archive).stat()
    except OSError:
        _read.pop(importer, None)
        _invalidate(importer)
        return
    now = (status.st_mtime_ns, status.st_size, status.st_ino)
    if _read.get(importer) != now:
        _invalidate(importer)
        _read[importer] = now
