"""Tables and checkpoints in S3, catalogs of REST and Hive's metastore, by a real Flink that has the jars for them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from airflow_lakestream.driver.lease import request_stop
from airflow_lakestream.flink.rest import FlinkJobState
from dev.services.flink import Flink
from dev.services.kafka import Kafka
from dev.services.metastore import Metastore
from dev.services.rest_catalog import RestCatalog
from dev.services.s3 import REGION, S3
from dev.stack import Stack
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, Topics, poll_until
from tests.support.catalogs import LOCK, CatalogLake
from tests.support.flink import PATIENCE, FlinkLanding
from tests.support.hive_lake import HiveLake
from tests.support.lake import Lake, events
from tests.support.stores import BUCKET, StoreLake, StorePlace
from tests.support.table_formats import Place, sqlite_catalog
from tests.support.vending import vending

pytestmark = [pytest.mark.integration, pytest.mark.own_parts]

DAG = """
import datetime
from airflow.sdk import DAG
from airflow_lakestream.operators.flink_sql import FlinkSqlOperator

with DAG("flink_on_s3", schedule=None):
    FlinkSqlOperator(task_id="stream", **{arguments!r})
"""
# What no log and no page may have.
SECRETS = ("s3.secret-access-key", "s3.session-token", "s3.access-key-id")
# Gives a landing into a lake, whose drivers and job end with the test.
Landing = Callable[..., FlinkLanding]


@dataclass(frozen=True)
class Lakes:
    """A Flink, and where its tables are; its checkpoints are in S3, by keys of its own."""

    flink: Flink
    s3: S3
    metastore: Metastore
    rest: RestCatalog

    def place(self) -> str:
        """Return an empty place in S3."""
        return f"s3://{self.s3.bucket(BUCKET)}/{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def lakes() -> Iterator[Lakes]:
    """Give them to the tests here; with these all of it ends."""
    with Stack.owned("flink-lakes") as stack, ThreadPoolExecutor(2) as beside:
        metastore, rest = beside.submit(stack.up_metastore), beside.submit(stack.up_rest_catalog)
        s3 = stack.up_s3()
        yield Lakes(stack.up_flink(s3=s3), s3, metastore.result(), rest.result())


@pytest.fixture
def landing_in(lakes: Lakes, topic: Topics) -> Iterator[Landing]:
    """Give what makes a landing of a new topic into a lake."""
    made: list[FlinkLanding] = []

    def make(lake: Lake, properties: dict[str, str], **more: Any) -> FlinkLanding:
        made.append(FlinkLanding(lake, topic(2), lakes.flink, properties=properties, **more))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.airflow
def test_table_checkpoints_and_lease_are_in_s3(
    lakes: Lakes,
    landing_in: Landing,
    kafka: Kafka,
    produce: Producing,
    airflow: AirflowHome,
    connections: Connections,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    place = StorePlace(lakes.place(), lakes.s3.temporary(), {})
    properties = {**sqlite_catalog(tmp_path), **place.properties, "warehouse": f"{place.location}/warehouse"}
    lake = StoreLake(place, tmp_path, kafka.client_config())
    landing = landing_in(lake, properties, elsewhere=f"{place.location}/checkpoint")
    produce(landing.topic, 0, events(0, 0, 300))
    produce(landing.topic, 1, events(1, 0, 100))
    landing.start()
    landing.await_landed({0: 300, 1: 100})
    told = landing.all_told()
    job = landing.await_running()
    landing.kill_driver()
    landing.jobs.cancel(job)
    # Flink answers before it has canceled a job.
    poll_until(lambda: landing.jobs.manager.state(job) is FlinkJobState.CANCELED, "the job to be canceled", 180)
    newest = landing.jobs.checkpoints.newest(job)
    assert newest is not None
    assert newest.startswith(f"{landing.location}/checkpoints/{job}/chk-")

    # An operator's task goes on from there, by the connection's keys; the trigger looks at the lease by them, too.
    connections.iceberg(properties)
    where = {"conn_type": "http", "host": lakes.flink.gateway.url, "extra": {"jobmanager_url": lakes.flink.manager.url}}
    monkeypatch.setenv("AIRFLOW_CONN_FLINK_DEFAULT", json.dumps(where))
    produce(landing.topic, 0, events(0, 300, 50))
    file = airflow.write("flink_on_s3", DAG.format(arguments={**landing.arguments, "deferrable": True}))
    over = Event()
    with ThreadPoolExecutor(1) as beside:
        stopped = beside.submit(stop_once_landed, landing, {0: [(0, 350)], 1: [(0, 100)]}, over)
        try:
            done = airflow.run(airflow.dag(file))
        finally:
            over.set()
        assert stopped.result()
    assert (done.state, done.errors) == ("success", [])
    assert landing.note is not None
    assert landing.note.restored == newest
    assert landing.note.finished.startswith(f"{landing.location}/savepoints/")
    landing.assert_once({0: [*range(350)], 1: [*range(100)]})
    lake.assert_whole()
    assert not (tmp_path / "checkpoint.lakestream").exists()
    told += landing.all_told() + "".join(file.read_text() for file in (tmp_path / "drivers").rglob("*.log"))
    assert [key for key in SECRETS if place.properties[key] in told] == []
    in_s3 = [path.read_bytes() for path in Path(lakes.s3.folder, "data", BUCKET).rglob("*") if path.is_file()]
    assert [key for key in SECRETS for content in in_s3 if place.properties[key].encode() in content] == []


def stop_once_landed(landing: FlinkLanding, wanted: dict[int, list[tuple[int, int]]], over: Event) -> bool:
    """Ask the driver to end once the ledger has these ranges, or the task is over; tell whether there was a driver."""

    def is_done() -> bool:
        return over.is_set() or landing.lake.landed(landing.topic) == wanted

    poll_until(is_done, "Flink to land", PATIENCE, every=0.3)
    return request_stop(landing.location, "the test", landing.properties)


def test_flink_writes_by_the_keys_that_a_rest_catalog_gives_with_a_table(
    lakes: Lakes, landing_in: Landing, kafka: Kafka, produce: Producing, tmp_path: Path
) -> None:
    place = lakes.place()

    def new_keys() -> dict[str, str]:
        # By the names of Java's client, as catalogs give them; PyIceberg knows these, too.
        return {**lakes.s3.temporary(), "client.region": REGION, "s3.path-style-access": "true"}

    with vending(lakes.rest, new_keys) as catalog:
        lake = CatalogLake(Place(tmp_path, {"catalog": catalog.properties}), kafka.client_config())
        landing = landing_in(lake, catalog.properties)
        landing.config = {"table_properties": {"write.data.path": place}}
        produce(landing.topic, 0, events(0, 0, 300))
        landing.start()
        landing.await_landed({0: 300})
        landing.stop()
        landing.assert_once({0: [*range(300)]})
        assert all(file.startswith(place) for file in lake.live_files())
        told = landing.all_told()
    assert lakes.rest.secret not in told
    assert [key for key in SECRETS for keys in catalog.given if keys[key] in told] == []


def test_a_table_of_hive_s_metastore_is_landed_into_again_and_again(
    lakes: Lakes, landing_in: Landing, kafka: Kafka, produce: Producing, tmp_path: Path
) -> None:
    lake = HiveLake(tmp_path, kafka.client_config(), lakes.metastore)
    landing = landing_in(lake, lakes.metastore.properties | LOCK)
    produce(landing.topic, 0, events(0, 0, 300))
    produce(landing.topic, 1, events(1, 0, 100))
    landing.start()
    landing.await_landed({0: 300, 1: 100})
    job = landing.await_running()
    produce(landing.topic, 0, [None, *events(0, 301, 50)])
    landing.await_landed({0: 351, 1: 100})
    assert landing.await_running() == job
    landing.stop()
    landing.assert_once({0: [*range(300), *range(301, 351)], 1: [*range(100)]})
    assert lake.entry(landing.topic).counts.skipped == 1
