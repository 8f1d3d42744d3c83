"""A folder with a table that is given to one test after the other, each time as it was at first."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

CATALOG = "catalog.db"


class KeptFolder:
    """A folder as it is now: a table and its catalog, if any, to be had again in the same place.

    A copy in another place would not do for Iceberg, whose files have the paths of others.

    :param copy: the folder of the copy, which is not there yet.
    """

    def __init__(self, folder: Path, copy: Path) -> None:
        self.folder = folder
        self._copy = shutil.copytree(folder, copy)

    def restore(self) -> None:
        """Make the folder what it was."""
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
        for entry in self._copy.iterdir():
            if entry.is_dir():
                shutil.copytree(entry, self.folder / entry.name)
        if (self._copy / CATALOG).exists():
            # In place: the catalog's client has the file open.
            with (
                closing(sqlite3.connect(self._copy / CATALOG)) as kept,
                closing(sqlite3.connect(self.folder / CATALOG)) as catalog,
            ):
                kept.backup(catalog)
