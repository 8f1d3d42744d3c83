"""Lakes in a metastore of Hive's, and landings in processes of their own that can be paused in their commit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyiceberg.catalog.hive import HiveCatalog

from airflow_lakestream.core.landing.algorithm import land
from dev.services.kafka import Kafka
from dev.services.metastore import OLD, Metastore
from dev.stack import Stack
from tests.support.broker import poll_until
from tests.support.catalogs import LOCK, empty_catalog
from tests.support.lake import Lake


class HiveLake(Lake):
    """A lake in a metastore; each has the same names of tables, so there is one at a time."""

    def __init__(self, folder: Path, kafka: dict[str, Any], metastore: Metastore) -> None:
        super().__init__(folder, kafka)
        self.metastore = metastore

    def catalog(self, **properties: str) -> HiveCatalog:  # type: ignore[override]
        """Return a catalog client of its own, such as another process would have."""
        return HiveCatalog("iceberg_default", **(self.metastore.properties | LOCK | properties))

    def interrupted(self, between: Callable[[], object]) -> HiveCatalog:
        """Return a catalog whose next commit loses its lock after it has looked; then comes what happens `between`."""
        catalog = self.catalog()
        write, waiting = catalog._write_metadata, [between]

        def write_and_wait(*metadata: Any, **more: Any) -> None:
            write(*metadata, **more)
            if waiting:
                self.forget_locks()
                waiting.pop()()

        # PyIceberg writes the new metadata between its look at the table and the change of it.
        catalog._write_metadata = write_and_wait  # type: ignore[method-assign]
        return catalog

    def forget_locks(self) -> None:
        """Let all locks go, as the metastore does with one that is too old."""
        from hive_metastore.ttypes import ShowLocksRequest, UnlockRequest

        with self.catalog()._client as client:
            for lock in client.show_locks(ShowLocksRequest()).locks:
                client.unlock(UnlockRequest(lockid=lock.lockid))

    def empty(self) -> None:
        """Remove all tables and their files."""
        empty_catalog(self.catalog(), Path(self.metastore.warehouse.removeprefix("file://")))


@pytest.fixture(scope="session")
def metastore(stack: Stack) -> Metastore:
    """Give the metastore of this test session, started when the first test asks for it."""
    return stack.up_metastore()


@pytest.fixture(scope="session")
def old_metastore(stack: Stack) -> Metastore:
    """Give a metastore of this test session that can't compare."""
    return stack.up_metastore(OLD)


@pytest.fixture
def hive_lake(tmp_path: Path, kafka: Kafka, metastore: Metastore) -> Iterator[HiveLake]:
    """Give an empty lake in the metastore."""
    lake = HiveLake(tmp_path, kafka.client_config(), metastore)
    yield lake
    lake.empty()


def land_paused(lake: HiveLake, topic: str, ranges: Sequence[Sequence[int]], answers: Any) -> None:
    """Land ranges, and stop this process in the commit once the table was looked at."""
    catalog = lake.catalog()
    write, paused = catalog._write_metadata, [False]

    def write_and_stop(*metadata: Any, **more: Any) -> None:
        write(*metadata, **more)
        if not paused[0]:
            paused[0] = True
            os.kill(os.getpid(), signal.SIGSTOP)

    catalog._write_metadata = write_and_stop  # type: ignore[method-assign]
    try:
        land(lake.job(topic, catalog=catalog, mode="ranges", ranges=ranges))
        answers.put("landed")
    except Exception as e:  # noqa: BLE001  # whatever it is, the test is told
        answers.put(repr(e))


def wait_until_stopped(pid: int) -> None:
    """Wait until a process has stopped itself."""
    poll_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the writer to stop in its commit", 180)
