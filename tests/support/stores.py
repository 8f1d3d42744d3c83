"""The stores that users have, each a real server: a place of its own for each test, and lakes whose files are there."""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog

from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.sharing import side_by_side
from airflow_lakestream.delta import committing
from airflow_lakestream.delta.ledger_store import read_ledger
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.driver.lease import HeldLease, LeaseHeld
from airflow_lakestream.iceberg.hdfs import HdfsFileIO
from airflow_lakestream.run.processes import reader_processes
from airflow_lakestream.run.topics import land_run
from airflow_lakestream.stores import cloud_options
from airflow_lakestream.stores.object_store import open_location, options_of
from airflow_lakestream.tables import row_buffer
from dev.stack import Stack
from tests.support.delta_lake import DeltaLake
from tests.support.delta_table import GROUP
from tests.support.faults import Fault
from tests.support.lake import Lake
from tests.support.table_formats import sqlite_catalog

BUCKET = "lake"


@dataclass(frozen=True)
class StorePlace:
    """A place in a store, and what its clients are told: PyIceberg and leases by properties, delta-rs by options."""

    location: str
    properties: Mapping[str, str]
    options: Mapping[str, str]

    @property
    def checkpoint(self) -> str:
        """A checkpoint's location, as Spark takes it."""
        return f"{self.location.replace('s3:', 's3a:', 1)}/checkpoint"

    def files(self) -> list[str]:
        """Return the names of all objects below the location."""
        found = obstore.list(open_location(self.location, self.properties)).collect()
        return sorted(one["path"] for one in found)


class HdfsPlace(StorePlace):
    """A place in HDFS."""

    def files(self) -> list[str]:
        return sorted(HdfsFileIO().list_files(self.location))


def _on_s3(stack: Stack) -> StorePlace:
    s3 = stack.up_s3()
    properties = s3.temporary()
    return StorePlace(f"s3://{s3.bucket(BUCKET)}", properties, options_of(properties))


def _on_gcs(stack: Stack) -> StorePlace:
    gcs = stack.up_gcs()
    return StorePlace(f"gs://{gcs.bucket(BUCKET)}", gcs.properties(), gcs.options())


def _on_azure(stack: Stack) -> StorePlace:
    server = stack.up_azure()
    location, properties = f"abfss://{server.container(BUCKET)}", server.properties()
    by_pyarrow = {**properties, "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    return StorePlace(location, by_pyarrow, cloud_options.azure_options(location, properties))


def _on_hdfs(stack: Stack) -> StorePlace:
    by_native = {"py-io-impl": f"{HdfsFileIO.__module__}.{HdfsFileIO.__name__}"}
    return HdfsPlace(f"{stack.up_hdfs().uri}/{BUCKET}", by_native, {})


# By its name in the docs. S3 with keys that end by themselves: those that last are in `tests/services`.
STORES: Mapping[str, Callable[[Stack], StorePlace]] = {
    "S3": _on_s3,
    "GCS": _on_gcs,
    "Azure": _on_azure,
    "HDFS": _on_hdfs,
}


def place_of_its_own(name: str, stack: Stack) -> StorePlace:
    """Return an empty place in a store."""
    found = STORES[name](stack)
    return replace(found, location=f"{found.location}/{uuid.uuid4().hex}")


class StoreLake(Lake):
    """An Iceberg table in a store; its catalog is in a folder."""

    def __init__(self, place: StorePlace, folder: Path, kafka: Mapping[str, Any]) -> None:
        super().__init__(folder, kafka)
        self.store = place

    def catalog(self, **properties: str) -> Catalog:  # type: ignore[override]  # any catalog, where a lake promises SQL's
        own = {**sqlite_catalog(self.folder), **self.store.properties, "warehouse": f"{self.store.location}/warehouse"}
        return load_catalog("iceberg_default", **own, **properties)

    def assert_whole(self, *, leftovers_of_a_kill: bool = False) -> None:
        live = [task.file.file_path for task in self.table().scan().plan_files()]
        _assert_the_files_are(live, self.store, leftovers_of_a_kill)

    def landing_through(self, patch: pytest.MonkeyPatch, *faults: Fault) -> Any:
        """Return a catalog to land by, whose first commits meet faults, one after the other."""
        return self.failing(*faults)


class DeltaStoreLake(DeltaLake):
    """A Delta table in a store."""

    def __init__(self, place: StorePlace, folder: Path, kafka: Mapping[str, Any]) -> None:
        super().__init__(folder, kafka)
        self.store = place

    @property
    def place(self) -> str:
        return f"{self.store.location}/events"

    def catalog(self, **properties: str) -> Any:
        return DeltaStorage({**self.store.options, **properties})

    def table(self, name: str = "") -> Any:
        return DeltaTable(name or self.place, storage_options=dict(self.store.options))

    def ledger(self, consumer_group: str = GROUP) -> Ledger:
        return read_ledger(self.catalog().open(self.place), consumer_group)

    def scan(self, behind: str = "") -> pa.Table:
        return self.table(f"{self.place}{behind}").to_pyarrow_table()

    def assert_whole(self, *, leftovers_of_a_kill: bool = False) -> None:
        _assert_the_files_are(self.table().file_uris(), self.store, leftovers_of_a_kill)

    def landing_through(self, patch: pytest.MonkeyPatch, *faults: Fault) -> Any:
        """Return a storage to land by, whose first commits meet faults, one after the other."""
        real, left = committing.put_commit, iter(faults)

        def put(*version: Any) -> Any:
            fault = next(left, None)
            return real(*version) if fault is None else fault(lambda: real(*version))

        patch.setattr(committing, "put_commit", put)
        return self.catalog()


STORE_LAKES: Mapping[str, type[StoreLake] | type[DeltaStoreLake]] = {"iceberg": StoreLake, "delta": DeltaStoreLake}


def _assert_the_files_are(live: Sequence[str], place: StorePlace, more: bool) -> None:
    """Assert that the live data files are in the store, and no others."""
    there = {
        name.rpartition("/")[2] for name in place.files() if name.endswith(".parquet") and "_delta_log" not in name
    }
    needed = {name.rpartition("/")[2] for name in live}
    assert len(needed) == len(live), "data files that the head holds twice"
    assert not needed - there, "files that are gone"
    assert more or not there - needed, "files that no commit has"


def land_in_one_process(lake: Lake, topic: str, ranges: Sequence[tuple[int, int]]) -> list[tuple[bool, int]]:
    """Land ranges of partition 0 in one new process, a run for each; say if others read for it, and its rows."""
    # Forked from a server that has no threads: a process with threads forks no readers.
    context = multiprocessing.get_context("forkserver")
    answers = context.SimpleQueue()
    process = context.Process(target=_land_runs, args=(lake, topic, ranges, answers))
    process.start()
    process.join(240)
    assert process.exitcode == 0, f"the process has not ended well: {process.exitcode}"
    found: list[tuple[bool, int]] = answers.get()
    return found


def _land_runs(lake: Lake, topic: str, ranges: Sequence[tuple[int, int]], answers: Any) -> None:
    side_by_side.LEAST_WIDTH = 1
    row_buffer.FILE_BYTES = 1
    told = []
    for first, until in ranges:
        config = lake.settings(topic, mode="ranges", ranges=[[0, first, until]], parallelism=2)
        with reader_processes(config, lake.kafka) as children:
            report = land_run(config, lake.kafka, lake.catalog(), run_id=uuid.uuid4().hex, children=children)
        told.append((children is not None, report.to_dict()["rows"]))
    answers.put(told)


def take_each_time(place: StorePlace, start: Any, ends: Any, answers: Any, times: int) -> None:
    """Take the checkpoint's lease so many times, each at once with other processes; answer which generation it got.

    The process of a holder lives on until all have tried: a dead one holds no lease.
    """
    for _ in range(times):
        start.wait(60)
        try:
            lease = HeldLease.take(place.checkpoint, "f", "a process", properties=place.properties)
            answers.put(lease.record.generation)
        except LeaseHeld:
            answers.put(0)
        except Exception as e:  # noqa: BLE001  # another process raised it: the test gets it as its answer
            answers.put(repr(e))
        ends.wait(60)
