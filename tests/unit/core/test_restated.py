"""A ledger that starts anew at a snapshot: found from above, gone below, and never mixed with what was before."""

from __future__ import annotations

import pytest

from airflow_lakestream.core import codec, lineage
from airflow_lakestream.core.codec import JournalEntry, LedgerProperty, UnreadableLedger
from airflow_lakestream.core.ledger import Counts, Landing, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.lineage import (
    SUMMARY_RESTATED,
    SnapshotFacts,
    TableFacts,
    UndecidedLedger,
    encode_restated,
)
from airflow_lakestream.core.ranges import RangeSet

IDENTITY = TopicIdentity("t", "id", "cluster")


def landing(offset: int) -> Landing:
    entry = TopicEntry(landed=RangeSet.of("t", 0, offset, offset + 1), counts=Counts(1, 1))
    return Landing(f"landing-{offset}", "run", {IDENTITY: entry})


def lands(number: int, parent: int | None, offset: int) -> SnapshotFacts:
    return SnapshotFacts(number, parent, number, codec.encode_summary("g", landing(offset)))


def starts_anew(number: int, parent: int, *offsets: int, group: str = "g", **summary: str) -> SnapshotFacts:
    ledger = Ledger(group)
    for offset in offsets:
        ledger = ledger.add(landing(offset))
    return SnapshotFacts(number, parent, number, {**encode_restated({group: ledger}), **summary})


def facts(head: int, *snapshots: SnapshotFacts, ledger: LedgerProperty | None = None) -> TableFacts:
    properties = {} if ledger is None else {codec.property_key("g"): codec.encode_property(ledger)}
    return TableFacts(head, {s.snapshot_id: s for s in snapshots}, properties)


def held(*history: TableFacts) -> list[int]:
    ranges = lineage.read(history, "g").ledger.entry(IDENTITY).landed
    return [offset for r in ranges for offset in range(r.from_offset, r.until_offset)]


HISTORY = (lands(1, None, 0), lands(2, 1, 1), starts_anew(3, 2, 7), lands(4, 3, 8))


@pytest.mark.parametrize(("head", "offsets"), [(4, [7, 8]), (3, [7]), (2, [0, 1])])
def test_above_it_the_new_ledger_counts_and_below_it_the_old_one(head: int, offsets: list[int]) -> None:
    assert held(facts(head, *HISTORY)) == offsets


def test_an_empty_ledger_is_a_ledger() -> None:
    assert held(facts(2, lands(1, None, 0), starts_anew(2, 1))) == []


def test_it_is_found_when_all_before_it_has_expired() -> None:
    assert held(facts(4, *HISTORY[2:])) == [7, 8]


def test_a_property_from_below_does_not_reach_over_it() -> None:
    """Rolled back below it, landed there, and set forward again: the property's anchors are below."""
    below = LedgerProperty(None, Ledger("g"), (JournalEntry(1, landing(0)), JournalEntry(2, landing(1))))
    assert held(facts(4, *HISTORY, ledger=below)) == [7, 8]


def test_other_groups_go_on() -> None:
    assert held(facts(3, lands(1, None, 0), starts_anew(2, 1, group="other"), lands(3, 2, 1))) == [0, 1]


def test_picked_into_another_history_it_decides_nothing() -> None:
    picked = SnapshotFacts(5, 2, 5, {"source-snapshot-id": "3"})
    with pytest.raises(UndecidedLedger, match="cherry-picked"):
        held(facts(5, *HISTORY, picked))


def test_a_damaged_or_newer_text_is_refused() -> None:
    for text in ("[]", "{", '{"g": "{\\"version\\": 99}"}'):
        with pytest.raises(UnreadableLedger):
            held(facts(2, lands(1, None, 0), SnapshotFacts(2, 1, 2, {SUMMARY_RESTATED: text})))


def test_a_receipt_of_a_deletion_is_kept_and_counted() -> None:
    gone = TopicEntry(forgotten=RangeSet.of("t", 0, 0, 1), removed=Counts(1, 1))
    ledger = Ledger("g").add(landing(0)).add(landing(1)).add(Landing("f", "run", {IDENTITY: gone}))
    entry = ledger.entry(IDENTITY)
    assert (entry.landed, entry.forgotten) == (RangeSet.of("t", 0, 0, 2), RangeSet.of("t", 0, 0, 1))
    assert entry.counts == Counts(1, 1)
    text = codec.encode_property(LedgerProperty(1, ledger, ()))
    assert codec.decode_property(text, "g").base == ledger
