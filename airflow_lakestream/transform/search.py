"""Runs of a statement on batches within bounds, and the search for records beyond a bound.

A batch beyond a bound is cut into parts, and parts beyond a bound are cut again. Running a part costs next to nothing,
and a part has small bounds, so exceeding them costs little; a single record has the bounds of a whole batch.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

import pyarrow as pa

from airflow_lakestream.transform.bounds import ProcessBounds
from airflow_lakestream.transform.outcome import ROW, FailedRecord
from airflow_lakestream.transform.process import Exceeded, SqlProcess

log = logging.getLogger(__name__)

# The number of parts into which a batch that exceeds a bound is cut.
PARTS = 16
# Processor seconds for such a part.
_OF_PART = 0.5
# Processor seconds that may be lost to records beyond a bound, in addition to the time of all other records. After
# that a record gets no more than a part does. After three times as much, parts beyond a bound are not cut any more.
_LOST = 300.0
# Bytes that a record's rows may have, per byte of the record and per value of the rows.
_GROWTH = 8
_OF_VALUE = 32


class RecordSearch:
    """Runner of a statement for several threads at once, with a process for each thread.

    Records that exceed a bound become bad records. Raises InvalidArgument and SqlFailed, like `SqlProcess`.
    """

    def __init__(self, sql: str, columns: pa.Schema, bounds: ProcessBounds) -> None:
        self._sql, self._columns, self._bounds = sql, columns, bounds
        self._idle: list[SqlProcess] = []
        # The number of records that may be run at once, as far as known, and how many exceeded a bound.
        self._most, self._found = 2**31, 0
        self._gained = self._lost = 0.0
        # The least number of records at once that was logged.
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
        # Any row may have this many bytes.
        share = self._bounds.rows / max(1, table.num_rows) + _OF_VALUE * self._values
        for part in self._cut(table, table.num_rows):
            yield from self._tried(part, share, bad, is_cut=part.num_rows < table.num_rows)

    def close(self) -> None:
        """End the idle processes."""
        while self._idle:
            self._idle.pop().close()

    def _tried(self, part: pa.Table, share: float, bad: list[FailedRecord], *, is_cut: bool) -> Iterator[pa.Table]:
        # `share`: bytes that the rows may have per record. `is_cut`: the part is not the whole batch.
        error = None
        # Tried in a second process: the first may have been killed from outside, or found no memory.
        for _ in range(2 if part.num_rows == 1 else 1):
            try:
                yield self._asked(part, share, bad, is_cut=is_cut)
                return
            except Exceeded as exceeded:
                error = exceeded
                if exceeded.is_certain:
                    break
        assert error is not None, "at least one try was made"
        if part.num_rows > 1 and not (is_cut and self._is_lost(3)):
            yield from self._in_parts(part, share, bad, error)
            return
        what = "for this record alone" if part.num_rows == 1 else f"for {part.num_rows} records, this one among them"
        more = "" if part.num_rows == 1 else "; too much time was lost already to look at each of them"
        bad += [FailedRecord(number, f"sql: {what}, it {error}{more}") for number in part[ROW].to_pylist()]
        self._found += part.num_rows

    def _in_parts(self, part: pa.Table, share: float, bad: list[FailedRecord], error: Exceeded) -> Iterator[pa.Table]:
        # Cuts the part into PARTS pieces, and runs each; each piece may be cut again.
        size, found = -(-part.num_rows // PARTS), self._found
        if size < self._least_logged:
            self._least_logged = size
            log.warning("sql: for %s records at once, it %s. It goes on with %s at a time.", part.num_rows, error, size)
        for piece in self._cut(part, size):
            yield from self._tried(piece, share, bad, is_cut=True)
        if self._found == found and error.cause in ("time", "memory"):
            # No single record is to blame: too many were run at once.
            self._most = min(self._most, size)

    def _asked(self, part: pa.Table, share: float, bad: list[FailedRecord], *, is_cut: bool) -> pa.Table:
        # Runs the part; a process that exceeds a bound has ended, and a process that answers is used again.
        begin = time.monotonic()
        # A part that can be cut again gets little time; so does each part once much time was lost.
        least = self._is_lost(1) or (is_cut and part.num_rows > 1)
        seconds = min(_OF_PART, self._bounds.timeout) if least else self._bounds.timeout
        process = self._process()
        try:
            rows, found = process.run(part, seconds, int(part.num_rows * share + part.nbytes * _GROWTH))
        except Exceeded:
            self._lost += time.monotonic() - begin
            raise
        self._gained += time.monotonic() - begin
        self._idle.append(process)
        bad += [FailedRecord(number, reason) for number, reason in found]
        return rows

    def _cut(self, table: pa.Table, size: int) -> Iterator[pa.Table]:
        # Yields parts of at most `size` records, and of no more than may be run at once.
        start = 0
        while start < table.num_rows:
            # Checked each time: a part may lower the limit for the next part.
            part = table.slice(start, min(size, self._most))
            start += part.num_rows
            yield part

    def _is_lost(self, times: int) -> bool:
        # The time lost to parts beyond a bound is compared with the time of all other runs, and a multiple of an
        # allowance.
        return self._lost > times * _LOST + self._gained

    def _process(self) -> SqlProcess:
        with contextlib.suppress(IndexError):
            while True:
                process = self._idle.pop()
                if process.is_usable:
                    return process
                process.close()
        return SqlProcess(self._sql, self._columns, self._bounds, self._first)


def _leaves(kind: pa.DataType) -> int:
    return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields)) or 1
