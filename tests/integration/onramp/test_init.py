"""`lakestream init` on real topics: a real Airflow parses and runs the file, which lands the topic."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_lakestream.cli.app import run
from dev.services.kafka import Kafka
from dev.services.registry import Registry
from tests.integration.onramp.test_preview import in_avro
from tests.support.airflow_home import ICEBERG_CONNECTION, KAFKA_CONNECTION, AirflowHome, Connections
from tests.support.broker import Producing, Topics
from tests.support.cdc import Source

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

LAKESTREAM = Path(sys.executable).with_name("lakestream")


def exported(text: str) -> dict[str, dict[str, object]]:
    """Return the connections of the lines that a shell would take."""
    lines = [shlex.split(line)[1] for line in text.splitlines() if line.startswith("export ")]
    return {name: json.loads(value) for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize("engine", ["extract", "group"])
def test_the_file_lands_the_topic(
    engine: str,
    airflow: AirflowHome,
    connections: Connections,
    topic: Topics,
    produce: Producing,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = topic(2)
    for p in range(2):
        produce(name, p, [json.dumps({"id": n, "at": "2026-11-20T05:05:00Z", "odd name": None}) for n in range(50)])
    produce(name, 0, ["no JSON"])
    file = airflow.path / "written" / f"{engine}_{name}.py"
    table = f"lake.by_{engine}"
    given = ["init", "--topic", name, "--table", table, "--engine", engine, "--output", str(file)]
    assert run([*given, "--schedule", "@hourly"]) == 0
    said = capsys.readouterr().out
    assert f"Wrote {file}" in said
    assert exported(said) == {key: json.loads(os.environ[key]) for key in (KAFKA_CONNECTION, ICEBERG_CONNECTION)}
    dag = airflow.dag(file)
    assert (dag.dag_id, dag.timetable.summary) == (f"{name}_to_lake", "0 * * * *")
    done = airflow.run(dag)
    assert (done.state, done.errors) == ("success", [])
    assert [uri for uri, _ in done.asset_events] == [f"iceberg://{table.replace('.', '/')}"]
    landed = connections.catalog.load_table(table).scan().to_arrow()
    assert landed.num_rows == 100
    assert landed.schema.names[:3] == ["id", "at", "odd name"]
    assert connections.catalog.load_table(f"{table}__rejected").scan().to_arrow().num_rows == 1
    # The second run has nothing to do.
    assert airflow.run(dag).state == "success"
    assert connections.catalog.load_table(table).scan().to_arrow().num_rows == 100


@pytest.mark.parametrize("as_yaml", [False, True])
def test_likely_times_are_times_in_the_file_and_land_as_such(
    as_yaml: bool,
    airflow: AirflowHome,
    connections: Connections,
    topic: Topics,
    produce: Producing,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, table = topic(1), f"lake.times_{as_yaml}".lower()
    produce(
        name, 0, [json.dumps({"id": n, "shippedAt": 1_763_596_800_000 + n, "phone": 2_125_551_234}) for n in range(9)]
    )
    file = tmp_path / f"{name}.{'yaml' if as_yaml else 'py'}"
    given = ["init", "--topic", name, "--table", table, "--output", str(file), *(["--yaml"] if as_yaml else [])]
    assert run(given) == 0
    said = capsys.readouterr().out
    assert "  shippedAt timestamp from epoch_ms\n" in said
    # The file is elsewhere: the advice names the folders of this Airflow.
    assert "one of Airflow's DAG folders: " in said
    assert f"{airflow.path}/written" in said
    text = file.read_text()
    assert "# shippedAt: 9 integers, likely milliseconds since the epoch" in text
    assert '"phone timestamp from epoch_s"' in text.replace("\n#  ", "")
    if as_yaml:
        assert run(["pipeline", "run", str(file)]) == 0
    else:
        assert airflow.run(airflow.dag(file)).state == "success"
    landed = connections.catalog.load_table(table).scan().to_arrow()
    assert str(landed.schema.field("shippedAt").type) == "timestamp[us, tz=UTC]"
    assert str(landed.schema.field("phone").type) == "int64"
    capsys.readouterr()


def test_a_pipeline_in_yaml_lands_the_topic(
    connections: Connections, topic: Topics, produce: Producing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(1)
    produce(name, 0, [*(json.dumps({"id": n, "odd name": "$x"}) for n in range(20)), "no JSON"])
    table = "lake.by_yaml"
    assert run(["init", "--topic", name, "--table", table, "--yaml", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    file = tmp_path / f"{name}_to_lake.yaml"
    assert f"Wrote {file}: pipeline {name}_to_lake, {name} -> {table}, by extract." in said
    assert 'airflow_lakestream.pipelines.load("pipelines/")' in said
    assert run(["pipeline", "validate", str(tmp_path)]) == 0
    for _ in range(2):
        assert run(["pipeline", "run", str(file)]) == 0
    landed = connections.catalog.load_table(table).scan().to_arrow()
    assert sorted(landed["id"].to_pylist()) == list(range(20))
    assert landed.schema.names[:2] == ["id", "odd name"]
    # The folder is right, and the name is not: Airflow reads no pipeline from it.
    assert run(["init", "--topic", name, "--yaml", "--output", str(tmp_path / "a.py")]) == 2
    assert "Let it end with .yaml" in capsys.readouterr().err


def test_a_file_of_a_registry_format_leaves_the_columns_to_the_registry(
    airflow: AirflowHome,
    connections: Connections,
    topic: Topics,
    produce: Producing,
    kafka: Kafka,
    registry: Registry,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = topic(1)
    produce(name, 0, in_avro(registry, name))
    connections.kafka({**kafka.client_config(), "schema.registry.url": registry.url})
    file = airflow.path / "written" / f"avro_{name}.py"
    assert run(["init", "--topic", name, "--table", "lake.avro", "--output", str(file)]) == 0
    text = file.read_text()
    assert 'format="avro"' in text
    assert "SCHEMA" not in text
    assert airflow.run(airflow.dag(file)).state == "success"
    assert connections.catalog.load_table("lake.avro").scan().to_arrow().column("label").to_pylist() == ["x"] * 4
    capsys.readouterr()


def test_a_file_for_spark_is_parsed_by_airflow(
    airflow: AirflowHome,
    connections: Connections,
    topic: Topics,
    produce: Producing,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = topic(1)
    produce(name, 0, ["1;a", "2;b", "3;c"])
    file = airflow.path / "written" / f"spark_{name}.py"
    assert run(["init", "--topic", name, "--engine", "spark", "--group", "mine", "--output", str(file)]) == 0
    assert exported(capsys.readouterr().out)["AIRFLOW_CONN_SPARK_DEFAULT"] == {"conn_type": "spark", "host": "local[*]"}
    dag = airflow.dag(file)
    task = dag.get_task("stream")
    assert task.app_config["consumer_group"] == "mine"
    assert (task.app_config["format"], task.app_config["csv_delimiter"]) == ("csv", ";")
    assert task.app_config["schema"].split() == ["column_1", "bigint,", "column_2", "string"]
    assert str(dag.schedule) == "@continuous"


def test_a_topic_of_debeziums_events_gets_a_mirror(
    airflow: AirflowHome,
    connections: Connections,
    topic: Topics,
    produce: Producing,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, source = topic(1), Source()
    events = source.changes(40)
    produce(name, 0, events, keys=['{"id":1}'] * len(events))
    file = airflow.path / "written" / f"mirror_{name}.py"
    assert run(["init", "--topic", name, "--table", "lake.mirrored", "--output", str(file)]) == 0
    said = capsys.readouterr().out
    assert "Key: id" in said
    assert f"{name} -> lake.mirrored, by mirror." in said
    dag = airflow.dag(file)
    done = airflow.run(dag)
    assert (done.state, done.errors) == ("success", [])
    found = connections.catalog.load_table("lake.mirrored").scan().to_arrow().to_pylist()
    assert {row["id"]: row["total"] for row in found} == source.rows
    # Who gives the envelope, or names another engine, lands the events.
    for given in (["--envelope", "debezium"], ["--engine", "extract"]):
        assert run(["init", "--topic", name, "--output", str(file), "--force", *given]) == 0
        assert "KafkaExtractOperator(" in file.read_text()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("value", "key", "said"),
    [
        ('{"id": 1}', '{"id":1}', "its records are not change events of Debezium"),
        ('{"op": "c", "before": null, "after": {"id": 1}, "source": {"lsn": 1}}', None, "its keys do not contain"),
    ],
)
def test_what_can_t_be_mirrored_is_said_and_is_landed_unless_asked_otherwise(
    value: str,
    key: str | None,
    said: str,
    kafka: Kafka,
    topic: Topics,
    produce: Producing,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = topic(1)
    produce(name, 0, [value], keys=[key])
    given = ["init", "--topic", name, "--bootstrap-servers", kafka.bootstrap, "--output", str(tmp_path)]
    assert run([*given, "--engine", "mirror"]) == 2
    assert said in capsys.readouterr().err
    assert run(given) == 0
    assert "KafkaExtractOperator(" in (tmp_path / f"{name}_to_lake.py").read_text()
    capsys.readouterr()


def test_without_a_connection_brokers_are_enough_and_airflow_is_not_imported(
    kafka: Kafka, topic: Topics, produce: Producing, tmp_path: Path
) -> None:
    name = topic(1)
    produce(name, 0, ['{"id": 1}'])
    code = (
        "import sys; from airflow_lakestream.cli.app import run\n"
        f"code = run(['init', '--topic', {name!r}, '--bootstrap-servers', {kafka.bootstrap!r}])\n"
        "print('airflow' in sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
    assert (tmp_path / f"{name}_to_lake.py").exists()
    found = exported(done.stdout)
    assert found[KAFKA_CONNECTION] == {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap}}
    assert found[ICEBERG_CONNECTION]["extra"]["uri"] == f"sqlite:///{tmp_path}/lake/catalog.db"


def test_on_a_terminal_it_asks_for_what_is_not_given(
    kafka: Kafka, topic: Topics, produce: Producing, tmp_path: Path
) -> None:
    name = topic(1)
    produce(name, 0, ['{"id": 1}'])
    terminal, ours = pty.openpty()
    os.write(terminal, f"{name}\n\ngroup\n".encode())
    command = [LAKESTREAM, "init", "--bootstrap-servers", kafka.bootstrap]
    done = subprocess.run(command, cwd=tmp_path, stdin=ours, capture_output=True, text=True, timeout=120, check=False)
    os.close(terminal)
    os.close(ours)
    assert done.returncode == 0, done.stderr
    assert f"Table [lake.{name.replace('-', '_')}]" in done.stderr
    text = (tmp_path / f"{name}_to_lake.py").read_text()
    assert "kafka_extract_group(" in text
    assert f'table="lake.{name.replace("-", "_")}"' in text


def test_secrets_of_the_connections_are_placeholders(
    connections: Connections,
    kafka: Kafka,
    topic: Topics,
    produce: Producing,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = topic(1)
    produce(name, 0, ['{"id": 1}'])
    connections.kafka(kafka.secure_client_config())
    assert run(["init", "--topic", name, "--output", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert kafka.password not in said.out + said.err + (tmp_path / f"{name}_to_lake.py").read_text()
    assert exported(said.out)[KAFKA_CONNECTION]["extra"]["sasl.password"] == "<sasl.password>"


def test_a_file_is_not_replaced_without_force_and_nothing_is_written_where_the_topic_says_nothing(
    kafka: Kafka, topic: Topics, produce: Producing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(1)
    file = tmp_path / "dag.py"
    given = ["init", "--topic", name, "--bootstrap-servers", kafka.bootstrap, "--output", str(file)]
    assert run(given) == 2
    assert "The topic is empty" in capsys.readouterr().err
    assert not file.exists()
    produce(name, 0, ['{"id": 1}'])
    file.write_text("mine")
    assert run(given) == 2
    assert f"{file} exists" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert run([*given, "--force"]) == 0
    assert f'topic="{name}"' in file.read_text()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--topic is missing"),
        (["--topic", "a b"], "is not a topic's name"),
        (["--topic", "t", "--engine", "flink"], "'flink' is not one of 'extract', 'group', 'spark'"),
        (["--topic", "t", "--schedule", "sometimes"], "not a cron expression"),
        (["--topic", "t", "--output", "dag.txt"], "Let it end with .py"),
        (["--topic", "t", "--output", "no/such/dag.py"], "there is no folder"),
    ],
)
def test_wrong_arguments_are_told_before_the_topic_is_looked_at(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nobody listens there.
    assert run(["init", "--bootstrap-servers", "127.0.0.1:1", *options]) == 2
    assert said in capsys.readouterr().err
