"""A pipeline's file, and the DAG file that loads it, in a real Airflow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.airflow_home import AirflowHome, Connections, Run
from tests.support.broker import Producing

EXAMPLE = """\
metadata:
  name: {name}
sources:
  events:
    type: kafka
    connection: ${{KAFKA_CONNECTION}}
    topic: {topic}
    consumer_group: {name}
transformations:
  - name: parse
    type: sql_transform
    input: events
    sql: |
      SELECT
        JSON_VALUE(value, '$.id')::BIGINT AS id,
        JSON_VALUE(value, '$.name') AS name,
        event_timestamp
      FROM {{{{ input }}}}
sinks:
  lake:
    type: iceberg
    table: lake.{table}
    mode: append
    partition_by: ["day(event_timestamp)"]
orchestration:
  engine: {engine}
  schedule: never
  checkpoint_interval: 60s
  parallelism: 2
"""
# Airflow looks for the words "dag" and "airflow" in a file before it reads it.
LOADING = """
# The DAGs of pipelines.
from airflow_lakestream.pipelines import load
load({folder!r})
"""


class Pipelines:
    """A folder of pipelines, loaded by a DAG file."""

    def __init__(self, airflow: AirflowHome, connections: Connections, folder: Path) -> None:
        self._airflow, self._connections, self.folder = airflow, connections, folder
        self._broken: dict[Path, str] = {}
        self.file = airflow.write(f"load_{folder.name}", LOADING.format(folder=str(folder)))

    def write(self, name: str, alerts: Any = None, **told: str) -> None:
        """Write a pipeline's file; what is not told is by its name."""
        told = {"name": name, "table": name, "engine": "extract", **told}
        alerted = f"  alerts: {json.dumps(alerts)}\n" if alerts else ""
        (self.folder / f"{name}.yaml").write_text(EXAMPLE.format(**told) + alerted)

    def break_files(self, breaks: Mapping[str, tuple[str, str]]) -> None:
        """Replace a text in files, by the pipelines' names."""
        for name, (old, new) in breaks.items():
            text = (file := self.folder / f"{name}.yaml").read_text()
            assert old in text
            self._broken[file] = text
            file.write_text(text.replace(old, new, 1))

    def mend_files(self) -> None:
        """Write the files as they were before `break_files`."""
        for file, text in self._broken.items():
            file.write_text(text)

    def bag(self) -> Any:
        """Parse the DAG file, as Airflow does."""
        return self._airflow.bag(self.file)

    def run(self, name: str) -> Run:
        """Run a pipeline's DAG as its file is now."""
        return self._airflow.run(self.bag().dags[name])

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table without what Airflow's run decides."""
        found = self._connections.catalog.load_table(f"lake.{table}").scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: (row["_kafka_partition"], row["_kafka_offset"]))


@pytest.fixture
def pipelines(
    airflow: AirflowHome, connections: Connections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pipelines]:
    """Give an empty folder of pipelines; `${KAFKA_CONNECTION}` is the test's broker."""
    monkeypatch.setenv("AIRFLOW_VAR_KAFKA_CONNECTION", "kafka_default")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv("AIRFLOW_VAR_LAKESTREAM_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    folder = tmp_path / f"pipes_{tmp_path.name}"
    folder.mkdir()
    made = Pipelines(airflow, connections, folder)
    yield made
    # Airflow reads all files of its folder.
    made.file.unlink()


def switch_engines(pipelines: Pipelines, produce: Producing, topic: str, engines: list[str]) -> None:
    """Change the engine by one word before each run, while records come; each record is in the table once."""
    for turn, engine in enumerate(engines):
        for partition in (0, 1):
            values = [json.dumps({"id": 100 * turn + n, "name": f"{engine} {n}"}) for n in range(40)]
            produce(topic, partition, values)
        pipelines.write("switched", topic=topic, engine=engine)
        run = pipelines.run("switched")
        assert (run.state, run.errors) == ("success", []), engine
    rows = pipelines.rows("switched")
    places = [(row["_kafka_partition"], row["_kafka_offset"]) for row in rows]
    assert places == [(partition, offset) for partition in (0, 1) for offset in range(40 * len(engines))]
    assert [row["id"] for row in rows[: len(rows) // 2]] == [100 * (n // 40) + n % 40 for n in range(len(rows) // 2)]
