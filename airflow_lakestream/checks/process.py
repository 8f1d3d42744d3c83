"""The task's side of `worker`: starts the process for checks, and reads files at the process's request."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from airflow_lakestream.checks.looking import CheckFiles, LandingCheck
from airflow_lakestream.core.checks import Finding, StagedRows
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import no_rows
from airflow_lakestream.transform.bounds import ProcessBounds
from airflow_lakestream.transform.messages import send
from airflow_lakestream.transform.process import BoundedProcess, Exceeded, Message

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
        self._failed: BaseException | None = None

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
                # For the caller the process has ended; `_asked` raises the error itself in place of Exceeded.
                self._failed = error
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
        messages = [*self._before, ({request: argument, "seconds": self._seconds}, no_rows(columns))]
        self._before = []
        try:
            answer, _ = self.ask(messages, self._seconds)
        except Exceeded:
            if self._failed is not None:
                raise self._failed from None
            raise
        if "invalid" in answer:
            raise InvalidArgument(*answer["invalid"])
        return answer
