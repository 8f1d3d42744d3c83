"""What of an audit's findings a repair takes on, and what it leaves alone and says so."""

from __future__ import annotations

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.compare import DoubledRange, PartitionAudit
from airflow_lakestream.audit.damage import TableDamage, damage_of
from airflow_lakestream.audit.result import AuditResult, CountComparison
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.core.ledger import Counts, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import RangeSet

ID = TopicIdentity("t", "id", "cluster")
ANOTHER = TopicIdentity("t", "id-2", "cluster")


def of(start: int, end: int, topic: str = "t") -> RangeSet:
    return RangeSet.of(topic, 0, start, end)


def books(*, others: RangeSet | None = None, also: TopicIdentity | None = None, **entry: object) -> TableLedgers:
    own = {ID: TopicEntry(**({"landed": of(0, 100), "counts": Counts(100, 100)} | entry))}
    if also is not None:
        own[also] = TopicEntry(landed=of(200, 300))
    return TableLedgers(
        "g", {"g": Ledger("g", own), "other": Ledger("other", {ID: TopicEntry(landed=others or RangeSet())})}
    )


def look(*counts: CountComparison, **found: object) -> AuditResult:
    return AuditResult("lake.t", "g", 1, True, [PartitionAudit("t", 0, **found)], list(counts))


def only_left(damage: TableDamage, why: str) -> bool:
    return not damage.topics and len(damage.left) == 1 and why in damage.left[0]


def test_missing_doubled_and_unexpected_ranges_are_taken_on() -> None:
    result = look(missing=of(3, 5), doubled=(DoubledRange(7, 9, 3),), unexpected=of(100, 101))
    [topic] = damage_of(result, books()).topics
    assert (topic.missing, topic.doubled, topic.unexpected) == (of(3, 5), of(7, 9), of(100, 101))
    assert (topic.identity, topic.rows_vanished) == (ID, 0)


def test_a_clean_result_has_no_damage() -> None:
    assert damage_of(look(not_verifiable=of(0, 9)), books()) == TableDamage()


def test_ranges_of_two_groups_are_left_and_others_are_not() -> None:
    damage = damage_of(look(missing=of(3, 5), doubled=(DoubledRange(7, 9, 3),)), books(others=of(4, 8)))
    [topic] = damage.topics
    assert (topic.missing, topic.doubled) == (of(3, 4), of(8, 9))
    assert "[4,5), t[0] [7,8): another consumer group" in damage.left[0]


def test_doubled_rows_that_only_another_group_landed_are_not_ours() -> None:
    damage = damage_of(look(doubled=(DoubledRange(120, 130, 2),)), books(others=of(110, 140)))
    assert only_left(damage, "another consumer group")


def test_rows_deleted_on_purpose_are_left_though_they_are_there_twice() -> None:
    damage = damage_of(look(doubled=(DoubledRange(7, 9, 2),)), books(forgotten=of(7, 9)))
    assert only_left(damage, "deleted on purpose")


def test_adopted_offsets_are_not_taken_for_those_that_lack_a_row() -> None:
    counted = CountComparison("t", 50, 48, "t")
    result = look(counted, not_verifiable=of(0, 60))
    [topic] = damage_of(result, books(adopted=of(0, 50), counts=Counts(50, 50))).topics
    assert (topic.vanished, topic.rows_vanished) == (of(50, 60), 2)


def test_missing_rows_of_other_tools_are_left() -> None:
    damage = damage_of(look(missing=of(3, 5)), books(adopted=of(0, 50), counts=Counts(50, 50)))
    assert "t[0] [3,5): they were adopted" in damage.left[0]
    assert not damage.topics


def test_missing_rows_are_left_where_records_were_skipped() -> None:
    for counts in (Counts(100, 98, skipped=2), Counts(100, 98, filtered=2)):
        assert only_left(damage_of(look(missing=of(3, 5)), books(counts=counts)), "skipped or filtered")


def test_rejected_records_are_told_by_their_offsets() -> None:
    audit = PartitionAudit("t", 0, missing=of(3, 5), both=of(7, 8), rejects=OffsetTally([(7, 9)]))
    books_ = books(counts=Counts(100, 97, rejected=3))
    [topic] = damage_of(AuditResult("lake.t", "g", 1, True, [audit]), books_).topics
    assert (topic.missing, topic.doubled, topic.with_row_and_reject) == (of(3, 5), RangeSet(), of(7, 8))
    assert (topic.rejected, topic.rejects_lacking) == (of(7, 8), 1)


def test_several_incarnations_are_left() -> None:
    assert only_left(damage_of(look(missing=of(3, 5)), books(also=ANOTHER)), "several incarnations")


def test_rows_missing_where_kafka_shows_nothing_are_gone_by_the_count() -> None:
    count = CountComparison("t, beyond the ranges named", 100, 98, "t")
    [topic] = damage_of(look(count, not_verifiable=of(0, 40)), books(forgotten=of(0, 5), lost=of(5, 9))).topics
    assert (topic.vanished, topic.rows_vanished) == (of(9, 40), 2)


def test_rows_missing_of_compacted_records_are_said() -> None:
    count = CountComparison("t, beyond the ranges named", 100, 98, "t")
    assert only_left(damage_of(look(count), books()), "2 more rows are missing")
