"""What the program says by itself: help, version, completion, colours, and which imports it gets along without."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from airflow_lakestream import __version__
from airflow_lakestream.cli.app import FAILED, _connection_lines, app, run
from airflow_lakestream.cli.arguments import in_options
from airflow_lakestream.cli.preview import rounded
from airflow_lakestream.cli.status import paint_over, painted
from airflow_lakestream.onramp.dag_file import DagFile

CHECKOUT = Path(__file__).parents[3]
HEAVY = {"airflow", "pyarrow", "pyiceberg", "confluent_kafka", "numpy", "sqlalchemy", "duckdb"}


@pytest.mark.parametrize("group", [[], ["ledger"], ["rejects"], ["mirror"]])
def test_a_group_without_a_command_prints_its_help(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(group) == FAILED
    printed = capsys.readouterr()
    assert "Usage: lakestream" in printed.out
    assert "Commands" in printed.out
    assert printed.out.count("\n") > 8
    assert printed.err == ""


@pytest.mark.parametrize("asked", [["-h"], ["status", "-h"], ["rejects", "show", "-h"], ["--help"]])
def test_help_is_printed_whole(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(asked) == 0
    out = capsys.readouterr().out
    assert "Usage: lakestream" in out
    assert "..." not in out.replace("[ARGS]...", "")
    assert "…" not in out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"lakestream {__version__}\n"


def test_a_shell_gets_completions() -> None:
    asked = {"_LAKESTREAM_COMPLETE": "complete_bash", "COMP_WORDS": "lakestream st", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "from airflow_lakestream.cli.app import main; main()"]
    done = subprocess.run(command, env=os.environ | asked, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["status"]


READS = """
import io, sys, threading
import pyarrow as pa, pyarrow.parquet as pq
from airflow_lakestream.cli.app import main
file = io.BytesIO()
pq.write_table(pa.table({"n": [*range(100)]}), file)
def read():
    while True:
        pq.ParquetFile(io.BytesIO(file.getvalue()), pre_buffer=True).read()
for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
sys.argv = ["lakestream", "--version"]
main()
"""


def test_threads_that_still_have_buffers_of_python_neither_abort_nor_hold_up_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS], cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"lakestream {__version__}\n", "")


LATE = """
import atexit, sys, threading
from airflow_lakestream.cli.app import main
def work():
    threading.main_thread().join()
    atexit.register(print, "at the end")
    print("in a thread")
threading.Thread(target=work).start()
sys.argv = ["lakestream", "--nothing"]
main()
"""


def test_threads_and_functions_for_the_end_are_awaited_and_the_code_is_the_programs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE], cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "in a thread\nat the end\n")


def test_help_of_a_command_imports_neither_airflow_nor_a_client() -> None:
    code = (
        "import sys; from airflow_lakestream.cli.app import run\n"
        f"for line in ([], ['status', '-h'], ['rejects', 'replay', '-h'], ['ledger', 'show', '-h']): run(line)\n"
        f"print({HEAVY!r} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "set()"


def test_colours_are_for_terminals_that_want_them() -> None:
    code = "from airflow_lakestream.cli.status import painted; print(painted('a is failing', {'failing': 'red'}))"
    assert "\033[31m" in on_a_terminal(code)
    assert "\033" not in on_a_terminal(code, NO_COLOR="1")
    assert painted("a is failing", {"failing": "red"}) == "a is failing"


def test_a_look_is_painted_over_the_last_one(capsys: pytest.CaptureFixture[str]) -> None:
    paint_over("one\ntwo")
    assert capsys.readouterr().out == "one\ntwo\n\n"
    seen = on_a_terminal("from airflow_lakestream.cli.status import paint_over; paint_over('one')")
    assert seen == "\033[Hone\033[K\r\n\033[J"


def on_a_terminal(code: str, **variables: str) -> str:
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm", **variables}
    with os.fdopen(ours, "rb", closefd=True) as terminal:
        with os.fdopen(theirs, "wb"):
            subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, stdout=theirs, env=environment, check=True)
        return os.read(terminal.fileno(), 10_000).decode()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("replay", "No such command 'replay'. Did you mean 'rejects replay'?"),
        ("show", "Did you mean 'ledger show' or 'rejects show'?"),
        ("plaan", "Did you mean 'plan'?"),
    ],
)
def test_a_command_of_a_group_is_found_without_its_group(
    name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "arguments", "shown"),
    [
        ('schema: bad, or schema_evolution="add"', ["--schema", "x"], "--schema: bad, or --schema-evolution add"),
        ('schema: bad, or schema_evolution="add"', ["--dag", "x"], "schema: bad, or --schema-evolution add"),
        ('idle_after: set missing="wait"', [], 'idle_after: set missing="wait"'),
        ("--table: is missing. Give it.", [], "--table is missing. Give it."),
        ("--topic: there is no topic a: b", [], "--topic: there is no topic a: b"),
    ],
)
def test_errors_have_the_spelling_of_options(text: str, arguments: list[str], shown: str) -> None:
    assert in_options(text, get_command(app), ["rejects", "replay", *arguments]) == shown


def test_preview_without_a_connection_shows_both_ways_to_the_brokers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("airflow_lakestream.cli.preview.connection_fields", lambda _: None)
    assert run(["preview", "orders", "--kafka-conn", "nowhere"]) == FAILED
    said = capsys.readouterr().err
    assert "--kafka-conn: there is no connection 'nowhere'. Give --bootstrap-servers, or run: " in said
    assert (
        'export AIRFLOW_CONN_NOWHERE=\'{"conn_type": "kafka", "extra": {"bootstrap.servers": "<broker:9092>"}}\''
        in said
    )


@pytest.mark.parametrize(("rate", "shown"), [(4012.3, "4,012"), (0.25, "0.25"), (12.345, "12.3"), (1e6, "1,000,000")])
def test_a_rate_has_no_exponent(rate: float, shown: str) -> None:
    assert rounded(rate) == shown


@pytest.mark.parametrize("password", [None, "s3cret"])
def test_init_speaks_of_secrets_only_among_connections_with_one(
    password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"conn_type": "kafka", "password": password, "extra": {"bootstrap.servers": "b:1"}}
    monkeypatch.setattr("airflow_lakestream.cli.app.connection_fields", lambda _: fields)
    file = DagFile(topic="t", table="lake.t", group="g", dag_id="d")
    first, *lines = _connection_lines(file, None, "kafka_default", "iceberg_default", None)
    assert first == "It uses these connections, which are there" + ("; each <...> is a secret:" if password else ":")
    assert "s3cret" not in "".join(lines)
