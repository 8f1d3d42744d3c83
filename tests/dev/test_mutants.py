"""Bugs put in on purpose: the fault harness has to find each of them, in no more sequences than this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow.compute as pc
import pytest
from pyiceberg.table import CommitTableResponse

from airflow_lakestream.core.landing.modes import IntervalMode, PlanningLook
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg import ledger_store, sink
from airflow_lakestream.iceberg.commit import guard
from airflow_lakestream.iceberg.replace import takeout as files_of
from airflow_lakestream.tables import coordinates, takeout
from airflow_lakestream.tables.rejects import settlement
from airflow_lakestream.tables.rejects import sink as rejecting
from tests.support.fault_oracle import Violation
from tests.support.fault_play import Playground, playground

SEQUENCES = 240

Patch = pytest.MonkeyPatch


def blind_retry(patch: Patch) -> None:
    """PyIceberg's retry as it is: nobody looks at the ledger again."""
    patch.setattr(guard.CommitGuard, "check_ledger", lambda self, current: None)


def topic_missing_from_the_predicate(patch: Patch) -> None:
    """Replace tells rows by partition and offset alone."""

    def is_of(rows: Any, key: Any) -> Any:
        return pc.fill_null(pc.equal(rows["_kafka_partition"], key[1]), False)

    for module in (coordinates, takeout):
        patch.setattr(module, "is_of", is_of)
    patch.setattr(files_of, "may_hold", lambda *_: True)


def tiles_alone(patch: Patch) -> None:
    """A tile looks only at itself, and leaves the seams open."""
    real = IntervalMode.plan

    def plan(self: IntervalMode, look: PlanningLook) -> Plan:
        mine = replace(look.entry, covered=(self.interval,) if self.ends_are_fixed(look.entry) else ())
        return real(self, replace(look, entry=mine))

    patch.setattr(IntervalMode, "plan", plan)


def no_second_look(patch: Patch) -> None:
    """A run does not look again after it has written down that its interval is covered."""
    real = IntervalMode.plan

    def plan(self: IntervalMode, look: PlanningLook) -> Plan:
        return Plan(look.state, RangeSet()) if self.ends_are_fixed(look.entry) else real(self, look)

    patch.setattr(IntervalMode, "plan", plan)


def ledger_of_the_first_attempt(patch: Patch) -> None:
    """The ledger's value is computed once, and sent again as it was."""
    real = ledger_store.properties_after
    first: dict[str, Mapping[str, str]] = {}

    def properties_after(table: Any, group: str, snapshot_id: int, landing: Any, *more: Any) -> Mapping[str, str]:
        made = real(table, group, snapshot_id, landing, *more)
        return {**made, **first.setdefault(landing.landing_id, made)}

    patch.setattr(ledger_store, "properties_after", properties_after)


def files_deleted_after_an_unknown_outcome(patch: Patch) -> None:
    """Nobody keeps the files of a commit that may have been applied."""
    patch.setattr(sink.IcebergSink, "leave_in_place", lambda self: None)


def failed_means_not_applied(patch: Patch) -> None:
    """A commit that was reported as failed is believed to have failed."""

    def commit(self: guard.CommitGuard, table: Any, requirements: Any, updates: Any) -> CommitTableResponse:
        self.asked = True
        return self._catalog.commit_table(table, requirements, updates)

    patch.setattr(guard.CommitGuard, "_commit", commit)
    patch.setattr(guard.CommitGuard, "landed_in", lambda self, table: None)


def rejects_committed_last(patch: Patch) -> None:
    """Rejected records are written down once the table has committed: whoever dies in between has lost them."""
    write_down = rejecting.RejectingSink.write_down

    def commit(self: rejecting.RejectingSink, landing: Landing) -> int:
        snapshot_id = self.inner.commit(landing)
        write_down(self, landing)
        return snapshot_id

    patch.setattr(rejecting.RejectingSink, "commit", commit)


def superseded_rejects_stay(patch: Patch) -> None:
    """Nobody notes that a landing brings offsets anew that were rejected before."""
    patch.setattr(rejecting.RejectTable, "count", lambda *_: (0, 0))


def rejects_of_dead_landings_count(patch: Patch) -> None:
    """A rejected record counts once its offset is landed, by whichever landing."""
    patch.setattr(settlement.RejectSettlement, "by", classmethod(lambda cls, *_: cls()))


def rejects_of_open_landings_are_removed(patch: Patch) -> None:
    """A landing whose outcome nobody knows yet is taken for dead, and does not ask before it commits."""
    patch.setattr(settlement, "_can_not_land", lambda *_: True)
    patch.setattr(rejecting.RejectingSink, "_check_noted", lambda *_: None)


MUTANTS: list[Callable[[Patch], None]] = [
    blind_retry,
    topic_missing_from_the_predicate,
    tiles_alone,
    no_second_look,
    ledger_of_the_first_attempt,
    files_deleted_after_an_unknown_outcome,
    failed_means_not_applied,
    rejects_committed_last,
    superseded_rejects_stay,
    rejects_of_dead_landings_count,
    rejects_of_open_landings_are_removed,
]


# The seed to begin with, where no earlier one finds the bug: the 205 before take minutes.
LATE = {topic_missing_from_the_predicate: 225}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_harness_finds_it(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    with playground() as ground, pytest.raises(Violation):
        play_many(ground, LATE.get(mutant, 0))


def play_many(ground: Playground, first: int = 0) -> None:
    for seed in range(first, SEQUENCES):
        ground.play(Random(seed))
