"""Unpacks archives of the programs that tests and demo start."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(packed: tarfile.TarFile, target: Path) -> None:
    """Unpack an archive below `target`, without names that lead out of it where this Python can tell.

    Python 3.11.4 was the first to know the filter; Debian 12 has 3.11.2.
    """
    packed.extraction_filter = getattr(tarfile, "data_filter", None)
    packed.extractall(target)
