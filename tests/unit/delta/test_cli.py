"""What the command line says of a Delta table, and what it leaves to Iceberg's."""

import json
from pathlib import Path

import pytest

from airflow_lakestream.cli.app import run
from tests.support.delta_table import GROUP, land


@pytest.fixture
def table(tmp_path: Path) -> Path:
    land(tmp_path / "clicks", 0, 5)
    return tmp_path / "clicks"


def test_the_ledger_is_shown(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "show", "--table", str(table), "--group", GROUP, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["topics"][0]["landed"] == [[0, 0, 5]]


def test_a_place_without_a_table_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "show", "--table", f"{tmp_path}/nothing", "--group", GROUP]) != 0
    assert "there is no Delta table" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["ledger", "history", "--group", GROUP],
        ["ledger", "rebuild", "--group", GROUP],
        ["audit", "--repair", "--group", GROUP],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_other_commands_refuse_a_delta_table_by_name(
    table: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--table", str(table)]) != 0
    assert "Delta table" in capsys.readouterr().err
