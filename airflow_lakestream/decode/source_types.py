"""Types of the source's columns in records' schemas; `core.source_types` compares new with earlier types.

A value's form does not distinguish a number of days from another number. So a type of the source is described by the
meaning of its values in the table's column: in a column of timestamps a timestamp is the same in any unit; in a column
of integers, which takes numbers as they are, milliseconds differ from microseconds. Text needs no description.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import ValueEnvelope, ValueFormat
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.core.source_types import EventColumnType
from airflow_lakestream.decode.avro import source as avro_source
from airflow_lakestream.decode.connect import schema as connect_schema
from airflow_lakestream.decode.connect.debezium import IMAGES
from airflow_lakestream.decode.connect.schema import VARIABLE_DECIMAL, ConnectType
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.json import source as json_source
from airflow_lakestream.decode.lanes.lanes import Integers
from airflow_lakestream.decode.values.outcome import SchemaRefused
from airflow_lakestream.decode.writer_schemas import Writer, writers

# At any one time a topic has few schemas.
_MOST = 1_000
_DEEPEST = 16


class SourceTypes:
    """Finder of the source's types for a payload's columns. Thread-safe.

    Only values with an envelope have a source; otherwise no types are found.
    """

    def __init__(self, payload: PayloadFormats) -> None:
        self._payload = payload
        self._prefixes: dict[bytes, str] = {}
        self._rows: dict[Writer, Mapping[str, ConnectType] | None] = {}

    def of(self, batch: RawBatch, rows: pa.Table, places: Integers) -> dict[str, EventColumnType]:
        """Return the types of the rows' columns by the schemas of the records, by path of a column or an inner field.

        If a schema lacks a column, the column's type is noted as lacking.

        :param rows: the good rows of the batch.
        :param places: positions of the rows' records in the batch.
        """
        payload = self._payload
        if payload.envelope is None or not len(batch):
            return {}
        columns = [(rows.schema.field(name), payload.field_of(name)) for name in payload.own_columns(rows.column_names)]
        seen: dict[str, EventColumnType] = {}
        for writer, of_writer in writers(batch.values, payload.format, payload.finder, self._prefixes):
            if not (shapes := self._row(writer)):
                continue
            first = int(of_writer[0])
            at = f"{batch.topic}[{batch.partition}] offset {batch.offsets[first]}"
            span = self._span(rows, places, of_writer)
            for column, name in columns:
                shape = shapes.get(name)
                found = {} if shape is not None else {column.name: EventColumnType(lacking=span)}
                for path, meaning, text in _meanings(shape, column.type, column.name):
                    there = span if path == column.name else None
                    found[path] = EventColumnType({meaning: (text, at)}, there=there)
                for path, one in found.items():
                    seen[path] = seen[path] + one if path in seen else one
        return seen

    def _span(self, rows: pa.Table, places: Integers, of_writer: Integers) -> tuple[int, int] | None:
        """Return the log positions of the first and the last event of a schema, or None if unknown."""
        name = self._payload.place_column
        if name is None or name not in rows.column_names:
            return None
        ends = pc.min_max(rows[name].filter(pa.array(np.isin(places, of_writer))))
        return None if not ends["min"].is_valid else (ends["min"].as_py(), ends["max"].as_py())

    def _row(self, writer: Writer) -> Mapping[str, ConnectType] | None:
        """Return the source's columns in records of a schema, or None if the schema is unknown or not of rows."""
        if writer not in self._rows:
            known, row = self._read(writer)
            # An unknown schema may be registered in a moment.
            if not known or len(self._rows) >= _MOST:
                return row
            self._rows[writer] = row
        return self._rows[writer]

    def _read(self, writer: Writer) -> tuple[bool, Mapping[str, ConnectType] | None]:
        # Returns whether the schema is known, and the columns as in `_row`.
        try:
            known, shape = self._shape(writer)
        except SchemaRefused:
            # The decoder reports the error.
            return True, None
        if shape is None or self._payload.envelope != ValueEnvelope.DEBEZIUM:
            return known, None if shape is None else shape.fields
        images = [shape.fields[name] for name in IMAGES if name in shape.fields]
        if "op" not in shape.fields or not images:
            return known, None
        return known, {name: one for image in images for name, one in image.fields.items()}

    def _shape(self, writer: Writer) -> tuple[bool, ConnectType | None]:
        """Return whether a schema is known, and the schema's shape or None. Raises SchemaRefused."""
        if isinstance(writer, str):
            return True, connect_schema.parse(writer)
        found = self._payload.schema_of(self._payload.format, writer)
        if found is None:
            return False, None
        if self._payload.format == ValueFormat.AVRO:
            return True, avro_source.shape(found.text, found.texts)
        return True, json_source.shape(found.text, found.references)


_FORMS = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "float", "float32", "double", "float64"), "number"),
    # In JSON Schema.
    "integer": "number",
    "string": "text",
}
_CONTAINERS = ("struct", "array", "map", "union")
# Avro's logical types, if Connect has no name for them.
_AVRO = {("int32", "date"): "date", ("bytes", "decimal"): "decimal"} | {
    (kind, f"{what}-{unit}"): what.removeprefix("local-")
    for kind in ("int32", "int64")
    for what in ("time", "timestamp", "local-timestamp")
    for unit in ("millis", "micros", "nanos")
}
# A plain number, with a name of its own.
_PLAIN = ("io.debezium.time.Year",)


def _meanings(
    shape: ConnectType | None, kind: pa.DataType, path: str, depth: int = 0
) -> Iterator[tuple[str, str, str]]:
    """Yield path, meaning of the values, and name of the source's type, for a column and all inner fields.

    Nothing is yielded for a column that the source's schema does not have.
    """
    if shape is None or depth > _DEEPEST:
        return
    yield path, _meaning(shape, kind), _text(shape)
    if shape.kind == "struct" and t.is_struct(kind):
        for one in kind:
            yield from _meanings(shape.fields.get(one.name), one.type, f"{path}.{one.name}", depth + 1)
    elif shape.kind == "array" and (t.is_list(kind) or t.is_large_list(kind)):
        yield from _meanings(shape.items, kind.value_type, f"{path}[]", depth + 1)
    elif shape.kind == "map" and t.is_map(kind):
        yield from _meanings(shape.items, kind.item_type, f"{path}{{}}", depth + 1)


def _meaning(shape: ConnectType, kind: pa.DataType) -> str:
    """Return the meaning of a source type's values in a column; empty if a value shows its meaning by itself."""
    form, as_text = _FORMS.get(shape.kind, shape.kind), t.is_string(kind) or t.is_large_string(kind)
    if shape.name == VARIABLE_DECIMAL and not t.is_struct(kind):
        return "" if as_text else "number"
    if form in _CONTAINERS:
        return form
    if (meaning := _logical_name(shape)) is not None and (as_text or _holds(kind, meaning)):
        # A decimal is a number like others; a timestamp's column specifies whether it has a zone.
        return "" if as_text else "number" if meaning == "decimal" else meaning
    if form == "text":
        return "text" if as_text or t.is_binary(kind) or t.is_fixed_size_binary(kind) else ""
    if shape.name and shape.name not in _PLAIN:
        return _text(shape)
    return "" if form == "number" and as_text else form


def _logical_name(shape: ConnectType) -> str | None:
    """Return the logical type of numbers or bytes, or None for plain values."""
    return _AVRO.get((shape.kind, shape.name)) if shape.logical is None else shape.logical.meaning


def _holds(kind: pa.DataType, meaning: str) -> bool:
    """Return whether values of a meaning are the column type's own, such as dates in a column of dates."""
    checks = {"date": t.is_date, "time": t.is_time, "timestamp": t.is_timestamp, "decimal": t.is_decimal}
    return bool(checks[meaning](kind))


def _text(shape: ConnectType) -> str:
    """Return the name of a type of the source."""
    scale = f", scale {shape.scale}" if _logical_name(shape) == "decimal" else ""
    return f"{shape.kind} ({shape.name}{scale})" if shape.name and shape.kind not in _CONTAINERS else shape.kind
