"""Leases and progress on S3: a MinIO, which creates an object on the condition that there is none."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from airflow_lakestream.driver.driver_folder import DriverFolder
from airflow_lakestream.driver.lease import HeldLease, LeaseHeld, LeaseLost, read_lease, request_stop
from airflow_lakestream.driver.lease_record import DriverOutcome, LeaseState
from airflow_lakestream.driver.progress import BatchProgress, ProgressLog, read_progress
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.stores.folders import open_folder
from dev.services.s3 import S3
from tests.support.lake import Lake
from tests.support.spark import SparkRun, checkpoint_on_s3

pytestmark = pytest.mark.integration

WRITERS = 8


place = checkpoint_on_s3


def test_of_many_that_take_a_lease_at_once_one_gets_it(s3: S3, place: str) -> None:
    start = Barrier(WRITERS)

    def take(number: int) -> HeldLease | None:
        start.wait(60)
        try:
            return HeldLease.take(place, "f", f"writer {number}", properties=s3.properties())
        except LeaseHeld:
            return None

    for generation in (1, 2, 3):
        with ThreadPoolExecutor(WRITERS) as pool:
            [lease] = [one for one in pool.map(take, range(WRITERS)) if one is not None]
        assert lease.record.generation == generation
        known = read_lease(place, s3.properties())
        assert known is not None
        assert (known.holder, known.state()) == (lease.record.holder, LeaseState.HELD)
        lease.release(DriverOutcome.DONE)


def test_a_lease_is_lost_to_one_that_took_over_and_heeds_a_request_to_stop(s3: S3, place: str) -> None:
    told = s3.properties()
    first = HeldLease.take(place, "f", "first", properties=told)
    folder = DriverFolder(place, told)
    # As it stands when its machine is gone: of another host, and long not heard of.
    gone = replace(first.record, beat_at=0.0, process=replace(first.record.process, machine="elsewhere"))
    folder.write("lease-00000001.json", json.loads(json.dumps(gone, default=vars)))
    second = HeldLease.take(place, "f", "second", properties=told)
    with pytest.raises(LeaseLost):
        first.beat()
    assert request_stop(place, "a test", told)
    assert second.stop_requested()
    second.release(DriverOutcome.STOPPED)
    assert not request_stop(place, "a test", told)


def test_progress_is_read_by_others_and_goes_on_with_the_next_driver(s3: S3, place: str) -> None:
    for batch in range(2):
        ProgressLog(place, s3.properties()).report(BatchProgress(batch, 10, 9, ranges=(("t", 0, 0, 10),)))
    found = read_progress(place, s3.properties())
    assert (found.batches, found.rows_out, found.landed) == (2, 18, (("t", 0, 0, 10),))


def test_a_folder_of_s3_and_one_of_a_disk_behave_the_same(s3: S3, place: str, tmp_path: Path) -> None:
    for location in (place, str(tmp_path / "folder"), (tmp_path / "as a uri").as_uri().replace("%20", " ")):
        store = open_folder(location, s3.properties())
        assert (store.names(), store.read("a/1")) == ([], None)
        store.write("a/1", b"one")
        assert store.create("a/2", b"two")
        assert not store.create("a/2", b"other")
        store.write("top", b"")
        assert (store.names(), store.names("a"), store.names("b")) == (["a", "top"], ["1", "2"], [])
        assert (store.read("a/1"), store.read("a/2"), store.read("top")) == (b"one", b"two", b"")
        store.remove("a/2")
        store.remove("a/2")
        assert store.create("a/2", b"three")


def test_keys_are_in_no_error(s3: S3, place: str) -> None:
    wrong = s3.properties() | {"s3.secret-access-key": "canary-4711"}
    with pytest.raises(Exception) as caught:
        read_lease(place, wrong)
    assert "canary" not in str(caught.value)
    with pytest.raises(InvalidArgument, match="Spark needs s3a:// for S3"):
        SparkRun(Lake(Path("/nowhere"), {"bootstrap.servers": "b"}), "t").config(checkpoint_location="s3://b/c")


def test_a_damaged_lease_on_s3_is_nobodys_after_its_time(s3: S3, place: str) -> None:
    known = s3.properties()
    lost = HeldLease.take(place, "f", "a test", properties=known)
    open_folder(f"{place}.lakestream", known).write("lease-00000001.json", b'{"gen')
    with pytest.raises(LeaseHeld, match=r"lease file lease-00000001\.json is damaged"):
        HeldLease.take(place, "f", "another", properties=known)
    # Its duration is over as soon as it began.
    assert HeldLease.take(place, "f", "another", ttl=0, properties=known).record.generation == 2
    with pytest.raises(LeaseLost):
        lost.beat()
