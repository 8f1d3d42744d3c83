"""`SqlTransform`: a checked statement, run by DuckDB on each micro-batch, in a separate process."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import no_rows
from airflow_lakestream.transform.bounds import ProcessBounds
from airflow_lakestream.transform.messages import ROW, FailedRecord, Indices, Transformed
from airflow_lakestream.transform.process import RecordSearch

_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_TIMESTAMP = pa.timestamp("us", "UTC")
_MAX_MILLIS = (2**63 - 1) // 1000

RAW_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.string()),
        ("event_timestamp", _TIMESTAMP),
        ("headers", _HEADERS),
        ("_kafka_topic", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
        ("_kafka_timestamp", _TIMESTAMP),
        ("_kafka_key", pa.binary()),
        ("_kafka_headers", _HEADERS),
    ]
)
PARTS = {
    "key": RecordPart.KEY,
    "_kafka_key": RecordPart.KEY,
    "headers": RecordPart.HEADERS,
    "_kafka_headers": RecordPart.HEADERS,
}


def raw_columns(batch: RawBatch, columns: Collection[str]) -> tuple[dict[str, pa.Array], list[FailedRecord]]:
    """Return columns of the records, by name, and the bad records.

    A record is bad if the text of a column is not UTF-8, or if its timestamp is out of range; the column has NULL then.

    :param columns: the names of the columns to return.
    """
    bad: dict[int, str] = {}
    names = [name for name in RAW_SCHEMA.names if name in columns]
    arrays = {name: _column(name, batch, bad) for name in names}
    return arrays, [FailedRecord(index, bad[index]) for index in sorted(bad)]


def _column(name: str, batch: RawBatch, bad: dict[int, str]) -> pa.Array:
    """Return a column of RAW_SCHEMA; add the reasons of bad records to `bad`, by index."""
    count = len(batch)
    if name == "value":
        return _text("value", batch.values, bad)
    if name == "key":
        return _text("key", batch.keys, bad)
    if name in ("event_timestamp", "_kafka_timestamp"):
        return _timestamps(batch, bad)
    if name in PARTS:
        return getattr(batch, PARTS[name])
    if name == "_kafka_offset":
        return pa.array(np.asarray(batch.offsets, np.int64))
    value = pa.scalar(batch.topic) if name == "_kafka_topic" else pa.scalar(batch.partition, pa.int32())
    return pa.repeat(value, count)


def _text(name: str, values: pa.Array | pa.ChunkedArray, bad: dict[int, str]) -> pa.Array:
    """Return bytes as text, null for invalid UTF-8, with the reason in `bad`."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = []
        for index, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError as error:
                bad[index] = f"{name}: it is not UTF-8 text (byte {error.start})"
                texts.append(None)
        return pa.array(texts, pa.string())


def _timestamps(batch: RawBatch, bad: dict[int, str]) -> pa.Array:
    millis = np.asarray(batch.timestamps, np.int64)
    # Producers may write any 64-bit number.
    out_of_range = (millis > _MAX_MILLIS) | (millis < -_MAX_MILLIS)
    for index in np.flatnonzero(out_of_range):
        bad[int(index)] = f"the record's timestamp {millis[index]} ms is out of range"
    is_null = out_of_range | (millis == -1)
    return pa.array(np.where(is_null, 0, millis) * 1000, mask=is_null).cast(_TIMESTAMP)


class SqlTransform:
    """Transform of each record into one row, or no row, by a SELECT. Can be pickled, and called from several threads.

    The statement runs in separate processes, one per thread that calls at the same time. The processes are reused, and
    end with this object or this process. See `ProcessBounds` for the bounds of each process.

    :param sql: the statement; it reads from {{ input }}.
    :param input_schema: columns of the decoded rows, metadata columns included; None for raw records.
    :param memory_limit: DuckDB's memory for data. The process may have 512 MiB more.
    :param threads: threads that DuckDB uses for one batch; batches of several threads run in parallel anyway.
    :param timeout: processor seconds that the statement may take for one record, and for a batch at once. A
        record that takes more is bad.

    Raises InvalidArgument for a statement that is not allowed, does not fit the columns, or exceeds its bounds
    without any record; SqlFailed if no process can be started.
    """

    def __init__(
        self,
        sql: str,
        *,
        input_schema: pa.Schema | None = None,
        memory_limit: str = "256MB",
        threads: int = 1,
        timeout: float = 10.0,
    ) -> None:
        self.sql = sql
        self.input_schema = input_schema
        self.bounds = ProcessBounds(memory_limit, threads, timeout)
        self._search = RecordSearch(sql, RAW_SCHEMA if input_schema is None else input_schema, self.bounds)
        weakref.finalize(self, self._search.close)
        self.schema = self._search.schema
        self.input_columns = frozenset(self._search.input_columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (self.sql, self.input_schema, self.bounds))

    @property
    def parts(self) -> frozenset[RecordPart]:
        """The parts of raw records that the statement reads."""
        return frozenset(PARTS[name] for name in self.input_columns & PARTS.keys() if self.input_schema is None)

    def apply(self, batch: RawBatch | pa.Table) -> Transformed:
        """Return the results for the records of a RawBatch, or of a table with the input schema.

        Raises SqlFailed, and InvalidArgument for raw records in place of decoded rows, or without keys or headers that
        the statement reads.
        """
        columns, bad = self._columns(batch)
        numbers = np.arange(len(batch), dtype=np.int64)
        # pa.table of a dict would import pandas, which takes half a second.
        table = pa.Table.from_arrays([*columns.values(), pa.array(numbers)], [*columns, ROW])
        if bad:
            table = table.take(pa.array(np.delete(numbers, [failed.index for failed in bad])))
        parts = list(self._search.run(table, bad))
        kept = np.concatenate([part[ROW].to_numpy() for part in parts] or [numbers[:0]])
        rows = pa.concat_tables([part.drop_columns([ROW]) for part in parts] or [no_rows(self.schema)])
        bad.sort(key=lambda failed: failed.index)
        return Transformed(rows, kept, _filtered(len(batch), kept, bad), bad)

    def _columns(self, batch: RawBatch | pa.Table) -> tuple[dict[str, pa.Array], list[FailedRecord]]:
        names = self._search.input_columns
        if isinstance(batch, RawBatch):
            if self.input_schema is not None:
                raise InvalidArgument("batch", "the statement is for decoded rows, and these are raw records.")
            for part in sorted(self.parts, reverse=True):
                if getattr(batch, part) is None:
                    raise InvalidArgument("batch", f"the statement reads {part}, and the records were read without.")
            return raw_columns(batch, names)
        return {name: batch[name] for name in names}, []


def _filtered(count: int, kept: Indices, bad: list[FailedRecord]) -> Indices:
    """Return the filtered records: records without a row that are not bad.

    Raises AssertionError if rows and records are not aligned.
    """
    failed = np.array([record.index for record in bad], np.int64)
    for numbers in (kept, failed):
        if len(numbers) and not (np.all(np.diff(numbers) > 0) and numbers[0] >= 0 and numbers[-1] < count):
            raise AssertionError(f"rows and records are not aligned in a batch of {count}")
    uses = np.zeros(count, np.int8)
    uses[kept] += 1
    uses[failed] += 1
    if np.any(uses > 1):
        raise AssertionError("a record is both a row and bad")
    return np.flatnonzero(uses == 0)


def _rebuilt(sql: str, input_schema: pa.Schema | None, bounds: ProcessBounds) -> SqlTransform:
    return SqlTransform(
        sql, input_schema=input_schema, memory_limit=bounds.memory_limit, threads=bounds.threads, timeout=bounds.timeout
    )
