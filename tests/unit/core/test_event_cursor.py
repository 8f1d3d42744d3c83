"""Random histories of a table, told by one who is killed at random: each landing is told, in order, and nothing else.

`LAKESTREAM_HISTORIES=5000 pytest tests/unit/core/test_untold.py` runs it long; a failure names its seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from airflow_lakestream.core.codec import encode_summary
from airflow_lakestream.core.event_cursor import (
    EventCursor,
    PendingSnapshots,
    head_cursor,
    landing_in,
    landing_of_summary,
    pending_snapshots,
)
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry
from airflow_lakestream.core.lineage import TableFacts
from airflow_lakestream.core.ranges import RangeSet
from tests.support.table_model import IDENTITIES, TableModel

HISTORIES = int(os.environ.get("LAKESTREAM_HISTORIES", "40"))
STEPS = 30
RANGES = RangeSet.of("topic-a", 0, 0, 3)
Reader = Callable[[TableFacts, EventCursor], PendingSnapshots]


@dataclass
class Teller:
    """Tells what it sees as the trigger does, and is killed; the cursor is kept once an event is stored."""

    rng: random.Random
    reader: Reader
    kept: EventCursor = EventCursor()
    told: list[str] = field(default_factory=list)
    cuts: int = 0

    def look(self, facts: TableFacts, *, may_die: bool = True) -> None:
        """Look once; at any event it may be killed: before it is stored, or after that and before the cursor is."""
        found = self.reader(facts, self.kept)
        self.cuts += found.is_cut
        for snapshot in found.snapshots:
            landing = landing_in(facts, snapshot)
            if landing is None:
                continue
            if may_die and self.rng.random() < 0.1:
                return
            self.told.append(landing[1].landing_id)
            if may_die and self.rng.random() < 0.1:
                return
            self.kept = EventCursor(snapshot.sequence_number, snapshot.snapshot_id)
        if found.leads_on and found.snapshots:
            self.kept = head_cursor(facts)


def true_landings(table: TableModel) -> list[str]:
    """Return the ids of the landings in main's true history, oldest first, those that have expired included."""
    chain = reversed(table.ancestry())
    return [landing.landing_id for one in chain for landing in table.truth[one].landings.values()]


def wrong_histories(reader: Reader = pending_snapshots, *, expire: bool = False) -> list[int]:
    """Run seeded histories; return the seeds of those in which something was lost, out of order, or no landing."""
    return [seed for seed in range(HISTORIES) if _is_wrong(seed, reader, expire=expire)]


def _is_wrong(seed: int, reader: Reader, *, expire: bool) -> bool:
    rng = random.Random(seed)
    table, teller = TableModel(rng), Teller(random.Random(seed + 1), reader)
    seen: set[str] = set()
    for _ in range(STEPS):
        table.step()
        seen |= set(true_landings(table))
        # Without expiry of what nobody looked at, each landing that stays has to be told.
        if not expire or rng.random() < 0.4:
            teller.look(table.facts, may_die=expire)
    teller.look(table.facts, may_die=False)
    at = {landing: place for place, landing in reversed(list(enumerate(teller.told)))}
    final = true_landings(table)
    lost = [one for one in final if one not in at]
    strange = set(teller.told) - seen
    return bool(strange or (lost and not teller.cuts) or (lost and not expire))


def test_each_landing_is_told_and_nothing_else() -> None:
    assert wrong_histories() == []


def test_what_expired_untold_is_said() -> None:
    assert wrong_histories(expire=True) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_without_rollbacks_is_told_in_order_through_kills(seed: int) -> None:
    rng = random.Random(seed)
    table, teller = TableModel(rng), Teller(random.Random(seed), pending_snapshots)
    for _ in range(STEPS):
        rng.choice([table.land, table.land, table.race, table.foreign])()
        if rng.random() < 0.5:
            teller.look(table.facts)
    teller.look(table.facts, may_die=False)
    # Told twice after a kill, and never one before the other.
    assert list(dict.fromkeys(teller.told)) == true_landings(table)


def newest_only(facts: TableFacts, cursor: EventCursor) -> PendingSnapshots:
    """Tell the head alone, as a look at the current snapshot does."""
    found = pending_snapshots(facts, cursor)
    return replace(found, snapshots=found.snapshots[-1:])


def silent(facts: TableFacts, cursor: EventCursor) -> PendingSnapshots:
    """Say nothing of what has expired."""
    return replace(pending_snapshots(facts, cursor), is_cut=False)


def test_the_histories_would_show_a_reader_that_loses_landings() -> None:
    assert wrong_histories(newest_only, expire=True)


def test_the_histories_would_show_one_that_hides_what_expired() -> None:
    assert wrong_histories(silent, expire=True)


def test_a_rollback_tells_nothing_and_what_comes_back_was_told() -> None:
    table = TableModel(random.Random(3))
    for _ in range(4):
        table._commit(rows=1)
    chain, everything = table.ancestry(), head_cursor(table.facts)
    rolled_back = replace(table.facts, head_id=chain[2])
    assert pending_snapshots(rolled_back, everything) == PendingSnapshots(leads_on=False)
    assert pending_snapshots(table.facts, everything) == PendingSnapshots()
    table.facts = rolled_back
    table._commit(rows=1)
    assert [one.snapshot_id for one in pending_snapshots(table.facts, everything).snapshots] == [table.facts.head_id]


def test_what_comes_back_untold_is_told_although_newer_ones_were() -> None:
    table = TableModel(random.Random(4))
    for _ in range(3):
        table._commit(rows=1)
    newest, between, first = table.ancestry()
    whole = table.facts
    # Rolled back before anybody was told of the second and third, and another landing was told instead.
    table.facts = replace(whole, head_id=first)
    table._commit(rows=1)
    cursor = head_cursor(table.facts)
    back = replace(table.facts, head_id=newest)
    assert [one.snapshot_id for one in pending_snapshots(back, cursor).snapshots] == [between, newest]


def test_a_cursor_is_kept_as_json() -> None:
    for cursor in (EventCursor(), EventCursor(7, 2**62, "a-table")):
        assert EventCursor.parse(cursor.to_json()) == cursor


def test_a_table_that_was_made_anew_begins_at_its_beginning() -> None:
    assert EventCursor(7, 8, "old").of("new") == EventCursor(0, None, "new")
    assert EventCursor(7, 8, "old").of("old") == EventCursor(7, 8, "old")


@pytest.mark.parametrize(
    ("change", "adopted", "is_told"),
    [
        (TopicEntry(landed=RANGES, counts=Counts(3, 3)), None, True),
        (TopicEntry(lost=RANGES), None, True),
        (TopicEntry(covered=((0, 1),)), None, True),
        (TopicEntry(replaced=RANGES), None, True),
        (TopicEntry(origin={0: 0}), None, True),
        (TopicEntry(forgotten=RANGES, removed=Counts(3, 3)), None, False),
        (TopicEntry(landed=RANGES), "connect", False),
    ],
    ids=["landed", "lost", "covered", "replaced", "origin", "forgotten", "adopted"],
)
def test_a_change_of_the_ledger_is_told_if_it_lands(change: TopicEntry, adopted: str | None, is_told: bool) -> None:
    landing = Landing("id", "run", {IDENTITIES["a"]: change}, adopted=adopted)
    assert (landing_of_summary(encode_summary("a", landing), "snapshot 1") is not None) is is_told
    assert landing_of_summary({}, "snapshot 1") is None
