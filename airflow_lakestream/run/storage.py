"""Errors of a table's store or catalog, with the table and the remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.lakes import LakeCapability, lake_of

# Messages of Arrow, object_store and SQLite.
FULL_DISK = ("No space left on device", "disk is full")


class DiskFull(LakestreamError, Transient):
    """Error of a full disk for a table's files."""

    def __init__(self, table: str, place: str) -> None:
        self.table, self.place = table, place
        super().__init__(
            f"{table}: the disk of {place} is full. What was not committed yet was discarded; a retry reads it again. "
            "Free space there, for example by expiring snapshots (docs/maintenance.md), or move the warehouse."
        )


class StorageFailed(LakestreamError, Transient):
    """Error of a table's store or catalog that could not be read or written."""

    def __init__(self, table: str, cause: OSError) -> None:
        self.table = table
        remedy = (
            "Another program has deleted the file, or expires snapshots; if a retry fails, too, `lakestream audit` "
            "names the files that the table lacks."
            if isinstance(cause, FileNotFoundError)
            else "If a retry fails, too, look at the store's address, its permissions, and the network."
        )
        super().__init__(
            f"{table}: its store or its catalog failed ({type(cause).__name__}: {cause}). What was not committed yet "
            f"was discarded; a retry reads it again. {remedy}"
        )


@contextmanager
def storage_errors_named(table: str, lake: Any) -> Iterator[None]:
    """Raise DiskFull, with the table's location, or StorageFailed instead of a library's own error.

    Errors of this package, and errors that are neither an OSError nor of a full disk, are raised unchanged.

    :param lake: opens the tables: a catalog, or the store of Delta tables.
    """
    try:
        yield
    except LakestreamError:
        raise
    except Exception as e:
        if getattr(e, "errno", None) == errno.ENOSPC or any(text in str(e) for text in FULL_DISK):
            raise DiskFull(table, _place(table, lake)) from e
        if isinstance(e, OSError):
            raise StorageFailed(table, e) from e
        raise


def _place(table: str, lake: Any) -> str:
    """Return the location of a table's files, or else of the warehouse."""
    if LakeCapability.CATALOG not in lake_of(table).can:
        return table
    try:
        return str(lake.load_table(table).location())
    except Exception:  # noqa: BLE001  # the catalog may be on the full disk, too: the first error is the one to report
        return str(lake.properties.get("warehouse", "the warehouse"))
