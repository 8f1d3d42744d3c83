"""`lakestream audit` and LakestreamAuditOperator: exit codes, JSON, and what a run in Airflow comes to."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_lakestream.cli.app import run
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.operators.audit import CouldNotLook, LakestreamAuditOperator
from airflow_lakestream.run.job import build_job
from dev.services.kafka import Kafka
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import TopicOf, Topics
from tests.support.lake_reading import numbers

pytestmark = pytest.mark.integration

TABLE, GROUP = "lake.t", "g"
AUDIT = ("audit", "--table", TABLE, "--group", GROUP)


@pytest.fixture
def landed(connections: Connections, kafka: Kafka, topic_of: TopicOf) -> str:
    """Give a topic of one partition, its 20 records landed."""
    name = topic_of(numbers(20))
    config = ExtractConfig(topic=name, table=TABLE, consumer_group=GROUP)
    land(build_job(config, kafka.client_config(), connections.catalog, run_id="r"))
    return name


def damage(connections: Connections) -> None:
    connections.catalog.load_table(TABLE).delete("_kafka_offset in (5, 6)")


# The command


def test_clean_is_0_and_damage_is_1_with_the_ranges(
    connections: Connections, landed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--full"], ["--full", "--topic", landed]):
        assert run([*AUDIT, *options]) == 0
        assert f"{TABLE}, consumer group {GROUP}: CLEAN" in capsys.readouterr().out

    damage(connections)

    assert run(AUDIT) == 1
    out = capsys.readouterr().out
    assert "the ledger counts 20 rows, found were 18: 2 missing" in out
    remedy = f"to repair: lakestream audit --repair --table {TABLE} --group {GROUP} --dag ID, or --pipeline FILE"
    assert out.splitlines()[-1] == remedy
    assert run([*AUDIT, "--full"]) == 1
    assert "missing: [5,7) (2 rows)" in capsys.readouterr().out
    assert run([*AUDIT, "--full", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["mode"]) == ("damage", "full")
    assert [(p["topic"], p["missing"], p["rows"]) for p in told["partitions"]] == [(landed, [[5, 7]], 18)]


def test_repair_ends_with_how_the_table_is_afterwards_and_says_what_it_did(
    connections: Connections, landed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(connections)
    assert run([*AUDIT, "--repair", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    head = connections.catalog.load_table(TABLE).current_snapshot()
    assert (told["verdict"], told["mode"], told["snapshot_id"]) == ("clean", "full", str(head.snapshot_id))
    assert told["repaired"] == {
        "snapshot_id": str(head.snapshot_id),
        "rows_out": 0,
        "rows_in": 2,
        "rejected": 0,
        "landed": [[landed, 0, 5, 7]],
        "undoubled": [],
        "adopted": [],
        "corrected": [],
        "lost": [],
        "removed": [],
        "mended": [],
        "left": [],
    }

    table = connections.catalog.load_table(TABLE)
    row = table.scan("_kafka_offset = 5").to_arrow()
    table.append(row)
    table.append(row.set_column(row.schema.get_field_index("_kafka_offset"), "_kafka_offset", pa.array([99])))
    assert run([*AUDIT, "--repair"]) == 0
    out = capsys.readouterr().out
    assert "3 rows out, 1 rows in" in out
    assert f"doubled, now once: {landed}[0] [5,6)" in out
    assert f"removed: {landed}[0] [99,100), where the log has no records yet" in out
    assert run([*AUDIT, "--repair", "--full"]) == 0
    assert "repair: nothing was done, no snapshot was added" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("audit",), "--table is missing"),
        (("audit", "--table", "t", "--group", GROUP), "namespace.table"),
        (("audit", "--table", "lake.none", "--group", GROUP), "there is no table lake.none"),
        ((*AUDIT, "--depth", "3"), "No such option"),
        ((*AUDIT, "--iceberg-conn", "nowhere"), "there is no connection 'nowhere'"),
        ((*AUDIT, "--full", "--kafka-conn", "nowhere"), "there is no connection 'nowhere'"),
        ((*AUDIT, "--on-data-loss", "record"), "--on-data-loss belongs to --repair"),
        ((*AUDIT, "--format", "csv"), "--format belongs to --repair"),
        ((*AUDIT, "--repair", "--format", "xml"), "'xml' is not one of 'json'"),
        ((*AUDIT, "--repair", "--unknown-fields", "perhaps"), "--unknown-fields: 'perhaps'"),
        (("audit", "--table", TABLE, "--group", "nobody"), "Groups with a ledger there: g"),
        (("nonsense",), "No such command"),
    ],
)
def test_what_can_not_work_is_2_and_one_line(
    connections: Connections, landed: str, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    assert run(options) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert told.err.startswith("lakestream: ")
    assert told.err.count("\n") == 1


def test_a_broker_that_does_not_answer_is_2(
    connections: Connections, landed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_lakestream.kafka import requests

    monkeypatch.setattr(requests, "REQUEST_TIMEOUT", 0.5)
    connections.kafka({"bootstrap.servers": "127.0.0.1:1"})
    assert run([*AUDIT, "--full"]) == 2
    assert "no answer from Kafka" in capsys.readouterr().err
    # The quick audit does not ask it.
    assert run(AUDIT) == 0


def test_the_program_itself_exits_so_and_prints_no_traceback(connections: Connections, landed: str) -> None:
    def exits(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = "from airflow_lakestream.cli.app import main; main()"
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    damage(connections)
    done = exits(*AUDIT, "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["verdict"] == "damage"
    done = exits("audit", "--table", "lake.none", "--group", GROUP)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("lakestream: --table: there is no table lake.none in the catalog")


# The operator


def audit_dag(dag_id: str, **options: Any) -> DAG:
    with DAG(dag_id, schedule=None, params={"topic": "", "full": False}) as dag:
        arguments = {"table": TABLE, "consumer_group": GROUP, "retry_delay": timedelta(0), "retries": 1, **options}
        LakestreamAuditOperator(task_id="audit", **arguments)
    return dag


def test_a_clean_table_is_a_success_with_the_result_as_xcom(
    airflow: AirflowHome, connections: Connections, landed: str
) -> None:
    dag = audit_dag("audit_clean", topic="{{ params.topic }}", full="{{ params.full }}")
    done = airflow.run(dag, {"topic": landed, "full": True})
    assert (done.state, done.errors) == ("success", [])
    xcom = done.task("audit").xcom
    assert (xcom["verdict"], xcom["mode"], xcom["partitions"][0]["readable"]) == ("clean", "full", 20)


def test_damage_fails_at_once_and_leaves_the_ranges_as_xcom(
    airflow: AirflowHome, connections: Connections, landed: str
) -> None:
    damage(connections)
    done = airflow.run(audit_dag("audit_damage", full=True))
    task = done.task("audit")
    assert (done.state, task.tries) == ("failed", 1)
    assert isinstance(done.errors[0], AirflowFailException)
    assert f"{landed}[0] missing: [5,7)" in str(done.errors[0])
    assert task.xcom["partitions"][0]["missing"] == [[5, 7]]


def test_the_operator_repairs_when_told(airflow: AirflowHome, connections: Connections, landed: str) -> None:
    damage(connections)
    dag = audit_dag("audit_repair", repair="{{ params.full }}")
    done = airflow.run(dag, {"full": True})
    assert (done.state, done.errors) == ("success", [])
    xcom = done.task("audit").xcom
    assert (xcom["verdict"], xcom["mode"]) == ("clean", "full")
    assert (xcom["repaired"]["landed"], xcom["repaired"]["rows_in"]) == ([[landed, 0, 5, 7]], 2)


def test_what_could_not_be_looked_at_is_retried(
    airflow: AirflowHome, connections: Connections, landed: str, topic: Topics
) -> None:
    topic.delete(landed)
    done = airflow.run(audit_dag("audit_blind", full=True))
    assert (done.state, done.task("audit").tries) == ("failed", 2)
    assert isinstance(done.errors[0], CouldNotLook)


def test_a_wrong_argument_fails_without_a_retry(airflow: AirflowHome, connections: Connections, landed: str) -> None:
    done = airflow.run(audit_dag("audit_wrong", full="{{ params.full }}"), {"full": "perhaps"})
    assert (done.state, done.task("audit").tries) == ("failed", 1)
    assert "full: 'perhaps' is neither true nor false" in str(done.errors[0])
