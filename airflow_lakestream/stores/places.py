"""Check of a table's location for write access, without writing data."""

from __future__ import annotations

import errno
from pathlib import Path
from tempfile import TemporaryFile

from airflow_lakestream.exceptions import LakestreamError, Terminal


class PlaceNotWritable(LakestreamError, Terminal):
    """A table's files can't be written at the location."""

    def __init__(self, table: str, place: str, cause: Exception) -> None:
        self.table, self.place = table, place
        # Further lines are for debugging a client.
        first_line = str(cause).partition("\n")[0]
        super().__init__(
            f"{table}: no file can be written below {place} ({type(cause).__name__}: {first_line}). Nothing was read "
            "or changed. Give the worker's user the right to write there; or correct the table's location; or land in "
            "another table."
        )


def check_folder(table: str, folder: str | Path) -> None:
    """Refuse an unwritable folder on a disk, existing or not. Raises PlaceNotWritable.

    Raises OSError if the disk is full.
    """
    there = Path(folder)
    try:
        while not there.exists():
            there = there.parent
        # The file has no name, so it disappears even if this process is killed.
        with TemporaryFile(dir=there):
            pass
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise PlaceNotWritable(table, str(folder), e) from e
