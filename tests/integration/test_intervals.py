"""Intervals, ranges and replacements on the real broker: which offsets a run covers, and what it leaves alone."""

from __future__ import annotations

import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg.types import StringType

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.plan import BeginningGone, BeginningLost, DataLoss, RangesGone
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ports import CannotReplace
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.faults import InterposedReader
from tests.support.lake import Lake, assert_landed_once, events

pytestmark = pytest.mark.integration

# Whole hours of a day that lies behind.
DAY = 1_763_596_800_000
HOUR = 3_600_000
# Retention goes by the records' timestamps, and by default nothing may be dated more than an hour ahead.
KEPT = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}


def interval(first: int, last: int | None = None) -> dict[str, Any]:
    """Return the arguments for the hours from `first` to `last` of the day."""
    end = first + 1 if last is None else last
    return {"mode": "interval", "interval_start": DAY + first * HOUR, "interval_end": DAY + end * HOUR}


def minutes(*at: float) -> list[int]:
    """Return timestamps, in minutes since the day began."""
    return [DAY + int(minute * 60_000) for minute in at]


def landed(report: LandingReport) -> list[list[int]]:
    ranges: list[list[int]] = report.to_dict()["ranges"]
    return ranges


def test_intervals_tile_in_any_order_with_records_late_and_out_of_order(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = topic(2, **KEPT)
    chance = random.Random(5)
    for partition in (0, 1):
        # Rising on the whole, an hour out of order here and there, over five hours.
        stamps = [DAY + n * 3 * 60_000 + chance.choice([0, 0, 0, -HOUR, HOUR // 2]) for n in range(100)]
        produce(name, partition, events(partition, 0, 100), timestamps=stamps)

    for hour in (3, 0, 4, 1, 2):
        lake.land(name, **interval(hour))
    # What is dated before the day or behind its fifth hour: the first records, and the end.
    lake.land(name, **interval(-5, 0))
    lake.land(name, **interval(5, 9))

    assert_landed_once(lake, name, {0: 100, 1: 100})
    lake.assert_whole()


def test_intervals_at_the_same_time_land_every_record_once(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(2, **KEPT)
    for partition in (0, 1):
        stamps = [DAY + n * 60_000 for n in range(8 * 60)]
        produce(name, partition, events(partition, 0, 8 * 60), timestamps=stamps)
    jobs = [lake.job(name, **interval(hour)) for hour in (*range(8), 2, 5)]

    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(land, jobs))

    assert_landed_once(lake, name, {0: 480, 1: 480})
    assert sum(report.counts.written for report in reports) == 960
    lake.assert_whole()


def test_a_topic_with_the_brokers_time(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(1, **{"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    produce(name, 0, events(0, 0, 20), timestamps=minutes(*range(20)))

    report = lake.land(name, mode="interval", interval_start=before - HOUR, interval_end=before)
    assert report.counts.read == 0
    report = lake.land(name, mode="interval", interval_start=before, interval_end=before + HOUR)
    assert landed(report) == [[0, 0, 20]]
    assert_landed_once(lake, name, {0: 20})


def test_an_interval_that_is_over_is_complete_and_landed_again_adds_nothing(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 4), timestamps=minutes(5, 50, 70, 130), **KEPT)

    report = lake.land(name, **interval(0))
    assert landed(report) == [[0, 0, 2]]
    told = report.to_dict()
    assert told["interval"] == ["2025-11-20T00:00:00+00:00", "2025-11-20T01:00:00+00:00"]
    assert told["complete"]

    snapshots = lake.snapshots()
    again = lake.land(name, **interval(0))
    assert (again.counts.read, again.snapshot_ids, again.completes) == (0, [], True)
    assert lake.snapshots() == snapshots


def test_an_interval_whose_end_is_open_is_not_complete_and_its_seam_is_closed_later(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(events(0, 0, 2), timestamps=minutes(5, 50), **KEPT)
    assert not lake.land(name, **interval(0)).completes

    # Two late ones of the first hour, then one of the second, one of the third.
    produce(name, 0, events(0, 2, 4), timestamps=minutes(40, 41, 65, 125))
    report = lake.land(name, **interval(1))
    assert landed(report) == [[0, 2, 5]]
    assert report.completes
    assert lake.land(name, **interval(0)).completes
    assert lake.landed(name) == {0: [(0, 5)]}


def test_a_record_dated_far_beyond_now_does_not_hold_back_those_behind_it(
    lake: Lake, topic: Topics, produce: Producing, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(1, **KEPT)
    in_2099 = 4_070_908_800_000
    produce(name, 0, events(0, 0, 5), timestamps=[*minutes(5), in_2099, *minutes(50, 70, 130)])

    with caplog.at_level(logging.WARNING, "airflow_lakestream"):
        assert landed(lake.land(name, **interval(0))) == [[0, 0, 3]]
    assert f"{name}[0] offset 1 is dated in the future" in caplog.text
    assert landed(lake.land(name, **interval(1))) == [[0, 3, 4]]


def test_an_interval_below_what_retention_left(lake: Lake, topic_of: TopicOf, admin: AdminClient) -> None:
    name = topic_of(events(0, 0, 6), timestamps=minutes(5, 20, 35, 50, 70, 130), **KEPT)
    admin.delete_records([TopicPartition(name, 0, 2)])[TopicPartition(name, 0)].result(30)

    with pytest.raises(BeginningLost, match=rf"{name}\[0\] \[0,2\)"):
        lake.land(name, **interval(0))
    assert lake.has_nothing()

    report = lake.land(name, on_data_loss="record", **interval(0))
    assert landed(report) == [[0, 2, 4]]
    assert report.to_dict()["lost"] == [[0, 0, 2]]
    assert landed(lake.land(name, **interval(1))) == [[0, 4, 5]]


def test_resume_lands_the_holes_that_intervals_left(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 60), timestamps=[DAY + n * 10 * 60_000 for n in range(60)], **KEPT)
    lake.land(name, **interval(2))
    lake.land(name, **interval(5))

    report = lake.land(name)
    assert landed(report) == [[0, 0, 12], [0, 18, 30], [0, 36, 60]]
    assert_landed_once(lake, name, {0: 60})
    assert lake.committed_offsets(name) == {0: 60}


@EACH_FORMAT
def test_ranges_by_hand(lake: Lake, topic_of: TopicOf, admin: AdminClient) -> None:
    name = topic_of(events(0, 0, 50), events(1, 0, 50), **KEPT)
    report = lake.land(name, mode="ranges", ranges="[[0, 10, 20], [1, 5, 6]]")
    assert landed(report) == [[0, 10, 20], [1, 5, 6]]
    assert landed(lake.land(name, mode="ranges", ranges=[[0, 5, 25]])) == [[0, 5, 10], [0, 20, 25]]
    assert lake.land(name, mode="ranges", ranges=[[0, 6, 24]]).counts.read == 0

    admin.delete_records([TopicPartition(name, 1, 10)])[TopicPartition(name, 1)].result(30)
    with pytest.raises(DataLoss, match=rf"{name}\[1\] \[8,10\)"):
        lake.land(name, mode="ranges", ranges=[[1, 8, 12]])
    assert lake.landed(name) == {0: [(5, 25)], 1: [(5, 6)]}


# Replace


@EACH_FORMAT
def test_replace_reads_an_interval_again_in_one_snapshot(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(2, **KEPT)
    for partition in (0, 1):
        produce(name, partition, events(partition, 0, 60), timestamps=[DAY + n * 10 * 60_000 for n in range(60)])
    lake.land(name)
    before = lake.snapshots()

    report = lake.land(name, replace=True, **interval(3, 5))

    assert landed(report) == [[0, 18, 30], [1, 18, 30]]
    assert report.counts.written == 24
    assert len(lake.snapshots()) == len(before) + 1
    assert_landed_once(lake, name, {0: 60, 1: 60})
    entry = next(iter(lake.ledger().topics.values()))
    assert entry.counts.written == 120
    lake.assert_whole()


def test_replace_lands_what_was_not_there_too(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 30), timestamps=[DAY + n * 10 * 60_000 for n in range(30)], **KEPT)
    lake.land(name, mode="ranges", ranges=[[0, 3, 9]])

    report = lake.land(name, replace=True, **interval(0, 2))
    assert landed(report) == [[0, 0, 12]]
    assert lake.landed(name) == {0: [(0, 12)]}
    assert report.counts.written == 12
    again = lake.land(name, replace=True, mode="ranges", ranges=[[0, 0, 12]])
    assert again.counts.written == 12
    assert lake.table().scan().to_arrow().num_rows == 12


def test_replace_with_another_schema_decodes_anew(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(1, **KEPT)
    produce(name, 0, ['{"id": 1, "name": "one"}', '{"id": 2, "name": "two"}'], timestamps=minutes(1, 2))
    lake.land(name, schema="id bigint")
    table = lake.table()
    with table.update_schema() as update:
        update.add_column("name", StringType())
    lake.land(name, replace=True, mode="ranges", ranges=[[0, 0, 2]])
    found = lake.table().scan().to_arrow().sort_by("_kafka_offset")
    assert found["name"].to_pylist() == ["one", "two"]


def test_what_kafka_no_longer_has_is_not_replaced(lake: Lake, topic_of: TopicOf, admin: AdminClient) -> None:
    name = topic_of(events(0, 0, 20), **KEPT)
    lake.land(name)
    before = lake.snapshots()
    admin.delete_records([TopicPartition(name, 0, 5)])[TopicPartition(name, 0)].result(30)

    with pytest.raises(RangesGone, match=rf"{name}\[0\] \[3,5\).*Nothing was removed"):
        lake.land(name, replace=True, mode="ranges", ranges=[[0, 3, 8]])
    assert lake.snapshots() == before
    assert_landed_once(lake, name, {0: 20})


def test_an_interval_whose_beginning_kafka_no_longer_has_is_not_replaced(
    lake: Lake, topic_of: TopicOf, admin: AdminClient
) -> None:
    name = topic_of(events(0, 0, 6), timestamps=minutes(5, 20, 35, 50, 70, 130), **KEPT)
    lake.land(name)
    admin.delete_records([TopicPartition(name, 0, 2)])[TopicPartition(name, 0)].result(30)
    before = lake.snapshots()

    with pytest.raises(BeginningGone, match=rf"{name}\[0\] \[0,2\).*Nothing was removed"):
        lake.land(name, replace=True, **interval(0))
    assert lake.snapshots() == before

    assert landed(lake.land(name, replace=True, on_data_loss="record", **interval(0))) == [[0, 2, 4]]
    assert landed(lake.land(name, replace=True, **interval(1))) == [[0, 4, 5]]
    assert_landed_once(lake, name, {0: 6})


def test_a_table_without_the_metadata_columns_is_not_replaced(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 10), **KEPT)
    lake.land(name, metadata_columns=["offset"])
    before = lake.snapshots()
    with pytest.raises(CannotReplace, match="metadata"):
        lake.land(name, replace=True, mode="ranges", ranges=[[0, 0, 5]], metadata_columns=["offset"])
    assert lake.snapshots() == before
    lake.assert_whole()


def test_another_writer_in_the_middle_of_a_replacement(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 40), **KEPT)
    lake.land(name, mode="ranges", ranges=[[0, 0, 30]])
    job = lake.job(name, replace=True, mode="ranges", ranges=[[0, 10, 20]])
    reader = InterposedReader(job.reader, lambda: lake.land(name))
    report = land(replace(job, reader=reader))
    assert report.counts.written == 10
    assert_landed_once(lake, name, {0: 40})
    lake.assert_whole()
