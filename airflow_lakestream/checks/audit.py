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


# The interpreter, its libraries and the data of a read need the reserve: half a GiB in all.
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
        # Messages to send before the first request.
        self._before: list[Message] = [(asdict(BOUNDS), no_rows(_NO_COLUMNS))]
        # Processor seconds for each request.
        self._seconds = SECONDS
        self._handles: dict[int, Any] = {}
        self._read_error: BaseException | None = None

    def select(self, sql: str) -> str:
        """Return a SELECT in DuckDB's normal form. Raises InvalidArgument for another statement."""
        return str(self._request("select", sql)["statement"])

    def bind(self, label: str, statement: str, columns: pa.Schema) -> None:
        """Raise InvalidArgument if a statement, named by `label`, does not fit the columns."""
        self._request("bind", [label, statement], columns)

    def open(self, written: StagedRows, folder: str, part: tuple[int, int] | None) -> int:
        """Open a landing's files; return the number of rows. Raises the errors of reading the files.

        :param folder: a temporary folder for rows that do not fit into memory.
        :param part: the number of the first row and the count of rows to check; None for all rows.
        """
        self._written, self._paths = written, list(written.files)
        self._seconds = SECONDS + sum(written.files.values()) / 2**20
        values = [dict(written.values.get(path, {})) for path in self._paths]
        files = CheckFiles(list(written.files.values()), values, folder, part)
        return int(self._request("files", asdict(files), written.columns)["count"])

    def findings(self, check: LandingCheck) -> list[Finding]:
        """Return the findings of a check, after `open`. Raises the errors of reading the files."""
        return [Finding(**finding) for finding in self._request("check", asdict(check))["findings"]]

    def places(self) -> list[str]:
        """Return topic, partition and offset of the first rows, after `open`; [] for a table without such columns."""
        places: list[str] = self._request("places", "")["places"]
        return places

    def close(self) -> None:
        """End the process, and close the files."""
        super().close()
        while self._handles:
            with contextlib.suppress(Exception):
                self._handles.popitem()[1].close()

    def answer(self, until: float) -> Message:
        """Return the next answer, and serve the process's requests for parts of files until the answer.

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
                # EOFError ends the process, and `ask` raises Exceeded: `_request` raises the error of reading instead.
                self._read_error = error
                raise EOFError from error
            column = pa.array([data], pa.large_binary())
            send(self._to, {}, pa.Table.from_arrays([column], ["data"]))

    def _part(self, number: int, start: int, size: int) -> bytes:
        """Return bytes of the file with this number. Raises OSError if the file is too short."""
        if number not in self._handles:
            self._handles[number] = self._written.open(self._paths[number])
        handle = self._handles[number]
        handle.seek(start)
        data = handle.read(size)
        if len(data) != size:
            raise OSError(f"{self._paths[number]}: {size} bytes from {start} on are to be read, and there are fewer")
        return bytes(data)

    def _request(self, request: str, argument: object, columns: pa.Schema = _NO_COLUMNS) -> dict[str, Any]:
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


# Wall-clock seconds for the search for the rows that make checks of a landing end their process.
SEARCH = 60.0


class SqlAuditor:
    """`core.checks.RowChecker` by DuckDB in another process.

    Raises InvalidArgument unless each statement is a SELECT, and SqlFailed if the process does not start.
    """

    def __init__(self, checks: LandingChecks) -> None:
        self.checks = checks
        self._statements: list[LandingCheck] = []
        # The columns that the statements have been bound to.
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
        """Raise InvalidArgument if a column of a check is missing, or if SQL can't distinguish the columns' names."""
        if len({name.lower() for name in columns.names}) < len(columns.names):
            problem = "columns of the table differ in upper and lower case only, which SQL does not distinguish."
            raise InvalidArgument("checks", problem, "Leave checks out, or rename columns.")
        named = {"not_null": self.checks.not_null, "unique": self.checks.unique}
        if self.checks.freshness is not None:
            named["freshness"] = (TIMESTAMP,)
        for kind, names in named.items():
            for name in names:
                if name not in columns.names:
                    remedy = f"The columns are: {', '.join(columns.names)}."
                    raise InvalidArgument(f"checks.{kind}", f"there is no column {name!r}.", remedy)

    def _bind(self, process: CheckProcess, columns: pa.Schema) -> None:
        # The batches of a stream, and the publications of a branch, have the same columns again and again.
        if columns == self._fitting:
            return
        for check in self._statements:
            label = check.label.removeprefix("sql: ")
            with _planning(label):
                process.bind(label, check.statement, columns)
        self._fitting = columns

    def findings(self, written: StagedRows) -> Sequence[Finding]:
        """Return the failed checks. Raises InvalidArgument, SqlFailed, and the errors of reading the files.

        Without files, only the number of rows is checked.
        """
        started = time.monotonic()
        findings = list(self._row_count(written))
        if written.files:
            self._check_names(written.columns)
            with tempfile.TemporaryDirectory(prefix="lakestream-checks-") as folder:
                findings += _CheckRun(written, folder).findings(self._row_checks(), self._bind)
        log.info("Checked %s rows in %.2f s: %s failed", written.rows, time.monotonic() - started, len(findings))
        return findings

    def _row_checks(self) -> Iterator[LandingCheck]:
        """Yield all checks that read rows: all checks except the number of rows."""
        for name in self.checks.not_null:
            yield LandingCheck("not_null", f"not_null: {name}", [name])
        if self.checks.unique:
            yield LandingCheck("unique", f"unique: {', '.join(self.checks.unique)}", list(self.checks.unique))
        if self.checks.freshness is not None:
            yield LandingCheck("freshness", "freshness", most=self.checks.freshness)
        yield from self._statements

    def _row_count(self, written: StagedRows) -> Iterator[Finding]:
        if (bounds := self.checks.row_count) is None:
            return
        if bounds.asks_history and written.usual is None:
            log.info("The number of rows is not compared: there is no landing of the last week.")
        if (problem := bounds.problem(written.rows, written.usual)) is not None:
            yield Finding("row_count", problem)


@contextmanager
def _planning(label: str) -> Iterator[None]:
    """Name a statement in the error if the statement ends its process without any rows.

    Raises InvalidArgument, or SqlFailed if the process exited by itself, since another try may help.
    """
    try:
        yield
    except Exceeded as error:
        if error.cause == "exit":
            raise SqlFailed(f"checks.sql: no process is available to parse {label!r} in: it {error}.") from None
        raise InvalidArgument("checks.sql", f"{label!r}: without any row, it {error}.") from None


class _CheckRun:
    """Run of all checks of a landing's rows. A check that ends its process has failed; the next gets a new process.

    :param folder: a temporary folder for rows that do not fit into memory.
    """

    def __init__(self, written: StagedRows, folder: str) -> None:
        self._written, self._folder = written, folder
        self._until = 0.0

    def findings(
        self, checks: Iterator[LandingCheck], bind: Callable[[CheckProcess, pa.Schema], None]
    ) -> list[Finding]:
        """Return the failed checks.

        :param bind: raises InvalidArgument if the statements do not fit the columns, after a check in a process.
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
        """Return a new process with opened files; for `part`, see `CheckProcess.open`."""
        process = CheckProcess()
        try:
            self._open(process, part)
        except BaseException:
            process.close()
            raise
        return process

    def _open(self, process: CheckProcess, part: tuple[int, int] | None = None) -> None:
        # The process opens each file even without a check: a missing file must not be committed to main.
        count = process.open(self._written, self._folder, part)
        expected = self._written.rows if part is None else part[1]
        if count != expected:
            raise AssertionError(f"{expected} rows are to be committed, and their files have {count}")

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
            if self._ends_process(check, (start, half)):
                count = half
            elif self._ends_process(check, (start + half, count - half)):
                start, count = start + half, count - half
            else:
                # Only rows of both halves together end the process.
                break
        with suppress(Exceeded), closing(self._new_process((start, count))) as process:
            return process.places()
        return []

    def _ends_process(self, check: LandingCheck, part: tuple[int, int]) -> bool:
        """Return whether a check of only these rows ends its process."""
        try:
            with closing(self._new_process(part)) as process:
                process.findings(check)
        except Exceeded:
            return True
        return False
