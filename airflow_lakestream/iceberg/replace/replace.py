"""Replacing landing: a single snapshot removes the rows of ranges, and adds the rows read again.

An attempt is made for one head. PyIceberg would send its deletions again to a moved head, with remainders that may be
stale; the guard stops it, and the sink's loop makes the attempt again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Landing, Ledger, union
from airflow_lakestream.core.lineage import LedgerReading
from airflow_lakestream.core.ports import CannotReplace, Conflict, ReplacedMeanwhile
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.attempt import FileRewrite
from airflow_lakestream.iceberg.commit.commit import Check, RefusalCarrier, TableCommit
from airflow_lakestream.iceberg.replace.takeout import Finder, IcebergFiles
from airflow_lakestream.tables.guards import check_replace, completed, replaced_by_others, rows_landed
from airflow_lakestream.tables.retention import REMOVED


@dataclass(frozen=True, slots=True)
class FirstLook:
    """Table at a run's first look, and the reading of the ledger; None without a table."""

    table: Table | None = None
    reading: LedgerReading | None = None

    def landings_since(self, head: Table, consumer_group: str) -> tuple[list[Landing], bool]:
        """Return a group's landings since the first look, and whether the list is complete.

        The list is incomplete if the snapshots and the ledger's journal do not reach back to the first look.
        """
        first_ids, new_landings = self._history(), dict[str, Landing]()
        for snapshot in ledger_store.live_ancestors(head.metadata):
            if snapshot.snapshot_id in first_ids:
                return list(new_landings.values()), True
            if (landing := ledger_store.landing_of(snapshot, consumer_group)) is not None:
                new_landings[landing.landing_id] = landing
        # Expiry broke the chain of snapshots; the journal may reach further.
        reading = ledger_store.read(head, consumer_group)
        for entry in reversed(reading.path):
            if entry.snapshot_id in first_ids:
                return list(new_landings.values()), True
            if entry.landing is not None:
                new_landings.setdefault(entry.landing.landing_id, entry.landing)
        return list(new_landings.values()), reading.base_id is None or reading.base_id in first_ids

    def _history(self) -> frozenset[int]:
        """Return the ids of the snapshots in the history at the first look, those of the journal included."""
        if self.table is None or self.reading is None:
            return frozenset()
        ids = {snapshot.snapshot_id for snapshot in ledger_store.live_ancestors(self.table.metadata)}
        ids |= {entry.snapshot_id for entry in self.reading.path}
        return frozenset(ids if self.reading.base_id is None else ids | {self.reading.base_id})


def replacing(commit: TableCommit, first: FirstLook, own: Collection[str]) -> TableCommit:
    """Return the commit as a replace.

    :param first: the table at this run's first look.
    :param own: the ids of this run's landings, which count as own replaces.
    """
    fits = (not_replaced_since(first, own, ReplacedMeanwhile), *commit.fits)
    return dataclasses.replace(commit, ledger=ranges_landed, fits=fits, for_one_head=True)


def not_replaced_since(
    first: FirstLook, own: Collection[str], replaced_meanwhile: Callable[[str, RangeSet], LakestreamError]
) -> Check:
    """Return a check that refuses ranges replaced by another run: another plan would put older rows over newer rows.

    The check raises CannotReplace if the history has expired.
    """

    def check(commit: TableCommit, head: Table) -> None:
        name = ledger_store.name_of(head)
        ranges = union(entry.replaced | entry.landed for entry in commit.landing.topics.values())
        landings, complete = first.landings_since(head, commit.group)
        if replaced := replaced_by_others(landings, ranges, own):
            raise RefusalCarrier(replaced_meanwhile(name, replaced))
        if not complete:
            # Not by a RefusalCarrier: expiry moves no head, so an earlier try with an open outcome may still be
            # applied.
            raise CannotReplace(
                f"{name}: its history has expired since this run began, so it is unknown whether another run "
                f"replaced {ranges} meanwhile. Nothing was changed. Run it again, or keep snapshots longer."
            )

    return check


def ranges_landed(commit: TableCommit, head: Table) -> None:
    """Refuse a replace of ranges that the group has not landed, or that may contain rows of another group or tool."""
    try:
        ledgers = ledger_store.ledgers(head, commit.group)
        is_kept = REMOVED in head.metadata.properties
        check_replace(ledger_store.name_of(head), commit.landing, commit.group, ledgers, keeps_removed=is_kept)
    except (CannotReplace, Conflict) as e:
        raise RefusalCarrier(e) from None


CountCompletion: TypeAlias = Callable[[Landing, int, Ledger], Landing]


def replaced_files(
    table: Table, commit: TableCommit, finder: Finder, complete: CountCompletion = completed
) -> FileRewrite:
    """Return the removal of rows at a head, and write the remaining rows of removed files. Raises RefusalCarrier.

    :param complete: returns the landing with the count of removed rows, for the group's ledger.
    """
    # The ledger is checked before the search: for a refused replace, no file is read.
    commit.check_ledger(table)
    try:
        ledgers = ledger_store.ledgers(table, commit.group)
        takeout = finder.find(IcebergFiles(table), rows_landed(ledgers.values()))
    except (CannotReplace, Conflict) as e:
        raise RefusalCarrier(e) from None
    landing = complete(commit.landing, takeout.rows, ledgers[commit.group])
    return FileRewrite([task.file for task in takeout.out], takeout.remainders, landing, takeout.rows)
