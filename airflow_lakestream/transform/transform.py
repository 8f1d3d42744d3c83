"""`SqlTransform`: one checked statement, run by DuckDB on each micro-batch."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform.engine import Engine
from airflow_lakestream.transform.failures import run
from airflow_lakestream.transform.outcome import FailedRecord, Indices, Transformed
from airflow_lakestream.transform.raw_input import NEEDS_HEADERS, NEEDS_KEYS, RAW_SCHEMA, raw_columns
from airflow_lakestream.transform.rewrite import ROW


class SqlTransform:
    """Turns each record into one row, or none, by a SELECT. It can be pickled, and called from several threads.

    :param sql: the statement; it reads from {{ input }}.
    :param input_schema: columns of the decoded rows, metadata columns among them; None for raw records.
    :param memory_limit: what DuckDB may use in all threads of this process together.
    :param threads: threads that DuckDB uses for one batch; batches of several threads run side by side anyway.

    Raises InvalidArgument for a statement that is not allowed, or that does not fit the columns.
    """

    def __init__(
        self, sql: str, *, input_schema: pa.Schema | None = None, memory_limit: str = "256MB", threads: int = 1
    ) -> None:
        self.sql = sql
        self.input_schema = input_schema
        self.memory_limit = memory_limit
        self.threads = threads
        self._lock = threading.Lock()
        # Closing a parent's database in its child would wait for threads that are not there.
        self._inherited: list[Engine] = []
        self._engine, self._process = self._open(), os.getpid()
        self.schema = pa.schema([column.field for column in self._engine.columns])
        self.input_columns = frozenset(self._engine.input.names)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (self.sql, self.input_schema, self.memory_limit, self.threads))

    @property
    def needs_keys(self) -> bool:
        """Whether raw records have to be read with their keys."""
        return self.input_schema is None and bool(NEEDS_KEYS & self.input_columns)

    @property
    def needs_headers(self) -> bool:
        """Whether raw records have to be read with their headers."""
        return self.input_schema is None and bool(NEEDS_HEADERS & self.input_columns)

    def apply(self, batch: RawBatch | pa.Table) -> Transformed:
        """Return what becomes of each record: of a RawBatch, or of a table with the input schema.

        Indices of the result count what is given here. Raises SqlFailed.
        """
        columns, bad = self._columns(batch)
        numbers = np.arange(len(batch), dtype=np.int64)
        # pa.table of a dict imports pandas, half a second of a task's first commit.
        table = pa.Table.from_arrays([*columns.values(), pa.array(numbers)], [*columns, ROW])
        if bad:
            table = table.take(pa.array(np.delete(numbers, [failed.index for failed in bad])))
        parts = list(run(self._ready(), table, bad))
        kept = np.concatenate([part[ROW].to_numpy() for part in parts] or [numbers[:0]])
        rows = pa.concat_tables([self._conformed(part) for part in parts] or [self.schema.empty_table()])
        bad.sort(key=lambda failed: failed.index)
        return Transformed(rows, kept, _filtered(len(batch), kept, bad), bad)

    def _columns(self, batch: RawBatch | pa.Table) -> tuple[dict[str, pa.Array], list[FailedRecord]]:
        names = self._engine.input.names
        if isinstance(batch, RawBatch):
            if self.input_schema is not None:
                raise InvalidArgument("batch", "the statement is for decoded rows, and these are raw records.")
            for needed, there in ((self.needs_keys, batch.keys), (self.needs_headers, batch.headers)):
                if needed and there is None:
                    what = "keys" if there is batch.keys and self.needs_keys else "headers"
                    raise InvalidArgument("batch", f"the statement reads {what}, and the records were read without.")
            return raw_columns(batch, names)
        return {name: batch[name] for name in names}, []

    def _conformed(self, part: pa.Table) -> pa.Table:
        columns = []
        for field, column in zip(self.schema, part.columns[:-1], strict=True):
            if field.type == pa.uuid():
                column = column.cast(pa.binary(16))
            columns.append(column.cast(field.type))
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _ready(self) -> Engine:
        """Return the engine; a forked process makes its own, since threads and locks of DuckDB stay in the parent."""
        with self._lock:
            if self._process != os.getpid():
                self._inherited.append(self._engine)
                self._engine, self._process = self._open(), os.getpid()
            return self._engine

    def _open(self) -> Engine:
        columns = RAW_SCHEMA if self.input_schema is None else self.input_schema
        return Engine(self.sql, columns, self.memory_limit, self.threads)


def _filtered(count: int, kept: Indices, bad: list[FailedRecord]) -> Indices:
    """Return the records that are neither rows nor bad, having proven that rows and records are still aligned."""
    failed = np.array([record.index for record in bad], np.int64)
    for numbers in (kept, failed):
        if len(numbers) and not (np.all(np.diff(numbers) > 0) and numbers[0] >= 0 and numbers[-1] < count):
            raise AssertionError(f"rows and records are not aligned in a batch of {count}")
    seen = np.zeros(count, np.int8)
    seen[kept] += 1
    seen[failed] += 1
    if np.any(seen > 1):
        raise AssertionError("a record is both a row and bad")
    return np.flatnonzero(seen == 0)


def _rebuilt(sql: str, input_schema: pa.Schema | None, memory_limit: str, threads: int) -> SqlTransform:
    return SqlTransform(sql, input_schema=input_schema, memory_limit=memory_limit, threads=threads)
