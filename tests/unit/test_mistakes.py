"""What is said to somebody who made a mistake: one row each, by the DAG's parse, by the run, and by the command line.

The rows that need a broker are in tests/integration/test_mistakes.py; the numbers go on there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_lakestream.cli.app import FAILED, run
from airflow_lakestream.core.policies import OnEmpty, StartOffset, choose
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.operators.arguments import resolve_interval
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator
from airflow_lakestream.run.job import ExtractConfig
from airflow_lakestream.run.storage import StorageFailed, storage_errors_named
from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor
from airflow_lakestream.sensors.iceberg_snapshot_freshness import IcebergSnapshotFreshnessSensor
from airflow_lakestream.spark.packages import resolve
from tests.support.given_records import GivenLake

CHECKOUT = Path(__file__).parents[2]
AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Mistake:
    """An argument of a landing that is wrong, and what is said; `option` is that of `lakestream plan`, if it has it."""

    number: int
    what: str
    given: dict[str, Any]
    said: str
    option: str = ""
    ways: tuple[str, ...] = field(default=("parse", "run"))

    def __str__(self) -> str:
        return f"{self.number} {self.what}"


RUN = ("run",)
LITERALS = [
    Mistake(1, "no topic's name", {"topic": "or/ders"}, "topic: 'or/ders' is not a topic's name. Kafka takes", "topic"),
    Mistake(2, "a broken regex", {"topic": "^or(ders"}, "topic: '^or(ders' is not a regex of Python's", "topic"),
    Mistake(
        3,
        "no namespace",
        {"table": "orders"},
        "table: 'orders' is not of the form namespace.table. Write its namespace, too: \"lake.orders\".",
        "table",
    ),
    Mistake(
        4,
        "a name as the place of a Delta table",
        {"table_format": "delta"},
        "table: 'lake.orders' is not a place of a Delta table (table_format=\"delta\"). Write a URI or an absolute",
    ),
    Mistake(5, "no table format", {"table_format": "hudi"}, "table_format: 'hudi' is not one of 'iceberg', 'delta'."),
    Mistake(6, "no group's name", {"consumer_group": "my group"}, "consumer_group: 'my group' is not a name", "group"),
    Mistake(7, "no mode", {"mode": "append"}, "mode: 'append' is not one of 'resume', 'interval', 'ranges'."),
    Mistake(8, "no format", {"format": "xml"}, "format: 'xml' is not one of 'json', 'avro', 'protobuf'"),
    Mistake(9, "no key format", {"key_format": "text"}, "key_format: 'text' is not one of 'string', 'raw'"),
    Mistake(10, "no envelope", {"envelope": "maxwell"}, "envelope: 'maxwell' is not one of 'connect', 'debezium'."),
    Mistake(11, "no policy", {"on_error": "ignore"}, "on_error: 'ignore' is not one of 'fail', 'reject', 'skip'."),
    Mistake(12, "no policy of tombstones", {"tombstones": "drop"}, "tombstones: 'drop' is not one of 'keep', 'skip'"),
    Mistake(
        13,
        "no policy of loss",
        {"on_data_loss": "ignore"},
        "on_data_loss: 'ignore' is not one of 'fail', 'record'.",
        "on-data-loss",
    ),
    Mistake(
        14, "no start", {"start_offset": "newest"}, "start_offset: 'newest' is not one of 'earliest'", "start-offset"
    ),
    Mistake(15, "no evolution", {"schema_evolution": "all"}, "schema_evolution: 'all' is not one of 'none', 'add'"),
    Mistake(16, "no policy of fields", {"unknown_fields": "drop"}, "unknown_fields: 'drop' is not one of 'ignore'"),
    Mistake(
        17,
        "no size",
        {"max_batch_bytes": "256 megs"},
        "max_batch_bytes: '256 megs' is not a positive size. Write 268435456 or \"256MiB\".",
        "max-batch-bytes",
    ),
    Mistake(18, "no records", {"max_records": "0"}, "max_records: '0' is not a number of records above", "max-records"),
    Mistake(19, "no share", {"max_rejected": "5 percent"}, "max_rejected: '5 percent' is neither a count nor a share."),
    Mistake(20, "no duration", {"checkpoint_interval": "1 day"}, "checkpoint_interval: '1 day' is not a number of s"),
    Mistake(21, "no time to wait", {"poll_timeout": 0}, "poll_timeout: has to be above 0 seconds."),
    Mistake(22, "no number", {"parallelism": "all"}, "parallelism: 'all' is not a number of processes above 0."),
    Mistake(23, "no ranges", {"mode": "ranges", "ranges": "0:1-2"}, "ranges: '0:1-2' is not JSON"),
    Mistake(
        24,
        "no time",
        {"mode": "interval", "interval_start": "yesterday", "interval_end": "2026-01-01T00:00:00Z"},
        "interval_start: 'yesterday' is not a time. Write 2026-11-20T05:05:00Z",
    ),
    Mistake(25, "no metadata", {"metadata_columns": ["offsets"]}, "metadata_columns: 'offsets' is not one of 'topic'"),
    Mistake(26, "no delimiter", {"format": "csv", "csv_delimiter": "||"}, "csv_delimiter: '||' is not one character"),
    Mistake(
        27,
        "no URL",
        {"format": "avro", "schema_registry": {"url": "registry:8081"}},
        "schema_registry: its url is not one of http or https.",
    ),
    Mistake(28, "DDL of a database", {"schema": "at DATETIME"}, "schema: expected a type at position 4", ways=RUN),
    Mistake(29, "DDL without a blank", {"schema": "id int notnull"}, "schema: expected ',' or the end", ways=RUN),
    Mistake(
        30,
        "a time without its mode",
        {"interval_start": "2026-01-01T00:00:00Z"},
        'interval_start: goes with mode="interval"; the mode is "resume".',
        ways=RUN,
    ),
    Mistake(
        31,
        "a start without its time",
        {"start_offset": "timestamp"},
        'start_timestamp: goes with start_offset="timestamp", and is needed there.',
        "start-offset",
        ways=RUN,
    ),
    Mistake(
        32,
        "a registry that nobody asks",
        {"schema_registry": "http://registry:8081"},
        "schema_registry: the format is 'json', whose records name no schema. Leave it out, or correct format.",
        ways=RUN,
    ),
    Mistake(
        33,
        "columns to be added that may not be",
        {"unknown_fields": "evolve"},
        'unknown_fields: "evolve" adds columns to the table, and schema_evolution is "none". Set',
        ways=RUN,
    ),
    Mistake(
        34,
        "replacing without saying what",
        {"replace": True},
        'replace: goes with mode="interval" or "ranges", which set what to replace.',
        ways=RUN,
    ),
    Mistake(
        35,
        "SQL that is none",
        {"sql": "SELEC a FROM {{ input }}"},
        "sql: DuckDB does not understand it: syntax error at or near",
        ways=RUN,
    ),
]


def arguments(mistake: Mistake) -> dict[str, Any]:
    return {"topic": "orders", "table": "lake.orders", "consumer_group": "g", **mistake.given}


@pytest.mark.parametrize("mistake", [one for one in LITERALS if "parse" in one.ways], ids=str)
def test_by_the_parse(mistake: Mistake) -> None:
    with DAG("d", schedule=None), pytest.raises(InvalidArgument) as caught:
        KafkaExtractOperator(task_id="land", **arguments(mistake))
    assert_said(str(caught.value), mistake.said)


@pytest.mark.parametrize("mistake", LITERALS, ids=str)
def test_by_the_run_where_a_template_has_it(mistake: Mistake) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ExtractConfig(**arguments(mistake))
    assert_said(str(caught.value), mistake.said)


@pytest.mark.parametrize("mistake", [one for one in LITERALS if one.option], ids=str)
def test_by_the_command_line(mistake: Mistake, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"topic": "orders", "table": "lake.orders", "group": "g"}
    given[mistake.option] = str(next(iter(mistake.given.values())))
    assert run(["plan", *(word for name, value in given.items() for word in (f"--{name}", value))]) == FAILED
    name, _, problem = mistake.said.partition(": ")
    name = f"--{mistake.option}" if name == mistake.option.replace("-", "_") else name
    problem = problem.replace('start_offset="timestamp"', "--start-offset timestamp")
    assert_said(capsys.readouterr().err, f"lakestream: {name}: {problem}")


def assert_said(text: str, said: str) -> None:
    assert text.startswith(said)
    assert "\n" not in text.rstrip("\n"), "one line"


def test_the_hints_of_ddl_name_what_was_meant() -> None:
    hints = {"at DATETIME": "Did you mean 'timestamp'?", "id int notnull": "Write 'not null'."}
    for ddl, hint in hints.items():
        with pytest.raises(InvalidArgument) as caught:
            ExtractConfig(topic="orders", table="lake.orders", consumer_group="g", schema=ddl)
        assert str(caught.value).endswith(hint)


# Connections, places, tables that are there: what only the run sees


SEEN_BY_THE_RUN: list[tuple[int, Callable[[Path], object], str]] = []


def mistake(number: int, said: str) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:
    """Put what a function does into the table, with the beginning of what is said."""

    def put(do: Callable[[Path], object]) -> Callable[[Path], object]:
        SEEN_BY_THE_RUN.append((number, do, said))
        return do

    return put


@mistake(36, "Kafka connection 'k': no answer from Kafka within 5 s while describing topic 'orders'. Last er")
def closed_port(_: Path) -> object:
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    return KafkaSource(settings, "orders", "g", StartAt(StartOffset.EARLIEST), "Kafka connection 'k'").look()


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what a row changes of the environment."""
    monkeypatch.setenv("AIRFLOW_CONN_K", "")
    monkeypatch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))


def connection(kind: str, **fields: Any) -> None:
    os.environ["AIRFLOW_CONN_K"] = json.dumps({"conn_type": kind, **fields})


@mistake(37, "kafka_conn_id: connection 'k' can't be used: ")
def kafka_without_servers(_: Path) -> object:
    connection("kafka", extra={"bootstrap_servers": "broker:9092"})
    return KafkaHook("k").configuration()


@mistake(38, "Kafka connection 'k': its settings can't be used: No such configuration property: \"sasl.m")
def unknown_setting(_: Path) -> object:
    settings = {"bootstrap.servers": "127.0.0.1:1", "sasl.mechanisim": "PLAIN"}
    return KafkaSource(settings, "orders", "g", StartAt(StartOffset.EARLIEST), "Kafka connection 'k'").look()


@mistake(39, "iceberg_conn_id: connection 'k': type: 'hadoop' is not one of 'glue', 'hive', ")
def no_such_catalog(_: Path) -> object:
    connection("iceberg", extra={"type": "hadoop", "warehouse": "/lake"})
    return IcebergHook("k").open_catalog()


@mistake(40, "iceberg_conn_id: connection 'k' is a dynamodb catalog, which can't compare")
def catalog_without_compare_and_set(_: Path) -> object:
    connection("iceberg", extra={"type": "dynamodb"})
    return IcebergHook("k").open_catalog()


@mistake(41, "Iceberg connection 'k': the catalog can't be used (ConnectionError: ")
def catalog_that_is_down(_: Path) -> object:
    connection("iceberg", host="http://127.0.0.1:1")
    return IcebergHook("k").open_catalog()


@mistake(42, "schema: it contradicts the table lake.events: 'id' is given as string and is bigint in")
def another_schema(folder: Path) -> object:
    lake = GivenLake(folder)
    lake.land([b'{"id": 1}'], schema="id bigint")
    return lake.land([b'{"id": 1}'] * 2, schema="id string")


@mistake(43, "consumer group 'g' has already landed given[0] [0,1) in lake.events; landing them")
def another_group(folder: Path) -> object:
    lake = GivenLake(folder)
    lake.land([b'{"id": 1}'])
    return lake.land([b'{"id": 1}'], consumer_group="other")


@mistake(44, "ranges: given has no partition 7; it has 0.")
def a_partition_too_many(folder: Path) -> object:
    return GivenLake(folder).land([b'{"id": 1}'], mode="ranges", ranges=[[7, 0, 1]])


@mistake(45, "ranges: given[0] ends at 1, before 100: no record is there yet.")
def offsets_to_come(folder: Path) -> object:
    return GivenLake(folder).land([b'{"id": 1}'], mode="ranges", ranges=[[0, 0, 100]])


@mistake(46, "partition_by: 'days(created)': there is no column 'created'. Known are")
def no_such_partition_column(folder: Path) -> object:
    return GivenLake(folder).land([b'{"id": 1}'], partition_by=["days(created)"])


@mistake(47, "partition_by: 'daily(_kafka_timestamp)': unknown transform 'daily'. Did you mean")
def no_such_transform(folder: Path) -> object:
    return GivenLake(folder).land([b'{"id": 1}'], partition_by=["daily(_kafka_timestamp)"])


@mistake(48, "lake.events: 20 of 20 records of this run are bad, more than 50% of them")
def the_wrong_format(folder: Path) -> object:
    return GivenLake(folder).land([b"id;name"] * 20, schema="id bigint")


@mistake(49, "given[0] offset 1: ")
def a_bad_record(folder: Path) -> object:
    return GivenLake(folder).land([b'{"id": 1}', b'{"id": 1.5}'], schema="id bigint", on_error="fail")


@mistake(50, "Spark needs Java, and ")
def no_java(folder: Path) -> object:
    os.environ["JAVA_HOME"] = str(folder)
    return resolve(["org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"], cache=folder)


@mistake(51, "interval_start: the run's data interval is empty, it starts and ends at 2026-01-01 00")
def a_plain_cron(_: Path) -> object:
    return resolve_interval({"data_interval_start": AT, "data_interval_end": AT}, {})


@mistake(52, "interval_start: the run has no data interval (it was triggered without a logical date)")
def no_logical_date(_: Path) -> object:
    return resolve_interval({}, {})


@mistake(53, "interval_end: is missing, while the arguments give interval_start.")
def half_an_interval(_: Path) -> object:
    return resolve_interval({}, {"interval_start": AT})


@mistake(54, "checkpoint_location: one of checkpoint_location, table and group_id has to be given.")
def nothing_to_wait_for(_: Path) -> object:
    return CheckpointLagSensor(task_id="wait")


@mistake(55, "max_age: is missing, and so is complete_through. Give one of them.")
def no_limit(_: Path) -> object:
    return IcebergSnapshotFreshnessSensor(task_id="wait", table="lake.orders")


@mistake(56, "app: 'kafka_to_iceburg' is not a bundled app. Did you mean 'kafka_to_iceberg'?")
def a_misspelt_app(_: Path) -> object:
    return SparkStreamingSubmitOperator(task_id="s", app="kafka_to_iceburg", app_config={})


@mistake(57, "trigger: 'now' is neither \"available_now\" nor a time between two batches. W")
def no_interval_between_batches(_: Path) -> object:
    return SparkStreamingSubmitOperator(task_id="s", app="kafka_to_iceberg", app_config={}, trigger="now")


@mistake(58, "schema_registry: its url holds credentials, which would be shown. Put them into")
def a_secret_in_the_dag(_: Path) -> object:
    url = "http://me:word@registry:8081"
    return KafkaExtractOperator(task_id="land", topic="t", table="lake.t", format="avro", schema_registry=url)


@mistake(59, "on_empty: 'fail' is not one of 'success', 'skip'.")
def no_policy_of_empty_runs(_: Path) -> object:
    return choose(OnEmpty, "on_empty", "fail")


@pytest.mark.parametrize(("number", "do", "said"), SEEN_BY_THE_RUN, ids=lambda one: getattr(one, "__name__", None))
def test_by_what_the_run_meets(number: int, do: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    with pytest.raises(LakestreamError) as caught:
        do(tmp_path)
    assert_said(str(caught.value), said)


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no file system of its own")
def test_60_a_full_disk(tmp_path: Path) -> None:
    place = tmp_path / "tiny"
    place.mkdir()
    command = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$1" -c "$2" "$0"']
    done = subprocess.run(
        [*command, str(place), sys.executable, FILL], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    if "unshare: " in done.stderr:
        pytest.skip("this system gives no file system of its own")
    for line, (table, where) in zip(
        done.stdout.splitlines(),
        [("lake.events", f"file://{place}/w"), (f"{place}/events", f"{place}/events")],
        strict=True,
    ):
        assert_said(line, f"{table}: the disk of {where} is full. What was not committed yet was discarded; a retry ")


FILL = """
import os, sys
from pathlib import Path
from airflow_lakestream.run.storage import DiskFull, storage_errors_named
from tests.support.given_records import FORMATS, GivenLake
records = [b'{"t": "%s"}' % os.urandom(200).hex().encode() for _ in range(8_000)]
for kind in FORMATS:
    lake = GivenLake(Path(sys.argv[1]), kind)
    try:
        with storage_errors_named(lake.name, lake.catalog()):
            lake.land(records, schema="t string")
    except DiskFull as e:
        print(e)
"""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(5, "broken"), "lake.t: its store or its catalog failed .*broken.*look at the store's address"),
        (FileNotFoundError("s3://b/m.avro"), "FileNotFoundError: s3://b/m.avro.*`lakestream audit` names the files"),
    ],
)
def test_errors_of_a_store_name_the_table(error: OSError, says: str) -> None:
    with pytest.raises(StorageFailed, match=says), storage_errors_named("lake.t", None):
        raise error


def test_an_error_of_another_kind_is_left_as_it_is() -> None:
    with pytest.raises(KeyError), storage_errors_named("lake.t", None):
        raise KeyError("x")


# The command line's own

COMMANDS: list[tuple[int, list[str], str]] = [
    (61, ["stauts"], "No such command 'stauts'."),
    (62, ["status"], "--table is missing. Give --table, --namespace or --checkpoint, also several."),
    (63, ["status", "--table", "lake.t", "--every", "soon", "--watch"], "--every: 'soon' is not a number of seconds."),
    (64, ["status", "--tables", "lake.t"], "No such option: --tables"),
    (65, ["plan", "--topic", "t", "--group", "g"], "--table is missing. Give it, or a --pipeline or --d"),
    (
        66,
        ["ledger", "history", "--table", "/lake/t"],
        "--table: '/lake/t' is the path of a Delta table; histories and changes of ledgers are for Iceberg tables.",
    ),
    (67, ["rejects", "replay", "--table", "lake.t", "--group", "g", "--limit", "0"], "--limit: 0 is not a number of r"),
    (68, ["audit", "--table", "lake.t", "--group", "g", "--landing", "[]"], "--landing: '[]' is not a JSON object."),
    (69, ["ledger", "rename", "--table", "lake.t"], "Missing option '--to'."),
    (70, ["ledger", "forget", "--table", "lake.t", "--group", "g", "--rows", "t:1-2"], "--rows: 't:1-2' is "),
]


@pytest.mark.parametrize(("number", "line", "said"), COMMANDS, ids=lambda one: " ".join(one) if one is list else None)
def test_by_a_command(number: int, line: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line) == FAILED
    assert_said(capsys.readouterr().err, f"lakestream: {said}")


def test_71_ctrl_c(tmp_path: Path) -> None:
    # A broker that takes the connection, and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        extra = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
        lake = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
        connections = {
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": extra}),
            "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps({"conn_type": "iceberg", "extra": lake}),
        }
        code = "from airflow_lakestream.cli.app import main; main()"
        command = subprocess.Popen(
            [sys.executable, "-c", code, "plan", "--table", "lake.t", "--group", "g", "--topic", "t"],
            env={**os.environ, **connections},
            stderr=subprocess.PIPE,
            text=True,
            # In the background of a shell it would be ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        with silent.accept()[0]:
            # The client swallows one that comes while it calls back: press it again.
            while command.poll() is None:
                command.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    command.wait(3)
        assert command.stderr is not None
        assert_said(command.stderr.read(), "lakestream: interrupted.")
        assert command.returncode != 0


def test_81_a_python_that_is_too_old(tmp_path: Path) -> None:
    # What pip refuses by, with both versions in its message.
    assert metadata("airflow-lakestream")["Requires-Python"] == ">=3.11"
    old = tmp_path / "python3.9"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 9, 18)\n$2"\n')
    old.chmod(0o755)
    (tmp_path / "dev").mkdir()
    for name in ("pyproject.toml", "dev/constraints.txt"):
        (tmp_path / name).touch()
    made = subprocess.run(
        ["make", "--file", CHECKOUT / "Makefile", "setup", f"PYTHON={old}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert_said(made.stderr.partition("\n")[0], "Python 3.11 or newer is needed: make setup PYTHON=python3.11")
    assert made.returncode != 0
    assert not (tmp_path / ".venv").exists()


def test_each_mistake_has_a_number_of_its_own() -> None:
    numbers = [one.number for one in LITERALS] + [one[0] for one in (*SEEN_BY_THE_RUN, *COMMANDS)] + [60, 71, 81]
    assert sorted(numbers) == [*range(1, 72), 81]
