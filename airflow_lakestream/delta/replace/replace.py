"""Replacing landing: a single version removes the rows of ranges, and adds the rows read again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import CannotReplace, ReplacedMeanwhile, StaleFiles
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.commit.guard import DeltaTarget, check_fit, landing_actions
from airflow_lakestream.delta.commit.log import Action
from airflow_lakestream.delta.commit.protocol import check_removable
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.replace.takeout import DeltaFiles, Finder, Takeout, remove_action
from airflow_lakestream.delta.write.files import Add
from airflow_lakestream.tables.guards import check_replace, completed, replaced_by_others, replaced_ranges, rows_landed


@dataclass
class DeltaReplacement:
    """Actions of a replacing landing, made for each new head.

    :param files: the files of the rows read again.
    :param finder: finds the rows to take out at a head.
    :param since: the version at the run's first look.
    :param own: the ids of this run's landings.
    :param notes: further table properties to set.
    """

    store: Any
    table: str
    consumer_group: str
    landing: Landing
    target: DeltaTarget
    files: Sequence[Add]
    finder: Finder
    since: int
    own: Collection[str]
    notes: dict[str, str] = field(default_factory=dict)
    # The last landing made, with the counts of removed rows.
    made: Landing | None = None
    _takeout: Takeout | None = None

    def make(self, head: DeltaTableHead | None) -> list[Action]:
        """Return the actions for a head, and set `made`. Writes the files of remaining rows.

        Raises a Conflict, such as StaleFiles, ReplacedMeanwhile, CannotReplace, and UnfitTable.
        """
        if head is None:
            raise StaleFiles(self.table, "the table was dropped")
        _, ranges = replaced_ranges(self.landing)
        if replaced := replaced_by_others(self._landings_since(head, ranges), ranges, self.own):
            raise ReplacedMeanwhile(self.table, replaced)
        check_fit(head, self.target, self.table)
        ledgers = ledger_store.ledgers(head, self.consumer_group)
        check_replace(self.table, self.landing, self.consumer_group, ledgers)
        check_removable(head)
        self._takeout = takeout = self.finder.find(DeltaFiles(self.store, head), rows_landed(ledgers.values()))
        self.made = completed(self.landing, takeout.rows, ledgers[self.consumer_group])
        removes = [remove_action(add) for add in takeout.out]
        adds = [{"add": dict(add)} for add in (*takeout.remainders, *self.files)]
        operation = ("WRITE", {"mode": "Overwrite"})
        return landing_actions(
            head, self.target, self.consumer_group, self.made, [*removes, *adds], operation, self.notes
        )

    def unneeded(self, is_committed: bool) -> list[Add]:
        """Return the written files of remaining rows outside of all versions, for deletion.

        :param is_committed: whether the last actions made are committed.
        """
        return self.finder.unneeded(self._takeout if is_committed else None)

    def _landings_since(self, head: DeltaTableHead, ranges: RangeSet) -> Iterator[Landing]:
        at = ledger_store.previous_version(head, self.consumer_group)
        while at is not None and at > self.since:
            item = ledger_store.landing_at(self.store, at, self.consumer_group)
            if item is None:
                raise CannotReplace(
                    f"{self.table}: its log no longer has version {at}, so it is unknown whether another run "
                    f"replaced {ranges} meanwhile. Nothing was changed. Run it again, or keep the log longer."
                )
            landing, at = item
            yield landing
