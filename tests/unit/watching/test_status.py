"""What a stream is said to do, from what was seen of it: each state, and each cause apart from the others."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from airflow_lakestream.core.landing.plan import PartitionWatermarks, TopicState
from airflow_lakestream.core.ledger import Counts, Landing, LandingEngine, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.lease_record import DriverOutcome, LeaseRecord, ProcessIdentity
from airflow_lakestream.driver.progress import DriverProgress
from airflow_lakestream.iceberg.upkeep.file_use import FileUse
from airflow_lakestream.watching.causes import StreamCause, StreamReason
from airflow_lakestream.watching.lag.waiting import TopicBacklog, backlog_of
from airflow_lakestream.watching.streams.landings import BranchHistory, SnapshotRecord
from airflow_lakestream.watching.streams.status import SparkQuery, StreamFacts, StreamState, StreamStatus, stream_status

NOW = 1_800_000_000_000
TOPIC = TopicIdentity("t", "id", "c")
MAX_AGE = 600.0
QUERY_RUN = "0b0b0b0b-1111-2222-3333-444444444444/7"


def landing(age: float, run_id: str = "dag/task/run/-1", rows: int = 5) -> SnapshotRecord:
    entry = TopicEntry(landed=RangeSet.of("t", 0, 0, rows), counts=Counts(rows, rows))
    return SnapshotRecord(1, int(NOW - age * 1000), "append", rows, "g", Landing("l", run_id, {TOPIC: entry}))


def backlog(landed: int, end: int, overdue: int = 0, *, other: int = 0, low: int = 0) -> TopicBacklog:
    """Partition 0 ends at `end` and has `overdue` old offsets; partition 1 has `other` offsets, landed."""
    held = RangeSet.of("t", 0, 0, landed) | RangeSet.of("t", 1, 0, other)
    state = TopicState(TOPIC, {0: PartitionWatermarks(low, end), 1: PartitionWatermarks(0, other)})
    found = backlog_of(Ledger("g", {TOPIC: TopicEntry(landed=held, origin={0: 0, 1: 0})}), state, "lake.t")
    return replace(found, overdue=RangeSet.of("t", 0, landed, landed + overdue))


def query(**changes: object) -> SparkQuery:
    lease = LeaseRecord(3, "f", "a task", ProcessIdentity.of(os.getpid()), {"table": "lake.t", "group": "g"})
    now = NOW / 1000
    lease = replace(lease, **{"taken_at": now - 5000, "beat_at": now - 60, **changes})  # type: ignore[arg-type]  # a keyword each, of fields of several types
    return SparkQuery("/checkpoint", lease, DriverProgress(moved_at=now - 30))


def look(**facts: object) -> StreamStatus:
    given = {"history": BranchHistory((landing(60),)), "backlog": backlog(10, 10), **facts}
    return stream_status(StreamFacts("lake.t", "g", "t", **given), NOW, MAX_AGE)  # type: ignore[arg-type]  # a keyword each, of fields of several types


def causes(stream: StreamStatus) -> list[StreamCause]:
    return [reason.cause for reason in stream.reasons]


OLD = BranchHistory((landing(3600),))


def test_a_stream_that_lands_is_landing_though_records_wait() -> None:
    stream = look(backlog=backlog(10, 14))
    assert (stream.state, stream.reasons) == (StreamState.LANDING, ())
    assert (stream.lag, stream.overdue, stream.age, stream.engine) == (4, 0, 60, LandingEngine.EXTRACT)


def test_an_old_landing_on_a_topic_with_nothing_more_is_idle() -> None:
    stream = look(history=OLD)
    assert (stream.state, causes(stream)) == (StreamState.IDLE, [StreamCause.IDLE_TOPIC])


def test_records_that_have_just_come_to_an_idle_topic_are_not_late() -> None:
    assert look(history=OLD, backlog=backlog(10, 14)).state is StreamState.LANDING


def test_overdue_records_of_a_consumer_that_lands_are_behind() -> None:
    stream = look(backlog=backlog(10, 14, overdue=2))
    assert (stream.state, stream.overdue) == (StreamState.BEHIND, 2)
    assert causes(stream) == [StreamCause.SLOW_CONSUMER, StreamCause.LATE_PARTITION]
    assert "t[0]" in stream.reasons[1].text


def test_overdue_records_of_a_consumer_that_lands_no_more_are_a_stopped_consumer() -> None:
    stream = look(history=OLD, backlog=backlog(10, 14, overdue=2))
    assert (stream.state, stream.reasons[0].cause) == (StreamState.STALLED, StreamCause.STOPPED_CONSUMER)
    assert "t[0] [10,12)" in stream.reasons[0].text


def test_a_number_that_is_not_known_is_not_0() -> None:
    unknown = replace(backlog(10, 14), unknown=frozenset({0}))
    stream = look(history=OLD, backlog=unknown)
    assert (stream.overdue, stream.partitions[0]["overdue"], stream.partitions[1]["overdue"]) == (None, None, 0)
    assert causes(stream) == [StreamCause.UNKNOWN_AGE]
    assert stream.to_dict()["overdue"] is None
    stream = look(history=OLD, backlog=replace(unknown, overdue=RangeSet.of("t", 0, 12, 13)))
    assert (stream.state, stream.overdue) == (StreamState.STALLED, None)
    assert "at least 1 offset waits" in stream.reasons[0].text
    assert StreamCause.UNKNOWN_AGE not in causes(stream)


@pytest.mark.parametrize("expired_ms", [None, NOW - 7_200_000])
def test_a_landing_whose_snapshot_has_expired_is_no_new_stream(expired_ms: int | None) -> None:
    history = BranchHistory(expired=True, expired_ms=expired_ms)
    stream = look(history=history, backlog=backlog(10, 14, overdue=2))
    assert (stream.state, stream.reasons[0].cause) == (StreamState.STALLED, StreamCause.STOPPED_CONSUMER)
    expected = (
        "the last landing's snapshot has expired, with t[0] [0,10) landed, and 2 offsets"
        if expired_ms is None
        else "nothing was landed for 2.0 h, and 2 offsets"
    )
    assert stream.reasons[0].text.startswith(expected)


@pytest.mark.parametrize(
    ("changes", "cause", "text"),
    [
        ({"outcome": DriverOutcome.STOPPED}, StreamCause.STOPPED_QUERY, "stopped 60 s ago"),
        ({"process": ProcessIdentity(1, 1, 1, "h", "other")}, StreamCause.VANISHED_QUERY, "last heard of 60 s ago"),
    ],
)
def test_a_query_that_has_ended_is_named_and_no_consumer_besides(
    changes: dict[str, object], cause: StreamCause, text: str
) -> None:
    stream = look(history=OLD, backlog=backlog(10, 14, overdue=2), query=query(**changes))
    assert (stream.state, stream.engine) == (StreamState.STALLED, LandingEngine.SPARK)
    assert causes(stream) == [cause, StreamCause.LATE_PARTITION]
    assert text in stream.reasons[0].text
    assert "t[0] [10,12)" in stream.reasons[0].text


def test_a_query_that_is_there_and_does_not_move_is_stuck() -> None:
    one = replace(query(), progress=DriverProgress(moved_at=NOW / 1000 - 900, doing="batch 4"))
    stream = look(history=OLD, backlog=backlog(10, 14, overdue=2), query=one)
    assert (stream.state, stream.driver, stream.reasons[0].cause) == (
        StreamState.STALLED,
        "held",
        StreamCause.STUCK_QUERY,
    )
    assert "batch 4" in stream.reasons[0].text


def test_a_query_that_failed_is_failing_with_its_error() -> None:
    stream = look(query=query(outcome=DriverOutcome.FAILED, error="no such column"))
    assert (stream.state, causes(stream)) == (StreamState.FAILING, [StreamCause.FAILED_QUERY])
    assert "no such column" in stream.reasons[0].text


def test_a_query_that_was_stopped_on_an_idle_topic_is_idle_and_told() -> None:
    stream = look(history=OLD, query=query(outcome=DriverOutcome.STOPPED))
    assert (stream.state, causes(stream)) == (StreamState.IDLE, [StreamCause.STOPPED_QUERY, StreamCause.IDLE_TOPIC])


def test_a_query_that_has_done_its_work_is_no_news() -> None:
    assert look(query=query(outcome=DriverOutcome.DONE)).reasons == ()


def test_records_that_kafka_has_no_more_are_failing() -> None:
    stream = look(backlog=backlog(10, 30, low=20))
    assert (stream.state, causes(stream), stream.lag) == (StreamState.FAILING, [StreamCause.LOST_RECORDS], 20)


def test_what_can_not_be_looked_at_is_failing() -> None:
    stream = look(backlog=None, problem=StreamReason(StreamCause.UNUSABLE, "no such topic"))
    assert (stream.state, causes(stream), stream.lag) == (StreamState.FAILING, [StreamCause.UNUSABLE], None)


def test_a_rollback_and_a_compaction_are_told_beside_the_state() -> None:
    back = replace(landing(30), rows=7)
    compaction = SnapshotRecord(9, NOW - 20_000, "replace", 0, is_compaction=True)
    history = BranchHistory((landing(3600),), (compaction,), (back,))
    stream = look(history=history, backlog=backlog(10, 14, overdue=4))
    assert causes(stream)[0] is StreamCause.STOPPED_CONSUMER
    assert causes(stream)[-2:] == [StreamCause.ROLLBACK, StreamCause.COMPACTION]


def by(engine: LandingEngine | None, run_id: str = "dag/task/run/-1") -> SnapshotRecord:
    one = landing(60, run_id)
    assert one.landing is not None
    return replace(one, landing=replace(one.landing, engine=engine))


def forgotten() -> SnapshotRecord:
    """What `lakestream ledger forget` writes: a change of the books that landed nothing."""
    return replace(landing(30), landing=Landing("f", "f", {TOPIC: TopicEntry(forgotten=RangeSet.of("t", 0, 0, 2))}))


@pytest.mark.parametrize(
    ("recent", "engine"),
    [
        ((by(LandingEngine.SPARK), by(LandingEngine.EXTRACT)), LandingEngine.SPARK),
        ((by(LandingEngine.EXTRACT), by(LandingEngine.SPARK)), LandingEngine.EXTRACT),
        ((forgotten(), by(LandingEngine.SPARK)), LandingEngine.SPARK),
        ((forgotten(),), None),
        ((), None),
        # Of a version that did not write the engine down.
        ((by(None),), LandingEngine.EXTRACT),
        ((by(None, QUERY_RUN),), LandingEngine.SPARK),
        ((by(None, f"{QUERY_RUN[:36]}/before/ab"),), LandingEngine.SPARK),
    ],
)
def test_the_newest_landing_says_which_engine_it_is(
    recent: tuple[SnapshotRecord, ...], engine: LandingEngine | None
) -> None:
    assert look(history=BranchHistory(recent)).engine is engine


def test_many_small_files_or_deletes_are_a_reason_and_change_no_state() -> None:
    for files, text in (
        (FileUse(files=2100, small=2000, compacted_at=NOW - 7_200_000), "2,000 small files and 0 delete files"),
        (FileUse(files=9, delete_files=2000), "0 small files and 2,000 delete files"),
    ):
        stream = look(history=BranchHistory((landing(60),), files=files))
        assert (stream.state, causes(stream)) == (StreamState.LANDING, [StreamCause.SMALL_FILES])
        assert text in str(stream.reasons[0])
        assert ("the last one was 2.0 h ago" in str(stream.reasons[0])) is (files.compacted_at is not None)
        assert stream.to_dict()["files"] == files.to_dict()
    few = look(history=BranchHistory((landing(60),), files=FileUse(files=1999, small=1999, delete_files=7)))
    assert (few.reasons, few.files_texts(NOW)) == ((), ("1,999", "7", "-"))


def test_a_query_counts_until_something_else_lands_after_its_last_sign_of_life() -> None:
    by_extract = by(LandingEngine.EXTRACT)
    at = by_extract.at_ms / 1000
    for history, one, engine in (
        (BranchHistory(), query(outcome=DriverOutcome.DONE), LandingEngine.SPARK),
        (BranchHistory((by_extract,)), query(outcome=DriverOutcome.DONE, beat_at=at + 5), LandingEngine.SPARK),
        (BranchHistory((by_extract,)), query(outcome=DriverOutcome.DONE, beat_at=at - 5), LandingEngine.EXTRACT),
        # Its driver is there.
        (BranchHistory((by_extract,)), query(beat_at=at - 5), LandingEngine.SPARK),
    ):
        assert look(history=history, query=one).engine is engine
