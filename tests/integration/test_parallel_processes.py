"""One run that reads by several processes: each record once, in whole commits, whoever of them dies or fails."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka.admin import AdminClient

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import FIRST_OFFSETS
from airflow_lakestream.core.landing.job import Stopped
from airflow_lakestream.core.names import REJECTED
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.registry.client import RegistryUnavailable
from airflow_lakestream.run.processes import reader_processes
from airflow_lakestream.runtime.processes import FailedInChild, ProcessDied
from dev.services.kafka import Kafka
from dev.services.registry import Registry
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import GROUP, TABLE, Lake, assert_landed_once, events
from tests.support.parallel_run import ParallelRun
from tests.support.transactions import Transaction

pytestmark = pytest.mark.integration

COUNTS = {0: 300, 1: 120, 2: 180}
# An hour ago: older records would fall to retention.
START = int(time.time() * 1000) - 3_600_000
SCHEMA = "id bigint, name string, score double"


@pytest.fixture
def transaction(kafka: Kafka, admin: AdminClient) -> Transaction:
    return Transaction(kafka, admin)


def produced(topic: Topics, produce: Producing) -> str:
    name = topic(partitions=len(COUNTS))
    for partition, count in COUNTS.items():
        produce(name, partition, events(partition, 0, count))
    return name


@EACH_FORMAT
def test_each_record_lands_once(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = produced(topic, produce)
    report = ParallelRun(lake, name).land()
    assert (report["processes"], report["rows"], report["remaining_lag"]) == (2, sum(COUNTS.values()), 0)
    assert_landed_once(lake, name, COUNTS)
    lake.assert_whole()
    assert len(lake.snapshots()) == 1
    # The schema of the first run came from records that the parent read; the next takes the table's.
    produce(name, 1, events(1, COUNTS[1], 50))
    assert ParallelRun(lake, name).land()["rows"] == 50
    assert ParallelRun(lake, name).land()["rows"] == 0
    assert len(lake.snapshots()) == 2
    assert_landed_once(lake, name, COUNTS | {1: COUNTS[1] + 50})


def test_the_landing_itself_reads_no_record_that_has_no_say_in_the_columns(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = produced(topic, produce)
    report = ParallelRun(lake, name, {"format": "raw"}, fault="the parent reads nothing").land()
    assert (report["processes"], report["rows"]) == (2, sum(COUNTS.values()))
    rows = lake.table().scan(row_filter="_kafka_partition = 1").to_arrow().sort_by("_kafka_offset")
    assert [value.decode() for value in rows["value"].to_pylist()] == events(1, 0, COUNTS[1])
    with pytest.raises(AssertionError, match="the landing itself reads"):
        ParallelRun(lake, name, {"table": "lake.other"}, fault="the parent reads nothing").land()


def test_the_columns_come_from_the_first_records_that_there_are(
    lake: Lake, topic: Topics, produce: Producing, transaction: Transaction
) -> None:
    name = topic(partitions=2)
    # More than the landing itself would read for the columns.
    transaction.begin(name, 0, [b"never"] * (FIRST_OFFSETS + 10))
    transaction.abort()
    produce(name, 0, events(0, 0, 100))
    produce(name, 1, events(1, 0, 50))
    report = ParallelRun(lake, name).land()
    assert (report["processes"], report["rows"], report["remaining_lag"]) == (2, 150, 0)
    assert sorted(lake.table().scan().to_arrow()["id"].to_pylist()) == [*range(100), *range(10_000_000, 10_000_050)]


@pytest.mark.parametrize("given", [{}, {"schema": "id bigint"}], ids=["by the registry", "by hand"])
def test_a_schema_is_compiled_once_for_all_processes(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry, given: dict[str, str]
) -> None:
    name = topic(partitions=2)
    text = f'syntax = "proto3"; message Of{name.replace("-", "")} {{ int64 id = 1; }}'
    schema_id = registry.register(f"{name}-value", text, "PROTOBUF")
    for partition in range(2):
        produce(name, partition, [b"\0" + schema_id.to_bytes(4, "big") + b"\0\x08\x07"] * 100)
    config = {"format": "protobuf", "schema_registry": registry.url, **given}
    report = ParallelRun(lake, name, config, fault="the children compile nothing").land()
    assert (report["processes"], report["rows"]) == (2, 200)
    assert set(lake.table().scan().to_arrow()["id"].to_pylist()) == {7}


def test_a_registry_that_is_down_harms_no_run_that_needs_it_not(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(partitions=1)
    nobody = "http://127.0.0.1:9"
    config = {"format": "protobuf", "schema_registry": nobody, "schema": "id bigint"}
    assert ParallelRun(lake, name, config).land()["rows"] == 0
    produce(name, 0, [b"\0\0\0\0\x01\0\x08\x07"])
    with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1:9"):
        ParallelRun(lake, name, {**config, "schema_registry": {"url": nobody, "retries": "0"}}).land()


def test_the_limits_cut_what_all_processes_read_into_whole_commits(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = produced(topic, produce)
    size = sum(len(value) for partition, count in COUNTS.items() for value in events(partition, 0, count))
    report = ParallelRun(lake, name, {"schema": SCHEMA, "max_batch_bytes": size // 4}).land()
    assert report["rows"] == sum(COUNTS.values())
    assert 2 <= len(lake.snapshots()) <= 6
    assert_landed_once(lake, name, COUNTS)
    lake.assert_whole()


def test_most_records_are_kept_to(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = produced(topic, produce)
    assert ParallelRun(lake, name, {"schema": SCHEMA, "max_records": 250}).land()["rows"] == 250
    report = ParallelRun(lake, name, {"schema": SCHEMA}).land()
    assert report["rows"] == sum(COUNTS.values()) - 250
    assert_landed_once(lake, name, COUNTS)


def test_an_interval_is_covered(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(partitions=2)
    for partition in (0, 1):
        produce(name, partition, events(partition, 0, 100), timestamps=[START + n for n in range(100)])
    config = {"mode": "interval", "interval_start": START, "interval_end": START + 50, "schema": SCHEMA}
    report = ParallelRun(lake, name, config).land()
    assert (report["rows"], report["complete"]) == (100, True)
    assert lake.landed(name) == {0: [(0, 50)], 1: [(0, 50)]}


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_a_bad_record_is_the_same_error_as_in_one_process(
    lake: Lake, topic: Topics, produce: Producing, schema: str | None
) -> None:
    name = produced(topic, produce)
    produce(name, 2, ["[1]"])
    run = ParallelRun(lake, name, {"on_error": "fail", "schema": schema})
    with pytest.raises(BadRecord, match=rf"{name}\[2\] offset {COUNTS[2]}") as caught:
        run.land()
    assert (caught.value.partition, caught.value.offset) == (2, COUNTS[2])
    assert lake.has_nothing()


@EACH_FORMAT
def test_rejected_records_are_kept_with_the_commit(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = produced(topic, produce)
    for partition in COUNTS:
        produce(name, partition, ["no JSON"] * 2)
    report = ParallelRun(lake, name, {"schema": SCHEMA}).land()
    assert (report["rows"], report["rejected"]) == (sum(COUNTS.values()), 6)
    kept = lake.scan(REJECTED)
    assert sorted(zip(kept["_kafka_partition"].to_pylist(), kept["_kafka_offset"].to_pylist(), strict=True)) == [
        (partition, count + n) for partition, count in COUNTS.items() for n in range(2)
    ]


def test_a_process_that_is_killed_fails_the_run_and_leaves_nothing(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = produced(topic, produce)
    run = ParallelRun(lake, name, {"schema": SCHEMA}, fault="die")
    with pytest.raises(ProcessDied, match="signal 9"):
        run.land()
    assert lake.has_nothing()
    again = ParallelRun(lake, name, run.config, run.run_id)
    assert again.land()["rows"] == sum(COUNTS.values())
    assert_landed_once(lake, name, COUNTS)
    lake.assert_whole()


def test_the_processes_of_a_killed_run_end_and_delete_what_they_wrote(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = produced(topic, produce)
    run = ParallelRun(lake, name, {"schema": SCHEMA}, fault="kill the parent")
    run.land_until_killed()
    assert not [path for path in lake.files() if path.endswith(".parquet")]
    again = ParallelRun(lake, name, run.config, run.run_id)
    assert again.land()["rows"] == sum(COUNTS.values())
    assert_landed_once(lake, name, COUNTS)


def test_a_stop_reaches_the_processes_and_leaves_nothing(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = produced(topic, produce)
    with pytest.raises(Stopped):
        ParallelRun(lake, name, {"schema": SCHEMA}, fault="stop").land()
    assert lake.has_nothing()


def test_an_error_that_can_not_be_sent_is_told_in_its_words(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = produced(topic, produce)
    with pytest.raises(FailedInChild, match="Odd"):
        ParallelRun(lake, name, {"schema": SCHEMA}, fault="break oddly").land()
    assert lake.has_nothing()


def test_one_process_reads_where_others_can_not_or_must_not(lake: Lake, topic: Topics, produce: Producing) -> None:
    config = ExtractConfig(topic="t", table=TABLE, consumer_group=GROUP, parallelism=2)
    ends = threading.Event()
    other = threading.Thread(target=ends.wait)
    other.start()
    try:
        with reader_processes(config, lake.kafka) as children:
            assert children is None, "forked beside another thread"
    finally:
        ends.set()
        other.join()
    name = produced(topic, produce)
    landed = ParallelRun(lake, name, {"parallelism": 1}).land()
    assert (landed["processes"], landed["rows"]) == (0, sum(COUNTS.values()))
    ranges = {"mode": "ranges", "ranges": [[0, 0, COUNTS[0]]], "replace": True}
    assert ParallelRun(lake, name, ranges).land()["processes"] == 0
    assert_landed_once(lake, name, COUNTS)
