"""What a statement may take: whatever it is fed, it stays within its bounds, and only the records to blame are bad."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform import SqlTransform
from airflow_lakestream.transform import process as processes
from airflow_lakestream.transform.bounds import RESERVE, TOO_LARGE, size_of
from airflow_lakestream.transform.process import SqlFailed
from tests.unit.transform.support import batch

pytestmark = pytest.mark.long

MOST = size_of("256MB") + RESERVE

# Expressions over a record that says a number, the number with which each exceeds a bound, and which bound.
INNER = "list_sum(list_transform(range(n), lambda y: list_sum(list_transform(range(n), lambda z: sin(x * y * z)))))"
HOSTILE = [
    ("length(repeat(repeat(left(value, 1), 10000), n))", 200_000, "takes more than 756 MiB of memory"),
    ("length(format('{:>{}}', value, n))", 1_000_000_000, "takes more than 756 MiB of memory"),
    ("length(printf('%*d', n, 5))", 1_000_000_000, "takes more than 756 MiB of memory"),
    ("length(regexp_replace(repeat(value, n), '1', repeat('y', 1000), 'g'))", 1_000_000, "takes more than 756 MiB"),
    # Constants, which are made where the statement is planned; one that does not fit is made for each record.
    ("length(repeat(repeat('x', 100000), 10000))", 2, "takes more than 756 MiB of memory"),
    ("len(range(n))", 1_000_000_000, "takes more than 756 MiB of memory"),
    ("lpad(value, n::INT, 'x')", 45_000_000, "it makes rows of 42.92 MiB, and they may have 2.77 MiB"),
    (f"list_sum(list_transform(range(n), lambda x: {INNER}))", 600, "takes more than 3 seconds of a processor"),
    ("error(repeat(value, n))::VARCHAR", 100_000, "column v: Invalid Input Error: 100000100000100000"),
]

SLOW = f"""SELECT list_sum(list_transform(range(n), lambda x: {INNER})) IS NULL AS v
    FROM (SELECT value::BIGINT AS n FROM {{{{ input }}}})"""

PROGRAM = """
import json, sys
from airflow_lakestream.transform import SqlTransform
from tests.support.peak_memory import peak_bytes
from tests.unit.transform.support import batch
expressions, numbers = json.loads(sys.stdin.read())
cases = " ".join(f"WHEN '{at}' THEN ({one})::VARCHAR" for at, one in enumerate(expressions))
guarded = f"SELECT CASE key {cases} END AS v FROM (SELECT key, value, value::BIGINT AS n FROM {{{{ input }}}})"
values = [b"1", *(str(number).encode() for number in numbers), b"1"]
keys = [b"", *(str(at).encode() for at in range(len(numbers))), b""]
result = SqlTransform(guarded, timeout=3).apply(batch(values, keys=keys))
print(json.dumps([result.kept.tolist(), [(bad.index, bad.reason) for bad in result.bad], peak_bytes()]))
"""


def test_a_record_that_exceeds_a_bound_is_bad_and_memory_stays_below_it() -> None:
    expressions, numbers, causes = zip(*HOSTILE, strict=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([expressions, numbers]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept, bad, peak = json.loads(done.stdout)
    assert kept == [0, len(HOSTILE) + 1]
    assert [index for index, _ in bad] == [*range(1, len(HOSTILE) + 1)]
    for (_, reason), why in zip(bad, causes, strict=True):
        assert why in reason
        assert len(reason) < 500
    assert peak <= MOST


def test_a_batch_that_is_too_much_at_once_is_run_in_parts_and_later_ones_too(caplog: pytest.LogCaptureFixture) -> None:
    transform = SqlTransform("SELECT length(repeat(repeat(left(value, 1), 10000), 1000)) AS v FROM {{ input }}")
    for least, most in ((1, 2), (0, 0)):
        caplog.clear()
        result = transform.apply(batch([b"x"] * 100))
        assert result.rows["v"].to_pylist() == [10_000_000] * 100
        assert least <= len([1 for record in caplog.records if record.levelno == logging.WARNING]) <= most


def test_a_record_that_takes_long_is_no_bad_one_as_long_as_it_takes_less_than_the_bound() -> None:
    # The last record has the batch run in parts, which may take half a second.
    statement = SLOW.replace(" AS v", " AS v, CASE n WHEN 4 THEN length(printf('%*d', 1000000000, n)) END AS w")
    result = SqlTransform(statement, timeout=20).apply(batch([b"3"] * 15 + [b"300"] + [b"3"] * 15 + [b"4"]))
    assert result.rows["v"].to_pylist() == [False] * 31
    assert [bad.index for bad in result.bad] == [31]


def test_a_statement_that_takes_too_long_to_plan_is_refused() -> None:
    constant = f"list_sum(list_transform(range(900), lambda x: {INNER.replace('n)', '900)')}))"
    with pytest.raises(InvalidArgument, match=r"^sql: without any record, it takes more than 0.5 seconds of a p"):
        SqlTransform(f"SELECT {constant} AS v FROM {{{{ input }}}}", timeout=0.5)


POISON = """SELECT CASE value WHEN 'memory' THEN length(printf('%*d', 1000000000 + length(value), 5))
    WHEN 'bad' THEN ('x' || value)::INT ELSE length(value) END AS v,
    CASE value WHEN 'rows' THEN repeat(value, 10000000) END AS w
    FROM {{ input }} WHERE value <> 'filtered'"""


@settings(
    max_examples=max(2, settings.default.max_examples // 25), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(
    kinds=st.lists(st.sampled_from(["good"] * 80 + ["memory", "rows", "bad", "filtered"]), min_size=30, max_size=300)
)
def test_just_those_records_are_bad_that_exceed_a_bound_wherever_they_stand(kinds: list[str]) -> None:
    result = SqlTransform(POISON).apply(batch([kind.encode() for kind in kinds]))
    found: dict[int, object] = dict.fromkeys(result.filtered.tolist(), "filtered")
    found |= dict(zip(result.kept.tolist(), result.rows["v"].to_pylist(), strict=True))
    for bad in result.bad:
        found[bad.index] = next(kind for kind in ("memory", "rows", "convert") if kind in bad.reason)
    expected = {"good": 4, "bad": "convert"}
    assert [found[index] for index in range(len(kinds))] == [expected.get(kind, kind) for kind in kinds]


def test_when_too_much_time_is_lost_the_parts_that_exceed_a_bound_are_bad_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_LOST", -1000.0)
    values = [b"good"] * 320
    values[0] = values[100] = b"memory"
    result = SqlTransform(POISON).apply(batch(values))
    assert [bad.index for bad in result.bad] == [*range(20), *range(100, 120)]
    assert {bad.reason.partition(" it ")[0] for bad in result.bad} == {"sql: for 20 records, this one among them,"}
    assert all("too much time was lost" in bad.reason for bad in result.bad)


# The process


def at_work(process: psutil.Process, since: float = 0.9) -> psutil.Process:
    """Return the process that runs a statement, as soon as it is at work.

    :param since: seconds of a processor that it took to start and to plan, at most.
    """
    waiting = threading.Event()
    while process.cpu_times().user < since + 0.1:
        waiting.wait(0.01)
    return process


def only_child(pid: int) -> psutil.Process:
    """Return the process of a task that has one, as soon as it is there."""
    waiting = threading.Event()
    while not (found := psutil.Process(pid).children()):
        waiting.wait(0.01)
    (process,) = found
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_dies_in_the_midst_of_a_batch_costs_no_record(number: int) -> None:
    transform = SqlTransform(SLOW, timeout=60)
    values = [b"3"] * 20 + [b"250"] + [b"3"] * 20
    process = psutil.Process(transform._search._first._process.pid)
    planned = process.cpu_times().user
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(transform.apply, batch(values))
        at_work(process, planned).send_signal(number)
        result = running.result()
    assert result.rows["v"].to_pylist() == [False] * 41
    transform._search.close()


TASK = """
import sys
from airflow_lakestream.transform import SqlTransform
from tests.unit.transform.support import batch
transform = SqlTransform(sys.argv[1], timeout=3600)
if sys.argv[2] == "idle":
    print(transform.apply(batch([b"3"])).rows.num_rows, flush=True)
    sys.stdin.read()
transform.apply(batch([b"1300"]))
"""


@pytest.mark.parametrize("state", ["idle", "at work"])
def test_no_process_outlives_a_task_that_is_killed(state: str) -> None:
    task = subprocess.Popen(
        [sys.executable, "-c", TASK, SLOW, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        if state == "idle":
            assert task.stdout is not None
            assert task.stdout.readline() == "1\n"
            process = only_child(task.pid)
        else:
            process = at_work(only_child(task.pid))
    finally:
        task.kill()
        task.wait()
    process.wait(60)


def test_a_task_that_ends_leaves_neither_process_nor_zombie_and_has_no_duckdb_of_its_own() -> None:
    code = """if True:
        import sys
        import psutil
        from airflow_lakestream.transform import SqlTransform
        from tests.unit.transform.support import batch
        transform = SqlTransform("SELECT value AS v FROM {{ input }}")
        transform.apply(batch([b"1"]))
        (process,) = psutil.Process().children()
        del transform
        print(process.is_running(), psutil.Process().children(), "duckdb" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False [] False\n"


def test_the_process_knows_no_secret_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "hunter2")
    transform = SqlTransform("SELECT value AS v FROM {{ input }}")
    process = psutil.Process(transform._search._idle[0]._process.pid)
    assert "hunter2" not in str([process.environ(), process.cmdline()])


def test_what_stands_in_the_working_folder_is_not_imported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise AssertionError('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert SqlTransform("SELECT value AS v FROM {{ input }}").schema.names == ["v"]


def test_where_no_process_can_be_had_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SqlFailed, match=r"sql: its process can't be started: .*/nowhere/python"):
        SqlTransform("SELECT value AS v FROM {{ input }}")


def test_where_the_system_holds_nobody_to_a_limit_of_memory_the_process_looks_itself() -> None:
    code = """if True:
        import threading
        from airflow_lakestream.transform.child import watch_memory
        threading.Thread(target=watch_memory, args=(400 * 2**20,), daemon=True).start()
        held = []
        while len(held) < 4000:
            held.append(bytearray(2**20))
    """
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == TOO_LARGE


@pytest.mark.parametrize(
    ("argument", "value"),
    [("memory_limit", "lots"), ("memory_limit", "80%"), ("threads", 0), ("timeout", 0), ("timeout", float("nan"))],
)
def test_bounds_that_are_none_are_refused(argument: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument}: "):
        SqlTransform("SELECT value AS v FROM {{ input }}", **{argument: value})
