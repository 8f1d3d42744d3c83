"""Times at the edges of what Kafka knows: before 1970, at it, far beyond now; against a look at each record."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.plan import BeginningGone, BeginningLost, TopicState
from airflow_lakestream.core.policies import StartOffset
from airflow_lakestream.core.ports import TimeBoundary, TopicSource
from airflow_lakestream.kafka.source import CLOCK_SKEW_MS, KafkaSource, StartAt
from airflow_lakestream.kafka.watch import KafkaWatch
from dev.services.kafka import Kafka
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import lake_of_each_format
from tests.support.lake import Lake, assert_landed_once, events
from tests.support.spark import by_spark

pytestmark = pytest.mark.integration

SCHEMA = "id bigint, name string, score double"
# Nothing is removed for its age, and records may be dated when they like.
KEPT = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
YEAR_2025 = 1_735_689_600_000
# Kafka takes -1 to -6 of them for "latest", "earliest", "largest timestamp" and so on, and knows none below.
BEFORE_1970 = [-1, -2, -3, -4, -5, -6, -7, "-1", "1969-12-31T23:59:59.999Z", datetime(1, 1, 1, tzinfo=UTC)]


lake = lake_of_each_format


def interval(start: Any, end: Any) -> dict[str, Any]:
    return {"mode": "interval", "interval_start": start, "interval_end": end}


def dated(topic: Topics, produce: Producing, *stamps: int) -> str:
    """Return a topic with a record for each of these times, in one partition."""
    name = topic(1, **KEPT)
    produce(name, 0, events(0, 0, len(stamps)), timestamps=stamps)
    return name


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    """Give a topic of four records of 2025, a second apart."""
    return dated(topic, produce, *(YEAR_2025 + 1000 * n for n in range(4)))


@pytest.mark.parametrize("start", [*BEFORE_1970, 0, "1970-01-01"], ids=str)
def test_a_start_before_1970_is_the_beginning(lake: Lake, name: str, start: Any) -> None:
    lake.land(name, start_offset="timestamp", start_timestamp=start)
    assert_landed_once(lake, name, {0: 4})
    (entry,) = lake.ledger().topics.values()
    assert entry.origin == {0: 0}


@pytest.mark.parametrize("start", BEFORE_1970, ids=str)
def test_an_interval_that_begins_before_1970_begins_at_the_beginning(lake: Lake, name: str, start: Any) -> None:
    report = lake.land(name, **interval(start, YEAR_2025 + 2000))
    assert (report.counts.read, report.completes) == (2, True)
    # And it keeps no later one from landing what is its own.
    lake.land(name, **interval(YEAR_2025, YEAR_2025 + 3000))
    lake.land(name, **interval(YEAR_2025 + 3000, YEAR_2025 + 9000))
    assert_landed_once(lake, name, {0: 4})


class EarlierSource:
    """A source as it was: -1 meant the log's end to it."""

    def __init__(self, source: TopicSource) -> None:
        self._source = source

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, TimeBoundary]:
        return self._source.boundaries(state, 2**50 if at_ms == -1 else at_ms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def test_what_an_earlier_version_called_covered_and_did_not_land_is_landed(lake: Lake, name: str) -> None:
    job = lake.job(name, schema=SCHEMA, **interval(-1, YEAR_2025 + 9000))
    land(replace(job, source=EarlierSource(job.source)))
    (entry,) = lake.ledger().topics.values()
    assert (lake.landed(name), entry.covered) == ({}, ((-1, YEAR_2025 + 9000),))
    lake.land(name, **interval(YEAR_2025, YEAR_2025 + 9000))
    assert_landed_once(lake, name, {0: 4})


def test_an_interval_that_ends_before_1970_is_empty_and_complete(
    lake: Lake, name: str, admin: AdminClient, produce: Producing
) -> None:
    empty = [(-5, -1), (-5000, "1969-12-31T23:59:59Z"), (-1, 0), ("1968-01-01", "1970-01-01")]
    for start, end in empty:
        report = lake.land(name, **interval(start, end))
        assert (report.counts.read, report.snapshot_ids, report.completes) == (0, [], True)
    lake.land(name, **interval(0, YEAR_2025 + 9000))
    assert_landed_once(lake, name, {0: 4})
    # Where retention took the log's start, nothing of it was from before 1970.
    _trim(admin, name, 3)
    for start, end in empty:
        assert lake.land(name, **interval(start, end)).completes
        assert lake.land(name, **interval(start, end), replace=True).completes
    assert_landed_once(lake, name, {0: 4})


def test_a_beginning_that_retention_took_is_lost_also_for_an_interval_from_before_1970(
    lake: Lake, name: str, admin: AdminClient
) -> None:
    _trim(admin, name, 2)
    whole = interval(-1, YEAR_2025 + 2500)
    with pytest.raises(BeginningLost, match=r"\[0,2\)"):
        lake.land(name, **whole)
    lake.land(name, on_data_loss="record", **whole)
    (entry,) = lake.ledger().topics.values()
    assert [(r.from_offset, r.until_offset) for r in entry.lost] == [(0, 2)]
    assert lake.landed(name) == {0: [(2, 3)]}


def test_a_beginning_that_is_landed_and_gone_is_not_replaced_from_before_1970(
    lake: Lake, name: str, admin: AdminClient
) -> None:
    lake.land(name)
    _trim(admin, name, 2)
    with pytest.raises(BeginningGone, match=r"\[0,2\)"):
        lake.land(name, replace=True, **interval(-1, YEAR_2025 + 2500))
    assert_landed_once(lake, name, {0: 4})


def test_records_without_a_time_or_from_before_1970_belong_to_the_interval_that_they_lie_in(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    none = -1
    name = dated(topic, produce, none, -5000, YEAR_2025, none, -1000, YEAR_2025 + 5000, none)
    # Days that are landed in any order, from the first one that Kafka knows: nothing lies between two of them.
    for start, end in ((YEAR_2025 + 1000, YEAR_2025 + 9000), (0, YEAR_2025), (YEAR_2025, YEAR_2025 + 1000)):
        lake.land(name, **interval(start, end))
    assert_landed_once(lake, name, {0: 7})
    assert lake.land(name, **interval(-10_000, 0)).completes


def test_a_topic_without_any_time_is_landed_by_an_interval_and_never_complete(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = dated(topic, produce, -1, -1, -1)
    report = lake.land(name, **interval(0, YEAR_2025))
    assert (report.counts.read, report.completes) == (3, False)
    assert_landed_once(lake, name, {0: 3})


def test_an_interval_up_to_the_last_time_there_is_stays_open(lake: Lake, name: str) -> None:
    report = lake.land(name, **interval("1970-01-01", "9999-12-31T23:59:59.999Z"))
    assert (report.counts.read, report.completes) == (4, False)
    assert report.to_dict()["interval"][1] == "9999-12-31T23:59:59.999000+00:00"
    report = lake.land(name, start_offset="timestamp", start_timestamp="9999-12-31T23:59:59.999Z", consumer_group="h")
    assert report.counts.read == 0


@pytest.fixture
def trimmed(request: pytest.FixtureRequest, topic: Topics, produce: Producing, admin: AdminClient) -> str:
    """Give a topic whose young record at offset 2 Kafka does not find by a time.

    Kafka looks for it in the first segment alone, for that held a young record until it was deleted.
    """
    name = topic(1, **KEPT, **{"segment.ms": "1000000"})
    for seconds in (500, 1, 2000):
        produce(name, 0, events(0, seconds, 1), timestamps=[YEAR_2025 + 1000 * seconds])
    _trim(admin, name, request.param)
    return name


deleted = pytest.mark.parametrize(
    "trimmed", [pytest.param(1, id="part of a segment"), pytest.param(2, id="whole segment")], indirect=True
)


@deleted
def test_a_start_finds_its_record_also_where_kafka_misses_it(lake: Lake, trimmed: str) -> None:
    lake.land(trimmed, start_offset="timestamp", start_timestamp=YEAR_2025 + 400_000)
    assert lake.landed(trimmed) == {0: [(2, 3)]}


@deleted
def test_an_interval_lands_its_record_also_where_kafka_misses_it(lake: Lake, trimmed: str) -> None:
    # What was deleted may have been of the interval: that is another test's question.
    options = {"on_data_loss": "record", "schema": SCHEMA}
    report = lake.land(trimmed, **interval(YEAR_2025 + 400_000, YEAR_2025 + 1_900_000), **options)
    assert (report.counts.read, report.completes) == (0, True)
    report = lake.land(trimmed, **interval(YEAR_2025 + 1_900_000, YEAR_2025 + 3_000_000), **options)
    assert (report.counts.read, report.completes) == (1, False)
    assert lake.landed(trimmed) == {0: [(2, 3)]}


def test_spark_takes_a_time_before_1970_for_the_beginning(lake: Lake, name: str, spark: SparkSession) -> None:
    run = by_spark(lake, name, {"schema": SCHEMA}, spark)
    run(**interval(-1, YEAR_2025 + 2000))
    assert lake.landed(name) == {0: [(0, 2)]}
    run(**interval(-3, -2))
    run(**interval(YEAR_2025, YEAR_2025 + 9000))
    assert_landed_once(lake, name, {0: 4})
    begin = by_spark(lake, name, {"schema": SCHEMA, "consumer_group": "h", "allow_group_overlap": True}, spark)
    begin(start_offset="timestamp", start_timestamp=-1)
    assert lake.landed(name, "h") == {0: [(0, 4)]}


# Against a look at each record


@pytest.mark.parametrize("seed", range(4))
def test_times_stand_where_a_look_at_each_record_finds_them(
    seed: int, kafka: Kafka, topic: Topics, produce: Producing, admin: AdminClient
) -> None:
    chance = random.Random(seed)
    now_ms = int(time.time() * 1000)
    times = [-(2**62), -70_000, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 1000, YEAR_2025, YEAR_2025 + 1, now_ms - 5000]
    times += [2 * now_ms, 253_402_300_799_999, 2**63 - 1]
    name = topic(3, **KEPT, **{"segment.ms": "1000"})
    for p in (0, 1):
        # The producer takes 0 for "now". A batch for each few records, so that there are several segments.
        stamps = [chance.choice([t for t in times if t]) for _ in range(chance.randint(1, 25))]
        for at in range(0, len(stamps), 3):
            some = stamps[at : at + 3]
            produce(name, p, ["x"] * len(some), timestamps=some)
        if chance.random() < 0.7:
            _trim(admin, name, chance.randint(1, len(stamps)), p)
    records = _read(kafka, name)
    source = KafkaSource(kafka.client_config(), name, "g", StartAt(), "a test")
    watch, state = KafkaWatch(kafka.client_config(), "a test"), source.look()
    asked = sorted({*times, -(2**63), 2**63, 2**70, *(chance.randint(-(2**40), 2**43) for _ in range(20))})
    before = dict.fromkeys(state.marks, 0)
    for at_ms in asked:
        found = source.boundaries(state, at_ms)
        assert found == watch.boundaries(state, at_ms)
        for p, boundary in found.items():
            first = _first(records[p], at_ms, until_ms=int(time.time() * 1000) + CLOCK_SKEW_MS)
            expected = TimeBoundary(first, False) if first is not None else TimeBoundary(state.marks[p].end, True)
            assert boundary == (TimeBoundary(state.marks[p].low) if at_ms <= 0 else expected), (p, at_ms)
            # Later times never stand before earlier ones, or tiles would overlap.
            assert boundary.offset >= before[p]
            before[p] = boundary.offset
        starts = KafkaSource(kafka.client_config(), name, "g", StartAt(StartOffset.TIMESTAMP, at_ms), "a test")
        expected_starts = {
            p: marks.low if at_ms <= 0 else _first(records[p], at_ms, 2**63, marks.end)
            for p, marks in state.marks.items()
        }
        lows = {p: marks.low for p, marks in state.marks.items()}
        # A start at the log's start is left out.
        found_starts = {p: offset for p, offset in expected_starts.items() if offset > lows[p]}
        assert starts.starts(state) == found_starts, at_ms
        assert watch.offsets_at(state, at_ms) == expected_starts, at_ms


def _first(records: list[tuple[int, int]], at_ms: int, until_ms: int, without: int | None = None) -> int | None:
    return next((offset for offset, stamp in records if at_ms <= stamp <= until_ms), without)


def _read(kafka: Kafka, name: str) -> dict[int, list[tuple[int, int]]]:
    """Return (offset, timestamp) of each record, by partition."""
    settings = {"group.id": uuid.uuid4().hex, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = Consumer({**kafka.client_config(), **settings})
    consumer.assign([TopicPartition(name, p, 0) for p in range(3)])
    found: dict[int, list[tuple[int, int]]] = {p: [] for p in range(3)}
    ended: set[int] = set()
    while len(ended) < 3:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found[message.partition()].append((message.offset(), message.timestamp()[1]))
    consumer.close()
    return found


def _trim(admin: AdminClient, name: str, low: int, partition: int = 0) -> None:
    where = TopicPartition(name, partition, low)
    admin.delete_records([where])[where].result(30)
