"""Staged events: the driver reads the columns for its decisions, and only executors read the values of rows.

So a driver of a mirror costs little, however wide the rows are. If a decision needs more of an event, `ValuesApart` is
raised, and the driver reads the whole events after all.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_lakestream.cdc.columns import (
    BEFORE,
    DELETES_HAVE_VALUES,
    KEY_NAMES,
    LEAVES_OUT,
    LOG,
    NOTES,
    OF_EVENTS,
    OLD,
    OP,
    PLACE,
    REST,
    ROW_BYTES,
    TABLE,
    TRANSACTION,
    VERSION,
)
from airflow_lakestream.cdc.events.provenance import is_serial
from airflow_lakestream.tables.schema.required import with_required

# The greatest size of a batch's rows in bytes: of larger batches each executor would read more than it needs.
MOST_BYTES = 64 * 2**20
# Files read at the same time: a remote store answers slowly.
FILES_AT_ONCE = 8

Read = TypeVar("Read")
OpenFile = Callable[[Any, Mapping[str, Any]], Any]


class ValuesApart(Exception):
    """Raised if the driver needs values of rows that it has not read; the text is the reason."""


@dataclass(frozen=True)
class EventNumbers:
    """Numbers of events among all events of a batch's files, in any order.

    :param versions: the versions that the rows get; None if the events keep the versions in the files.
    """

    numbers: npt.NDArray[np.int32]
    versions: pa.Table | None


@dataclass(frozen=True)
class EventRowReader:
    """Reader of rows of a batch's events. Each process caches the events of a single batch, for several tasks.

    :param open_file: opens a file, given the outline.
    :param outline: the outline of the staging table.
    :param files: all files of the batch.
    :param columns: the row's own columns, and the columns of its version.
    """

    open_file: OpenFile
    # repr=False: holds passwords.
    outline: Any = field(repr=False)
    files: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    _batch: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self, wanted: EventNumbers) -> pa.Table:
        """Return the rows in the order of the numbers, with new versions if `wanted` has versions."""
        rows = _cache.events(self._batch, self._read).take(pa.array(wanted.numbers))
        if wanted.versions is None:
            return rows
        for name in VERSION:
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), wanted.versions[name])
        return rows

    def _read(self) -> pa.Table:
        return pa.concat_tables(read_each(self._rows_in, self.files)).combine_chunks()

    def _rows_in(self, file: Mapping[str, Any]) -> pa.Table:
        return bare(whole_events(self.open_file, self.outline, file).select(self.columns))


class _EventCache:
    """Cache for the events of the last batch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The id of the batch, and its events.
        self._cached: tuple[str, pa.Table] | None = None

    def events(self, batch: str, read: Callable[[], pa.Table]) -> pa.Table:
        """Return a batch's events from the cache, or else from `read`."""
        with self._lock:
            if self._cached is None or self._cached[0] != batch:
                # Free the old batch before the next is read.
                self._cached = None
                self._cached = batch, read()
            return self._cached[1]

    def forget(self) -> None:
        """Free the memory of the cached events."""
        with self._lock:
            self._cached = None


_cache = _EventCache()
forget = _cache.forget


@dataclass(frozen=True)
class StagedEvents:
    """Events with the values of rows in executors' files.

    :param files: reads rows from the files, for executors.
    :param columns: the events' columns in the files.
    :param versions: the versions of all events, as the files have them.
    :param row_bytes: how much memory a row takes, on average.
    """

    files: EventRowReader
    columns: pa.Schema
    versions: pa.Table
    row_bytes: int

    def needed(self, rows: pa.Table, key: Sequence[str]) -> pa.Table:
        """Return the columns by which the driver sorts events, and executors find them: key, number, maybe version.

        The version columns are left out if every event still has the version stored in its file.

        :param rows: the events, with `PLACE` and the version columns.
        """
        numbers = rows[PLACE].to_numpy()
        changed = any((rows[name].to_numpy() != self.versions[name].to_numpy()[numbers]).any() for name in VERSION)
        return rows.select([*key, PLACE, *(VERSION if changed else ())])

    def numbered(self, needed: pa.Table) -> EventNumbers:
        """Return the numbers of events for executors, given the columns of `needed`, with versions if any."""
        has_versions = VERSION[0] in needed.column_names
        return EventNumbers(needed[PLACE].to_numpy(), needed.select(VERSION).combine_chunks() if has_versions else None)


def read_bare(
    open_file: OpenFile, outline: Any, files: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> tuple[StagedEvents, pa.Table]:
    """Read the events in executors' files, without the values of rows.

    Return the staged events, and a table of all events with the columns for decisions, among them `PLACE`, the number
    of each event. Raises ValuesApart if a decision needs values, or if the rows take too much
    memory. At least one file must be given.

    :param key: the columns of the mirror's key.
    """

    def read(file: Mapping[str, Any]) -> tuple[pa.Schema, pa.Table]:
        with open_file(outline, file) as stream:
            parquet = pq.ParquetFile(stream)
            columns = _bare_schema(parquet.schema_arrow)
            wanted = [*key, *VERSION, OP, TABLE, KEY_NAMES, TRANSACTION, *LOG, *NOTES]
            if not {*wanted}.issubset(columns.names):
                raise ValuesApart("executors saw different columns")
            if any(name.startswith(BEFORE) for name in columns.names):
                raise ValuesApart("a key was changed")
            if REST in columns.names:
                raise ValuesApart("a document has several changes")
            wanted += [OLD] if OLD in columns.names else []
            # Parquet also reads columns whose names begin with a wanted name and a dot: select the wanted columns
            # again.
            return columns, bare(parquet.read(columns=wanted).select(wanted))

    schema: pa.Schema | None = None
    parts, row_bytes = list[pa.Table](), 0
    for columns, part in read_each(read, files):
        if schema is not None and columns != schema:
            raise ValuesApart("executors saw different columns")
        schema = columns
        parts.append(part)
        row_bytes += pc.sum(part[ROW_BYTES]).as_py() or 0
        if row_bytes > MOST_BYTES:
            raise ValuesApart(f"the rows take more than {MOST_BYTES // 2**20} MiB")
    assert schema is not None, "at least one file is given"
    events = pa.concat_tables(parts)
    _check_notes(events)
    events = events.drop_columns(list(NOTES)).append_column(PLACE, pa.array(np.arange(len(events), dtype=np.int32)))
    row_columns = [name for name in schema.names if name not in OF_EVENTS]
    reader = EventRowReader(open_file, outline, files, row_columns)
    return StagedEvents(reader, schema, events.select(VERSION), row_bytes // max(1, len(events))), events


def _check_notes(events: pa.Table) -> None:
    """Raise ValuesApart if decisions about the events need values of rows, according to the notes of `with_notes`."""
    if any(events[name].null_count for name in NOTES):
        raise ValuesApart("some events have no notes")
    if pc.any(events[LEAVES_OUT]).as_py():
        raise ValuesApart("values are left out")
    # Events of sequential transactions need no settling; see `cdc.keys.order`.
    if pc.any(events[DELETES_HAVE_VALUES]).as_py() and not is_serial(events):
        raise ValuesApart("deletions have more than the key")


def whole_events(open_file: OpenFile, outline: Any, file: Mapping[str, Any]) -> pa.Table:
    """Return all events of a file."""
    with open_file(outline, file) as stream:
        return pq.ParquetFile(stream).read()


def read_each(read: Callable[[Any], Read], files: Sequence[Any]) -> Iterator[Read]:
    """Yield the result of `read` for each file, in order; `FILES_AT_ONCE` files are read at the same time.

    Raises the error of the first unreadable file.
    """
    pool = ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lakestream-events")
    try:
        yield from pool.map(read, files)
    finally:
        pool.shutdown(cancel_futures=True)


def is_staged(rows: pa.Table) -> bool:
    """Return whether only the files of these events have the values. Deletions then have only a key."""
    return PLACE in rows.column_names


def check_values(rows: pa.Table, need: str) -> None:
    """Raise ValuesApart if only the files of these events have the values."""
    if is_staged(rows):
        raise ValuesApart(need)


def bare(rows: pa.Table) -> pa.Table:
    """Return events with nullable columns and without metadata of fields, in a common form for all writers."""
    fields = [field.with_nullable(True) for field in rows.schema]
    # Arrow can't cast a null struct with a null in a required field.
    columns = [with_required(rows[field.name], field) for field in fields]
    # A file's fields have their own ids, which would make columns of one name different.
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)).cast(_bare_schema(rows.schema))


def _bare_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True).remove_metadata() for field in schema])
