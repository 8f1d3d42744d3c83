"""A full disk: writers say that it is full, and not which one it is."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.exceptions import LakestreamError, Transient

# What Arrow, object_store and SQLite write.
FULL_DISK = ("No space left on device", "disk is full")


class DiskFull(LakestreamError, Transient):
    """There is no space left where a table's files go."""

    def __init__(self, table: str, place: str) -> None:
        self.table, self.place = table, place
        super().__init__(
            f"{table}: the disk of {place} is full. What was not committed yet was discarded; a retry reads it again. "
            "Free space there, for example by expiring snapshots (docs/maintenance.md), or move the warehouse."
        )


@contextmanager
def full_disk_named(table: str, lake: Any) -> Iterator[None]:
    """Raise DiskFull, with the place, instead of a writer's own error for a full disk.

    :param lake: opens the tables: a catalog, or the store of Delta tables.
    """
    try:
        yield
    except LakestreamError:
        raise
    except Exception as e:
        if getattr(e, "errno", None) != errno.ENOSPC and not any(text in str(e) for text in FULL_DISK):
            raise
        raise DiskFull(table, _place(table, lake)) from e


def _place(table: str, lake: Any) -> str:
    if TableFormat.of(table) is TableFormat.DELTA:
        return table
    try:
        return str(lake.load_table(table).location())
    except Exception:  # noqa: BLE001  # the catalog may be on the full disk, too: the first error is the one to tell
        return str(lake.properties.get("warehouse", "the warehouse"))
