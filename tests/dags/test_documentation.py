"""Every snippet of the README and the docs does what the text around it says."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import shlex
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_lakestream.cli.app import run
from airflow_lakestream.spark.app_config import AppConfig
from dev.services.kafka import Kafka
from dev.services.registry import Registry
from tests.support.airflow_home import DAGS, AirflowHome, Connections, Run
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import DeltaLake
from tests.support.lake import assert_landed_once, events
from tests.support.loopback import LoopbackHandler, LoopbackServer
from tests.support.watched import consume, started_by

CHECKOUT = DAGS.parent
# These are copied line by line into one shell: tests/start.
DOCS = CHECKOUT / "docs"
WALKED = [DOCS / "start.md", DOCS / "readers.md", *(DOCS / "tutorial").glob("*.md")]
PAGES = [
    CHECKOUT / "README.md",
    CHECKOUT / "dev" / "CONTRIBUTING.md",
    *sorted({*DOCS.rglob("*.md")} - {*WALKED}),
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What the topics of the documented DAGs hold; a DAG that is added without a row here fails its test.
RECORDS = {
    "shipments": b'{"id": %d, "created_at": "2026-11-20T05:05:00Z"}',
    "shop-events": b'{"id": %d, "event": "click", "at": "2026-11-20T05:05:00Z"}',
    "orders": b'{"id": %d, "created_at": "2026-11-20T05:05:00Z"}',
    "invoices": b'{"id": %d, "total": "12.50", "lines": [{"sku": "a", "count": 1, "gift": true}]}',
    "clicks": b'{"user": {"id": %d}, "page": "/", "timestamp": "2026-11-20T05:05:00Z", "country": "DE"}',
    "visits": b'{"id": %d, "name": "a", "day": "2026-11-20"}',
    "crm.public.customers": b'{"before": null, "after": {"id": %d}, "source": {"lsn": 1, "ts_ms": 1}, "op": "c"}',
    "tickets": b'{"id": %d, "opened_at": 1763596800123, "closed_at": "2026-11-20 05:05:00"}',
    "customers": b'{"id": %d, "name": "a", "updated_at": "2026-11-20T05:05:00Z"}',
    "refunds": b'{"id": %d, "amount": "12.50"}',
    "payments": b'{"id": %d, "amount": "12.50", "currency": "EUR", "paid_at": "2026-11-20T05:05:00+01:00"}',
}


# Those that a schema registry knows: the record's schema, and the value of one behind its id (a byte or two).
AVRO = {"parcels": '{"type": "record", "name": "Parcel", "fields": [{"name": "id", "type": "long"}]}'}


@dataclass(frozen=True)
class Snippet:
    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.text.split(chr(10), 1)[0][:40]}"


SNIPPETS = [Snippet(page, *match.groups()) for page in PAGES for match in FENCE.finditer(page.read_text())]
IS_EVENT = [s for s in SNIPPETS if s.language == "python" and "once_per_landing" in s.text]
# Those of another engine: tests/engines.
IS_CONNECT = [s for s in SNIPPETS if s.language == "python" and "KafkaConnectOperator(" in s.text]
# Those of partitions: tests/integration/test_asset_partitions.py.
IS_PARTITIONS = [s for s in SNIPPETS if s.language == "python" and "PartitionedAssetTimetable(" in s.text]
# A DAG that lands, and one that it starts.
IS_DOWNSTREAM = [s for s in SNIPPETS if s.language == "python" and s.page.stem == "downstream"]
IS_ALERT = [s for s in SNIPPETS if s.language == "python" and "def to_slack(" in s.text]
NOT_LANDING = [*IS_CONNECT, *IS_EVENT, *IS_PARTITIONS, *IS_DOWNSTREAM, *IS_ALERT]
IS_DAG = [s for s in SNIPPETS if s.language == "python" and "with DAG(" in s.text and s not in NOT_LANDING]
# The task that tells topic and table, where it is not "land": the first of a group.
FIRST_TASKS = ("land", "land.plan", "mirror")
IS_SENSOR = [s for s in SNIPPETS if s.language == "python" and "Sensor(" in s.text]
IS_UPKEEP = [s for s in SNIPPETS if s.language == "python" and "DeltaTable(" in s.text]
FLINK = ("FlinkSqlOperator(", "FlinkScriptOperator(")
IS_FLINK = [s for s in SNIPPETS if s.language == "python" and any(o in s.text for o in FLINK) and s not in IS_DAG]
OTHERS = [*IS_DAG, *IS_SENSOR, *IS_UPKEEP, *NOT_LANDING, *IS_FLINK]
IS_PYTHON = [s for s in SNIPPETS if s.language == "python" and s not in OTHERS]
IS_JSON = [s for s in SNIPPETS if s.language == "json"]
IS_YAML = [s for s in SNIPPETS if s.language == "yaml"]
IS_BASH = [s for s in SNIPPETS if s.language == "bash"]


def test_no_snippet_is_left_out() -> None:
    assert {s.language for s in SNIPPETS} <= {"python", "bash", "json", "yaml"}
    assert len(IS_DAG) >= 2
    assert len(IS_PYTHON) >= 1
    assert len(IS_BASH) >= 4


def named(topic: Topics, name: str) -> None:
    """Make a topic with a name that several pages use."""
    topic.delete(name, missing_ok=True)
    topic(1, name=name)


@pytest.mark.parametrize("snippet", IS_DAG, ids=str)
def test_a_documented_dag_lands_its_topic(
    snippet: Snippet,
    airflow: AirflowHome,
    connections: Connections,
    topic,
    produce,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # The page's bucket is nobody's: a folder stands in its place.
    text = snippet.text.replace("s3://bucket", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_STORE", json.dumps({"conn_type": "generic"}))
    dag = airflow.dag(airflow.write(f"documented_{abs(hash(snippet.text))}", text))
    task = next(dag.task_dict[task_id] for task_id in FIRST_TASKS if task_id in dag.task_dict)
    name = task.topic
    named(topic, name)
    if name in AVRO:
        registry: Registry = request.getfixturevalue("registry")
        monkeypatch.setenv("AIRFLOW_CONN_REGISTRY", json.dumps({"conn_type": "http", "host": registry.url}))
        header = struct.pack(">bI", 0, registry.register(f"{name}-value", AVRO[name]))
        values = [header + bytes([2 * n]) for n in range(20)]
    else:
        values = [RECORDS[name] % n for n in range(20)]
    produce(name, 0, values)
    run = airflow.run(dag)
    assert (run.state, run.errors) == ("success", [])
    # A template is not a table: the last task's report names those that were written.
    tables = [task.table] if "{" not in task.table else run.task(task.task_id).xcom["tables"]
    rows = [rows_of(connections, table) for table in tables]
    assert sorted(n for part in rows for n in part["id"].to_pylist()) == list(range(20))


def rows_of(connections: Connections, table: str) -> pa.Table:
    if table.startswith("/"):
        return pq.read_table(DeltaTable(table).file_uris(), columns=["id"])
    return connections.catalog.load_table(table).scan().to_arrow()


@pytest.mark.parametrize("snippet", IS_EVENT, ids=str)
def test_a_documented_dag_gets_the_landings_that_start_it(snippet: Snippet, airflow: AirflowHome) -> None:
    file = airflow.write("documented_event", snippet.text)
    landing = {"landing_id": "an-id", "table": "lake.orders", "rows": 5, "ranges": {"orders": [[0, 0, 5]]}}
    run = started_by(airflow, file, "orders", [landing, landing])
    with airflow.process(run, file, "tell") as process:
        process.wait(200)
        assert run.task("tell").state == "success", process.log
    assert process.log.count("an-id 5 {'orders': [[0, 0, 5]]}") == 1


@pytest.mark.parametrize("snippet", IS_DOWNSTREAM, ids=str)
def test_a_documented_dag_starts_when_another_has_landed_rows(
    snippet: Snippet, airflow: AirflowHome, connections: Connections, topic: Topics, produce: Producing
) -> None:
    file = airflow.write("documented_downstream", snippet.text)
    dags = airflow.bag(file).dags
    lands, reports = dags["refunds_to_lake"], dags["refunds_report"]
    named(topic, "refunds")
    produce("refunds", 0, [RECORDS["refunds"] % n for n in range(20)])
    run = airflow.run(lands)
    assert (run.state, [uri for uri, _ in run.asset_events]) == ("success", ["iceberg://lake/refunds"])
    assert airflow.run(lands).asset_events == []
    started = airflow.start(reports)
    consume(started, events_of(run))
    with airflow.process(started, file, "report") as process:
        process.wait(200)
        assert started.task("report").state == "success", process.log
    snapshot = connections.catalog.load_table("lake.refunds").current_snapshot()
    assert f"lake.refunds 20 rows in snapshot {snapshot.snapshot_id}" in process.log


def events_of(run: Run) -> list[int]:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return list(session.scalars(select(AssetEvent.id).filter_by(source_run_id=run.run_id)))


class Webhook(LoopbackHandler):
    """What Slack's incoming webhook takes: a JSON object with a text."""

    texts: list[str] = []

    def respond(self, body: bytes) -> None:
        assert self.headers["Content-Type"] == "application/json"
        self.texts.append(json.loads(body)["text"])
        self.reply(200)


@pytest.mark.parametrize("snippet", IS_ALERT, ids=str)
def test_a_documented_alert_is_posted(
    snippet: Snippet, airflow: AirflowHome, connections: Connections, topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.delete("refunds", missing_ok=True)
    with LoopbackServer(Webhook) as server:
        url = f"{server.url}/services/T/B/x"
        monkeypatch.setenv("AIRFLOW_CONN_SLACK", json.dumps({"conn_type": "generic", "password": url}))
        file = airflow.write("documented_alert", snippet.text)
        run = airflow.start(airflow.dag(file))
        with airflow.process(run, file, "land") as process:
            process.wait(200)
    assert run.task("land").state == "failed", process.log
    [text] = Webhook.texts
    assert text.startswith("refunds_watched.land, lake.refunds_watched: ")
    assert "refunds" in text.partition(": ")[2]


@pytest.mark.parametrize("snippet", IS_JSON, ids=str)
def test_a_documented_configuration_is_one(snippet: Snippet) -> None:
    given = json.loads(snippet.text)
    assert AppConfig.parse(given).app == given["app"]


@pytest.mark.parametrize("snippet", IS_YAML, ids=str)
def test_a_documented_pipeline_is_one(
    snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_KAFKA_CONNECTION", "kafka_default")
    monkeypatch.setenv("AIRFLOW_VAR_SCHEMA_REGISTRY_URL", "http://registry.test:8081")
    (tmp_path / "documented.yaml").write_text(snippet.text)
    for engine in ("extract", "group", "spark"):
        text = re.sub(r"engine: \w+", f"engine: {engine}", snippet.text)
        (tmp_path / f"{engine}.yaml").write_text(text.replace("  name: ", f"  name: {engine}-", 1))
    assert run(["pipeline", "validate", str(tmp_path)]) == 0, capsys.readouterr()


@pytest.mark.parametrize("snippet", IS_SENSOR, ids=str)
def test_a_documented_sensor_can_be_made(snippet: Snippet) -> None:
    import airflow_lakestream.sensors as sensors

    modules = [
        importlib.import_module(f"{sensors.__name__}.{one.name}") for one in pkgutil.iter_modules(sensors.__path__)
    ]
    known = {name: kind for module in modules for name, kind in vars(module).items() if name.endswith("Sensor")}
    exec(compile(snippet.text, snippet.page.name, "exec"), known)


@pytest.mark.parametrize("snippet", IS_FLINK, ids=str)
def test_a_documented_job_of_flink_can_be_made(snippet: Snippet) -> None:
    # What it does is proven on a real Flink: tests/engines.
    from airflow_lakestream.operators.flink_script import FlinkScriptOperator
    from airflow_lakestream.operators.flink_sql import FlinkSqlOperator

    known = {"FlinkSqlOperator": FlinkSqlOperator, "FlinkScriptOperator": FlinkScriptOperator}
    exec(compile(snippet.text, snippet.page.name, "exec"), known)


@pytest.mark.parametrize("snippet", IS_PYTHON, ids=str)
def test_a_documented_reader_finds_the_ledger(
    snippet: Snippet, airflow: AirflowHome, connections: Connections, topic_of, tmp_path: Path
) -> None:
    name = topic_of([b'{"timestamp": "2026-11-20T05:05:00Z"}'] * 5)
    assert airflow.run(airflow.dag(DAGS / "clickstream_to_lake.py"), {"topic": name}).state == "success"
    extra = json.loads(os.environ["AIRFLOW_CONN_ICEBERG_DEFAULT"])["extra"]
    lines = [f"    {key}: {value}\n" for key, value in extra.items()]
    (tmp_path / ".pyiceberg.yaml").write_text("".join(["catalog:\n", "  iceberg_default:\n", *lines]))
    done = subprocess.run(
        [sys.executable, "-c", snippet.text],
        env={**os.environ, "PYICEBERG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{name} 5 rows {name}[0] [0,5)"


@pytest.mark.parametrize("snippet", IS_UPKEEP, ids=str)
def test_documented_upkeep_leaves_rows_and_ledger(
    snippet: Snippet, topic: Topics, produce: Producing, kafka: Kafka, tmp_path: Path
) -> None:
    lake, name = DeltaLake(tmp_path, kafka.client_config()), topic(1)
    for batch in range(3):
        produce(name, 0, events(0, 5 * batch, 5))
        lake.land(name)
    exec(compile(snippet.text.replace("s3://bucket/lake/clicks", lake.place), str(snippet.page), "exec"), {})
    assert len(DeltaTable(lake.place).file_uris()) == 1
    assert_landed_once(lake, name, {0: 15})
    assert lake.land(name).counts.read == 0


@pytest.mark.parametrize("snippet", IS_BASH, ids=str)
def test_a_documented_command_is_there(snippet: Snippet, capsys: pytest.CaptureFixture[str]) -> None:
    for line in snippet.text.replace("\\\n", "").strip().splitlines():
        command = line.split("#")[0].strip()
        if command.startswith("make "):
            # The targets themselves are what runs this test, or takes as long as all of them.
            subprocess.run(["make", "--dry-run", *command.split()[1:]], cwd=CHECKOUT, check=True, capture_output=True)
        elif command.startswith("export AIRFLOW_CONN_"):
            assert_connection(command)
        elif command.startswith("lakestream "):
            # It is of a table that another tool filled; the commands of the other pages are run.
            _, name, *words = shlex.split(command)
            assert run([name, "--help"]) == 0
            shown = capsys.readouterr().out
            assert [word for word in words if word.startswith("--") and word not in shown] == []
        else:
            assert_pytest(command)


def assert_connection(command: str) -> None:
    from airflow.sdk import Connection

    variable = command.removeprefix("export ").partition("=")[0]
    told = subprocess.run(["bash", "-c", f'{command}\nprintf %s "${variable}"'], capture_output=True, check=True)
    connection = Connection.from_json(told.stdout.decode(), conn_id="documented")
    assert connection.conn_type in ("kafka", "iceberg", "http")
    assert connection.extra_dejson or connection.host


def assert_pytest(command: str) -> None:
    short = re.sub(r"LAKESTREAM_HISTORIES=\d+", "LAKESTREAM_HISTORIES=1", command)
    collected = subprocess.run(
        ["bash", "-c", short.replace(".venv/bin/python", sys.executable) + " --collect-only -q"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert collected.returncode == 0, collected.stdout + collected.stderr
