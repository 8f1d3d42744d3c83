"""Every DAG in dags/, run by `dag.test()` on the real broker, with nothing but connections in the environment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pendulum
import pytest
from pyiceberg.table import Table

from airflow_lakestream.iceberg.ledger_store import read_ledger
from dev.services.kafka import Kafka
from dev.sources import flights
from dev.sources.clickstream import produce_clickstream
from tests.support.airflow_home import DAGS, AirflowHome, Connections, Run
from tests.support.lake import assert_files_are_whole

ALL_FILES = sorted(DAGS.glob("*.py"))
# Those that land nothing, and what their forms ask for; they run in tests of their own.
OTHERS = {
    "lake_maintenance": "tables",
    "supervise_lakestream": "streams",
    "clickstream_hourly": "table",
    "lake_repairs": "change",
    "lake_audit": "table",
    "lake_replay": "table",
}
LANDING_FILES = [file for file in ALL_FILES if file.stem not in OTHERS]
# Those of Spark run in tests/spark, those of mirrors in tests/mirrors.
ELSEWHERE = ("SparkStreamingSubmitOperator", "KafkaMirrorOperator")
FILES = [file for file in LANDING_FILES if not any(name in file.read_text() for name in ELSEWHERE)]


def clickstream(config: dict[str, str], topic: str, count: int) -> int:
    return produce_clickstream(config, topic, rate=0, count=count)


def some_flights(config: dict[str, str], topic: str, count: int) -> int:
    return flights.produce_flights(config, topic, count=count)


# What each DAG reads; a DAG that is added without a row here fails its tests.
SOURCES: dict[str, Callable[[dict[str, str], str, int], int]] = {
    "clickstream_to_lake": clickstream,
    "clickstream_backfill": clickstream,
    "clickstream_parallel": clickstream,
    "flights_to_lake": some_flights,
}

# What a run of each DAG is told besides the topic: all that its source produces is about now.
NOW = {"interval_start": "2026-01-01T00:00:00Z", "interval_end": "2100-01-01T00:00:00Z"}
CONF: dict[str, dict[str, str]] = {"clickstream_backfill": NOW}
GROUPS = {"clickstream_backfill": "clickstream_to_lake"}


# The task that reports, where it is not "land"; and the snapshots without rows that come before it in a first run.
TASKS = {"clickstream_parallel": "land.commit"}
FOUNDED = {"clickstream_parallel": 1}


def landed(table: Table) -> Counter[tuple[int, int]]:
    """Return how often each (partition, offset) is in the table."""
    rows = table.scan(selected_fields=("_kafka_partition", "_kafka_offset")).to_arrow()
    return Counter(zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True))


def offsets(ranges: list[list[int]]) -> Counter[tuple[int, int]]:
    """Return each offset of a report's ranges, once."""
    return Counter((partition, offset) for partition, start, end in ranges for offset in range(start, end))


def assert_landed_once(run: Run, table: Table, count: int) -> None:
    """Check that rows, XCom, asset event and ledger tell the same."""
    report = run.task(TASKS.get(run.dag_id, "land")).xcom
    assert report["rows"] == report["read"] == count
    assert report["remaining_lag"] == 0
    assert landed(table) == offsets(report["ranges"])
    assert sum(landed(table).values()) == count
    assert_files_are_whole(table)
    snapshots = [str(snapshot.snapshot_id) for snapshot in table.snapshots()]
    assert report["snapshot_ids"] == snapshots[FOUNDED.get(run.dag_id, 0) :]
    uri = "iceberg://" + report["table"].replace(".", "/")
    assert run.asset_events == [(uri, report)]
    [(identity, entry)] = read_ledger(table, report["consumer_group"]).topics.items()
    assert identity.topic == report["topic"]
    assert [[r.partition, r.from_offset, r.until_offset] for r in entry.landed] == report["ranges"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_lands_its_topic_and_reports_it(
    file: Path, airflow: AirflowHome, connections: Connections, kafka: Kafka, topic
) -> None:
    name, dag, task_id = topic(), airflow.dag(file), TASKS.get(file.stem, "land")
    count = SOURCES[file.stem](kafka.client_config(), name, 3000)
    conf = {"topic": name, **CONF.get(file.stem, {})}
    first = airflow.run(dag, conf)
    assert (first.state, first.errors) == ("success", [])
    table = connections.catalog.load_table(dag.params["table"])
    snapshots = len(table.snapshots())
    assert first.task(task_id).xcom["consumer_group"] == GROUPS.get(dag.dag_id, dag.dag_id)
    assert_landed_once(first, table, count)

    second = airflow.run(dag, conf)
    assert second.state == "success"
    report = second.task(task_id).xcom
    assert (report["rows"], report["snapshot_ids"]) == (0, [])
    assert second.asset_events == []
    assert len(table.refresh().snapshots()) == snapshots


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_lands_where_the_form_says(
    file: Path, airflow: AirflowHome, connections: Connections, kafka: Kafka, topic
) -> None:
    name, dag = topic(1), airflow.dag(file)
    SOURCES[file.stem](kafka.client_config(), name, 10)
    run = airflow.run(dag, {"topic": name, "table": "other.place", **CONF.get(file.stem, {})})
    assert run.state == "success"
    assert run.asset_events == [("iceberg://other/place", run.task(TASKS.get(file.stem, "land")).xcom)]
    assert sum(landed(connections.catalog.load_table("other.place")).values()) == 10


@pytest.mark.parametrize("file", ALL_FILES, ids=lambda file: file.stem)
def test_its_form_explains_each_field(file: Path, airflow: AirflowHome) -> None:
    dag = airflow.dag(file)
    assert ({"topic", "table"} if file in LANDING_FILES else {OTHERS[file.stem]}) <= set(dag.params)
    for name in dag.params:
        param = dag.params.get_param(name)
        assert param.schema.get("title"), name
        assert param.description, name
        assert param.schema.get("type") or param.schema.get("enum"), name


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": "no_namespace"},
        {"topic": ""},
        {"max_records": 0},
        {"max_records": "many"},
        {"max_batch_bytes": "a lot"},
        {"on_data_loss": "ignore"},
    ],
    ids=str,
)
def test_the_form_refuses_what_can_not_work(wrong: dict[str, object], airflow: AirflowHome) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises((ParamValidationError, ValueError), match=next(iter(wrong))):
        airflow.run(airflow.dag(DAGS / "clickstream_to_lake.py"), wrong)


def test_limits_of_the_form_are_kept(airflow: AirflowHome, connections: Connections, topic, produce) -> None:
    name, dag = topic(1), airflow.dag(DAGS / "clickstream_to_lake.py")
    produce(name, 0, [b'{"timestamp":"2026-01-01T00:00:00Z","n":%d}' % n for n in range(100)])
    reports = [airflow.run(dag, {"topic": name, "max_records": 40}).task().xcom for _ in range(4)]
    assert [report["rows"] for report in reports] == [40, 40, 20, 0]
    assert [report["remaining_lag"] for report in reports] == [60, 20, 0, 0]
    assert landed(connections.catalog.load_table("lake.clickstream")) == offsets([[0, 0, 100]])


def test_all_flights_of_2013_land(airflow: AirflowHome, connections: Connections, kafka: Kafka, topic) -> None:
    name = topic()
    assert flights.produce_flights(kafka.client_config(), name) == flights.TOTAL
    run = airflow.run(airflow.dag(DAGS / "flights_to_lake.py"), {"topic": name})
    assert run.state == "success"
    table = connections.catalog.load_table("lake.flights")
    assert_landed_once(run, table, flights.TOTAL)
    # What is known of the data set, apart from our reading of it.
    delays = table.scan(selected_fields=("carrier", "dep_time", "distance")).to_arrow()
    assert delays["dep_time"].null_count == 8255
    assert len(set(delays["carrier"].to_pylist())) == 16
    assert sum(delays["distance"].to_pylist()) == 350217607


# Airflow is imported once; each file is parsed by a fork, which knows nothing of the other files.
_PARSING = """
import json, os, socket, sys, traceback
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "polars", "duckdb"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
def refuse(*a, **k): raise AssertionError("a DAG file opens no connection")
socket.socket.connect = refuse
import runpy
import airflow.sdk
def parsed(file):
    try:
        runpy.run_path(file)
    except BaseException:
        return traceback.format_exc()
    return "it imports pyspark" if "pyspark" in sys.modules else ""
found = {}
for file in sys.argv[1:]:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, parsed(file).encode()[-4000:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        found[file] = said.read()
    os.waitpid(child, 0)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def problems() -> dict[str, str]:
    """Give each file's error, parsed without optional packages and connections; an empty text if it has none."""
    command = [sys.executable, "-c", _PARSING, *map(str, ALL_FILES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("file", ALL_FILES, ids=lambda file: file.stem)
def test_parses_without_optional_packages_and_opens_nothing(file: Path, problems: dict[str, str]) -> None:
    assert problems[str(file)] == ""


def test_the_backfill_lands_the_hour_of_its_run_and_replaces_it(
    airflow: AirflowHome, connections: Connections, topic, produce
) -> None:
    name, dag = topic(1), airflow.dag(DAGS / "clickstream_backfill.py")
    hour = pendulum.now("UTC").start_of("hour").subtract(hours=3)
    stamps = [int(hour.add(minutes=minute).timestamp() * 1000) for minute in (-10, 0, 59, 60, 130)]
    produce(name, 0, [b'{"timestamp":"2026-01-01T00:00:00Z","n":%d}' % n for n in range(5)], timestamps=stamps)

    first = airflow.run(dag, {"topic": name}, logical_date=hour.add(hours=1))
    assert first.errors == []
    report = first.task().xcom
    assert (report["ranges"], report["complete"]) == ([[0, 1, 3]], True)
    assert report["interval"] == [hour.isoformat(), hour.add(hours=1).isoformat()]

    again = airflow.run(dag, {"topic": name, "replace": True}, logical_date=hour.add(hours=1))
    assert (again.task().xcom["rows"], again.task().xcom["ranges"]) == (2, [[0, 1, 3]])
    assert landed(connections.catalog.load_table("lake.clickstream")) == offsets([[0, 1, 3]])
