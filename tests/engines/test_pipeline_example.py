"""The mission's own pipeline, its file as it is but for the word of the engine: equal tables, rejects and ledgers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.core.ledger import TopicEntry
from airflow_lakestream.driver.lease import request_stop
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.tables.rejects.settlement import rejects_of
from dev.service import CHECKOUT
from dev.services.kafka import Kafka
from dev.stack import Stack
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, Topics, poll_until
from tests.support.catalogs import CatalogLake
from tests.support.lake import Lake
from tests.support.pipelines import Pipelines, pipelines
from tests.support.table_formats import Place

__all__ = ["pipelines"]

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

EXAMPLE = (CHECKOUT / "dags" / "pipelines" / "realtime-clickstream.yaml").read_text()
DAG_ID, TOPIC, GROUP = "realtime-clickstream", "web.clickstream", "pipeline-clickstream-v1"
TABLE = "analytics.web.clickstream_events"
# A commit each minute is the file's own word.
PATIENCE = 400.0
CLICKS: list[str | None] = [
    *(
        json.dumps({"user_id": f"u{n}", "event_type": "view", "page_url": f"/{n}", "more": {"a": 1.5}})
        for n in range(50)
    ),
    '{"user_id": 7, "event_type": null, "page_url": {"not": "a text"}}',
    '{"user_id": 1.50, "event_type": true}',
    "no document",
    '{"user_id": "cut',
    None,
    '{"user_id": "a", "user_id": "b"}',
]
ROWS = [
    *((f"u{n}", "view", f"/{n}") for n in range(50)),
    ("7", None, None),
    ("1.5", "true", None),
    (None, None, None),
    ("a", None, None),
]
REJECTED = [62, 63]


class Example:
    """The example by one engine, in a lake of its own."""

    def __init__(self, pipelines: Pipelines, airflow: AirflowHome, lake: Lake) -> None:
        self._pipelines, self._airflow, self.lake = pipelines, airflow, lake

    def write(self, engine: str, topic: str = TOPIC, every: str = "60s") -> None:
        """Write the file; all but the engine is as it is, where a test asks for nothing else."""
        text = EXAMPLE.replace("engine: flink", f"engine: {engine}").replace(f"topic: {TOPIC}\n", f"topic: {topic}\n")
        text = text.replace("checkpoint_interval: 60s", f"checkpoint_interval: {every}")
        (self._pipelines.folder / "clickstream.yaml").write_text(text)

    def run(self, engine: str) -> None:
        """Run a landing that ends."""
        done = self._pipelines.run(DAG_ID)
        assert (done.state, done.errors) == ("success", []), engine

    def entry(self, topic: str = TOPIC) -> TopicEntry:
        """Return the group's books; empty ones without a table."""
        catalog = self.lake.catalog()
        if not catalog.table_exists(TABLE):
            return TopicEntry()
        found = read_ledger(catalog.load_table(TABLE), GROUP).topics
        return next((entry for identity, entry in found.items() if identity.topic == topic), TopicEntry())

    def follow(self, location: str, steps: Iterator[Any]) -> None:
        """Run a stream's task; ask after each step of the test whether its condition holds, then stop the stream."""
        started = self._airflow.start(self._pipelines.bag().dags[DAG_ID])
        with self._airflow.process(started, self._pipelines.file, "land") as process:
            try:
                for condition in steps:
                    poll_until(condition, "the stream", PATIENCE, every=0.5)
            except TimeoutError as e:
                raise AssertionError(process.log) from e
            assert request_stop(location, "the test")
            process.wait(PATIENCE)
        assert started.task("land").state == "success", process.log


@pytest.fixture
def example(
    pipelines: Pipelines,
    airflow: AirflowHome,
    connections: Connections,
    kafka: Kafka,
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Example]:
    """Give the example in a catalog that knows namespaces of two levels, as the file's table has."""
    monkeypatch.setenv("AIRFLOW_VAR_SCHEMA_REGISTRY_URL", "http://registry.test:8081")
    rest = stack.up_rest_catalog()
    connections.iceberg(rest.properties)
    place = Place(Path(rest.warehouse.removeprefix("file://")), {"catalog": rest.properties})
    made = Example(pipelines, airflow, CatalogLake(place, kafka.client_config()))
    yield made
    catalog = made.lake.catalog()
    for table in (TABLE, rejects_of(TABLE)):
        if catalog.table_exists(table):
            catalog.purge_table(table)


@pytest.fixture
def clicks(topic: Topics) -> Iterator[str]:
    """Give the file's own topic."""
    yield topic(2, name=TOPIC)
    topic.delete(TOPIC)


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    found = lake.catalog().load_table(TABLE).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["_kafka_partition"], row["_kafka_offset"]))


@pytest.mark.parametrize("engine", ["extract", "group", "spark", "flink"])
def test_the_file_runs_on_each_engine(
    example: Example, clicks: str, produce: Producing, engine: str, flink_connected: None, tmp_path: Path
) -> None:
    produce(clicks, 0, CLICKS[:10])
    example.write(engine)

    def land() -> None:
        produce(clicks, 0, CLICKS)

    def landed() -> bool:
        return example.entry().landed.of_partition(TOPIC, 0).width == len(CLICKS)

    def steps() -> Iterator[Any]:
        yield lambda: bool(example.entry().origin)
        land()
        yield landed

    if engine in ("extract", "group"):
        example.run(engine)
        land()
        example.run(engine)
    else:
        example.follow(str(tmp_path / "checkpoints" / DAG_ID), steps())
    rows = rows_of(example.lake)
    assert [(row["user_id"], row["event_type"], row["page_url"]) for row in rows] == ROWS
    assert [row["_kafka_offset"] for row in rows] == [n for n in range(10, 66) if n not in REJECTED]
    assert all(row["event_timestamp"] == row["_kafka_timestamp"] for row in rows)
    counts = example.entry().counts
    assert (counts.read, counts.written, counts.rejected, counts.filtered, counts.skipped) == (56, 54, 2, 0, 0)
    rejects = example.lake.catalog().load_table(rejects_of(TABLE)).scan().to_arrow().to_pylist()
    assert sorted(row["_kafka_offset"] for row in rejects) == REJECTED


def test_the_engine_is_one_word_in_the_middle_of_a_flowing_topic(
    example: Example, topic: Topics, produce: Producing, flink_connected: None, tmp_path: Path
) -> None:
    name = topic(2)
    for turn, engine in enumerate(["extract", "flink", "group", "flink"]):
        example.write(engine, name, every="1s")

        def land(turn: int = turn) -> None:
            values = [*CLICKS, json.dumps({"user_id": f"turn {turn}"})]
            produce(name, 0, values)

        def landed(turn: int = turn) -> bool:
            return example.entry(name).landed.of_partition(name, 0).width == (turn + 1) * (len(CLICKS) + 1)

        if engine == "flink":
            land()
            example.follow(str(tmp_path / "checkpoints" / DAG_ID), iter([landed]))
        else:
            if turn == 0:
                example.run(engine)
            land()
            example.run(engine)
        assert landed()
    rows = rows_of(example.lake)
    assert [row["user_id"] for row in rows] == [
        one for turn in range(4) for one in [*(user for user, _, _ in ROWS), f"turn {turn}"]
    ]
    counts = example.entry(name).counts
    assert (counts.read, counts.written, counts.rejected) == (4 * 57, 4 * 55, 8)
