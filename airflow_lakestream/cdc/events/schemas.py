"""Columns of a mirror's rows in the schemas of records, by schema id or next to the value; records of another form."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_lakestream.cdc.events.widening import joined_type
from airflow_lakestream.cdc.stops import ColumnTypeOrigin, forms_mixed, type_changed
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.connect import schema as connect_schema
from airflow_lakestream.decode.connect.debezium import IMAGES, is_event, row_of
from airflow_lakestream.decode.connect.debezium_own import RecordForm, form_of_value
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.decode.registered import SchemaFinder
from airflow_lakestream.decode.values.outcome import BadRow
from airflow_lakestream.decode.writer_schemas import Writer, writers
from airflow_lakestream.tables.rising import Numbers

# The greatest number of cached schemas: at any one time a topic has few schemas.
_MOST = 1_000
# A global of the module: `RecordSchemas` are pickled for executors, and a lock can't be pickled.
_JOINING = threading.Lock()

Row = Sequence[pa.Field]


@dataclass
class RecordSchemas:
    """Finder of a row's columns in the schemas of records. Thread-safe.

    :param format: of the values, see `core.policies.ValueFormat`.
    :param finder: finds schemas that records name.
    :param of_records: whether records are rows, not change events.
    """

    format: str
    finder: SchemaFinder
    table: str
    of_records: bool = False
    # Caches: see `writers`, and the columns of each schema.
    _prefixes: dict[bytes, str] = field(default_factory=dict)
    _rows: dict[Writer, Row] = field(default_factory=dict)
    # All columns until now, each with the first place where a schema had the column.
    _columns: dict[str, tuple[pa.Field, ColumnTypeOrigin]] = field(default_factory=dict)

    def row(self, batch: RawBatch) -> Row:
        """Return all columns in the schemas of this batch and all earlier batches, each with a type for all values.

        Raises MirrorStopped if a column has no common type, SchemaRefused, and the registry's errors.
        """
        rows = sorted(self._of_batch(batch), key=lambda row_and_place: row_and_place[1])
        # A type widened by another thread meanwhile would be lost.
        with _JOINING:
            for row, place in rows:
                for new in row:
                    origin = ColumnTypeOrigin.at(new.type, batch.partition, batch.offsets[place])
                    old, first = self._columns.get(new.name, (new, origin))
                    kind = joined_type(old.type, new.type)
                    if kind is None:
                        raise type_changed(self.table, new.name, first, origin, of_records=self.of_records)
                    self._columns[new.name] = (old.with_type(kind), first)
            return [column for column, _ in self._columns.values()]

    def fields_of(self, batch: RawBatch) -> Iterator[tuple[Sequence[str], Numbers]]:
        """Yield the names of the fields in each schema of records, with the indices of the records."""
        for writer, places in writers(batch.values, self.format, self.finder, self._prefixes):
            yield [column.name for column in self._cached(writer)], places

    def _of_batch(self, batch: RawBatch) -> Iterator[tuple[Row, int]]:
        """Yield the columns of each schema, with the index of the schema's first record."""
        for writer, places in writers(batch.values, self.format, self.finder, self._prefixes):
            yield self._cached(writer), int(places[0])

    def _cached(self, writer: Writer) -> Row:
        """Return the columns of a schema; none for an unknown schema."""
        row = self._rows.get(writer)
        if row is None:
            row = self._attached(writer) if isinstance(writer, str) else self._registered(writer)
            # An unknown schema is not cached, since it may be registered in a moment.
            if row and len(self._rows) < _MOST:
                self._rows[writer] = row
        return row or ()

    def _attached(self, text: str) -> Row:
        """Return the columns of the schema next to a JSON value, from Connect's JsonConverter."""
        shape = connect_schema.parse(text)
        if self.of_records:
            members = {} if shape is None else shape.fields
            return [connect_schema.arrow_field(name, inner, name) for name, inner in members.items()]
        # Only the row's images and the operation, by which an event is recognized.
        members = (
            {} if shape is None else {name: shape.fields[name] for name in (*IMAGES, "op") if name in shape.fields}
        )
        return _row_of(pa.schema([connect_schema.arrow_field(name, inner, name) for name, inner in members.items()]))

    def _registered(self, head: bytes) -> Row:
        """Return the columns of the registered schema whose id a value begins with; none for an unknown schema."""
        schema = self.finder.by_head(self.format, head)
        if schema is None:
            return ()
        columns = FORMATS[self.format].columns_of(schema)
        return list(columns) if self.of_records else _row_of(columns)


def refuse_documents(table: str, batch: RawBatch, bad: Iterable[BadRow]) -> None:
    """Refuse documents of Maxwell and Canal among events of Debezium, of which they are bad ones.

    Raises MirrorStopped.
    """
    for one in bad:
        form = form_of_value(batch.values[one.index].as_py() or b"")
        if form in (RecordForm.MAXWELL, RecordForm.CANAL):
            where = f"{batch.topic}[{batch.partition}] offset {batch.offsets[one.index]}"
            raise forms_mixed(table, where, form, RecordForm.DEBEZIUM)


def _row_of(record: pa.Schema) -> Row:
    # A value that is not an event becomes a bad record, and has no columns.
    return row_of(record) if is_event(record) else ()
