"""The directories of zip archives that Python imports from are read again only where an archive has changed.

Spark has each task call `importlib.invalidate_caches`. Before Python 3.12 this reads an archive's directory at once,
and once for each package in it (python/cpython#103200). With pyspark.zip that was a third of the CPU time of a mirror's
executors.
"""

from __future__ import annotations

import sys
import zipimport
from pathlib import Path

_read: dict[str, tuple[int, int, int]] = {}
_invalidate = zipimport.zipimporter.invalidate_caches


def keep_directories() -> None:
    """Let this process keep the directories of archives that have not changed."""
    if sys.version_info < (3, 12):
        zipimport.zipimporter.invalidate_caches = _if_changed  # type: ignore[assignment,method-assign]  # what 3.12 has by itself


def _if_changed(importer: zipimport.zipimporter) -> None:
    archive = importer.archive
    try:
        found = Path(archive).stat()
    except OSError:
        _read.pop(archive, None)
        _invalidate(importer)
        return
    now = (found.st_mtime_ns, found.st_size, found.st_ino)
    known = zipimport._zip_directory_cache.get(archive)  # type: ignore[attr-defined]  # what all importers of it share
    if known is None or _read.get(archive) != now:
        _invalidate(importer)
        _read[archive] = now
    else:
        importer._files = known  # type: ignore[attr-defined]  # as its own method does
