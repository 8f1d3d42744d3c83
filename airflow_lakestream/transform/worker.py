"""The process in which a statement runs: it has only the statement and the records, and ends with its parent.

`process` starts it as a new interpreter: it has no memory, secret or lock of a task.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import resource
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.no_rows import no_rows
from airflow_lakestream.transform.bounds import TOO_LARGE, Bounds
from airflow_lakestream.transform.engine import Engine, Plan, told
from airflow_lakestream.transform.failures import run
from airflow_lakestream.transform.messages import Setup, receive, send
from airflow_lakestream.transform.outcome import ROW, FailedRecord

_OUT_OF_MEMORY = (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError)
_REASON = 400

_Asked = queue.SimpleQueue[tuple[dict[str, Any], pa.Table]]


def main() -> None:
    """Run the statement of the first message on all messages that follow."""
    sys.meta_path.insert(0, _NoPandas())
    # Both signals reach all processes of a terminal or container. The parent decides, and this process ends with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    # Keep prints out of the answers.
    os.dup2(2, 1)
    asked: _Asked = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.fileno(), asked), daemon=True).start()
    words, columns = asked.get()
    setup = Setup(**words)
    bounds = Bounds(**setup.bounds)
    _be_bounded(bounds)
    made = asked.get()[1].schema if setup.plan else None
    _Server(setup, columns.schema, made, bounds, answers).serve(asked)


class _NoPandas:
    """Hides pandas: Arrow and DuckDB import it if they can, which doubles the start-up time, and do not need it."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


class _Server:
    def __init__(
        self, setup: Setup, columns: pa.Schema, made: pa.Schema | None, bounds: Bounds, answers: io.FileIO
    ) -> None:
        plan = Plan(**setup.plan) if setup.plan else None
        self._answers = answers
        self._bounds = bounds
        with _Timer(bounds.timeout * bounds.threads):
            try:
                self._engine = Engine(setup.sql, columns, bounds.memory_limit, bounds.threads, plan)
            except InvalidArgument as error:
                self._fail(invalid=[error.argument, str(error).removeprefix(f"{error.argument}: ")])
            except MemoryError as error:
                self._fail(memory=_said(error))
        self._schema = made or pa.schema([column.field for column in self._engine.columns])
        send(answers, {"plan": asdict(self._engine.plan)}, no_rows(self._schema))

    def serve(self, asked: _Asked) -> None:
        while True:
            words, table = asked.get()
            bad: list[FailedRecord] = []
            with _Timer(words["seconds"] * self._bounds.threads):
                rows = self._run(table, bad)
            size = rows.nbytes
            if size > words["rows"]:
                self._fail(rows=f"{size / 2**20:,.2f} MiB")
            send(self._answers, {"bad": [(one.index, one.reason[:_REASON]) for one in bad]}, rows)
            del table, rows

    def _run(self, table: pa.Table, bad: list[FailedRecord]) -> pa.Table:
        try:
            parts = [self._conformed(part) for part in run(self._engine, table, bad)]
        except _OUT_OF_MEMORY as error:
            self._fail(memory=_said(error))
        except duckdb.Error as error:
            self._fail(failure=told(error))
        schema = self._schema.append(pa.field(ROW, pa.int64()))
        return pa.concat_tables(parts) if parts else no_rows(schema)

    def _conformed(self, part: pa.Table) -> pa.Table:
        columns = []
        for field, column in zip(self._schema, part.columns[:-1], strict=True):
            if field.type == pa.uuid():
                column = column.cast(pa.binary(16))
            columns.append(column.cast(field.type))
        schema = self._schema.append(pa.field(ROW, pa.int64()))
        return pa.Table.from_arrays([*columns, part.columns[-1]], schema=schema)

    def _fail(self, **words: str | list[str]) -> None:
        """Send an error and end: little memory may be left."""
        send(self._answers, words, pa.table({}))
        os._exit(0)


def _said(error: Exception) -> str:
    # After the first line DuckDB advises settings that users can't change.
    return str(error).partition("\n")[0] or "there is no more"


class _Timer:
    """Ends this process if the block takes more than so many seconds of processor time.

    The clock counts all threads of the process, and stands still while other processes have the processors.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _listen(source: int, asked: _Asked) -> None:
    try:
        with os.fdopen(source, "rb", buffering=0, closefd=False) as pipe:
            while True:
                asked.put(receive(pipe))
    except MemoryError:
        os._exit(TOO_LARGE)
    finally:
        # EOF comes also during a statement, and also if the parent was killed: nobody else has its end of the pipe.
        os._exit(0)


def _be_bounded(bounds: Bounds) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    # A core file would hold records.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not sys.platform.startswith("linux"):
        # macOS does not enforce a memory limit.
        threading.Thread(target=watch_memory, args=(bounds.memory,), daemon=True).start()
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = bounds.data if hard == resource.RLIM_INFINITY else min(bounds.data, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    # If memory gets short, the kernel should kill this process, not the task.
    with contextlib.suppress(OSError), Path("/proc/self/oom_score_adj").open("w") as score:
        score.write("1000")


def watch_memory(most: int) -> None:
    """End this process soon after it holds more than `most` bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit <= most:
        time.sleep(0.02)
    os._exit(TOO_LARGE)
