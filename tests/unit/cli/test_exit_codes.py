"""Exit codes where something was named that is not there, or nobody reads what is printed: what monitors read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_lakestream.cli.app import FAILED, run
from airflow_lakestream.cli.status import _verdict, render
from airflow_lakestream.run.replay import RejectSelection
from tests.support.given_records import GivenLake, Record

OF_A_GROUP = [
    ["ledger", "history"],
    ["ledger", "show"],
    ["rejects", "show"],
    ["rejects", "replay"],
    ["audit"],
    ["ledger", "reset", "--yes"],
    ["ledger", "rename", "--to", "other"],
]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GivenLake:
    lake = GivenLake(tmp_path)
    lake.land([Record(b'{"id": 1}'), Record(b"no json")], schema="id bigint", max_rejected=1.0)
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "iceberg", "extra": extra}))
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    return lake


@pytest.mark.parametrize("command", OF_A_GROUP, ids=" ".join)
def test_a_group_that_is_none_of_the_tables_is_an_error(
    lake: GivenLake, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--table", lake.name, "--group", "typo", "--iceberg-conn", "lake"]) == FAILED
    assert "'typo' has no ledger on lake.events. Groups with a ledger there: g." in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "replay"])
def test_a_stage_that_is_none_is_an_error(lake: GivenLake, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["rejects", command, "--table", lake.name, "--group", "g", "--stage", "decoding"]
    assert run([*asked, "--iceberg-conn", "lake"]) == FAILED
    assert "stage: 'decoding' is not one of 'record', 'decode'" in capsys.readouterr().err
    assert RejectSelection("write").stage == "write"


def test_the_status_of_a_group_without_a_stream_is_no_good_one() -> None:
    assert (_verdict([], "typo"), _verdict([], None)) == (FAILED, 0)
    assert render([], "typo") == "no streams: none of the tables has a ledger of the consumer group typo"


def test_a_pipe_that_nobody_reads_is_no_damage() -> None:
    command = [sys.executable, "-c", "from airflow_lakestream.cli.app import main; main()", "pipeline", "schema"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(120) == FAILED
