"""What holds in each store: tables of both formats, by racing and by forked processes, leases and checkpoints."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_lakestream.driver.driver_folder import DriverFolder
from airflow_lakestream.driver.lease import HeldLease, LeaseLost, read_lease, request_stop
from airflow_lakestream.driver.lease_record import TTL_SECONDS, DriverOutcome, LeaseRecord, LeaseState
from airflow_lakestream.driver.progress import BatchProgress, ProgressLog, read_progress
from airflow_lakestream.spark.checkpoint import read_checkpoint
from airflow_lakestream.stores.folders import open_folder
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.catalogs import SPAWN, land_side_by_side
from tests.support.faults import TIMEOUT, applied, before
from tests.support.lake import assert_landed_once, events
from tests.support.parallel_run import ParallelRun
from tests.support.stores import (
    STORE_LAKES,
    DeltaStoreLake,
    StoreLake,
    StorePlace,
    land_in_one_process,
    place_of_its_own,
    take_each_time,
)

pytestmark = pytest.mark.integration

LANDINGS, EACH = 4, 5
SCHEMA = "id bigint, name string, score double"


@pytest.fixture
def store(request: pytest.FixtureRequest, stack: Stack) -> StorePlace:
    """Give a place of its own in the store that the file of tests names."""
    return place_of_its_own(request.module.STORE, stack)


@pytest.fixture(params=STORE_LAKES)
def lake(request: pytest.FixtureRequest, store: StorePlace, kafka: Kafka, tmp_path: Path) -> StoreLake | DeltaStoreLake:
    """Give an empty lake of each format in the store."""
    made = STORE_LAKES[request.param](store, tmp_path, kafka.client_config())
    # The first client makes the tables of the catalog's own.
    made.catalog()
    return made


def test_a_topic_lands_once_and_then_goes_on(
    lake: StoreLake | DeltaStoreLake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(events(0, 0, 20), events(1, 0, 10))

    assert lake.land(name).rows == 30
    assert lake.land(name).rows == 0
    assert lake.land(name, mode="ranges", ranges=[[0, 5, 15]]).rows == 0
    produce(name, 0, events(0, 20, 10))
    assert lake.land(name).rows == 10

    assert_landed_once(lake, name, {0: 30, 1: 10})
    lake.assert_whole()


def test_two_processes_that_land_at_once_each_keep_what_they_land(
    lake: StoreLake | DeltaStoreLake, topic: Topics, produce: Producing
) -> None:
    name, count = topic(1), 3 * LANDINGS * EACH
    produce(name, 0, events(0, 0, count))
    pieces = [(first, first + EACH) for first in range(0, count, EACH)]
    # First each its own, then both the same ones.
    shares = [pieces[start : 2 * LANDINGS : 2] + pieces[2 * LANDINGS :] for start in (0, 1)]
    said = land_side_by_side(lake, name, shares)

    assert said == ["landed"] * len(said)
    assert_landed_once(lake, name, {0: count})
    lake.assert_whole()


def test_what_another_run_lands_meanwhile_is_not_landed_again(
    lake: StoreLake | DeltaStoreLake, topic_of: TopicOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic_of(events(0, 0, 10))
    lake.land(name, mode="ranges", ranges=[[0, 0, 5]])

    beaten = lake.landing_through(monkeypatch, before(lambda: lake.land(name)))
    assert lake.land(name, catalog=beaten).rows == 0

    assert_landed_once(lake, name, {0: 10})
    lake.assert_whole()


def test_a_landing_without_an_answer_is_there_once(
    lake: StoreLake | DeltaStoreLake, topic_of: TopicOf, produce: Producing, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic_of(events(0, 0, 10))
    lake.land(name)
    produce(name, 0, events(0, 10, 10))

    assert lake.land(name, catalog=lake.landing_through(monkeypatch, applied(TIMEOUT))).rows == 10

    assert_landed_once(lake, name, {0: 20})
    lake.assert_whole()


def test_processes_that_a_run_forks_write_its_files(lake: StoreLake | DeltaStoreLake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 60), events(1, 0, 40))
    fault = "the parent reads nothing" if isinstance(lake, StoreLake) else ""
    report = ParallelRun(lake, name, {"schema": SCHEMA}, fault=fault).land()

    assert (report["processes"], report["rows"]) == (2, 100)
    assert_landed_once(lake, name, {0: 60, 1: 40})
    lake.assert_whole()


def test_a_process_that_has_landed_lands_again(lake: StoreLake | DeltaStoreLake, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 60))

    told = land_in_one_process(lake, name, [(0, 30), (30, 60)])

    assert [rows for _, rows in told] == [30, 30]
    assert told[0] == (True, 30), "the first run's readers are forked"
    assert_landed_once(lake, name, {0: 60})


def test_of_two_processes_one_takes_a_lease_and_takes_it_over_only_once_it_has_expired(store: StorePlace) -> None:
    known = dict(store.properties)
    start, ends, answers = SPAWN.Barrier(3), SPAWN.Barrier(3), SPAWN.Queue()
    processes = [SPAWN.Process(target=take_each_time, args=(store, start, ends, answers, 3)) for _ in range(2)]
    for process in processes:
        process.start()

    def both() -> list[object]:
        start.wait(60)
        return sorted([answers.get(timeout=60) for _ in processes], key=str)

    assert both() == [0, 1], "one of them gets the first lease"
    held = read_lease(store.checkpoint, known)
    assert held is not None
    assert held.state() is LeaseState.HELD

    # What it is to others: of a machine that nobody here can look into, heard of just now.
    elsewhere = replace(held.process, machine="elsewhere")
    _write(store, replace(held, process=elsewhere, beat_at=time.time()))
    ends.wait(60)
    assert both() == [0, 0], "it is held"
    _write(store, replace(held, process=elsewhere, beat_at=time.time() - TTL_SECONDS - 1))
    ends.wait(60)
    assert both() == [0, 2], "one of them takes it over"
    with pytest.raises(LeaseLost):
        HeldLease(DriverFolder(store.checkpoint, known), store.checkpoint, held).beat()
    ends.wait(60)
    for process in processes:
        process.join()


def test_a_lease_is_released_and_asked_to_stop(store: StorePlace) -> None:
    known = dict(store.properties)
    with HeldLease.take(store.checkpoint, "f", "a test", properties=known) as lease:
        lease.beat(application_id="app-1")
        assert request_stop(store.checkpoint, "a person", known)
        assert lease.stop_requested()
    after = read_lease(store.checkpoint, known)
    assert after is not None
    assert (after.application_id, after.outcome) == ("app-1", DriverOutcome.STOPPED)
    assert not request_stop(store.checkpoint, "a person", known)


def test_a_checkpoint_keeps_its_batches_and_what_they_landed(store: StorePlace) -> None:
    known = dict(store.properties)
    assert read_checkpoint(store.checkpoint, known) is None
    folder = open_folder(store.checkpoint, known)
    # As Spark writes them: the plan of a batch before it, its commit after it.
    folder.write("metadata", b'{"id": "query-1"}')
    for batch in range(3):
        folder.write(f"offsets/{batch}", b'v1\n{"batchTimestampMs": 1}\n' + json.dumps({"t": {"0": batch}}).encode())
        assert folder.create(f"commits/{batch}", b"v1\n{}")
        assert not folder.create(f"commits/{batch}", b"v1\n{}, by another")
    folder.remove("commits/2")

    found = read_checkpoint(store.checkpoint, known)
    assert found is not None
    assert (found.query_id, found.planned, found.committed, found.replayed) == ("query-1", (0, 1, 2), (0, 1), 2)

    for batch in range(2):
        told = BatchProgress(batch, 10, 9, ranges=(("t", 0, 10 * batch, 10 * batch + 10),))
        ProgressLog(store.checkpoint, known).report(told)
    read = read_progress(store.checkpoint, known)
    assert (read.batches, read.rows_out, read.landed) == (2, 18, (("t", 0, 0, 20),))


def test_a_folder_of_the_store_and_one_of_a_disk_behave_the_same(store: StorePlace, tmp_path: Path) -> None:
    for location in (store.checkpoint, str(tmp_path / "folder")):
        folder = open_folder(location, store.properties)
        assert (folder.names(), folder.read("a/1"), folder.modified("a/1")) == ([], None, None)
        folder.write("a/1", b"one")
        folder.write("a/1", b"once more")
        assert folder.create("a/2", b"two")
        assert not folder.create("a/2", b"other")
        folder.write("top", b"")
        assert (folder.names(), folder.names("a"), folder.names("b")) == (["a", "top"], ["1", "2"], [])
        assert (folder.read("a/1"), folder.read("a/2"), folder.read("top")) == (b"once more", b"two", b"")
        assert abs((folder.modified("a/1") or 0) - time.time()) < TTL_SECONDS
        folder.remove("a/2")
        folder.remove("a/2")
        assert folder.create("a/2", b"three")


def _write(store: StorePlace, record: LeaseRecord) -> None:
    folder = DriverFolder(store.checkpoint, store.properties)
    folder.write(f"lease-{record.generation:08d}.json", json.loads(json.dumps(record, default=vars)))
