"""A table that Iceberg's sink filled on its own, in a real Connect, is adopted, and handed back to it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

from airflow_lakestream.adopt.claim import CannotAdopt, StillRunning
from airflow_lakestream.adopt.filled import open_filled
from airflow_lakestream.adopt.hand_over import LedgerHandover
from airflow_lakestream.adopt.run import AdoptionResult, TableAdoption
from airflow_lakestream.adopt.tools import ConnectorTarget, ConnectSinkPosition, SinkConnector
from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.connect.client import ConnectClient, ConnectWorkers
from airflow_lakestream.kafka.groups import KafkaGroups
from dev.services.connect import Connect
from dev.stack import Stack
from tests.integration.test_foreign_rows import PAYLOAD, POSITION
from tests.support.broker import Producing, Topics, poll_until
from tests.support.lake import GROUP, TABLE, Lake, events, rows_of_events

pytestmark = pytest.mark.integration

PATIENCE = 180.0


@pytest.fixture(scope="module")
def worker(stack: Stack) -> Connect:
    """Give a worker of Kafka Connect."""
    return stack.up_connect()


class PlainSink:
    """A connector as a user makes it, with nothing of this package in it."""

    def __init__(self, lake: Lake, topic: str, worker: Connect, groups: KafkaGroups) -> None:
        self.lake, self.topic, self.name = lake, topic, f"plain-{uuid.uuid4().hex[:8]}"
        self.client = ConnectClient(ConnectWorkers([worker.url], timeout=10))
        self.connector = SinkConnector(self.client, groups, self.name)

    def start(self, *, keeps_positions: bool) -> None:
        kept = [*PAYLOAD, *POSITION] if keeps_positions else PAYLOAD
        catalog = self.lake.catalog()
        catalog.create_namespace_if_not_exists("lake")
        catalog.create_table(TABLE, schema=pa.schema(kept))
        control = f"control-{self.name}"
        self.connector.groups.make_topic(control)
        config = {
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": "2",
            "topics": self.topic,
            "iceberg.tables": TABLE,
            "iceberg.catalog": "iceberg_default",
            "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "iceberg.catalog.uri": f"jdbc:sqlite:{self.lake.folder}/catalog.db?busy_timeout=30000",
            "iceberg.catalog.warehouse": f"file://{self.lake.folder}/warehouse",
            "iceberg.catalog.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            "iceberg.control.topic": control,
            "iceberg.control.commit.interval-ms": "1000",
            "iceberg.control.commit.timeout-ms": "10000",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "consumer.override.auto.offset.reset": "earliest",
        }
        if keeps_positions:
            config |= {
                "transforms": "at",
                "transforms.at.type": "org.apache.kafka.connect.transforms.InsertField$Value",
                "transforms.at.topic.field": "_kafka_topic",
                "transforms.at.partition.field": "_kafka_partition",
                "transforms.at.offset.field": "_kafka_offset",
            }
        self.client.create_stopped(self.name, config)
        self.client.resume(self.name)

    def await_rows(self, rows: int) -> None:
        poll_until(lambda: len(self.lake.scan()) >= rows, f"{rows} rows of {self.name}", PATIENCE, every=0.5)

    def stop(self) -> None:
        self.client.stop(self.name)
        watch = self.connector.groups.watch
        poll_until(lambda: not watch.group(f"connect-{self.name}").members, f"{self.name} to stop", PATIENCE, every=0.2)

    def look(self, topic: str = "") -> AdoptionResult:
        catalog = self.lake.catalog()
        return self._work(topic).look(catalog, ConnectSinkPosition(self.connector, open_filled(catalog, TABLE, GROUP)))

    def adopt(self) -> AdoptionResult:
        catalog = self.lake.catalog()
        return self._work().write(catalog, ConnectSinkPosition(self.connector, open_filled(catalog, TABLE, GROUP)))

    def _work(self, topic: str = "") -> TableAdoption:
        return TableAdoption(table=TABLE, consumer_group=GROUP, topic=topic or self.topic, kafka=self.lake.kafka)


@pytest.fixture
def sink(lake: Lake, topic: Topics, worker: Connect) -> Iterator[PlainSink]:
    """Give a sink of this test; its connector goes with it."""
    made = PlainSink(lake, topic(partitions=2), worker, KafkaGroups(lake.kafka, "the broker"))
    yield made
    if made.client.config(made.name) is not None:
        worker.release(made.name)


def assert_once(lake: Lake, each: int) -> None:
    assert sorted(lake.scan()["id"].to_pylist()) == sorted(rows_of_events({0: each, 1: each})["id"].to_pylist())
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_there_and_back_with_positions_in_the_rows(sink: PlainSink, produce: Producing, topic: Topics) -> None:
    lake = sink.lake
    for partition in (0, 1):
        produce(sink.topic, partition, events(partition, 0, 30))
    sink.start(keeps_positions=True)
    sink.await_rows(60)
    with pytest.raises(StillRunning, match=rf"connect {sink.name} is still running: it is running.*Stop it"):
        sink.look()
    sink.stop()
    with pytest.raises(CannotAdopt, match=f"reads {sink.topic}, not"):
        sink.look(topic(partitions=2))
    # A hole, as the sink leaves it that is killed before its first commit.
    lake.table().delete(f"_kafka_partition = 0 and _kafka_offset < 4 and _kafka_topic = '{sink.topic}'")
    for partition in (0, 1):
        produce(sink.topic, partition, events(partition, 30, 10))

    done = sink.adopt()
    assert (done.decision.left.width, done.decision.entry.counts.written) == (4, 56)
    assert lake.land(sink.topic).counts.written == 24
    assert_once(lake, 40)

    hand = LedgerHandover(table=TABLE, consumer_group=GROUP, topic=sink.topic, kafka=lake.kafka)
    assert hand.run(lake.catalog(), ConnectorTarget(sink.connector), write=True).offsets == {0: 40, 1: 40}
    for partition in (0, 1):
        produce(sink.topic, partition, events(partition, 40, 5))
    sink.client.resume(sink.name)
    sink.await_rows(90)
    with pytest.raises(StillRunning):
        hand.run(lake.catalog(), ConnectorTarget(sink.connector), write=True)
    sink.stop()

    assert sink.adopt().decision.entry.landed.width == 10
    assert lake.land(sink.topic).counts.written == 0
    assert_once(lake, 45)


def test_the_sinks_own_account_where_rows_keep_no_positions(sink: PlainSink, produce: Producing) -> None:
    lake = sink.lake
    for partition in (0, 1):
        produce(sink.topic, partition, events(partition, 0, 30))
    sink.start(keeps_positions=False)
    sink.await_rows(60)
    before = lake.snapshots()[-1]
    for partition in (0, 1):
        produce(sink.topic, partition, events(partition, 30, 10))
    sink.await_rows(80)
    sink.stop()
    # The group's offsets are 40; the table is back at an earlier commit of the sink.
    lake.roll_back(before)

    done = sink.adopt()

    assert done.decision.entry.adopted.width == 60
    assert "events in its control topic" in " ".join(done.decision.proved)
    assert lake.land(sink.topic, schema_evolution="add").counts.written == 20
    assert_once(lake, 40)
