"""The streams of an Iceberg or Delta table: the groups that land in it, their ledgers and their landings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from airflow_lakestream.core.codec import UnreadableLedger
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.lineage import UndecidedLedger
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.watching.streams.landings import History, ledgers, look_back


class Streams(Protocol):
    """One table, as it was when it was opened."""

    @property
    def problems(self) -> tuple[type[Exception], ...]:
        """The errors raised if a group's ledger can't be read."""

    def groups(self) -> tuple[str, ...]:
        """Return the groups that have a ledger."""

    def ledger(self, consumer_group: str) -> Ledger:
        """Return a group's ledger. Raises one of `problems`."""

    def history(self, consumer_group: str, topic: str = "", since_ms: int | None = None) -> History:
        """Return what a group landed, of a topic or of all; see `landings.look_back`. Raises one of `problems`."""


@dataclass(frozen=True)
class IcebergStreams:
    """The streams of an Iceberg table."""

    table: Table
    problems: tuple[type[Exception], ...] = (UnreadableLedger, UndecidedLedger, ledger_store.FormatVersionTooOld)

    @classmethod
    def at(cls, catalog: Catalog, name: str) -> IcebergStreams | None:
        """Open a table; None where there is none."""
        try:
            return cls(catalog.load_table(name))
        except NoSuchTableError:
            return None

    def groups(self) -> tuple[str, ...]:
        """Return the groups that have a ledger."""
        return ledger_store.groups(self.table)

    def ledger(self, consumer_group: str) -> Ledger:
        """Return a group's ledger. Raises UnreadableLedger, UndecidedLedger, FormatVersionTooOld."""
        return ledgers(self.table, consumer_group)[consumer_group]

    def history(self, consumer_group: str, topic: str = "", since_ms: int | None = None) -> History:
        """Return what a group landed, of a topic or of all. Raises UnreadableLedger, UndecidedLedger."""
        return look_back(self.table, consumer_group, topic=topic or None, since_ms=since_ms)
