"""Columns of a mirror's rows in the schemas that records name, or have next to them; and records of another form."""

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

# At any one time a topic has few schemas.
_MOST = 1_000
# Of the module: the schemas go to executors, and a lock does not.
_JOINING = threading.Lock()

Row = Sequence[pa.Field]


@dataclass
class RecordSchemas:
    """Finder of a row's columns in the schemas of records. Thread-safe.

    :param format: of the values, see `core.policies.ValueFormat`.
    :param finder: finds schemas that records name.
    :param table: the mirror's name.
    :param of_records: records are rows, not change events.
    """

    format: str
    finder: SchemaFinder
    table: str
    of_records: bool = False
    _prefixes: dict[bytes, str] = field(default_factory=dict)
    _rows: dict[Writer, Row] = field(default_factory=dict)
    _found: dict[str, tuple[pa.Field, ColumnTypeOrigin]] = field(default_factory=dict)

    def row(self, batch: RawBatch) -> Row:
        """Return all columns of the schemas of all records until now, each with a type for all values.

        Raises MirrorStopped without a common type, SchemaRefused, and the registry's errors.
        """
        rows = sorted(self._of_batch(batch), key=lambda one: one[1])
        # A type widened by another thread meanwhile would be lost.
        with _JOINING:
            for row, place in rows:
                for one in row:
                    seen = ColumnTypeOrigin.at(one.type, batch.partition, batch.offsets[place])
                    there, first = self._found.get(one.name, (one, seen))
                    kind = joined_type(there.type, one.type)
                    if kind is None:
                        raise type_changed(self.table, one.name, first, seen, of_records=self.of_records)
                    self._found[one.name] = (there.with_type(kind), first)
            return [one for one, _ in self._found.values()]

    def fields_of(self, batch: RawBatch) -> Iterator[tuple[Sequence[str], Numbers]]:
        """Yield the names of the fields in each schema of records, with the indices of the records."""
        for writer, places in writers(batch.values, self.format, self.finder, self._prefixes):
            yield [one.name for one in self._cached(writer)], places

    def _of_batch(self, batch: RawBatch) -> Iterator[tuple[Row, int]]:
        """Yield the columns of each schema, with the index of the schema's first record."""
        for writer, places in writers(batch.values, self.format, self.finder, self._prefixes):
            yield self._cached(writer), int(places[0])

    def _cached(self, key: Writer) -> Row:
        row = self._rows.get(key)
        if row is None:
            row = self._attached(key) if isinstance(key, str) else self._named(key)
            # Not remembered: an unknown schema may be registered in a moment.
            if row and len(self._rows) < _MOST:
                self._rows[key] = row
        return row or ()

    def _attached(self, text: str) -> Row:
        # The schema next to a JSON value, from Connect's JsonConverter.
        shape = connect_schema.parse(text)
        if self.of_records:
            members = {} if shape is None else shape.fields
            return [connect_schema.arrow_field(name, inner, name) for name, inner in members.items()]
        # Only the row's images and the operation, by which an event is recognized.
        members = (
            {} if shape is None else {name: shape.fields[name] for name in (*IMAGES, "op") if name in shape.fields}
        )
        return _row_of(pa.schema([connect_schema.arrow_field(name, inner, name) for name, inner in members.items()]))

    def _named(self, head: bytes) -> Row:
        # The schema whose id a value begins with.
        found = self.finder.by_head(self.format, head)
        if found is None:
            return ()
        columns = FORMATS[self.format].columns_of(found)
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
