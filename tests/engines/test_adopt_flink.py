"""A table that a plain Flink job filled, with nothing of this package in it, is adopted by the job's savepoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_lakestream.adopt.claim import CannotAdopt
from airflow_lakestream.adopt.filled import open_filled
from airflow_lakestream.adopt.run import AdoptionResult, TableAdoption
from airflow_lakestream.adopt.tools import FlinkSavepoint
from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.flink.rest import FlinkAddress, JobManager, SqlSession
from dev.services.flink import Flink
from tests.support.broker import Producing, Topics, poll_until
from tests.support.lake import GROUP, TABLE, Lake, events, rows_of_events

pytestmark = pytest.mark.integration

PATIENCE = 180.0
COLUMNS = "id BIGINT, name STRING, score DOUBLE"


class PlainJob:
    """A job as a user writes it in SQL: from Kafka into an Iceberg table's main."""

    def __init__(self, lake: Lake, flink: Flink, topic: str) -> None:
        self.lake, self.topic = lake, topic
        self._gateway = FlinkAddress(flink.gateway.url)
        self.manager = JobManager(FlinkAddress(flink.manager.url))
        self._job = ""

    def start(self, savepoint: str = "") -> None:
        folder = self.lake.folder
        self.lake.catalog().create_namespace_if_not_exists("lake")
        catalog = {
            "type": "iceberg",
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
            "jdbc.schema-version": "V1",
            "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            "cache-enabled": "false",
        }
        source = {
            "connector": "kafka",
            "topic": self.topic,
            "properties.bootstrap.servers": self.lake.kafka["bootstrap.servers"],
            "properties.group.id": f"flink-{self.topic}",
            "scan.startup.mode": "earliest-offset",
            "format": "json",
        }
        settings = {"execution.checkpointing.interval": "1s"}
        if savepoint:
            settings["execution.state-recovery.path"] = savepoint
        with SqlSession(self._gateway) as session:
            session.run(f"CREATE CATALOG iceberg_default WITH ({_options(catalog)})")
            table = f"iceberg_default.lake.{TABLE.partition('.')[2]}"
            session.run(f"CREATE TABLE IF NOT EXISTS {table} ({COLUMNS}) WITH ('format-version'='2')")
            session.run(f"CREATE TEMPORARY TABLE src ({COLUMNS}) WITH ({_options(source)})")
            for key, value in settings.items():
                session.run(f"SET '{key}' = '{value}'")
            _, job = session.run(f"INSERT INTO {table} SELECT * FROM src")
        assert job is not None
        self._job = job

    def await_rows(self, rows: int) -> None:
        poll_until(lambda: len(self.lake.scan()) >= rows, f"{rows} rows of Flink", PATIENCE, every=0.5)

    def stop(self) -> str:
        place = self.manager.stop(self._job, f"file://{self.lake.folder}/savepoints", PATIENCE)
        self._job = ""
        return place

    def cancel(self) -> None:
        if self._job:
            self.manager.cancel(self._job)

    def adopt(self, savepoint: str, topic: str = "") -> AdoptionResult:
        catalog = self.lake.catalog()
        work = TableAdoption(
            table=TABLE, consumer_group=GROUP, topic=topic or self.topic, kafka=self.lake.kafka, watch=0.0
        )
        return work.write(catalog, FlinkSavepoint(savepoint, open_filled(catalog, TABLE, GROUP)))


def _options(settings: dict[str, str]) -> str:
    return ", ".join(f"'{key}'='{value}'" for key, value in settings.items())


@pytest.fixture
def job(lake: Lake, flink: Flink, topic: Topics) -> Iterator[PlainJob]:
    """Give a job over a topic of two partitions; it ends with the test."""
    made = PlainJob(lake, flink, topic(partitions=2))
    yield made
    made.cancel()


def test_a_savepoint_that_stopped_the_job(job: PlainJob, produce: Producing, topic: Topics) -> None:
    lake = job.lake
    for partition in (0, 1):
        produce(job.topic, partition, events(partition, 0, 30))
    job.start()
    job.await_rows(60)
    first = job.stop()
    job.start(first)
    for partition in (0, 1):
        produce(job.topic, partition, events(partition, 30, 10))
    job.await_rows(80)
    # The job that went on from there is another one, whatever the numbers of its checkpoints are.
    with pytest.raises(CannotAdopt, match="Take the savepoint of"):
        job.adopt(first)
    last = job.stop()
    for partition in (0, 1):
        produce(job.topic, partition, events(partition, 40, 5))
    with pytest.raises(CannotAdopt, match="has no position of"):
        job.adopt(last, topic(partitions=2))

    done = job.adopt(last)

    assert json.loads(json.dumps(done.to_dict()))["not_verifiable"] == [[0, 0, 40], [1, 0, 40]]
    # Where the last checkpoints of the job had no records, its sink made no snapshots of them.
    assert any(
        "this one" in line or "brought no rows" in line for line in (*done.decision.proved, *done.decision.trusted)
    )
    assert "the table has 80 rows, as many as there are offsets up to the position" in done.decision.proved
    assert lake.land(job.topic, schema_evolution="add").counts.written == 10
    assert sorted(lake.scan()["id"].to_pylist()) == sorted(rows_of_events({0: 45, 1: 45})["id"].to_pylist())
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_a_savepoint_of_a_job_that_fills_another_table_is_refused(
    job: PlainJob, flink: Flink, produce: Producing, tmp_path: Path
) -> None:
    produce(job.topic, 0, events(0, 0, 30))
    elsewhere = Lake(tmp_path / "elsewhere", job.lake.kafka)
    elsewhere.folder.mkdir()
    other = PlainJob(elsewhere, flink, job.topic)
    job.start()
    job.await_rows(30)
    job.stop()
    produce(job.topic, 0, events(0, 30, 100))
    other.start()
    try:
        other.await_rows(130)
        place = other.stop()
    finally:
        other.cancel()
    with pytest.raises(CannotAdopt, match=r"would never be landed here\. Nothing was written"):
        job.adopt(place)
    assert job.lake.ledger().topics == {}
