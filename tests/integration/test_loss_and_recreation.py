"""What is gone from Kafka is gone only loudly, and another topic under the same name is another topic."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.plan import DataLoss, LogTruncated, Plan, TopicReplaced, TopicState
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import RecordChunk, RecordReader
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import Terminal
from airflow_lakestream.kafka.errors import StalledPartition, TopicMissing
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.faults import InterposedReader, InterposedSink, WrappedSource
from tests.support.lake import Lake
from tests.support.lake_reading import at, numbers
from tests.support.sensing import commit
from tests.support.spark import by_spark

pytestmark = pytest.mark.integration

DeleteBelow = Callable[[str, int, int], None]


@pytest.fixture
def delete_below(admin: AdminClient) -> DeleteBelow:
    """Remove the records below an offset, as retention does."""

    def delete(topic: str, partition: int, offset: int) -> None:
        request = [TopicPartition(topic, partition, offset)]
        for result in admin.delete_records(request).values():
            assert result.result(30).low_watermark == offset

    return delete


class Before:
    """A reader that does something before its first reading: after the plan, before the first fetch."""

    def __init__(self, reader: RecordReader, action: Callable[[], object]) -> None:
        self._reader = reader
        self._action: Callable[[], object] | None = action

    def read(self, plan: Plan, cancelled: threading.Event) -> Iterator[RecordChunk]:
        action, self._action = self._action, None
        if action is not None:
            action()
        yield from self._reader.read(plan, cancelled)


# Loss


def test_offsets_lost_before_the_run_are_refused_with_the_exact_range_and_the_remedy(
    lake: Lake, topic_of: TopicOf, produce: Producing, delete_below: DeleteBelow
) -> None:
    name = topic_of(numbers(10), numbers(10))
    lake.land(name)
    produce(name, 0, numbers(10, 10))
    produce(name, 1, numbers(10, 10))
    delete_below(name, 1, 14)

    with pytest.raises(DataLoss) as caught:
        lake.land(name)

    assert caught.value.ranges == RangeSet.of(name, 1, 10, 14)
    assert isinstance(caught.value, Terminal)
    for part in (f"{name}[1] [10,14)", "lake.events", 'on_data_loss="record"'):
        assert part in str(caught.value)
    assert lake.offsets() == at(0, range(10)) + at(1, range(10))
    assert len(lake.snapshots()) == 1


def test_a_recorded_loss_is_in_the_ledger_and_the_report_and_never_brought_up_again(
    lake: Lake, topic_of: TopicOf, produce: Producing, delete_below: DeleteBelow, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic_of(numbers(10))
    lake.land(name)
    produce(name, 0, numbers(10, 10))
    delete_below(name, 0, 14)

    with caplog.at_level(logging.WARNING):
        report = lake.land(name, on_data_loss="record")

    assert lake.offsets() == at(0, [*range(10), *range(14, 20)])
    assert lake.entry(name).landed == RangeSet.of(name, 0, 0, 10) | RangeSet.of(name, 0, 14, 20)
    assert lake.entry(name).lost == RangeSet.of(name, 0, 10, 14)
    assert report.to_dict()["lost"] == [[0, 10, 14]]
    assert f"{name}[0] [10,14)" in caplog.text

    produce(name, 0, numbers(2, 20))
    later = lake.land(name, on_data_loss="fail")
    assert later.to_dict()["lost"] == []
    assert lake.offsets()[-2:] == at(0, (20, 21))


def test_a_loss_with_nothing_left_is_recorded_too(
    lake: Lake, topic_of: TopicOf, produce: Producing, delete_below: DeleteBelow
) -> None:
    name = topic_of(numbers(4))
    lake.land(name)
    produce(name, 0, numbers(4, 4))
    delete_below(name, 0, 8)

    report = lake.land(name, on_data_loss="record")

    assert report.to_dict()["lost"] == [[0, 4, 8]]
    assert report.counts.read == 0
    assert lake.entry(name).lost == RangeSet.of(name, 0, 4, 8)
    assert lake.land(name).snapshot_ids == []


def test_retention_of_offsets_that_are_landed_already_is_no_loss(
    lake: Lake, topic_of: TopicOf, produce: Producing, delete_below: DeleteBelow
) -> None:
    name = topic_of(numbers(10))
    lake.land(name)
    delete_below(name, 0, 10)
    produce(name, 0, numbers(2, 10))

    lake.land(name)

    assert lake.offsets() == at(0, range(12))


def test_a_first_run_begins_where_the_log_begins(lake: Lake, topic_of: TopicOf, delete_below: DeleteBelow) -> None:
    name = topic_of(numbers(10))
    delete_below(name, 0, 6)

    report = lake.land(name)

    assert lake.offsets() == at(0, range(6, 10))
    assert lake.entry(name).origin == {0: 6}
    assert report.to_dict()["lost"] == []


@EACH_FORMAT
@pytest.mark.parametrize("start", ["earliest", "timestamp", "committed"])
@pytest.mark.parametrize("first", ["ranges", "interval"])
def test_a_hole_behind_the_first_ranges_is_lost_loudly(
    first: str, start: str, lake: Lake, topic: Topics, produce: Producing, delete_below: DeleteBelow, admin: AdminClient
) -> None:
    name, group = topic(2, retention_ms=-1), f"g-{uuid.uuid4().hex[:12]}"
    produce(name, 0, numbers(300), timestamps=range(1, 301))
    produce(name, 1, numbers(10), timestamps=range(1, 11))
    by_ranges = {"mode": "ranges", "ranges": [[0, 50, 100]]}
    by_interval = {"mode": "interval", "interval_start": 51, "interval_end": 101}
    lake.land(name, consumer_group=group, **(by_ranges if first == "ranges" else by_interval))
    delete_below(name, 0, 200)
    given: dict[str, Any] = {"consumer_group": group, "start_offset": start}
    if start == "timestamp":
        given["start_timestamp"] = 5
    elif start == "committed":
        # Of partition 0 it has committed none.
        commit(admin, group, name, {1: 4})

    with pytest.raises(DataLoss) as caught:
        lake.land(name, **given)

    assert caught.value.ranges == RangeSet.of(name, 0, 100, 200)
    assert lake.entry(name, group).origin == {}
    lake.land(name, on_data_loss="record", **given)
    entry = lake.entry(name, group)
    assert (entry.lost, entry.origin[0]) == (RangeSet.of(name, 0, 100, 200), 50)
    begin = 0 if start == "earliest" else 4
    assert lake.offsets() == at(0, [*range(50, 100), *range(200, 300)]) + at(1, range(begin, 10))
    assert lake.audit(group=group).verdict is AuditVerdict.CLEAN


@EACH_FORMAT
def test_spark_loses_a_hole_behind_the_first_ranges_loudly(
    lake: Lake, topic_of: TopicOf, delete_below: DeleteBelow, spark: SparkSession
) -> None:
    name = topic_of(numbers(30))
    lake.land(name, mode="ranges", ranges=[[0, 0, 10]])
    delete_below(name, 0, 20)
    run = by_spark(lake, name, {}, spark)
    with pytest.raises(DataLoss, match=r"\[0\] \[10,20\)"):
        run()
    run(on_data_loss="record")
    assert lake.entry(name).lost == RangeSet.of(name, 0, 10, 20)
    assert lake.offsets() == at(0, [*range(10), *range(20, 30)])


@EACH_FORMAT
def test_what_a_start_leaves_out_on_purpose_is_not_lost(
    lake: Lake, topic: Topics, produce: Producing, delete_below: DeleteBelow, admin: AdminClient
) -> None:
    name = topic(1, retention_ms=-1)
    produce(name, 0, numbers(300), timestamps=range(1, 301))
    starts: list[dict[str, Any]] = [
        {"start_offset": "latest"},
        {"start_offset": "timestamp", "start_timestamp": 251},
        {"start_offset": "committed"},
    ]
    groups = [f"g-{uuid.uuid4().hex[:12]}" for _ in starts]
    for group in groups:
        ranges = {"mode": "ranges", "ranges": [[0, 0, 100]]}
        lake.land(name, consumer_group=group, allow_group_overlap=True, **ranges)
    delete_below(name, 0, 200)
    commit(admin, groups[2], name, {0: 200})
    for group, start, begin in zip(groups, starts, (300, 250, 200), strict=True):
        lake.land(name, consumer_group=group, allow_group_overlap=True, **start)
        entry = lake.entry(name, group)
        assert (entry.lost, entry.origin) == (RangeSet(), {0: begin})
        passed_over = f"{name}[0] [100,{begin}): above what the group landed first"
        assert any(note.startswith(passed_over) for note in lake.audit(full=False, group=group).notes)


def test_offsets_lost_between_plan_and_fetch_are_refused_and_nothing_lands_past_them(
    lake: Lake, topic_of: TopicOf, produce: Producing, delete_below: DeleteBelow
) -> None:
    name = topic_of(numbers(5))
    lake.land(name)
    produce(name, 0, numbers(20, 5))
    job = lake.job(name)

    with pytest.raises(DataLoss) as caught:
        land(replace(job, reader=Before(job.reader, lambda: delete_below(name, 0, 12))))

    assert caught.value.ranges == RangeSet.of(name, 0, 5, 12)
    assert lake.landed(name) == {0: [(0, 5)]}
    lake.assert_whole()


def test_offsets_lost_between_plan_and_fetch_are_recorded_and_the_rest_lands(
    lake: Lake, topic_of: TopicOf, delete_below: DeleteBelow
) -> None:
    name = topic_of(numbers(20), numbers(20))
    lake.land(name, max_records=1)
    [(first_partition, _)] = lake.offsets()
    lost_one = 1 - first_partition
    job = lake.job(name, on_data_loss="record")

    report = land(replace(job, reader=Before(job.reader, lambda: delete_below(name, lost_one, 12))))

    assert report.to_dict()["lost"] == [[lost_one, 0, 12]]
    assert sorted(lake.offsets()) == sorted(at(first_partition, range(20)) + at(lost_one, range(12, 20)))
    assert lake.entry(name).lost == RangeSet.of(name, lost_one, 0, 12)
    lake.assert_whole()


def test_offsets_that_were_read_before_retention_took_them_are_no_loss(
    lake: Lake, topic_of: TopicOf, delete_below: DeleteBelow
) -> None:
    name = topic_of(numbers(20))
    job = lake.job(name)

    report = land(replace(job, sink=InterposedSink(job.sink, lambda: delete_below(name, 0, 20))))

    assert lake.offsets() == at(0, range(20))
    assert report.to_dict()["lost"] == []


# Another topic, another cluster


def test_a_topic_created_anew_is_refused_with_both_ids_and_the_remedy(
    lake: Lake, topic_of: TopicOf, topic: Topics, produce: Producing
) -> None:
    name = topic_of(numbers(3))
    lake.land(name)
    old = lake.job(name).source.identity()
    topic.delete(name)
    topic(partitions=1, name=name)
    produce(name, 0, numbers(9, 100))
    new = lake.job(name).source.identity()

    with pytest.raises(TopicReplaced, match="deleted and created again") as caught:
        lake.land(name)

    assert (caught.value.known, caught.value.found) == (old, new)
    assert old.topic_id != new.topic_id
    for part in (name, old.topic_id, new.topic_id, "another consumer_group"):
        assert part in str(caught.value)
    assert lake.offsets() == at(0, range(3))

    # The remedy works.
    lake.land(name, consumer_group="next")
    assert sorted(lake.column("n")) == [0, 1, 2, *range(100, 109)]


def test_a_topic_created_anew_between_plan_and_commit_is_refused(lake: Lake, topic_of: TopicOf, topic: Topics) -> None:
    name = topic_of(numbers(3))
    job = lake.job(name)

    def recreate() -> None:
        topic.delete(name)
        topic(partitions=1, name=name)

    with pytest.raises(TopicReplaced):
        land(replace(job, reader=InterposedReader(job.reader, recreate)))
    assert lake.has_nothing()


def test_a_topic_deleted_before_it_is_read_ends_the_run_and_the_retry_says_why(
    lake: Lake, topic_of: TopicOf, topic: Topics
) -> None:
    name = topic_of(numbers(3), numbers(3))
    job = lake.job(name, poll_timeout=3)

    # To the consumer a deleted topic is one that says nothing for a while.
    with pytest.raises((StalledPartition, TopicMissing), match=name):
        land(replace(job, reader=Before(job.reader, lambda: topic.delete(name))))
    with pytest.raises(TopicMissing, match=name):
        lake.land(name)
    assert lake.has_nothing()


class OtherCluster(WrappedSource):
    """The same topic, as another cluster would show it."""

    CLUSTER = "another-cluster"

    def look(self) -> TopicState:
        state = self._source.look()
        return replace(state, identity=replace(state.identity, cluster_id=self.CLUSTER))

    def identity(self) -> TopicIdentity:
        return replace(self._source.identity(), cluster_id=self.CLUSTER)


def test_another_clusters_id_is_refused(lake: Lake, topic_of: TopicOf, produce: Producing) -> None:
    name = topic_of(numbers(3))
    lake.land(name)
    produce(name, 0, numbers(3, 3))
    job = lake.job(name)

    with pytest.raises(TopicReplaced, match="leads to another Kafka cluster") as caught:
        land(replace(job, source=OtherCluster(job.source)))

    assert job.source.identity().cluster_id in str(caught.value)
    assert OtherCluster.CLUSTER in str(caught.value)
    assert lake.offsets() == at(0, range(3))


class ShorterLog(WrappedSource):
    """The same topic with its log cut, as after an unclean leader election or a restore from a backup."""

    END = 2

    def look(self) -> TopicState:
        state = self._source.look()
        return replace(state, marks={p: replace(m, end=self.END) for p, m in state.marks.items()})


def test_a_log_shorter_than_the_ledger_is_refused(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(numbers(5))
    lake.land(name)
    job = lake.job(name)

    with pytest.raises(LogTruncated) as caught:
        land(replace(job, source=ShorterLog(job.source)))

    assert (caught.value.partition, caught.value.landed_until, caught.value.end) == (0, 5, ShorterLog.END)
    for part in (f"{name}[0]", "up to 5", "its log ends at 2", "another table or another consumer_group"):
        assert part in str(caught.value)
    assert len(lake.snapshots()) == 1
