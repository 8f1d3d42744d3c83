"""The other end of `worker`: a process in which a statement runs, as the task that started it sees it."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient
from airflow_lakestream.transform.bounds import TOO_LARGE, Bounds
from airflow_lakestream.transform.messages import Setup, receive, send

# The parent's path, not that of a new interpreter: Spark imports from a zip. Nothing of the environment that Python
# heeds, and no folder that it happens to stand in.
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from airflow_lakestream.transform.worker import main; main()"
_ROOT = str(Path(__file__).parents[2])
# Nothing else is told to it: the environment of a task holds secrets.
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
# Arrow's own allocators take a GiB at once, and what was theirs before the limit was set would not count. Of one thread
# there is no need for more than one arena.
_ALLOCATION = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
# On the clock on the wall: a process that hangs takes no time of a processor.
_STUCK = 120.0
# How long it may take to end.
_PATIENCE = 5.0

# What the statement does, where it exceeds a bound.
_WHY = {
    "memory": "takes more than {most:,.0f} MiB of memory, which are memory_limit ({limit}) and 512 MiB: {told}",
    "rows": "makes rows of {told}, and they may have {rows:,.2f} MiB (see docs/sql.md)",
    "failure": "fails inside of DuckDB: {told}",
}


class SqlFailed(LakestreamError, Transient):
    """No process can be had to run a statement in."""


class Exceeded(Exception):
    """What was asked takes more than it may.

    :param what: "time", "memory", "rows", or what else ended the process.
    """

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        super().__init__(why)

    @property
    def is_certain(self) -> bool:
        """Whether another try would end in the same way."""
        return self.what in ("time", "rows")


class SqlProcess:
    """A process with bounds that runs one statement; used by one thread at a time, and by none that is forked off.

    Raises InvalidArgument for a statement that is not allowed, does not fit the columns, or exceeds the bounds as soon
    as it is planned. Raises SqlFailed.

    :param twin: another process of the same arguments, which may have ended: the statement is planned like there.
    """

    def __init__(self, sql: str, columns: pa.Schema, bounds: Bounds, twin: SqlProcess | None = None) -> None:
        self._bounds = bounds
        self._owner = os.getpid()
        self._is_stuck = False
        self._process = _started()
        # Without buffers and their locks, which a fork may find taken.
        self._to, self._from = cast("tuple[io.FileIO, io.FileIO]", (self._process.stdin, self._process.stdout))
        _LIVING.add(self)
        setup = [(asdict(Setup(sql, asdict(bounds), {} if twin is None else twin.plan)), columns.empty_table())]
        if twin is not None:
            setup.append(({}, twin.schema.empty_table()))
        try:
            answer, table = self._asked(setup, bounds.timeout, 0)
        except Exceeded as error:
            if error.what == "exit":
                raise SqlFailed(f"sql: no process can be had to run it in: it {error}.") from None
            raise InvalidArgument("sql", f"without any record, it {error}.") from None
        if "invalid" in answer:
            self.close()
            raise InvalidArgument(*answer["invalid"])
        self.plan: dict[str, Any] = answer["plan"]
        self.schema: pa.Schema = table.schema

    @property
    def is_usable(self) -> bool:
        """Whether it is this process that started it: a fork may not talk to it."""
        return self._owner == os.getpid() and self._process.poll() is None

    def run(self, table: pa.Table, seconds: float, rows: int) -> tuple[pa.Table, list[tuple[int, str]]]:
        """Return the rows, the numbers of their records behind them, and the records on which the statement fails.

        Raises Exceeded, and has ended then.

        :param seconds: what it may take of a processor.
        :param rows: bytes that the rows may have.
        """
        answer, made = self._asked([({"seconds": seconds, "rows": rows}, table)], seconds, rows)
        return made, answer["bad"]

    def close(self) -> None:
        """End it."""
        self.forget()
        if self._owner != os.getpid():
            return
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Let go of the pipes."""
        self._to.close()
        self._from.close()

    def _asked(
        self, messages: list[tuple[dict[str, Any], pa.Table]], seconds: float, rows: int
    ) -> tuple[dict[str, Any], pa.Table]:
        try:
            for words, table in messages:
                send(self._to, words, table)
            self._wait(_STUCK + 10 * seconds)
            answer, made = receive(self._from)
        except (OSError, EOFError):
            self.close()
            raise self._end(seconds) from None
        for what in _WHY.keys() & answer.keys():
            self.close()
            raise self._exceeded(what, answer[what], rows)
        return answer, made

    def _end(self, seconds: float) -> Exceeded:
        status = self._process.returncode
        if self._is_stuck:
            return Exceeded("time", f"does not end, though it takes no {seconds:g} seconds of a processor")
        if status == -signal.SIGPROF:
            return Exceeded("time", f"takes more than {seconds:g} seconds of a processor (timeout)")
        if status == TOO_LARGE:
            return self._exceeded("memory", "the process was ended", 0)
        how = f"killed by signal {-status}" if status < 0 else f"it ended with {status}"
        return Exceeded("exit", f"ends the process that it runs in: {how}")

    def _exceeded(self, what: str, told: str, rows: int) -> Exceeded:
        most, limit = self._bounds.memory / 2**20, self._bounds.memory_limit
        return Exceeded(what, _WHY[what].format(most=most, limit=limit, told=told, rows=rows / 2**20))

    def _wait(self, seconds: float) -> None:
        """Wait for an answer, or the end; where none comes, kill it."""
        answers = select.poll()
        answers.register(self._from, select.POLLIN)
        if not answers.poll(seconds * 1000):
            self._is_stuck = True
            self._process.kill()


def _started() -> subprocess.Popen[bytes]:
    path = [_ROOT, *(folder for folder in sys.path if folder and folder != _ROOT)]
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | _ALLOCATION
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, *path]
    try:
        return subprocess.Popen(  # noqa: S603  # this interpreter, and our own program
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
    except OSError as error:
        raise SqlFailed(f"sql: no process can be had to run it in: {error}.") from error


# A fork has the pipes, too, and the other end would not see it when this one is gone.
_LIVING: weakref.WeakSet[SqlProcess] = weakref.WeakSet()


def _forget_all() -> None:
    for process in _LIVING:
        process.forget()
    _LIVING.clear()


os.register_at_fork(after_in_child=_forget_all)
