"""Errors of a maintenance in which tables failed, though the other tables were maintained."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient


class _Undone(LakestreamError):
    """Error of a maintenance with failed tables. `failed` has the reasons by table."""

    def __init__(self, failed: Mapping[str, Exception], done: int) -> None:
        # Messages of foreign errors may hold secrets, and this text goes further than the log.
        self.failed = {
            table: str(e) if isinstance(e, LakestreamError) else f"{type(e).__name__}, explained in the log"
            for table, e in failed.items()
        }
        failures = "; ".join(f"{table} ({text})" for table, text in self.failed.items())
        super().__init__(f"{len(failed)} tables were not maintained as asked, {done} were: {failures}")


class TableNotMaintained(_Undone, Terminal):
    """Error of failed tables that a retry would not help."""


class TableToMaintainAgain(_Undone, Transient):
    """Error of failed tables, with at least one table that a retry may help."""


def raise_failed(failed: Mapping[str, Exception], done: int) -> None:
    """Raise TableNotMaintained or TableToMaintainAgain if tables failed.

    :param failed: the errors by table.
    :param done: the number of maintained tables.
    """
    if failed:
        kind = TableNotMaintained if all(isinstance(e, Terminal) for e in failed.values()) else TableToMaintainAgain
        raise kind(failed, done)
