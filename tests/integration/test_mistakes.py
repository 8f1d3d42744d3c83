"""The rest of the mistakes of tests/unit/test_mistakes.py: those that a broker and Airflow's connections tell.

Each is tried by a run in Airflow and by the command line, which say the same.
"""

from __future__ import annotations

import logging
import re
import shlex
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_lakestream.cli.app import FAILED, run
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from dev.services.kafka import Kafka
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, Topics

pytestmark = pytest.mark.integration

PLAN = ["plan", "--table", "lake.orders", "--group", "g", "--topic"]
# The number, what is wrong, and what is said; a run's text has what Airflow's first line has.
BY_THE_RUN: list[tuple[int, dict[str, Any], list[str], str]] = [
    (
        72,
        {"kafka_conn_id": "nowhere"},
        [*PLAN, "orders", "--kafka-conn", "nowhere"],
        "kafka_conn_id: there is no connection 'nowhere'. Add one of type kafka with an extra such as",
    ),
    (
        73,
        {"iceberg_conn_id": "nowhere"},
        [*PLAN, "orders", "--iceberg-conn", "nowhere"],
        "iceberg_conn_id: there is no connection 'nowhere'. Add one of type iceberg",
    ),
    (
        74,
        {"topic": "no-such-topic"},
        [*PLAN, "no-such-topic"],
        "topic: 'no-such-topic' does not exist in the cluster of Kafka connection 'kafka_default'. Create it first",
    ),
    (75, {"topic": "^no-such-.*"}, [], "topic: no topic in the cluster of Kafka connection 'kafka_default' has a name"),
]
BY_A_COMMAND: list[tuple[int, list[str], str]] = [
    (76, ["audit", "--table", "lake.none", "--group", "g"], "--table: there is no table lake.none in the catalog."),
    (77, ["status", "--namespace", "none"], "--namespace: there is no namespace 'none' in the catalog."),
    (78, ["rejects", "show", "--table", "lake.none"], "--table: there is no table lake.none in the catalog."),
    (
        79,
        ["ledger", "show", "--table", "lake.none", "--group", "g"],
        "--table: there is no table lake.none in the catalog.",
    ),
]


def landing(**arguments: Any) -> DAG:
    with DAG("mistaken", schedule=None) as dag:
        given = {"topic": "orders", "table": "lake.orders", "consumer_group": "g", "retries": 0, **arguments}
        KafkaExtractOperator(task_id="land", **given)
    return dag


@pytest.mark.parametrize(("number", "arguments", "line", "said"), BY_THE_RUN)
def test_by_the_run_and_by_the_command_line(
    number: int,
    arguments: dict[str, Any],
    line: list[str],
    said: str,
    airflow: AirflowHome,
    connections: Connections,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = airflow.run(landing(**arguments))
    [error] = done.errors
    assert str(error).startswith(said)
    assert error.__suppress_context__, "nothing of what lies beneath is shown above the remedy"
    capsys.readouterr()
    if line:
        assert run(line) == FAILED
        said = re.sub("^topic:", "--topic:", said)
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"lakestream: {said}")


@pytest.mark.parametrize(("number", "line", "said"), BY_A_COMMAND)
def test_by_a_command(
    number: int, line: list[str], said: str, connections: Connections, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line) == FAILED
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"lakestream: {said}")


def test_80_a_wrong_password(
    kafka: Kafka, airflow: AirflowHome, connections: Connections, capsys: pytest.CaptureFixture[str]
) -> None:
    connections.kafka({**kafka.secure_client_config(), "sasl.password": "not-the-password"})
    said = "Kafka connection 'kafka_default': refused while describing topic 'orders': "
    [error] = airflow.run(landing()).errors
    assert str(error).startswith(said)
    assert str(error).endswith(
        "Check sasl.mechanism, sasl.username, sasl.password, ssl.ca.location and the ACLs of that user."
    )
    capsys.readouterr()
    assert run([*PLAN, "orders"]) == FAILED
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"lakestream: {said}")


def test_the_numbers_go_on() -> None:
    assert [one[0] for one in (*BY_THE_RUN, *BY_A_COMMAND)] == list(range(72, 80))


# What a run that is green says of records that were none


def test_the_last_line_of_a_run_has_the_command_that_shows_its_rejects(
    airflow: AirflowHome,
    connections: Connections,
    topic: Topics,
    produce: Producing,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = topic(1)
    produce(name, 0, [b'{"n":1}', b'{"n":', b'{"n":3}', b"no JSON"])
    with caplog.at_level(logging.INFO, "airflow_lakestream"):
        done = airflow.run(landing(topic=name, table="lake.mixed"))
    assert done.state == "success"
    told = [record.getMessage() for record in caplog.records if record.name.startswith("airflow_lakestream")]
    assert told[0] == f"To land: {name} into lake.mixed, 4 offsets: {name}[0] [0,4)."
    assert told[-1].startswith(f"Landed 2 rows (2 rejected, 0 skipped, 0 filtered) of {name} in lake.mixed, in 1 snap")
    assert told[-1].endswith("Nothing is left to land.")
    shown = re.search(r"this shows them: lakestream (.*?) \.", told[-1])
    assert shown is not None
    capsys.readouterr()
    assert run(shlex.split(shown[1])) == 0
    assert "lake.mixed: 2 rejected records" in capsys.readouterr().out
