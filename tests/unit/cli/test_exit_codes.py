"""Exit codes where something was named that is not there, or nobody reads what is printed: what monitors read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_lakestream.cli.app import FAILED, run
from airflow_lakestream.cli.status import _verdict, render
from airflow_lakestream.run.replay import RejectSelection
from tests.support.forked_program import CLOSED, FULL, KEPT, UNREAD, ForkedProgram, forked_program
from tests.support.given_records import GivenLake, Record
from tests.unit.cli.test_shown import HOSTILE
from tests.unit.cli.test_streams_of_the_program import PIPELINE, WITHOUT_CONNECTION

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
    lake.land([Record(b'{"id": 1}'), Record(f"no json {HOSTILE}".encode())], schema="id bigint", max_rejected=1.0)
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


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkedProgram]:
    with forked_program() as program:
        yield program


ON_LAKE = ("--table", "lake.events", "--iceberg-conn", "lake")
# By command: arguments for which no broker has to be there, and the exit code.
ENDS: dict[str, tuple[tuple[str, ...], int]] = {
    "init": (("--topic", "a/b"), 2),
    "preview": (("a/b",), 2),
    "doctor": (ON_LAKE, 1),
    "audit": ((*ON_LAKE, "--group", "typo"), 2),
    "plan": ((*ON_LAKE, "--topic", "a/b", "--group", "g"), 2),
    "status": ((*ON_LAKE, "--group", "g"), 2),
    "maintain": (("lake.events", "--iceberg-conn", "lake"), 0),
    "adopt": ((*ON_LAKE, "--topic", "given", "--group", "h", "--from", "nobody", "x"), 2),
    "hand-over": ((*ON_LAKE, "--topic", "given", "--to", "nobody", "x"), 2),
    "ledger show": (ON_LAKE, 0),
    "ledger history": (ON_LAKE, 0),
    "ledger rebuild": ((*ON_LAKE, "--group", "typo"), 2),
    "ledger rename": ((*ON_LAKE, "--to", "a b"), 2),
    "ledger reset": (ON_LAKE, 2),
    "ledger forget": ((*ON_LAKE, "--missing"), 2),
    "mirror resnapshot": (ON_LAKE, 2),
    "mirror tag": (("day", "lake.events", "--landing", "{}", "--iceberg-conn", "lake"), 2),
    "pipeline validate": (("p.yaml",), 0),
    "pipeline plan": (("none.yaml",), 2),
    "pipeline render": (("p.yaml",), 0),
    "pipeline run": (("none.yaml",), 2),
    "pipeline schema": ((), 0),
    "rejects show": (ON_LAKE, 0),
    "rejects replay": ((*ON_LAKE, "--stage", "none"), 2),
}
ALONE = {(): 2, ("--help",): 0, ("--version",): 0, ("nonsense",): 2, ("ledger",): 2, ("audit", "--help"): 0}


@pytest.mark.long
def test_a_stream_of_the_program_that_takes_nothing_is_no_damage(
    lake: GivenLake, tmp_path: Path, forked: ForkedProgram
) -> None:
    assert list(ENDS) == list(WITHOUT_CONNECTION)
    (tmp_path / "p.yaml").write_text(PIPELINE)
    codes = {(*name.split(), *arguments): code for name, (arguments, code) in ENDS.items()} | ALONE
    of_lake = {"AIRFLOW_CONN_LAKE": os.environ["AIRFLOW_CONN_LAKE"]}
    usual = forked.run_all(tmp_path, [*codes], **of_lake)
    assert [(one.args, one.returncode, one.stderr) for one in usual if one.returncode != codes[tuple(one.args)]] == []
    lines = [(one.args, line) for one in usual for line in f"{one.stdout}\n{one.stderr}".split("\n")]
    assert [one for one in lines if not one[1].isprintable()] == []
    assert any("no json a\\x1b[2J" in line for _, line in lines)
    for ends in ((KEPT, UNREAD), (UNREAD, UNREAD), (FULL, FULL), (CLOSED, CLOSED)):
        played = forked.run_all(tmp_path, [*codes], ends, **of_lake)
        # An answer that is lost is none; without its line on stderr, an error has its code.
        wanted = [FAILED if ends[0] in (UNREAD, FULL) and before.stdout else before.returncode for before in usual]
        assert [one.returncode for one in played] == wanted, ends


def test_a_pipe_that_nobody_reads_is_no_damage_to_a_process_of_its_own() -> None:
    command = [sys.executable, "-c", "from airflow_lakestream.cli.app import main; main()", "pipeline", "schema"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(120) == FAILED
