"""The columns of a batch's records, from the schemas next to the records or in a registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.events.widening import joined_type
from airflow_lakestream.cdc.stops import TypeSeen, type_changed
from airflow_lakestream.core.formats import Envelope
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.connect import schema as connect_schema
from airflow_lakestream.decode.connect.debezium import IMAGES, is_event, row_of
from airflow_lakestream.decode.connect.decoder import unwrapped
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.decode.registered import SINGLE_OBJECT, SchemaFinder

# The first bytes of a value, up to where they name the schema: in Confluent's encoding, and in Avro's of single
# objects.
_FRAME, _SINGLE = 5, 10
# At any one time a topic has few schemas.
_MOST = 1_000

Row = Sequence[pa.Field]


@dataclass
class RecordSchemas:
    """Finds the row's columns in the schemas of records. Thread-safe.

    :param format: of the values, see `core.policies.Format`.
    :param finder: finds schemas that records name.
    :param table: the mirror's name.
    """

    format: str
    finder: SchemaFinder
    table: str
    _prefixes: dict[bytes, str] = field(default_factory=dict)
    _rows: dict[str | bytes, Row] = field(default_factory=dict)
    _found: dict[str, tuple[pa.Field, TypeSeen]] = field(default_factory=dict)

    def row(self, batch: RawBatch) -> Row:
        """Return all columns that any record's schema had so far, each with a type that holds all its values.

        Raises MirrorStopped if there is no such type, SchemaRefused, and the registry's errors.
        """
        for row, place in sorted(self._of_batch(batch), key=lambda one: one[1]):
            for one in row:
                seen = TypeSeen.at(one.type, batch.partition, batch.offsets[place])
                there, first = self._found.get(one.name, (one, seen))
                kind = joined_type(there.type, one.type)
                if kind is None:
                    raise type_changed(self.table, one.name, first, seen)
                self._found[one.name] = (there.with_type(kind), first)
        return [one for one, _ in list(self._found.values())]

    def _of_batch(self, batch: RawBatch) -> Iterator[tuple[Row, int]]:
        """Yield the columns of each schema, with the place of its first record."""
        if Envelope.CONNECT in FORMATS[self.format].envelopes:
            for part in unwrapped(batch.values, self._prefixes):
                if part.schema is not None:
                    yield self._cached(part.schema, self._beside), int(part.places[0])
            return
        heads = pc.binary_slice(batch.values, 0, _FRAME)
        if self.finder.writer_schemas:
            single = pc.starts_with(batch.values, SINGLE_OBJECT)
            heads = pc.if_else(single, pc.binary_slice(batch.values, 0, _SINGLE), heads)
        # The most frequent first: a registry answers only a limited number of requests for unknown ids.
        for head in _by_frequency(heads):
            yield self._cached(head, self._named), pc.index(heads, pa.scalar(head, heads.type)).as_py()

    def _cached(self, key: Any, find: Any) -> Row:
        row: Row | None = self._rows.get(key)
        if row is None:
            row = find(key)
            # Not remembered: an unknown schema may be registered in a moment.
            if row and len(self._rows) < _MOST:
                self._rows[key] = row
        return row or ()

    def _beside(self, text: str) -> Row:
        shape = connect_schema.parse(text)
        members = (
            {} if shape is None else {name: shape.fields[name] for name in (*IMAGES, "op") if name in shape.fields}
        )
        return _row_of(pa.schema([connect_schema.arrow_field(name, inner, name) for name, inner in members.items()]))

    def _named(self, head: bytes) -> Row:
        found = self.finder.by_head(self.format, head)
        return () if found is None else _row_of(FORMATS[self.format].columns_of(found))


def _row_of(record: pa.Schema) -> Row:
    # A value that is no event becomes a bad record, and tells nothing of columns.
    return row_of(record) if is_event(record) else ()


def _by_frequency(heads: pa.Array) -> list[bytes]:
    found = heads.drop_null().value_counts()
    order = np.argsort(-found.field("counts").to_numpy(), kind="stable")
    ordered: list[bytes] = found.field("values").take(pa.array(order)).to_pylist()
    return ordered
