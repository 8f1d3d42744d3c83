"""Sums of landings, and what must add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.ledger import (
    MOST_NOTED,
    Counts,
    CountsDoNotAddUp,
    Landing,
    Ledger,
    NotedLandings,
    TopicEntry,
    TopicIdentity,
)
from airflow_lakestream.core.ranges import RangeSet
from tests.support.core_strategies import IDENTITY, TOPIC, entries, offsets


def landing(entry: TopicEntry, identity: TopicIdentity = IDENTITY) -> Landing:
    return Landing("id", "run", {identity: entry})


@given(st.lists(entries(), max_size=5))
def test_a_ledger_holds_what_its_landings_add_up_to(changes: list[TopicEntry]) -> None:
    ledger = Ledger("g")
    for change in changes:
        ledger = ledger.add(landing(change))
    entry = ledger.entry(IDENTITY)
    assert offsets(entry.landed) == {o for change in changes for o in offsets(change.landed)}
    assert offsets(entry.lost) == {o for change in changes for o in offsets(change.lost)}
    assert entry.held == entry.landed | entry.lost
    assert entry.counts.read == sum(change.counts.read - change.removed.read for change in changes)
    assert entry.counts.rejected == sum(change.counts.rejected - change.removed.rejected for change in changes)
    assert not entry.replaced
    assert entry.removed == Counts()


def test_covered_time_is_joined_and_a_replacement_keeps_what_is_landed() -> None:
    first = TopicEntry(RangeSet.of(TOPIC, 0, 0, 9), counts=Counts(9, 9), covered=((0, 10), (20, 30)))
    again = TopicEntry(replaced=RangeSet.of(TOPIC, 0, 2, 5), counts=Counts(3, 2, 1), removed=Counts(3, 3))
    sum_of_both = TopicEntry() + first + again + TopicEntry(covered=((10, 20),))
    assert sum_of_both == TopicEntry(RangeSet.of(TOPIC, 0, 0, 9), counts=Counts(9, 8, 1), covered=((0, 30),))


@given(entries(), entries(), entries())
def test_addition_is_associative(a: TopicEntry, b: TopicEntry, c: TopicEntry) -> None:
    assert (a + b) + c == a + (b + c)


@given(entries(), entries())
def test_the_first_origin_and_the_last_epoch_of_a_partition_stand(first: TopicEntry, later: TopicEntry) -> None:
    both = first + later
    assert both.origin.items() >= first.origin.items()
    assert both.epochs.items() >= later.epochs.items()
    assert set(both.origin) == set(first.origin) | set(later.origin)


@given(entries(), entries())
def test_a_landing_overlaps_in_whatever_it_shares_lost_or_landed(held: TopicEntry, more: TopicEntry) -> None:
    ledger = Ledger("g").add(landing(held))
    assert offsets(ledger.overlap(landing(more))) == offsets(held.held) & offsets(more.held)


@given(entries())
def test_another_incarnation_of_the_topic_shares_nothing(entry: TopicEntry) -> None:
    other = TopicIdentity(TOPIC, "another-id", "cluster-id")
    ledger = Ledger("g").add(landing(entry))
    assert not ledger.overlap(landing(entry, other))
    assert ledger.entry(other) == TopicEntry()
    assert ledger.other_incarnations(TOPIC, other) == (IDENTITY,)
    assert ledger.other_incarnations(TOPIC, IDENTITY) == ()


def test_a_landing_without_ranges_overlaps_nothing() -> None:
    ledger = Ledger("g").add(landing(TopicEntry(landed=RangeSet.of(TOPIC, 0, 0, 10))))
    assert not ledger.overlap(landing(TopicEntry(origin={0: 0})))


def test_a_ledger_remembers_the_last_landings_with_a_note() -> None:
    ledger = Ledger("g")
    for number in range(MOST_NOTED):
        ledger = ledger.add(Landing(f"quiet-{number}", "run", {})).add(Landing(f"{number}", "run", {}, noted=True))
    assert ledger.noted == NotedLandings(tuple(map(str, range(MOST_NOTED))), complete=True)
    assert ledger.noted.has_all_since(())
    early, late = ledger.noted.newest(1), ledger.noted
    for number in range(MOST_NOTED, MOST_NOTED + 2):
        ledger = ledger.add(Landing(f"{number}", "run", {}, noted=True))
    now = ledger.noted
    assert [now.place(one) is None for one in ("0", "1", "2", "65", "quiet-3")] == [True, True, False, False, True]
    places = [now.place(str(number)) for number in range(2, MOST_NOTED + 2)]
    assert places == sorted(place for place in places if place is not None and place < 0)
    # What came after marks that are still there is there; of other times nothing is known.
    assert now.has_all_since(early.marks)
    assert now.has_all_since(late.marks)
    assert not now.has_all_since(("0", "1"))
    assert not now.has_all_since(())


@pytest.mark.parametrize("counts", [(3, 2, 0, 0, 0), (3, 2, 1, 1, 0), (0, 0, 0, 0, 1), (3, 4, 0, 0, 0)])
def test_counts_that_do_not_add_up_are_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(CountsDoNotAddUp, match="do not add up"):
        Counts(*counts)
