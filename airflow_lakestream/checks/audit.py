"""Checks of a landing's rows before the commit to main, in a separate process to protect the task."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from airflow_lakestream.checks.looking import TIMESTAMP, CheckFiles, LandingCheck, label_of
from airflow_lakestream.core.checks import Finding, LandingChecks, StagedRows
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import no_rows
from airflow_lakestream.transform.bounds import ProcessBounds
from airflow_lakestream.transform.messages import send
from airflow_lakestream.transform.process import BoundedProcess, Exceeded, Message, SqlFailed

log = logging.getLogger(__name__)


# Together with the interpreter, its libraries and the data read: half a GiB.
BOUNDS = ProcessBounds(memory_limit="256MB", threads=2, reserve=256 * 2**20)
# Processor seconds for a check, in addition to one second for each MiB of the files.
SECONDS = 30.0
_NO_COLUMNS = pa.schema([])


class CheckProcess(BoundedProcess):
    """A process for checks. Raises SqlFailed if the process does not start.

    The methods raise Exceeded after the process has ended, for example by its bounds.
    """

    def __init__(self) -> None:
        super().__init__("airflow_lakestream.checks.worker", BOUNDS)
        # Sent before the first question.
        self._before: list[Message] = [(asdict(BOUNDS), no_rows(_NO_COLUMNS))]
        self._seconds = SECONDS
        self._handles: dict[int, Any] = {}
        self._read_error: BaseException | None = None

    def select(self, sql: str) -> str:
        """Return a SELECT as parsed by DuckDB. Raises InvalidArgument for another statement."""
        return str(self._asked("select", sql)["statement"])

    def bind(self, label: str, statement: str, columns: pa.Schema) -> None:
        """Raise InvalidArgument if a statement does not fit the columns."""
        self._asked("bind", [label, statement], columns)

    def open(self, written: StagedRows, folder: str, part: tuple[int, int] | None) -> int:
        """Open a landing's files; return the number of rows. Raises the errors of reading the files.

        :param folder: for rows that do not fit into memory.
        :param part: only these rows: the number of the first row, and the count.
        """
        self._written, self._paths = written, list(written.files)
        self._seconds = SECONDS + sum(written.files.values()) / 2**20
        values = [dict(written.values.get(path, {})) for path in self._paths]
        files = CheckFiles(list(written.files.values()), values, folder, part)
        return int(self._asked("files", asdict(files), written.columns)["count"])

    def findings(self, check: LandingCheck) -> list[Finding]:
        """Return the findings of a check, after `open`. Raises the errors of reading the files."""
        return [Finding(**one) for one in self._asked("check", asdict(check))["findings"]]

    def places(self) -> list[str]:
        """Return the positions of the first rows, after `open`; empty if the rows have no positions."""
        places: list[str] = self._asked("places", "")["places"]
        return places

    def close(self) -> None:
        """End the process, and close the files."""
        super().close()
        while self._handles:
            with contextlib.suppress(Exception):
                self._handles.popitem()[1].close()

    def answer(self, until: float) -> Message:
        """Return the next answer; before the answer, serve the process's requests for parts of files.

        Raises EOFError if a file can't be read.

        :param until: the time by which each message must come, by `time.monotonic`.
        """
        while True:
            words, table = super().answer(until)
            if "read" not in words:
                return words, table
            try:
                data = self._part(*words["read"])
            except BaseException as error:
                # This ends the process, which looks like Exceeded to the caller: `_asked` raises the error instead.
                self._read_error = error
                raise EOFError from error
            column = pa.array([data], pa.large_binary())
            send(self._to, {}, pa.Table.from_arrays([column], ["data"]))

    def _part(self, number: int, start: int, size: int) -> bytes:
        if number not in self._handles:
            self._handles[number] = self._written.open(self._paths[number])
        handle = self._handles[number]
        handle.seek(start)
        data = handle.read(size)
        if len(data) != size:
            raise OSError(f"{self._paths[number]}: {size} bytes from {start} on are to be read, and there are fewer")
        return bytes(data)

    def _asked(self, request: str, argument: object, columns: pa.Schema = _NO_COLUMNS) -> dict[str, Any]:
        """Send a request to the process; return the answer. Raises InvalidArgument, Exceeded, and errors of reading."""
        messages = [*self._before, ({request: argument, "seconds": self._seconds}, no_rows(columns))]
        self._before = []
        try:
            answer, _ = self.ask(messages, self._seconds)
        except Exceeded:
            # A failed read ends the process as well, which is Exceeded here.
            if self._read_error is not None:
                raise self._read_error from None
            raise
        if "invalid" in answer:
            raise InvalidArgument(*answer["invalid"])
        return answer


# Wall-clock seconds for the search for rows to blame in a landing.
SEARCH = 60.0


class SqlAuditor:
    """`core.checks.RowChecker` by DuckDB in another process.

    Raises InvalidArgument unless each statement is a SELECT, and SqlFailed if the process does not start.
    """

    def __init__(self, checks: LandingChecks) -> None:
        self.checks = checks
        self._statements: list[LandingCheck] = []
        # The columns that the statements fit, according to the last process.
        self._fitting: pa.Schema | None = None
        if checks.statements:
            with closing(CheckProcess()) as process:
                for sql in checks.statements:
                    label = label_of(sql)
                    with _planning(label):
                        self._statements.append(LandingCheck("sql", f"sql: {label}", statement=process.select(sql)))

    def check_columns(self, columns: pa.Schema) -> None:
        """Raise InvalidArgument if the checks don't fit the columns."""
        self._check_names(columns)
        if self._statements and columns != self._fitting:
            with closing(CheckProcess()) as process:
                self._bind(process, columns)

    def _check_names(self, columns: pa.Schema) -> None:
        if len({name.lower() for name in columns.names}) < len(columns.names):
            problem = "columns of the table differ in upper and lower case only, which SQL does not distinguish."
            raise InvalidArgument("checks", problem, "Leave checks out, or rename columns.")
        named = {"not_null": self.checks.not_null, "unique": self.checks.unique}
        if self.checks.freshness is not None:
            named["freshness"] = (TIMESTAMP,)
        for kind, names in named.items():
            for name in names:
                if name not in columns.names:
                    there = f"The columns are: {', '.join(columns.names)}."
                    raise InvalidArgument(f"checks.{kind}", f"there is no column {name!r}.", there)

    def _bind(self, process: CheckProcess, columns: pa.Schema) -> None:
        # The batches of a stream, and the publications of a branch, have the same columns again and again.
        if columns == self._fitting:
            return
        for one in self._statements:
            label = one.label.removeprefix("sql: ")
            with _planning(label):
                process.bind(label, one.statement, columns)
        self._fitting = columns

    def findings(self, written: StagedRows) -> Sequence[Finding]:
        """Return the failed checks. Raises InvalidArgument, SqlFailed, and the errors of reading the files.

        Without files, only the number of rows is checked.
        """
        started = time.monotonic()
        findings = list(self._of_count(written))
        if written.files:
            self._check_names(written.columns)
            with tempfile.TemporaryDirectory(prefix="lakestream-checks-") as folder:
                findings += _CheckRun(written, folder).findings(self._all(), self._bind)
        log.info("Checked %s rows in %.2f s: %s failed", written.rows, time.monotonic() - started, len(findings))
        return findings

    def _all(self) -> Iterator[LandingCheck]:
        for name in self.checks.not_null:
            yield LandingCheck("not_null", f"not_null: {name}", [name])
        if self.checks.unique:
            yield LandingCheck("unique", f"unique: {', '.join(self.checks.unique)}", list(self.checks.unique))
        if self.checks.freshness is not None:
            yield LandingCheck("freshness", "freshness", most=self.checks.freshness)
        yield from self._statements

    def _of_count(self, written: StagedRows) -> Iterator[Finding]:
        if (bounds := self.checks.row_count) is None:
            return
        if bounds.asks_history and written.usual is None:
            log.info("The number of rows is not compared: there is no landing of the last week.")
        if (problem := bounds.problem(written.rows, written.usual)) is not None:
            yield Finding("row_count", problem)


@contextmanager
def _planning(label: str) -> Iterator[None]:
    """Name a statement in the error, if the statement ends its process before any rows are read.

    Raises InvalidArgument; or SqlFailed if the process exited by itself, since another try may help.
    """
    try:
        yield
    except Exceeded as error:
        if error.cause == "exit":
            raise SqlFailed(f"checks.sql: no process is available to parse {label!r} in: it {error}.") from None
        raise InvalidArgument("checks.sql", f"{label!r}: without any row, it {error}.") from None


class _CheckRun:
    """Run of all checks of a landing's rows. A check that ends its process has failed; the next gets a new process.

    :param written: the files with the rows.
    :param folder: takes the rows that do not fit into memory.
    """

    def __init__(self, written: StagedRows, folder: str) -> None:
        self._written, self._folder = written, folder
        self._until = 0.0

    def findings(
        self, checks: Iterator[LandingCheck], bind: Callable[[CheckProcess, pa.Schema], None]
    ) -> list[Finding]:
        """Return the failed checks.

        :param bind: checks in a process whether the statements fit the columns. Raises InvalidArgument.
        """
        findings: list[Finding] = []
        first = CheckProcess()
        process: CheckProcess | None = first
        try:
            bind(first, self._written.columns)
            try:
                self._open(first)
            except Exceeded as error:
                return [Finding("checks", f"to read the rows {error}")]
            for check in checks:
                try:
                    process = process or self._new_process()
                    findings += process.findings(check)
                except Exceeded as error:
                    process = None
                    findings.append(Finding(check.label, f"it {error}", self._positions_at_fault(check, error)))
        finally:
            if process is not None:
                process.close()
        return findings

    def _new_process(self, part: tuple[int, int] | None = None) -> CheckProcess:
        # `part`: the number of the first row, and the count of rows; None for all rows.
        process = CheckProcess()
        try:
            self._open(process, part)
        except BaseException:
            process.close()
            raise
        return process

    def _open(self, process: CheckProcess, part: tuple[int, int] | None = None) -> None:
        count = process.open(self._written, self._folder, part)
        wanted = self._written.rows if part is None else part[1]
        # The process opens each file even without a check: a file that is gone must not get on main.
        if count != wanted:
            raise AssertionError(f"{wanted} rows are to be committed, and their files have {count}")

    def _positions_at_fault(self, check: LandingCheck, error: Exceeded) -> list[str]:
        """Return the positions of the rows that made a check end its process: a single row, or as few as possible.

        The search halves the rows again and again, and checks each half in a new process, until `SEARCH` seconds are
        over. The result is empty if the check took too long, or if the rows have no positions.

        :param check: the check that has ended its process, by `error`.
        """
        if error.cause == "time":
            return []
        self._until = self._until or time.monotonic() + SEARCH
        start, count = 0, self._written.rows
        while count > 1 and time.monotonic() < self._until:
            half = count // 2
            if self._ends(check, (start, half)):
                count = half
            elif self._ends(check, (start + half, count - half)):
                start, count = start + half, count - half
            else:
                # Only rows of both halves together end the process.
                break
        with suppress(Exceeded), closing(self._new_process((start, count))) as process:
            return process.places()
        return []

    def _ends(self, check: LandingCheck, part: tuple[int, int]) -> bool:
        try:
            with closing(self._new_process(part)) as process:
                process.findings(check)
        except Exceeded:
            return True
        return False
