"""The task's side of processes with bounds, such as `worker`, the process of a statement."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient
from airflow_lakestream.tables.row_buffer import no_rows
from airflow_lakestream.transform.bounds import TOO_LARGE, ProcessBounds, size_of
from airflow_lakestream.transform.messages import ROW, FailedRecord, ProcessSetup, receive, send

log = logging.getLogger(__name__)


# The process gets the parent's path, since Spark imports from a zip. Python's environment variables and the current
# folder are ignored.
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from {} import main; main()"
_ROOT = str(Path(__file__).parents[2])
# The only environment variables that the process gets: a task's environment has secrets.
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
# Arrow's own allocators reserve a GiB at once, and memory taken before the limit is set would not count. One thread
# needs only one arena.
_ALLOCATION = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
# Wall-clock seconds, in addition to ten times its processor seconds, until a process counts as hanging: a hanging
# process takes no processor time.
_STUCK = 120.0
# Signals of crashes inside a program; other signals come from outside.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
# Seconds for the end of the process.
_PATIENCE = 5.0

# The error texts by cause: the word of an answer with an error.
_EXPLANATIONS = {
    "memory": "takes more than {most:,.0f} MiB of memory, which are DuckDB's {limit} and {reserve:,.0f} MiB: {detail}",
    "rows": "makes rows of {detail}, and they may have {rows:,.2f} MiB (see docs/sql.md)",
    "failure": "fails inside of DuckDB: {detail}",
}


Message = tuple[dict[str, Any], pa.Table]


class SqlFailed(LakestreamError, Transient):
    """The process for a statement could not be started."""


class Exceeded(Exception):
    """A request exceeded a bound, or ended its process.

    :param cause: the bound ("time", "memory", "rows"); "crash"; "failure" for an error of DuckDB that is not due to a
        record; or "exit" if the process ended in another way.
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

    :param program: the name of the module whose `main` runs in the process.
    """

    def __init__(self, program: str, bounds: ProcessBounds) -> None:
        self._bounds = bounds
        self._owner = os.getpid()
        self._is_stuck = False
        self._process = _started(program)
        # Unbuffered: a fork could copy a locked buffer.
        self._to, self._from = cast("tuple[io.FileIO, io.FileIO]", (self._process.stdin, self._process.stdout))
        _LIVING.add(self)

    @property
    def is_usable(self) -> bool:
        """Whether the process runs, and was started by this process, not by the parent of a fork."""
        return self._owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """End the process, after _PATIENCE seconds by force; in a fork, only close the pipes."""
        self.forget()
        if self._owner != os.getpid():
            return
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Close the pipes without waiting; the process then ends by itself, unless a fork has copies of the pipes."""
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
            answer, table = self.answer(time.monotonic() + _STUCK + 10 * seconds)
        except (OSError, EOFError):
            self.close()
            raise self._end(seconds) from None
        for cause in _EXPLANATIONS.keys() & answer.keys():
            self.close()
            raise self._exceeded(cause, answer[cause], rows)
        return answer, table

    def answer(self, until: float) -> Message:
        """Return the next message. Raises EOFError if the process ends.

        :param until: the time, by `time.monotonic`, after which a process without an answer is killed.
        """
        answers = select.poll()
        answers.register(self._from, select.POLLIN)
        if not answers.poll(max(0.0, until - time.monotonic()) * 1000):
            self._is_stuck = True
            self._process.kill()
        return receive(self._from)

    def _end(self, seconds: float) -> Exceeded:
        """Return the error for a process that has ended without an answer, by its exit status."""
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
        """Return the rows, with the records' numbers in the last column, and number and reason of each failing record.

        Raises Exceeded after the process has ended.

        :param seconds: processor seconds for the run.
        :param rows: bytes that the rows may have.
        """
        answer, made_rows = self.ask([({"seconds": seconds, "rows": rows}, table)], seconds, rows)
        return made_rows, answer["bad"]


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


# The processes whose pipes a fork must close: with copies of the pipes, they would not notice the end of this process.
_LIVING: weakref.WeakSet[BoundedProcess] = weakref.WeakSet()


def _forget_all() -> None:
    for process in _LIVING:
        process.forget()
    _LIVING.clear()


os.register_at_fork(after_in_child=_forget_all)


# The number of parts into which a batch that exceeds a bound is cut.
PARTS = 16
# Processor seconds for a part that can be cut again.
_PART_SECONDS = 0.5
# Seconds that may be lost to runs beyond a bound, in addition to the time of all other runs. Later a single record gets
# _PART_SECONDS, too. After three times these seconds, parts beyond a bound are not cut any more.
_LOST = 300.0
# Bytes that a record's rows may have, per byte of the record and per value of the rows.
_BYTES_PER_BYTE = 8
_BYTES_PER_VALUE = 32


class RecordSearch:
    """Runner of a statement for several threads at once, with a process for each thread.

    Records that exceed a bound become bad records. Raises InvalidArgument and SqlFailed, like `SqlProcess`.
    """

    def __init__(self, sql: str, columns: pa.Schema, bounds: ProcessBounds) -> None:
        self._sql, self._columns, self._bounds = sql, columns, bounds
        self._idle: list[SqlProcess] = []
        # The most records for a run, lowered after runs beyond a bound; and the number of records beyond a bound.
        self._most_records, self._bad_records = 2**31, 0
        # Seconds of runs within the bounds, and beyond a bound.
        self._used = self._lost = 0.0
        # The smallest part that was logged.
        self._least_logged = 2**31
        self._first = SqlProcess(sql, columns, bounds)
        self._idle.append(self._first)
        self.schema = self._first.schema
        self.input_columns: list[str] = self._first.plan["input"]
        self._values = _leaves(pa.struct(list(self.schema)))

    def run(self, table: pa.Table, bad: list[FailedRecord]) -> Iterator[pa.Table]:
        """Yield the rows in order, in pieces; add bad records to `bad`.

        The last column has the number of each row's record.
        """
        # The bytes that the rows may have per record, in addition to the bytes by the record's size.
        share = self._bounds.rows / max(1, table.num_rows) + _BYTES_PER_VALUE * self._values
        for part in self._cut(table, table.num_rows):
            yield from self._run_or_cut(part, share, bad, is_cut=part.num_rows < table.num_rows)

    def close(self) -> None:
        """End the idle processes."""
        while self._idle:
            self._idle.pop().close()

    def _run_or_cut(self, part: pa.Table, share: float, bad: list[FailedRecord], *, is_cut: bool) -> Iterator[pa.Table]:
        """Yield a part's rows; a part beyond a bound is cut, and a single record beyond a bound is bad.

        `share`: the bytes that the rows may have per record. `is_cut`: the part is not the whole batch.
        """
        error = None
        # A single record has a second try: the first process may have been killed from outside, or found no memory.
        for _ in range(2 if part.num_rows == 1 else 1):
            try:
                yield self._run_part(part, share, bad, is_cut=is_cut)
                return
            except Exceeded as exceeded:
                error = exceeded
                if exceeded.is_certain:
                    break
        assert error is not None, "at least one try was made"
        if part.num_rows > 1 and not (is_cut and self._lost_more_than(3)):
            yield from self._in_parts(part, share, bad, error)
            return
        if part.num_rows == 1:
            reason = f"sql: for this record alone, it {error}"
        else:
            reason = (
                f"sql: for {part.num_rows} records, this one among them, it {error}; too much time was lost already to "
                "look at each of them"
            )
        bad += [FailedRecord(number, reason) for number in part[ROW].to_pylist()]
        self._bad_records += part.num_rows

    def _in_parts(self, part: pa.Table, share: float, bad: list[FailedRecord], error: Exceeded) -> Iterator[pa.Table]:
        """Cut a part into PARTS pieces, and yield the rows of each; a piece may be cut again."""
        size, bad_before = -(-part.num_rows // PARTS), self._bad_records
        if size < self._least_logged:
            self._least_logged = size
            log.warning("sql: for %s records at once, it %s. It goes on with %s at a time.", part.num_rows, error, size)
        for piece in self._cut(part, size):
            yield from self._run_or_cut(piece, share, bad, is_cut=True)
        if self._bad_records == bad_before and error.cause in ("time", "memory"):
            # No single record is bad: the run had too many records.
            self._most_records = min(self._most_records, size)

    def _run_part(self, part: pa.Table, share: float, bad: list[FailedRecord], *, is_cut: bool) -> pa.Table:
        """Return a part's rows, and add failing records to `bad`. Raises Exceeded after the process has ended."""
        begin = time.monotonic()
        # A part that can be cut again gets little time, and so does each part after much lost time.
        is_short = self._lost_more_than(1) or (is_cut and part.num_rows > 1)
        seconds = min(_PART_SECONDS, self._bounds.timeout) if is_short else self._bounds.timeout
        process = self._process()
        try:
            rows, failed = process.run(part, seconds, int(part.num_rows * share + part.nbytes * _BYTES_PER_BYTE))
        except Exceeded:
            self._lost += time.monotonic() - begin
            raise
        self._used += time.monotonic() - begin
        self._idle.append(process)
        bad += [FailedRecord(number, reason) for number, reason in failed]
        return rows

    def _cut(self, table: pa.Table, size: int) -> Iterator[pa.Table]:
        """Yield parts of at most `size` records, and at most `_most_records`, which the run of a part may lower."""
        start = 0
        while start < table.num_rows:
            part = table.slice(start, min(size, self._most_records))
            start += part.num_rows
            yield part

    def _lost_more_than(self, times: int) -> bool:
        """Return whether runs beyond a bound took more than all other runs and a multiple of _LOST seconds."""
        return self._lost > times * _LOST + self._used

    def _process(self) -> SqlProcess:
        """Return an idle process, or a new one."""
        with contextlib.suppress(IndexError):
            while True:
                process = self._idle.pop()
                if process.is_usable:
                    return process
                process.close()
        return SqlProcess(self._sql, self._columns, self._bounds, self._first)


def _leaves(kind: pa.DataType) -> int:
    """Return the number of columns without inner columns in a type."""
    return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields)) or 1
