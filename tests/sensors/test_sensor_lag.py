"""How far consumers are behind, on real topics, tables and checkpoints; and each thing that is wrong, by its name."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.watching.asking import LookOutcome, Verdict, run_now
from airflow_lakestream.watching.causes import StreamCause
from airflow_lakestream.watching.lag.waiting import MOST_READ, TopicLook
from dev.services.kafka import Kafka
from tests.support.broker import Producing, TopicOf, Topics, poll_until
from tests.support.delta_lake import DeltaLake
from tests.support.lake import GROUP, TABLE, Lake, events
from tests.support.sensing import commit, look
from tests.support.spark import SparkRun
from tests.support.transactions import Transaction

pytestmark = pytest.mark.integration

OF_TABLE = {"table": TABLE, "consumer_group": GROUP}


def lag(lake: Lake, **arguments: Any) -> Verdict:
    return look(lake, "checkpoint_lag", **arguments)


def seen(verdict: Verdict) -> tuple[LookOutcome, StreamCause, int]:
    assert verdict.value is not None, verdict.text
    return verdict.outcome, verdict.reasons[0].cause, verdict.value["lag"]


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    """Give a topic with ten records in each of two partitions, and an empty third one."""
    name = topic(3)
    for p in (0, 1):
        produce(name, p, events(p, 0, 10))
    return name


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


# A table's ledger


def test_a_table_that_holds_all_is_caught_up_and_one_that_does_not_is_behind(
    lake: Lake, name: str, produce: Producing
) -> None:
    lake.land(name)
    assert seen(lag(lake, **OF_TABLE)) == (LookOutcome.DONE, StreamCause.CAUGHT_UP, 0)
    produce(name, 2, events(2, 0, 4), timestamps=[int((time.time() - 600) * 1000)] * 4)
    late = lag(lake, **OF_TABLE)
    assert seen(late) == (LookOutcome.WAITING, StreamCause.LATE_PARTITION, 4)
    assert late.value is not None
    assert late.value["worst"] == {"topic": name, "partition": 2, "lag": 4}
    assert late.value["seconds"] == pytest.approx(600, abs=60)
    assert lag(lake, **OF_TABLE, max_lag_seconds="20m").outcome is LookOutcome.DONE
    assert lag(lake, **OF_TABLE, max_lag_seconds="5m").outcome is LookOutcome.WAITING
    assert lag(lake, **OF_TABLE, max_lag_records=4).outcome is LookOutcome.DONE
    assert lag(lake, **OF_TABLE, max_batch_age="1h").outcome is LookOutcome.DONE
    assert seen(lag(lake, **OF_TABLE, max_batch_age="1ms")) == (LookOutcome.WAITING, StreamCause.STOPPED_CONSUMER, 4)


def test_an_idle_topic_is_no_stopped_consumer(lake: Lake, name: str) -> None:
    lake.land(name)
    assert seen(lag(lake, **OF_TABLE, max_batch_age="1ms")) == (LookOutcome.DONE, StreamCause.IDLE_TOPIC, 0)


def test_a_hole_that_an_interval_left_is_lag_and_what_lies_above_is_not(lake: Lake, name: str) -> None:
    lake.land(name, max_records=4)
    lake.land(name, mode="ranges", ranges=[[0, 8, 10]])
    verdict = lag(lake, **OF_TABLE)
    assert verdict.value is not None
    landed = sum(end - start for ranges in lake.landed(name).values() for start, end in ranges)
    assert verdict.value["lag"] == 20 - landed


def test_a_compaction_is_no_landing(lake: Lake, name: str, produce: Producing) -> None:
    lake.land(name)
    produce(name, 0, events(0, 10, 3))
    before = lag(lake, **OF_TABLE).value
    lake.compact()
    after = lag(lake, **OF_TABLE).value
    assert before is not None
    assert after is not None
    assert after["lag"] == before["lag"] == 3
    assert after["batch_age"] >= before["batch_age"]


def test_a_rollback_is_told_by_its_name(lake: Lake, name: str, produce: Producing) -> None:
    lake.land(name)
    produce(name, 0, events(0, 10, 5))
    lake.land(name)
    lake.table().manage_snapshots().set_current_snapshot(lake.snapshots()[0]).commit()
    assert seen(lag(lake, **OF_TABLE)) == (LookOutcome.WAITING, StreamCause.ROLLBACK, 5)


def test_a_topic_that_was_made_anew_is_refused(lake: Lake, name: str, topic: Topics) -> None:
    lake.land(name)
    topic.delete(name)
    topic(3, name=name)
    verdict = lag(lake, **OF_TABLE, missing="wait")
    assert verdict.outcome is LookOutcome.FAILED
    assert verdict.terminal
    assert "deleted and created again" in verdict.text


def test_a_table_without_the_groups_ledger_names_those_that_it_has(lake: Lake, name: str) -> None:
    lake.land(name)
    verdict = lag(lake, table=TABLE, consumer_group="other")
    assert verdict.outcome is LookOutcome.FAILED
    assert f"it has ledgers of {GROUP}" in verdict.text


def test_a_delta_table_is_read_likewise(lake: Lake, name: str, produce: Producing, tmp_path: Path) -> None:
    delta = DeltaLake(tmp_path / "delta", lake.kafka)
    delta.land(name)
    produce(name, 0, events(0, 10, 2))
    table = {"table": delta.place, "consumer_group": GROUP, "table_format": "delta"}
    verdict = lag(lake, **table)
    assert seen(verdict) == (LookOutcome.WAITING, StreamCause.LATE_PARTITION, 2)
    assert verdict.value is not None
    assert 0 <= verdict.value["batch_age"] < 600
    # Rolled back: what was landed waits again, and the sensor says why.
    delta.land(name)
    DeltaTable(delta.place).restore(0)
    verdict = lag(lake, **table)
    assert seen(verdict) == (LookOutcome.WAITING, StreamCause.ROLLBACK, 2)


# Records that wait for too long, wherever they stand

HOUR = 3_600_000


def stamps(*ages: int) -> list[int]:
    """Return timestamps of these ages, in milliseconds."""
    now = int(time.time() * 1000)
    return [now - age for age in ages]


def test_a_new_record_in_front_of_old_ones_hides_none_of_them(
    lake: Lake, topic: Topics, produce: Producing, group: str, admin: AdminClient
) -> None:
    name = topic(1, message_timestamp_after_max_ms=2**63 - 1)
    commit(admin, group, name, {0: 0})
    for first in (0, -10 * HOUR):
        produce(name, 0, ["v"] * 51, timestamps=stamps(first, *[6 * HOUR] * 50))
    for consumer in ({"group_id": group}, {"group_id": group, "topic": name}):
        verdict = lag(lake, **consumer, max_lag_seconds="10m")
        assert seen(verdict) == (LookOutcome.WAITING, StreamCause.STOPPED_CONSUMER, 102)
        assert verdict.value is not None
        assert verdict.value["seconds"] == pytest.approx(6 * 3600, abs=60)
        assert lag(lake, **consumer, max_lag_seconds="7h").outcome is LookOutcome.DONE


def test_a_record_of_the_future_has_just_come(
    lake: Lake, topic: Topics, produce: Producing, group: str, admin: AdminClient
) -> None:
    name = topic(1, message_timestamp_after_max_ms=2**63 - 1)
    commit(admin, group, name, {0: 0})
    produce(name, 0, ["v"], timestamps=stamps(-1000 * HOUR))
    verdict = lag(lake, group_id=group, max_lag_seconds="10m")
    assert verdict.outcome is LookOutcome.DONE
    assert verdict.value is not None
    assert (verdict.value["lag"], verdict.value["seconds"]) == (1, 0.0)
    # What comes behind it later is seen, though all before it was looked at.
    produce(name, 0, ["v"], timestamps=stamps(HOUR))
    assert lag(lake, group_id=group, max_lag_seconds="10m").outcome is LookOutcome.WAITING


def test_a_burst_of_more_than_a_look_reads_is_not_overdue_and_older_ones_behind_it_are_not_known(
    lake: Lake, topic_of: TopicOf, group: str, admin: AdminClient
) -> None:
    name = topic_of(["v"] * (MOST_READ + 1), ["v"] * MOST_READ)
    commit(admin, group, name, {0: 1, 1: 0})
    verdict = lag(lake, group_id=group, max_lag_seconds="10m")
    assert seen(verdict) == (LookOutcome.DONE, StreamCause.CAUGHT_UP, 2 * MOST_READ)
    assert StreamCause.UNKNOWN_AGE not in [reason.cause for reason in verdict.reasons]
    commit(admin, group, name, {0: 0})
    verdict = lag(lake, group_id=group, max_lag_seconds="10m")
    assert seen(verdict) == (LookOutcome.DONE, StreamCause.CAUGHT_UP, 2 * MOST_READ + 1)
    [unknown] = [reason for reason in verdict.reasons if reason.cause is StreamCause.UNKNOWN_AGE]
    assert f"whether records wait for more than 10 min in {name}[0] is not known" in unknown.text
    # Once the burst itself is older than the limit, it is overdue.
    verdict = lag(lake, group_id=group, max_lag_seconds="1ms")
    assert verdict.outcome is LookOutcome.WAITING
    assert f"{name}[0] with 100,001 unread" in verdict.text
    assert StreamCause.UNKNOWN_AGE not in [reason.cause for reason in verdict.reasons]


@pytest.mark.parametrize("old", [15, 29])
def test_old_records_behind_a_new_one_are_found_by_samples(
    lake: Lake,
    topic: Topics,
    produce: Producing,
    group: str,
    admin: AdminClient,
    monkeypatch: pytest.MonkeyPatch,
    old: int,
) -> None:
    monkeypatch.setattr("airflow_lakestream.watching.lag.waiting.MOST_READ", 10)
    name = topic(1)
    commit(admin, group, name, {0: 0})
    produce(name, 0, ["v"] * 30, timestamps=stamps(*[2 * HOUR if at == old else 0 for at in range(30)]))
    watch = KafkaWatch(lake.kafka, "the broker")
    waiting = TopicLook("", watch, watch.topic(name)).waiting(RangeSet.of(name, 0, 0, 30), RangeSet(), stamps(HOUR)[0])
    found = run_now(waiting)
    assert (found.overdue, found.unknown) == (RangeSet.of(name, 0, old, old + 1), {0})
    verdict = lag(lake, group_id=group, max_lag_seconds="10m")
    assert verdict.outcome is LookOutcome.WAITING
    assert StreamCause.UNKNOWN_AGE not in [reason.cause for reason in verdict.reasons]


def test_of_a_burst_that_the_broker_dated_all_ages_are_known(
    lake: Lake, topic_of: TopicOf, group: str, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_lakestream.watching.lag.waiting.MOST_READ", 10)
    name = topic_of(["v"] * 11, message_timestamp_type="LogAppendTime")
    commit(admin, group, name, {0: 0})
    verdict = lag(lake, group_id=group, max_lag_seconds="10m")
    assert [reason.cause for reason in verdict.reasons] == [StreamCause.CAUGHT_UP]


def test_a_record_of_the_future_hides_no_old_ones_behind_it_however_many_they_are(
    lake: Lake, topic: Topics, produce: Producing, group: str, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_lakestream.watching.lag.waiting.MOST_READ", 10)
    name = topic(1, message_timestamp_after_max_ms=2**63 - 1)
    commit(admin, group, name, {0: 0})
    produce(name, 0, ["v"] * 30, timestamps=stamps(*[-10 * HOUR] * 5, *[HOUR] * 25))
    verdict = lag(lake, group_id=group, max_lag_seconds="10m")
    assert seen(verdict) == (LookOutcome.WAITING, StreamCause.STOPPED_CONSUMER, 30)
    assert StreamCause.UNKNOWN_AGE not in [reason.cause for reason in verdict.reasons]


def test_large_records_are_not_read_by_the_gigabyte(
    lake: Lake, topic_of: TopicOf, group: str, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic_of(["v" * 10_000] * 30, ["v" * 10_000] * 20)
    commit(admin, group, name, {0: 0, 1: 0})
    assert lag(lake, group_id=group, max_lag_seconds="10m").outcome is LookOutcome.DONE
    monkeypatch.setattr("airflow_lakestream.watching.lag.waiting.MOST_BYTES", 400_000)
    verdict = lag(lake, group_id=group, max_lag_seconds="10m")
    assert verdict.outcome is LookOutcome.DONE
    [unknown] = [reason for reason in verdict.reasons if reason.cause is StreamCause.UNKNOWN_AGE]
    assert f"more than 10 min in {name}[0] is not known" in unknown.text
    assert "too large to be read one by one" in unknown.text
    # Where the bytes are enough for both, each record is read, and none is old.
    monkeypatch.setattr("airflow_lakestream.watching.lag.waiting.MOST_BYTES", 600_000)
    verdict = lag(lake, group_id=group, max_lag_seconds="10m")
    assert [reason.cause for reason in verdict.reasons] == [StreamCause.CAUGHT_UP]


def test_one_watch_reads_each_record_once_and_notices_what_compaction_took(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    settings = {"segment_ms": 100, "min_cleanable_dirty_ratio": 0.01, "max_compaction_lag_ms": 100}
    name = topic_of(
        ["v"] * 3, keys=["a", "b", "c"], timestamps=stamps(0, 6 * HOUR, 0), cleanup_policy="compact", **settings
    )
    watch = KafkaWatch(lake.kafka, "the broker")
    before = stamps(HOUR)[0]

    def old() -> RangeSet:
        state = watch.topic(name)
        unread = RangeSet.of(name, 0, 0, state.marks[0].end)
        found: RangeSet = run_now(TopicLook("", watch, state).waiting(unread, RangeSet(), before)).overdue
        return found

    assert old() == old() == RangeSet.of(name, 0, 1, 2)
    # A newer record of its key, and one more: the newest segment is never compacted.
    produce(name, 0, ["v", "v"], keys=["b", "d"])

    def compacted() -> bool:
        produce(name, 0, ["v"], keys=["d"])
        return not old()

    poll_until(compacted, "compaction to take the old record", every=0.5)


# A consumer group


def test_a_group_is_behind_by_what_it_has_not_committed(lake: Lake, name: str, group: str, admin: AdminClient) -> None:
    commit(admin, group, name, {0: 4, 1: 10})
    assert seen(lag(lake, group_id=group)) == (LookOutcome.WAITING, StreamCause.STOPPED_CONSUMER, 6)
    commit(admin, group, name, {0: 10})
    assert seen(lag(lake, group_id=group)) == (LookOutcome.DONE, StreamCause.CAUGHT_UP, 0)


def test_a_group_with_a_member_is_slow_and_not_stopped(lake: Lake, name: str, group: str, kafka: Kafka) -> None:
    settings = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 2}
    consumer = Consumer({**kafka.client_config(), **settings})
    consumer.subscribe([name])
    try:
        poll_until(lambda: bool(consumer.poll(0.2)), "a record")
        consumer.commit(offsets=[TopicPartition(name, 0, 1), TopicPartition(name, 1, 1)], asynchronous=False)
        assert seen(lag(lake, group_id=group)) == (LookOutcome.WAITING, StreamCause.SLOW_CONSUMER, 18)
    finally:
        consumer.close()


def test_markers_of_transactions_at_the_end_are_no_lag(
    lake: Lake, topic: Topics, group: str, produce: Producing, kafka: Kafka, admin: AdminClient
) -> None:
    name, transaction = topic(1), Transaction(kafka, admin)
    produce(name, 0, ["a", "b"])
    commit(admin, group, name, {0: 2})
    transaction.begin(name, 0, ["x", "y"])
    transaction.abort()
    # Two aborted records and a marker: nothing that a consumer would ever get.
    assert seen(lag(lake, group_id=group)) == (LookOutcome.DONE, StreamCause.CAUGHT_UP, 0)
    transaction.begin(name, 0, ["c"])
    # Nor what is not committed.
    assert lag(lake, group_id=group).outcome is LookOutcome.DONE
    transaction.commit()
    behind = lag(lake, group_id=group)
    assert behind.outcome is LookOutcome.WAITING
    assert behind.value is not None
    # The record and its marker; the aborted ones in front of it do not count.
    assert behind.value["lag"] == 2


def test_a_group_that_does_not_wait_for_transactions_may_be_ahead_of_an_open_one(
    lake: Lake, topic: Topics, group: str, produce: Producing, kafka: Kafka, admin: AdminClient
) -> None:
    name, transaction = topic(1), Transaction(kafka, admin)
    produce(name, 0, ["a", "b"])
    transaction.begin(name, 0, ["x", "y"])
    commit(admin, group, name, {0: 4})
    assert seen(lag(lake, group_id=group)) == (LookOutcome.DONE, StreamCause.CAUGHT_UP, 0)
    commit(admin, group, name, {0: 5})
    with_more = lag(lake, group_id=group)
    assert with_more.outcome is LookOutcome.FAILED
    assert f"{name}[0]" in with_more.text
    transaction.abort()


def test_what_retention_took_is_told_apart(lake: Lake, name: str, group: str, admin: AdminClient) -> None:
    commit(admin, group, name, {0: 2, 1: 10})
    admin.delete_records([TopicPartition(name, 0, 7)])[TopicPartition(name, 0, 7)].result(30)
    verdict = lag(lake, group_id=group)
    assert verdict.value is not None
    assert (verdict.value["lag"], verdict.value["lost"]) == (3, 5)
    assert StreamCause.LOST_RECORDS in [reason.cause for reason in verdict.reasons]
    assert f"{name}[0] [2,7)" in verdict.text


# A checkpoint


def test_a_checkpoint_of_a_real_query_is_followed(lake: Lake, name: str, produce: Producing, spark: Any) -> None:
    run = SparkRun(lake, name)
    run.run(spark, max_offsets_per_trigger=12)
    where = {"checkpoint_location": str(run.checkpoint)}
    assert seen(lag(lake, **where)) == (LookOutcome.DONE, StreamCause.CAUGHT_UP, 0)
    produce(name, 0, events(0, 10, 6))
    ended = lag(lake, **where)
    assert seen(ended) == (LookOutcome.WAITING, StreamCause.STOPPED_QUERY, 6)
    assert "its driver has ended (done)" in ended.text
    assert lag(lake, **where, max_lag_records=6).outcome is LookOutcome.DONE
    assert lag(lake, **where, max_lag_records=6, max_batch_age="1ms").outcome is LookOutcome.WAITING
    # Of somebody else's query there is no lease: its batches alone tell.
    shutil.rmtree(f"{run.checkpoint}.lakestream")
    assert seen(lag(lake, **where, max_batch_age="1ms")) == (LookOutcome.WAITING, StreamCause.STOPPED_QUERY, 6)
    assert seen(lag(lake, **where, max_batch_age="1h"))[0] is LookOutcome.DONE
    # A batch that was planned and not committed is not landed.
    last = max(int(one.name) for one in (run.checkpoint / "commits").iterdir() if one.name.isdigit())
    (run.checkpoint / "commits" / str(last)).unlink()
    assert seen(lag(lake, **where))[2] > 6


def checkpoint(folder: Path, **files: str) -> dict[str, str]:
    """Write a checkpoint; returns the sensor's argument."""
    for path, text in {
        "metadata": '{"id":"0f3c"}',
        **{key.replace("__", "/"): text for key, text in files.items()},
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return {"checkpoint_location": str(folder)}


def batch(offsets: dict[str, dict[str, int]], at: float = 0) -> str:
    header = {"batchWatermarkMs": 0, "batchTimestampMs": int(at * 1000), "conf": {}}
    return f"v1\n{json.dumps(header)}\n{json.dumps(offsets)}"


def test_a_checkpoint_whose_old_entries_spark_has_deleted_is_read(lake: Lake, name: str, tmp_path: Path) -> None:
    ends = {name: {"0": 9, "1": 10}}
    given = checkpoint(tmp_path / "c", offsets__107=batch(ends, time.time()), commits__107="v1\n{}")
    assert seen(lag(lake, **given, max_batch_age="1m", max_lag_records=0)) == (
        LookOutcome.WAITING,
        StreamCause.LATE_PARTITION,
        1,
    )


def test_a_query_that_has_begun_and_committed_nothing_lacks_all_from_its_start(
    lake: Lake, name: str, tmp_path: Path
) -> None:
    start = "\0v1\n" + json.dumps({name: {"0": 4, "1": 0, "2": 0}})
    given = checkpoint(tmp_path / "c", sources__0__0=start, offsets__0=batch({name: {"0": 10, "1": 10, "2": 0}}))
    assert seen(lag(lake, **given))[2] == 16


@pytest.mark.parametrize(
    ("files", "text", "may_come"),
    [
        (None, "there is no checkpoint", True),
        ({"metadata": '{"id":'}, "metadata was written in part", True),
        ({"metadata": '{"id":"a"}', "sources__0__0": "\0v"}, "sources/0/0 does not begin with v1", True),
        ({"offsets__0": "v1\n{}", "commits__0": "v1"}, "offsets/0 ends before its offsets", True),
        ({"commits__3": "v1"}, "offsets/3 is missing", True),
        ({}, "has not begun to read", True),
        ({"offsets__0": 'v1\n{}\n{"logOffset":3}', "commits__0": "v1"}, "whose source is not Kafka", False),
        ({"offsets__0": 'v1\n{}\n{"a":{"0":1}}\n{"b":{"0":1}}', "commits__0": "v1"}, "several topics: a, b", False),
        ({"offsets__0": batch({"of-somebody": {"0": 1}}), "commits__0": "v1"}, "of-somebody", True),
    ],
)
def test_a_checkpoint_that_tells_nothing_is_named_and_awaited_where_it_may_come(
    lake: Lake, kafka: Kafka, tmp_path: Path, files: dict[str, str] | None, text: str, may_come: bool
) -> None:
    folder = tmp_path / "c"
    given = {"checkpoint_location": str(folder)} if files is None else checkpoint(folder, **files)
    failed, awaited = lag(lake, **given), lag(lake, **given, missing="wait")
    assert failed.outcome is LookOutcome.FAILED
    assert failed.terminal
    assert text in failed.text
    assert awaited.outcome is (LookOutcome.WAITING if may_come else LookOutcome.FAILED)


def test_a_folder_of_something_else_is_foreign(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "data.parquet").write_text("x")
    assert "there is something else in it" in lag(lake, checkpoint_location=str(tmp_path / "c")).text


def test_a_checkpoint_on_another_kind_of_store_is_read(lake: Lake, name: str) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file("/c/metadata", b'{"id":"0f3c"}')
    memory.pipe_file("/c/offsets/0", batch({name: {"0": 10, "1": 7}}).encode())
    memory.pipe_file("/c/commits/0", b"v1\n{}")
    assert seen(lag(lake, checkpoint_location="memory://c"))[2] == 3
