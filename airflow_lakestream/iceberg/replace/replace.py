"""A landing that replaces: in one snapshot the rows of its ranges go out, and those read again come in.

An attempt is made for one head. PyIceberg would send its deletions again to a head that has moved, with remainders
that may be stale; the guard stops it, and the sink's loop makes the attempt anew.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Landing, Ledger, union
from airflow_lakestream.core.ports import CannotReplace, Conflict, RangesNotLanded, ReplacedMeanwhile
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.attempt import AppendAttempt, overwriting
from airflow_lakestream.iceberg.commit.guard import HeadGuard, Refused
from airflow_lakestream.iceberg.commit.transaction import LandingTransaction
from airflow_lakestream.iceberg.replace.since import FirstLook
from airflow_lakestream.iceberg.replace.takeout import Finder, Takeout
from airflow_lakestream.tables.replacing import what_it_replaces
from airflow_lakestream.tables.schema.change import SchemaChange

log = logging.getLogger(__name__)


class ReplaceGuard(HeadGuard):
    """The compare-and-set of a replace.

    :param first: the table as this run first saw it.
    :param own: the landings that this run made itself.
    """

    def __init__(
        self,
        catalog: Catalog,
        consumer_group: str,
        landing: Landing,
        written_for: TableMetadata,
        *,
        first: FirstLook,
        own: Collection[str],
        change: SchemaChange | None = None,
    ) -> None:
        super().__init__(catalog, consumer_group, landing, written_for, change=change)
        self._ranges = union(entry.replaced | entry.landed for entry in landing.topics.values())
        self._first = first
        self._own = own

    def expect(self, landing: Landing) -> None:
        """Take the landing as it is to be committed next: the same one, completed for another head."""
        self._landing = landing

    def check_fit(self, current: Table) -> None:
        """Refuse at once what another run has replaced meanwhile: planning anew would put older rows over newer."""
        name = ledger_store.name_of(current)
        landings, complete = self._first.landings_since(current, self._group)
        replaced = union(
            self._ranges & entry.replaced
            for landing in landings
            if landing.landing_id not in self._own
            for entry in landing.topics.values()
        )
        if replaced:
            raise Refused(self._replaced_meanwhile(name, replaced))
        if not complete:
            # Not as Refused: expiry moves no head, so an earlier try whose outcome is open may still be applied.
            raise CannotReplace(
                f"{name}: its history has expired since this run began, so it can't be told whether another run "
                f"replaced {self._ranges} meanwhile. Nothing was changed. Run it again, or keep snapshots longer."
            )
        super().check_fit(current)

    def check_ledger(self, current: Table) -> None:
        """Refuse ranges that the group's ledger does not hold, and rows that could be somebody else's."""
        identity, ranges = what_it_replaces(self._landing)
        name, topic = ledger_store.name_of(current), identity.topic
        ledger = ledger_store.read_ledger(current, self._group)
        if missing := ranges - ledger.entry(identity).landed:
            raise Refused(RangesNotLanded(name, missing))
        if any(ledger.entry(other).landed for other in ledger.others_of(topic, identity)):
            problem = f"rows of an earlier topic of the name {topic!r}"
            raise Refused(_indistinct(name, problem, ranges))
        for group in ledger_store.groups(current):
            if group != self._group and _holds(current, group, topic):
                problem = f"rows of {topic!r} that consumer group {group!r} landed"
                raise Refused(_indistinct(name, problem, ranges))

    def _replaced_meanwhile(self, table: str, ranges: RangeSet) -> LakestreamError:
        return ReplacedMeanwhile(table, ranges)


class ReplaceAttempt(AppendAttempt):
    """A landing that replaces rows of a table that is there."""

    def __init__(self, catalog: Catalog, name: str, guard: ReplaceGuard, group: str, landing: Landing, finder: Finder):
        super().__init__(catalog, name, guard, {})
        self._replace_guard, self._group, self._landing, self._finder = guard, group, landing, finder
        self._made: dict[int, tuple[Landing, Takeout]] = {}
        self._table: Table | None = None

    def landing_of(self, snapshot_id: int) -> Landing:
        """Return the landing as a try committed it."""
        return self._made[snapshot_id][0]

    def rows_out(self, snapshot_id: int) -> int:
        """Return how many rows a try took out."""
        return self._made[snapshot_id][1].rows

    def clean_up(self, keep: int | None) -> None:
        """Delete manifests and remainders of the tries that were not applied."""
        super().clean_up(keep)
        takeout = self._made[keep][1] if keep is not None else None
        if self._table is not None:
            for path in self._finder.delete_remainders(self._table.io, takeout):
                log.warning("An uncommitted data file could not be deleted: %s", path)

    def _stage(self, transaction: LandingTransaction, table: Table, files: Sequence[DataFile]) -> None:
        self._table = table
        self._replace_guard.check_ledger(table)
        try:
            takeout = self._finder.find(table, _rows_landed(table))
        except (CannotReplace, Conflict) as e:
            raise Refused(e) from None
        landing = self._completed(takeout, ledger_store.read_ledger(table, self._group))
        self._replace_guard.expect(landing)
        summary = {**codec.encode_summary(self._group, landing), **transaction.notes}
        with overwriting(transaction, summary, self._producers) as producer:
            self._made[producer.snapshot_id] = (landing, takeout)
            for file in takeout.out:
                producer.delete_data_file(file)
            for file in (*takeout.remainders, *files):
                producer.append_data_file(file)

    def _completed(self, takeout: Takeout, ledger: Ledger) -> Landing:
        """Return the landing with the counts of what was taken out."""
        identity, _ = what_it_replaces(self._landing)
        entry = self._landing.topics[identity].with_removed(takeout.rows, ledger.entry(identity))
        return replace(self._landing, topics={**self._landing.topics, identity: entry})


def _rows_landed(table: Table) -> int:
    ledgers = (ledger_store.read_ledger(table, group) for group in ledger_store.groups(table))
    return sum(entry.counts.written for ledger in ledgers for entry in ledger.topics.values())


def _holds(table: Table, group: str, topic: str) -> bool:
    ledger = ledger_store.read_ledger(table, group)
    return any(entry.landed for identity, entry in ledger.topics.items() if identity.topic == topic)


def _indistinct(table: str, problem: str, ranges: RangeSet) -> CannotReplace:
    return CannotReplace(
        f"{table} holds {problem}, too: which rows belong to {ranges} can't be told by topic, partition and offset. "
        "Nothing was changed."
    )
