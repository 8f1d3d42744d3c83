"""The task's side of processes with bounds, and of `worker`, the process of a statement."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient
from airflow_lakestream.tables.row_buffer import no_rows
from airflow_lakestream.transform.bounds import TOO_LARGE, ProcessBounds, size_of
from airflow_lakestream.transform.messages import ProcessSetup, receive, send

# Takes the parent's path, since Spark imports from a zip. Python's environment variables and the current folder are
# ignored.
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from {} import main; main()"
_ROOT = str(Path(__file__).parents[2])
# The only environment variables that the process gets: a task's environment has secrets.
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
# Arrow's own allocators reserve a GiB at once, and memory taken before the limit is set would not count. One thread
# needs only one arena.
_ALLOCATION = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
# Wall-clock time: a hanging process takes no processor time.
_STUCK = 120.0
# Signals of crashes inside a program; other signals come from outside.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
# Seconds for the end of the process.
_PATIENCE = 5.0

# The error texts, by the bound that was exceeded.
_EXPLANATIONS = {
    "memory": "takes more than {most:,.0f} MiB of memory, which are DuckDB's {limit} and {reserve:,.0f} MiB: {detail}",
    "rows": "makes rows of {detail}, and they may have {rows:,.2f} MiB (see docs/sql.md)",
    "failure": "fails inside of DuckDB: {detail}",
}


Message = tuple[dict[str, Any], pa.Table]


class SqlFailed(LakestreamError, Transient):
    """Error: the process for a statement could not be started."""


class Exceeded(Exception):
    """Error: a request exceeded a bound.

    :param cause: "time", "memory", "rows" or "crash"; another word: the process ended in another way.
    """

    def __init__(self, cause: str, text: str) -> None:
        self.cause = cause
        super().__init__(text)

    @property
    def is_certain(self) -> bool:
        """Whether another try would end in the same way."""
        return self.cause in ("time", "rows")


class BoundedProcess:
    """Process with bounds, for a single thread at a time, never after a fork. Raises SqlFailed.

    :param program: the module whose `main` runs in the process.
    """

    def __init__(self, program: str, bounds: ProcessBounds) -> None:
        self._bounds = bounds
        self._owner = os.getpid()
        self._is_stuck = False
        self._process = _started(program)
        # No buffers: a fork might find their locks taken.
        self._to, self._from = cast("tuple[io.FileIO, io.FileIO]", (self._process.stdin, self._process.stdout))
        _LIVING.add(self)

    @property
    def is_usable(self) -> bool:
        """Whether the process runs and was started by this process; false after a fork."""
        return self._owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """End the process, after a few seconds by force; in a fork, close the pipes only."""
        self.forget()
        if self._owner != os.getpid():
            return
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Close the pipes only; the process then ends by itself, unless another process has the pipes, too."""
        self._to.close()
        self._from.close()

    def ask(self, messages: list[Message], seconds: float, rows: int = 0) -> Message:
        """Send the messages, and return the answer to the last message.

        :param seconds: processor seconds for the request.
        :param rows: bytes that the answer's rows may have, for the text of the error.

        Raises Exceeded if the process ends or exceeds a bound; the process is then closed.
        """
        try:
            for message in messages:
                send(self._to, *message)
            answer, made = self.answer(time.monotonic() + _STUCK + 10 * seconds)
        except (OSError, EOFError):
            self.close()
            raise self._end(seconds) from None
        for cause in _EXPLANATIONS.keys() & answer.keys():
            self.close()
            raise self._exceeded(cause, answer[cause], rows)
        return answer, made

    def answer(self, until: float) -> Message:
        """Return the next message. Raises EOFError if the process ends; a process that is late is killed.

        :param until: latest time of the answer, by `time.monotonic`.
        """
        answers = select.poll()
        answers.register(self._from, select.POLLIN)
        if not answers.poll(max(0.0, until - time.monotonic()) * 1000):
            self._is_stuck = True
            self._process.kill()
        return receive(self._from)

    def _end(self, seconds: float) -> Exceeded:
        # Returns the error for a process that has ended without an answer, by its exit status.
        status = self._process.returncode
        if self._is_stuck:
            return Exceeded("time", f"does not end, though it takes no {seconds:g} seconds of a processor")
        if status == -signal.SIGPROF:
            return Exceeded("time", f"takes more than {seconds:g} seconds of a processor (timeout)")
        if status == TOO_LARGE:
            return self._exceeded("memory", "the process was ended", 0)
        how = f"killed by signal {-status}" if status < 0 else f"it ended with {status}"
        cause = "crash" if -status in _CRASHES else "exit"
        return Exceeded(cause, f"ends the process that it runs in: {how}")

    def _exceeded(self, cause: str, detail: str, rows: int) -> Exceeded:
        most, limit = self._bounds.memory / 2**20, self._bounds.memory_limit
        reserve = most - size_of(limit) / 2**20
        detail = _EXPLANATIONS[cause].format(most=most, limit=limit, reserve=reserve, detail=detail, rows=rows / 2**20)
        return Exceeded(cause, detail)


class SqlProcess(BoundedProcess):
    """Process with bounds for a statement, for a single thread at a time, never after a fork.

    Raises InvalidArgument for a statement that is not allowed, does not fit the columns, or exceeds the bounds or
    crashes while it is planned. Raises SqlFailed.

    :param twin: another process with the same arguments, perhaps ended, whose plan is used.
    """

    def __init__(self, sql: str, columns: pa.Schema, bounds: ProcessBounds, twin: SqlProcess | None = None) -> None:
        super().__init__("airflow_lakestream.transform.worker", bounds)
        setup = [(asdict(ProcessSetup(sql, asdict(bounds), {} if twin is None else twin.plan)), no_rows(columns))]
        if twin is not None:
            setup.append(({}, no_rows(twin.schema)))
        try:
            answer, table = self.ask(setup, bounds.timeout)
        except Exceeded as error:
            if error.cause == "exit":
                raise SqlFailed(f"sql: its process can't be started: it {error}.") from None
            raise InvalidArgument("sql", f"without any record, it {error}.") from None
        if "invalid" in answer:
            self.close()
            raise InvalidArgument(*answer["invalid"])
        self.plan: dict[str, Any] = answer["plan"]
        self.schema: pa.Schema = table.schema

    def run(self, table: pa.Table, seconds: float, rows: int) -> tuple[pa.Table, list[tuple[int, str]]]:
        """Return the rows, with the records' numbers in the last column, and the failing records with reasons.

        Raises Exceeded after the process has ended.

        :param seconds: processor seconds for the run.
        :param rows: bytes that the rows may have.
        """
        answer, made = self.ask([({"seconds": seconds, "rows": rows}, table)], seconds, rows)
        return made, answer["bad"]


def _started(program: str) -> subprocess.Popen[bytes]:
    path = [_ROOT, *(folder for folder in sys.path if folder and folder != _ROOT)]
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | _ALLOCATION
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM.format(program), *path]
    try:
        return subprocess.Popen(  # noqa: S603  # this interpreter, and our own program
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
    except OSError as error:
        raise SqlFailed(f"sql: its process can't be started: {error}.") from error


# A fork has copies of the pipes: unless they are closed, the process would not notice the end of this process.
_LIVING: weakref.WeakSet[BoundedProcess] = weakref.WeakSet()


def _forget_all() -> None:
    for process in _LIVING:
        process.forget()
    _LIVING.clear()


os.register_at_fork(after_in_child=_forget_all)
