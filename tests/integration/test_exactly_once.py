"""A topic lands in a table: every record once, in one commit or many, and nothing of what was not committed."""

import logging
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import CHUNKS_AHEAD, Stopped
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.tables import row_buffer
from dev.services.kafka import Kafka
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.faults import InterposedReader, InterposedSource, SmallChunks, WatchedFileIO
from tests.support.lake import GROUP, Lake, assert_landed_once, events

pytestmark = pytest.mark.integration

WATCHED = {"py-io-impl": "tests.support.faults.WatchedFileIO"}


@pytest.mark.parametrize(("lake", "each"), [("iceberg", 250_000), ("delta", 10_000)], indirect=["lake"])
def test_many_records_over_four_partitions_land_once_each_and_a_second_run_lands_nothing(
    lake: Lake, topic_of: TopicOf, caplog: pytest.LogCaptureFixture, each: int
) -> None:
    name = topic_of(*(events(partition, 0, each) for partition in range(4)))

    report = lake.land(name)

    assert_landed_once(lake, name, dict.fromkeys(range(4), each))
    assert report.to_dict() | {"snapshot_ids": [], "snapshot_id": 0} == {
        "topic": name,
        "table": lake.name,
        "consumer_group": GROUP,
        "snapshot_ids": [],
        "snapshot_id": 0,
        "read": 4 * each,
        "rows": 4 * each,
        "rejected": 0,
        "skipped": 0,
        "filtered": 0,
        "bad": 0,
        "rows_beside": 0,
        "partitions": {
            str(p): {"read": each, "rows": each, "rejected": 0, "skipped": 0, "filtered": 0} for p in range(4)
        },
        "ranges": [[p, 0, each] for p in range(4)],
        "lost": [],
        "remaining_lag": 0,
        "interval": None,
        "complete": False,
        "schema_changes": [],
        "silent_columns": [],
        "stale_columns": [],
    }
    assert report.snapshot_ids == lake.snapshots()
    assert lake.committed_offsets(name) == dict.fromkeys(range(4), each)

    caplog.clear()
    with caplog.at_level(logging.INFO, "airflow_lakestream"):
        again = lake.land(name)

    assert (again.counts.read, again.counts.written, again.snapshot_ids) == (0, 0, [])
    assert caplog.messages == []
    assert lake.snapshots() == report.snapshot_ids
    lake.assert_whole()


@EACH_FORMAT
def test_later_records_land_behind_the_earlier_ones(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(2)
    for first in (0, 10, 20):
        for partition in (0, 1):
            produce(name, partition, events(partition, first, 10))
        report = lake.land(name)
        assert report.to_dict()["ranges"] == [[p, first, first + 10] for p in (0, 1)]
    assert_landed_once(lake, name, {0: 30, 1: 30})


def test_max_records_ends_each_run_exactly_there_and_the_next_goes_on(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(*(events(partition, 0, 100) for partition in range(3)))

    taken, lags = [], []
    for _ in range(4):
        report = lake.land(name, max_records=90)
        taken.append(report.counts.written)
        lags.append(report.remaining_lag)

    assert taken == [90, 90, 90, 30]
    assert lags == [210, 120, 30, 0]
    assert_landed_once(lake, name, dict.fromkeys(range(3), 100))


@EACH_FORMAT
def test_max_records_holds_for_all_tries_of_one_run_together(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 100))
    first = lake.land(name, "r", max_records=60)
    assert lake.land(name, "r", max_records=60).to_dict() == first.to_dict()
    assert lake.landed(name) == {0: [(0, 60)]}


@EACH_FORMAT
@pytest.mark.parametrize(
    "limits",
    [{"max_batch_bytes": 2_000}, {"checkpoint_interval": 0}, {"checkpoint_interval": 0, "max_records": 10_000}],
    ids=["bytes", "interval", "interval and records"],
)
def test_limits_cut_a_run_into_several_commits(lake: Lake, topic_of: TopicOf, limits: dict[str, int]) -> None:
    name = topic_of(events(0, 0, 200), events(1, 0, 200))
    job = lake.job(name, **limits)

    report = land(replace(job, reader=SmallChunks(job.reader, 50)))

    assert len(report.snapshot_ids) >= 4
    assert report.snapshot_ids == lake.snapshots()
    assert report.counts.written == 400
    assert_landed_once(lake, name, {0: 200, 1: 200})
    lake.assert_whole()


def test_a_batch_below_all_limits_is_one_commit(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 200), events(1, 0, 200))
    job = lake.job(name)
    assert len(land(replace(job, reader=SmallChunks(job.reader, 50))).snapshot_ids) == 1


def test_a_checkpoint_before_the_first_record_of_a_new_table_waits_for_it(
    lake: Lake, topic: Topics, produce: Producing, kafka: Kafka
) -> None:
    # Aborted records are progress of the plan without a record: there is no schema to create the table with yet.
    name = topic(2)
    settings = {**kafka.client_config(), "transactional.id": name, "log_level": 2}
    aborting = Producer(settings)
    aborting.init_transactions(30)
    aborting.begin_transaction()
    aborting.produce(name, b"{}", partition=0)
    aborting.flush(30)
    aborting.abort_transaction(30)

    assert lake.land(name, checkpoint_interval=0).counts.read == 0
    assert lake.has_nothing()

    produce(name, 1, events(1, 0, 10))
    lake.land(name, checkpoint_interval=0)
    assert lake.rows(name).num_rows == 10
    assert lake.landed(name) == {0: [(0, 2)], 1: [(0, 10)]}


def test_a_topic_that_keeps_growing_does_not_keep_the_run_from_ending(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(events(0, 0, 100))
    grown = iter(range(100, 1_000_000, 100))
    job = lake.job(name, checkpoint_interval=0)
    growing = InterposedReader(
        SmallChunks(job.reader, 20), lambda: produce(name, 0, events(0, next(grown), 100)), chunks=2
    )

    report = land(replace(job, reader=growing))

    assert report.to_dict()["ranges"] == [[0, 0, 100]]
    assert report.remaining_lag == 100
    lake.land(name)
    assert_landed_once(lake, name, {0: 200})


def test_idle_timeout_follows_the_topic_until_nothing_comes(lake: Lake, topic_of: TopicOf, produce: Producing) -> None:
    name = topic_of(events(0, 0, 100))
    grown = iter(range(100, 1_000_000, 100))
    job = lake.job(name, idle_timeout=1)
    # Look 1 plans; looks 2 and 5 are among those that wait for new records, and find some.
    source = InterposedSource(job.source, lambda: produce(name, 0, events(0, next(grown), 100)), 2, 5)

    report = land(replace(job, source=source))

    assert report.counts.written == 300
    assert report.remaining_lag == 0
    assert_landed_once(lake, name, {0: 300})


@pytest.fixture
def a_file_for_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sink write its rows out at once, as it does with large chunks."""
    monkeypatch.setattr(row_buffer, "FILE_BYTES", 1)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the list of the files that are written through `WATCHED` catalogs."""
    paths: list[str] = []
    monkeypatch.setattr(WatchedFileIO, "watcher", paths.append)
    return paths


@pytest.mark.usefixtures("a_file_for_each_chunk")
def test_a_bad_record_in_the_first_batch_leaves_no_table_no_namespace_and_no_file(
    lake: Lake, topic_of: TopicOf, written: list[str]
) -> None:
    name = topic_of([*events(0, 0, 100), "not json", *events(0, 101, 99)])
    job = lake.job(name, catalog=lake.catalog(**WATCHED), on_error="fail")

    with pytest.raises(BadRecord) as caught:
        land(replace(job, reader=SmallChunks(job.reader, 20)))

    assert (caught.value.topic, caught.value.partition, caught.value.offset) == (name, 0, 100)
    assert len(written) == 5, "files were there to be cleaned up"
    assert lake.has_nothing()


@pytest.mark.usefixtures("a_file_for_each_chunk")
def test_a_bad_record_in_a_later_batch_keeps_what_was_committed_and_nothing_else(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of([*events(0, 0, 100), "not json", *events(0, 101, 99)])
    job = lake.job(name, max_batch_bytes=2000, on_error="fail")

    with pytest.raises(BadRecord):
        land(replace(job, reader=SmallChunks(job.reader, 20)))

    assert_landed_once(lake, name, {0: 60})
    lake.assert_whole()


@pytest.mark.usefixtures("a_file_for_each_chunk")
@pytest.mark.parametrize("is_first", [True, False], ids=["no table yet", "table there"])
def test_a_run_told_to_stop_while_reading_leaves_no_trace(
    lake: Lake, topic_of: TopicOf, produce: Producing, is_first: bool, written: list[str]
) -> None:
    name = topic_of(events(0, 0, 100))
    before = [] if is_first else lake.land(name).snapshot_ids
    produce(name, 0, events(0, 100, 100))
    job = lake.job(name, catalog=lake.catalog(**WATCHED))
    # More than are read ahead: then some are written for certain.
    reader = InterposedReader(SmallChunks(job.reader, 5), job.stop.set, chunks=CHUNKS_AHEAD + 4)

    with pytest.raises(Stopped):
        land(replace(job, reader=reader))

    assert written, "files were there to be cleaned up"
    if is_first:
        assert lake.has_nothing()
    else:
        assert lake.snapshots() == before
        lake.assert_whole()
    lake.land(name)
    assert_landed_once(lake, name, {0: 200})


class DiskFull(OSError):
    """No space left."""


@pytest.mark.usefixtures("a_file_for_each_chunk")
@pytest.mark.parametrize("suffix", [".parquet", ".avro"], ids=["data file", "manifest"])
@pytest.mark.parametrize("is_first", [True, False], ids=["no table yet", "table there"])
def test_a_file_that_can_not_be_written_leaves_no_trace(
    lake: Lake, topic_of: TopicOf, produce: Producing, monkeypatch: pytest.MonkeyPatch, is_first: bool, suffix: str
) -> None:
    name = topic_of(events(0, 0, 100))
    before = [] if is_first else lake.land(name).snapshot_ids
    produce(name, 0, events(0, 100, 100))
    seen: list[str] = []

    def full(path: str) -> None:
        seen.extend([path] if path.endswith(suffix) else [])
        if len(seen) == 2:
            raise DiskFull

    monkeypatch.setattr(WatchedFileIO, "watcher", full)
    job = lake.job(name, catalog=lake.catalog(**WATCHED))
    with pytest.raises(DiskFull):
        land(replace(job, reader=SmallChunks(job.reader, 20)))

    if is_first:
        assert lake.has_nothing()
    else:
        assert lake.snapshots() == before
        lake.assert_whole()
    monkeypatch.undo()
    lake.land(name)
    assert_landed_once(lake, name, {0: 200})
