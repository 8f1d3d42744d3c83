"""What the program writes, as a process of its own: whatever letters the locale has, and no library's lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from airflow_lakestream.cli.app import app
from tests.support.forked_program import ForkedProgram, forked_program

PIPELINE = """\
metadata: {name: plain, description: "Bücher → Tabelle"}
sources: {orders: {type: kafka, topic: orders}}
sinks: {lake: {type: iceberg, table: lake.orders}}
"""
# A locale of ASCII alone.
ENVIRONMENT = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkedProgram]:
    """Give the program as it goes on in that locale, in Python's UTF-8 mode; its Airflow has no database."""
    with forked_program(**ENVIRONMENT | {"PYTHONUTF8": "1"}) as program:
        yield program


def lakestream(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AIRFLOW_HOME": str(home), **ENVIRONMENT, **more}
    command = [Path(sys.executable).with_name("lakestream"), *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=environment, cwd=home)


def test_letters_that_the_locale_lacks_end_nothing(tmp_path: Path, forked: ForkedProgram) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE)
    done = lakestream(tmp_path, "pipeline", "render", "p.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "'Bücher → Tabelle'" in done.stdout
    (tmp_path / "p.yaml").write_text(PIPELINE.replace("topic: orders", "topic: Bücher"))
    done = forked.run(tmp_path, "pipeline", "validate", "p.yaml")
    assert done.returncode == 2
    assert "is not a topic's name." in done.stderr


def test_duckdb_reports_no_leaks_of_a_pipeline_with_sql(tmp_path: Path) -> None:
    statement = "transformations: [{name: t, type: sql_transform, input: orders, sql: 'SELECT key FROM {{ input }}'}]\n"
    (tmp_path / "p.yaml").write_text(PIPELINE + statement)
    done = lakestream(tmp_path, "pipeline", "validate", "p.yaml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 right, 0 wrong.\n", "")


def test_what_goes_wrong_is_one_line_without_those_of_libraries(tmp_path: Path, forked: ForkedProgram) -> None:
    # PyIceberg warns of a catalog whose properties it does not like, and tells of its tries.
    catalog = (
        '{"conn_type": "iceberg", "extra": {"type": "rest", "uri": "http://127.0.0.1:1", "py-io-impl": "no.such"}}'
    )
    for started, command in ((lakestream, ("audit",)), (forked.run, ("ledger", "history"))):
        asked = (*command, "--table", "lake.orders", "--group", "g")
        done = started(tmp_path, *asked, AIRFLOW_CONN_ICEBERG_DEFAULT=catalog)
        assert done.returncode == 2
        lines = done.stderr.splitlines()
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("lakestream: Iceberg connection 'iceberg_default': ")


def commands(group: Any, name: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of a program's commands, those of its groups included."""
    for part, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*name, part))
        else:
            yield " ".join((*name, part))


TABLE, TOPIC = ("--table", "lake.orders"), ("--topic", "orders")
GROUP = ("--group", "g")
# By command: arguments with which a connection is the first thing that is missing; None if none is needed.
WITHOUT_CONNECTION: dict[str, tuple[str, ...] | None] = {
    "init": TOPIC,
    "preview": ("orders",),
    "doctor": (),
    "audit": TABLE,
    "plan": (*TOPIC, *TABLE, *GROUP),
    "status": TABLE,
    "maintain": ("lake.orders",),
    "adopt": (*TABLE, *TOPIC, *GROUP, "--from", "connect", "sink"),
    "hand-over": (*TABLE, *TOPIC, "--to", "connect", "sink"),
    "ledger show": TABLE,
    "ledger history": TABLE,
    "ledger rebuild": TABLE,
    "ledger rename": (*TABLE, "--to", "other"),
    "ledger reset": TABLE,
    "ledger forget": (*TABLE, "--missing"),
    "mirror resnapshot": TABLE,
    "mirror tag": ("day", "lake.orders", "--landing", "{}"),
    "pipeline validate": None,
    "pipeline plan": ("p.yaml",),
    "pipeline render": None,
    "pipeline run": ("p.yaml",),
    "pipeline schema": None,
    "rejects show": TABLE,
    "rejects replay": TABLE,
}


def test_each_command_is_tried_without_connections() -> None:
    assert list(commands(typer.main.get_command(app))) == list(WITHOUT_CONNECTION)


@pytest.mark.long
def test_a_missing_connection_is_one_line_with_the_remedy(tmp_path: Path, forked: ForkedProgram) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE)
    asked = {name: (*name.split(), *found) for name, found in WITHOUT_CONNECTION.items() if found is not None}
    missing = r"(kafka|iceberg)_conn_id: there is no connection '\1_default'\. Add one of type \1"
    for command, done in zip(asked, forked.run_all(tmp_path, list(asked.values())), strict=True):
        if command == "doctor":
            # It goes on to the next part.
            assert (done.returncode, done.stderr) == (1, "")
            assert re.findall(rf"^wrong +\w+ +{missing}", done.stdout, re.MULTILINE) == ["kafka", "iceberg"]
            continue
        assert (done.returncode, done.stdout) == (2, ""), command
        [line] = done.stderr.splitlines()
        without = "--kafka-conn: there is no connection 'kafka_default'. Give --bootstrap-servers, or run: export "
        # A topic is looked at without a connection, too.
        shown = re.escape(without) if command in ("init", "preview") else missing
        assert re.match(rf"lakestream: {shown}", line), command
