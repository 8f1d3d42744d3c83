"""Finding the ledger, by hand: each trap that a reader can fall into, as the smallest history that has it."""

from __future__ import annotations

import pytest

from airflow_lakestream.core import lineage
from airflow_lakestream.core.codec import (
    SUMMARY_VERSION,
    JournalEntry,
    LedgerProperty,
    UnreadableLedger,
    decode_property,
    encode_property,
    encode_summary,
    property_key,
)
from airflow_lakestream.core.ledger import Counts, Landing, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.lineage import JOURNAL_LENGTH, ReplacedTable, SnapshotFacts, TableFacts, UndecidedLedger
from airflow_lakestream.core.ranges import RangeSet

IDENTITY = TopicIdentity("t", "id", "cluster")


def landing(offset: int, landing_id: str | None = None) -> Landing:
    entry = TopicEntry(landed=RangeSet.of("t", 0, offset, offset + 1), counts=Counts(1, 1))
    return Landing(landing_id or f"landing-{offset}", "run", {IDENTITY: entry})


def snapshot(
    number: int, parent: int | None, lands: int | None = None, *, sequence: int | None = None, **summary: str
) -> SnapshotFacts:
    """A snapshot that lands the offset `lands`, or is a foreign one."""
    mine = {} if lands is None else encode_summary("g", landing(lands))
    return SnapshotFacts(number, parent, sequence or number, {"total-records": "9", **mine, **summary})


def facts(head: int | None, *snapshots: SnapshotFacts, ledger: LedgerProperty | None = None) -> TableFacts:
    properties = {} if ledger is None else {property_key("g"): encode_property(ledger)}
    return TableFacts(head, {s.snapshot_id: s for s in snapshots}, properties)


def after(*landed: tuple[int, int], base_id: int | None = None, base: tuple[int, ...] = ()) -> LedgerProperty:
    """The property after landings (snapshot, offset), on a base that holds some offsets."""
    ledger = Ledger("g")
    for offset in base:
        ledger = ledger.add(landing(offset))
    return LedgerProperty(base_id, ledger, tuple(JournalEntry(s, landing(o)) for s, o in landed))


def held(*history: TableFacts) -> list[int]:
    ranges = lineage.read(history, "g").ledger.entry(IDENTITY).landed
    return [offset for r in ranges for offset in range(r.from_offset, r.until_offset)]


def test_a_table_without_a_snapshot_is_empty_whatever_its_property_says() -> None:
    """CREATE OR REPLACE keeps the properties and drops main."""
    assert held(facts(None, ledger=after((1, 0)))) == []


def test_a_group_that_never_landed_here_is_empty() -> None:
    assert held(facts(2, snapshot(1, None), snapshot(2, 1))) == []


def test_landings_are_summed_along_the_parents_over_foreign_snapshots() -> None:
    now = facts(4, snapshot(1, None, 0), snapshot(2, 1), snapshot(3, 2, 1), snapshot(4, 3))
    assert held(now) == [0, 1]


def test_the_property_answers_when_all_snapshots_but_the_last_have_expired() -> None:
    assert held(facts(3, snapshot(3, None, 2), ledger=after((1, 0), (2, 1), (3, 2)))) == [0, 1, 2]


def test_a_foreign_snapshot_on_top_of_expired_ones_finds_the_property_by_its_parents_id() -> None:
    assert held(facts(4, snapshot(4, 3), ledger=after((2, 1), (3, 2), base_id=1, base=(0,)))) == [0, 1, 2]


def test_a_rollback_takes_the_ledger_back() -> None:
    snapshots = snapshot(1, None, 0), snapshot(2, 1, 1), snapshot(3, 2, 2)
    assert held(facts(2, *snapshots, ledger=after((1, 0), (2, 1), (3, 2)))) == [0, 1]


def test_after_a_rollback_a_newer_property_is_not_believed() -> None:
    """What stands in the property may be a lineage that main has left; the fork is found in the journal."""
    snapshots = snapshot(1, None, 0), snapshot(2, 1, 1), snapshot(3, 1, 5, sequence=3)
    assert held(facts(3, *snapshots, ledger=after((1, 0), (2, 1)))) == [0, 5]


def test_a_head_whose_parent_expiry_erased_is_no_root() -> None:
    """PyIceberg's expiry leaves parent None. With nothing else to go by, that is an error and never a fresh start."""
    with pytest.raises(UndecidedLedger, match="expiry erased the parent of snapshot 3"):
        held(facts(3, snapshot(3, None, 2)))


def test_an_older_metadata_file_restores_the_chain_that_expiry_erased() -> None:
    older = facts(3, snapshot(1, None, 0), snapshot(2, 1, 1), snapshot(3, 2, 2))
    assert held(facts(3, snapshot(3, None, 2)), older) == [0, 1, 2]


def test_a_missing_parent_is_looked_up_in_older_metadata() -> None:
    older = facts(2, snapshot(1, None, 0), snapshot(2, 1, 1))
    assert held(facts(3, snapshot(3, 2, 2)), older) == [0, 1, 2]


def test_a_snapshot_seen_parentless_when_it_first_appears_is_a_root() -> None:
    """A table replaced and written anew: its first snapshot has a high sequence number and no parent."""
    replaced = facts(None, snapshot(1, None, 0), ledger=after((1, 0)))
    written = facts(7, snapshot(7, None, 5, sequence=7), ledger=after((1, 0)))
    assert held(written, replaced) == [5]


def test_history_that_ends_undecided_is_an_error_with_the_remedy() -> None:
    with pytest.raises(UndecidedLedger) as caught:
        held(facts(9, snapshot(9, 8)), facts(8, snapshot(8, 7), ledger=after((2, 1))))
    assert (caught.value.consumer_group, caught.value.head_id) == ("g", 9)
    for word in ("'g'", "snapshot 9", "Nothing was landed", "lakestream ledger rebuild --table", "--group g"):
        assert word in str(caught.value)


def test_a_table_replaced_from_itself_is_never_a_fresh_start() -> None:
    """Its rows are there, its history is not: landing all again would double them."""
    replaced = facts(2, snapshot(2, None, sequence=2), ledger=after((1, 0)))
    before = facts(1, snapshot(1, None, 0), ledger=after((1, 0)))
    with pytest.raises(ReplacedTable):
        held(replaced, before)


def test_a_table_rolled_back_to_before_its_first_landing_is_empty() -> None:
    now = facts(1, snapshot(1, None), snapshot(2, 1, 0), ledger=after((2, 0)))
    assert held(now) == []


def test_a_cherry_pick_counts_as_its_source() -> None:
    picked = snapshot(3, 1, **{"source-snapshot-id": "2"})
    assert held(facts(3, snapshot(1, None, 0), snapshot(2, 1, 1), picked)) == [0, 1]


def test_a_cherry_pick_whose_source_has_expired_is_undecided() -> None:
    picked = snapshot(3, 1, **{"source-snapshot-id": "2"})
    with pytest.raises(UndecidedLedger, match="cherry-picked from snapshot 2"):
        held(facts(3, snapshot(1, None, 0), picked))


def test_a_landing_that_is_met_twice_counts_once() -> None:
    picked = snapshot(4, 3, **{"source-snapshot-id": "2"})
    now = facts(4, snapshot(1, None, 0), snapshot(2, 1, 1), snapshot(3, 2), picked)
    reading = lineage.read([now], "g")
    assert reading.ledger.entry(IDENTITY).counts.read == 2


def test_another_groups_landings_are_passed_over() -> None:
    others = SnapshotFacts(2, 1, 2, {"total-records": "9", **encode_summary("other", landing(7))})
    assert held(facts(3, snapshot(1, None, 0), others, snapshot(3, 2, 1))) == [0, 1]


def test_a_landing_in_a_newer_format_on_the_way_is_refused() -> None:
    newer = snapshot(2, 1, 1, **{SUMMARY_VERSION: "99"})
    with pytest.raises(UnreadableLedger, match="snapshot 2"):
        held(facts(3, snapshot(1, None, 0), newer, snapshot(3, 2)))


def test_the_property_after_a_landing_anchors_at_the_new_snapshot_and_folds_the_oldest_into_its_base() -> None:
    value = after((1, 0))
    for number in range(2, JOURNAL_LENGTH + 5):
        reading = lineage.read([facts(number - 1, snapshot(number - 1, None, sequence=99), ledger=value)], "g")
        value = decode_property(encode_property(reading.property_after(number, landing(number - 1))), "g")
    assert len(value.journal) == JOURNAL_LENGTH
    assert value.journal[-1].snapshot_id == JOURNAL_LENGTH + 4
    assert value.base_id == 4
    assert held(facts(99, snapshot(99, JOURNAL_LENGTH + 4), ledger=value)) == list(range(JOURNAL_LENGTH + 4))


def test_another_groups_landing_moves_the_anchor_and_changes_nothing() -> None:
    reading = lineage.read([facts(1, snapshot(1, None, 0), ledger=after((1, 0)))], "g")
    value = reading.property_after(2, None)
    assert held(facts(3, snapshot(3, 2), ledger=value)) == [0]
    # Anchors of other groups take the place of one another: they would push the landings out of the journal.
    assert len(lineage.read([facts(2, snapshot(2, 1), ledger=value)], "g").property_after(3, None).journal) == 2


def test_older_metadata_is_only_loaded_when_it_is_needed() -> None:
    def history():  # type: ignore[no-untyped-def]
        yield facts(2, snapshot(1, None, 0), snapshot(2, 1, 1))
        pytest.fail("loaded an older metadata file for nothing")

    assert lineage.read(history(), "g").ledger.entry(IDENTITY).landed.width == 2
