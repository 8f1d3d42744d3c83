"""What a result says: the verdict, the text for people, the JSON for programs; and the quick audit by statistics."""

from __future__ import annotations

import json

import pytest

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.compare import DoubledRange, PartitionAudit
from airflow_lakestream.audit.quick import look_at_files
from airflow_lakestream.audit.result import AuditResult, AuditVerdict, CountComparison
from airflow_lakestream.audit.statistics import FileFacts, TableFiles
from airflow_lakestream.core.ledger import Counts, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import OffsetRange, RangeSet

LONG = "a-topic-with-a-long-name"


def result(*partitions: PartitionAudit, full: bool = True, **more: list) -> AuditResult:
    return AuditResult("lake.t", "g", 2**60, full, list(partitions), **more)


def books(*topics: str) -> TableLedgers:
    entry = {
        t: TopicEntry(RangeSet.of(t, 0, 0, 100) | RangeSet.of(t, 1, 0, 50), counts=Counts(150, 150)) for t in topics
    }
    return TableLedgers("g", {"g": Ledger("g", {TopicIdentity(t, "id", "c"): e for t, e in entry.items()})})


def file(rows: int, partition: tuple[int, int], offset: tuple[int, int], topic: str = "t", **more: object) -> FileFacts:
    bounds = (topic, topic) if len(topic) <= 16 else (topic[:16], topic[:15] + chr(ord(topic[15]) + 1))
    given: dict = {"path": f"f-{offset}", "nulls": 0, "topic": bounds, **more}
    return FileFacts(rows=rows, partition=partition, offset=offset, **given)


def quick(*files: FileFacts, topics: tuple[str, ...] = ("t",), deletes: int = 0) -> AuditResult:
    found = result(full=False)
    look_at_files(found, books(*topics), TableFiles(list(files), [file(1, (0, 0), (0, 0))] * deletes), topics)
    return found


def test_damage_counts_whatever_was_not_seen() -> None:
    damaged = PartitionAudit("t", 0, missing=RangeSet.of("t", 0, 3, 5), rows_missing=2)
    assert result(PartitionAudit("t", 0)).verdict is AuditVerdict.CLEAN
    assert result(PartitionAudit("t", 0), blind=["why"]).verdict is AuditVerdict.COULD_NOT_LOOK
    assert result(damaged, blind=["why"]).verdict is AuditVerdict.DAMAGE
    assert result(counts=[CountComparison("t", 5, 4)]).verdict is AuditVerdict.DAMAGE
    assert result(findings=["a file"]).verdict is AuditVerdict.DAMAGE
    assert [v.exit_code for v in AuditVerdict] == [0, 1, 2]


def test_the_text_names_each_damage_and_is_cut_where_the_json_is_not() -> None:
    many = RangeSet(OffsetRange("t", 0, n * 2, n * 2 + 1) for n in range(30))
    told = result(
        PartitionAudit("t", 0, missing=many, doubled=(DoubledRange(100, 103, 2),), unexpected=many, lost=many)
    )
    text = told.render()
    for part in ("missing: [0,1), [2,3)", "and 20 ranges more", "doubled: [100,103) x2", "unexpected:", "lost to"):
        assert part in text
    [partition] = json.loads(json.dumps(told.to_dict()))["partitions"]
    assert len(partition["missing"]) == 30
    [cut] = told.to_dict(most_ranges=7)["partitions"]
    assert (len(cut["missing"]), cut["ranges_left_out"]["missing"]) == (7, 23)
    assert told.to_dict()["snapshot_id"] == str(2**60)


def test_quick_does_not_claim_what_it_did_not_look_at() -> None:
    told = quick(file(100, (0, 0), (0, 99)), file(50, (1, 1), (0, 49)))
    assert told.verdict is AuditVerdict.CLEAN
    assert not {"missing", "not_verifiable", "readable"} & set(told.to_dict()["partitions"][0])
    assert "Not seen: which offsets" in told.render()


@pytest.mark.parametrize("topic", ["t", LONG])
def test_quick_sees_dense_files_that_overlap_and_rows_outside(topic: str) -> None:
    files = file(60, (0, 0), (0, 59), topic), file(60, (0, 0), (50, 109), topic), file(30, (1, 1), (0, 49), topic)
    [first, second] = quick(*files, topics=(topic,)).partitions
    assert first.doubled == (DoubledRange(50, 60, 2),)
    assert first.unexpected == RangeSet.of(topic, 0, 100, 110)
    assert not second.is_damaged


def test_quick_judges_files_of_several_partitions_by_what_their_bounds_rule_out() -> None:
    assert quick(file(150, (0, 1), (0, 99))).verdict is AuditVerdict.CLEAN
    for wrong in (file(150, (0, 1), (0, 100)), file(150, (0, 7), (0, 99)), file(150, (0, 1), (0, 99), "zzz")):
        assert quick(wrong).findings


def test_quick_can_not_count_without_null_counts_or_with_deletes() -> None:
    whole = file(150, (0, 1), (0, 99), nulls=None)
    assert quick(whole).verdict is AuditVerdict.COULD_NOT_LOOK
    assert quick(file(150, (0, 1), (0, 99)), deletes=1).verdict is AuditVerdict.COULD_NOT_LOOK
    assert quick(file(153, (0, 1), (0, 99), nulls=3)).verdict is AuditVerdict.CLEAN


def test_quick_counts_by_topic_where_files_tell_them_apart_and_together_where_not() -> None:
    apart = quick(file(150, (0, 1), (0, 99)), file(149, (0, 1), (0, 99), "u"), topics=("t", "u"))
    assert [(c.what, c.expected, c.found) for c in apart.counts] == [("t", 150, 150), ("u", 150, 149)]
    mixed = quick(FileFacts("mixed", 299, 0, ("t", "u"), (0, 1), (0, 99)), topics=("t", "u"))
    assert [(c.expected, c.found) for c in mixed.counts] == [(300, 299)]
