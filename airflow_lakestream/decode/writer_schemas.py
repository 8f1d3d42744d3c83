"""Writers' schemas of a batch's records, and the types of the source's columns in these schemas.

The schemas are inside the records, or named by an id; `core.source_types` compares new with earlier types.
A value's form does not distinguish a number of days from another number. So a type of the source is described by the
meaning of its values in the table's column: in a column of timestamps a timestamp is the same in any unit; in a column
of integers, which takes numbers as they are, milliseconds differ from microseconds. Text needs no description.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import ValueEnvelope, ValueFormat
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.core.source_types import EventColumnType
from airflow_lakestream.decode.avro.schema import (
    AvroArray,
    AvroEnum,
    AvroFixed,
    AvroMap,
    AvroUnion,
    Node,
    Record,
    parse,
)
from airflow_lakestream.decode.connect import schema as connect_schema
from airflow_lakestream.decode.connect.debezium import IMAGES
from airflow_lakestream.decode.connect.decoder import unwrapped
from airflow_lakestream.decode.connect.schema import VARIABLE_DECIMAL, ConnectType
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.json.schema import NUMBERS, SchemaAlternatives
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.decode.lanes.framed import HEADER
from airflow_lakestream.decode.lanes.lanes import Integers
from airflow_lakestream.decode.registered import SINGLE_OBJECT, SchemaFinder
from airflow_lakestream.decode.values.outcome import SchemaRefused

# Number of bytes that name the schema in Avro's single-object encoding.
_SINGLE = 10
# Most bytes of the path of a Protobuf message.
_LONGEST_PATH = 64

# A schema's text in the record; or the first bytes of a value, which name a schema: see `SchemaFinder.by_head`.
Writer: TypeAlias = str | bytes


def writers(
    values: pa.Array, format_name: str, finder: SchemaFinder, prefixes: dict[bytes, str]
) -> Iterator[tuple[Writer, Integers]]:
    """Yield the schemas of values, with the positions of the records.

    In Connect's JSON, values without a schema are left out, and a schema may be yielded several times. In other
    formats, the first bytes of a value name the schema, known or not; null values are left out.

    :param finder: finder of the payload's schemas, for the schemas given by the user.
    :param prefixes: prefixes of earlier values with their schemas; new prefixes are added.
    """
    if ValueEnvelope.CONNECT in FORMATS[format_name].envelopes:
        for part in unwrapped(values, prefixes):
            if part.schema is not None:
                yield part.schema, part.places
        return
    heads = pc.binary_slice(values, 0, HEADER)
    if FORMATS[format_name].messages is not None:
        heads = _with_messages(values)
    if finder.writer_schemas:
        single = pc.starts_with(values, SINGLE_OBJECT)
        heads = pc.if_else(single, pc.binary_slice(values, 0, _SINGLE), heads)
    found = heads.dictionary_encode()
    numbers = pc.fill_null(found.indices, -1).to_numpy()
    counts = np.bincount(numbers + 1, minlength=len(found.dictionary) + 1)
    places = np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])[1:]
    # The most frequent first: a registry answers only a limited number of requests for unknown ids.
    for number in np.argsort(-counts[1:], kind="stable").tolist():
        yield found.dictionary[number].as_py(), places[number]


def _with_messages(values: pa.Array) -> pa.Array:
    """Return the first bytes of Protobuf values: the schema's id, and the path of the message in the schema."""
    length = HEADER + 1
    heads = pc.binary_slice(values, 0, length)
    while length < HEADER + _LONGEST_PATH:
        found = heads.dictionary_encode()
        is_cut = [len(one) == length and not _has_whole_path(one) for one in found.dictionary.to_pylist()]
        if not any(is_cut):
            break
        length += 1
        longer = pa.array([*is_cut, False], pa.bool_()).take(pc.fill_null(found.indices, len(is_cut)))
        heads = pc.if_else(longer, pc.binary_slice(values, 0, length), heads)
    return heads


def _has_whole_path(head: bytes) -> bool:
    """Return whether a value's first bytes contain the whole path of the message: a count, and that many indexes."""
    path = head[HEADER:]
    # Of the bytes of a number, only the last is below 0x80.
    numbers = sum(byte < 0x80 for byte in path)
    # The count is doubled, by its zigzag form. A count of several bytes is too large for a path: no more is needed.
    return numbers > 0 and (path[0] >= 0x80 or numbers > path[0] >> 1)


_DEEPEST_SCHEMA = 64


def types_of_json_schema(text: str, references: Iterable[tuple[str, str]] = ()) -> ConnectType | None:
    """Return the shape of a schema. Raises SchemaRefused.

    Kinds are JSON's words, except "bytes", "map", "struct" and "union"; names are the titles, Connect's names.
    """
    try:
        schemas = SchemaAlternatives(text, references)
        return _of_json_schema(schemas, schemas.root, 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise SchemaRefused(f"Not a JSON Schema of Kafka Connect's converter: {e!r}") from e


def _of_json_schema(schemas: SchemaAlternatives, schema: Any, depth: int) -> ConnectType | None:
    if depth > _DEEPEST_SCHEMA:
        return None
    values = [one for one in schemas.of(schema, "The JSON schema") if one["type"] != {"null"}]
    if len(values) != 1:
        return ConnectType("union")
    (one,) = values
    kinds = one["type"] - {"null"}
    # Decimals that are written as numbers can't be distinguished from other numbers.
    if "number" in kinds and kinds <= NUMBERS:
        return ConnectType("number")
    if len(kinds) != 1:
        return ConnectType("union")
    (kind,) = kinds
    if kind == "object" and one.get("properties"):
        inner = ((str(name), _of_json_schema(schemas, member, depth + 1)) for name, member in one["properties"].items())
        return ConnectType("struct", fields={name: member for name, member in inner if member is not None})
    if kind in ("object", "array"):
        items = one.get("additionalProperties" if kind == "object" else "items")
        of_items = _of_json_schema(schemas, items, depth + 1) if isinstance(items, dict) else None
        return ConnectType("map" if kind == "object" else "array", items=of_items)
    is_bytes = kind == "string" and one.get("connect.type") == "bytes"
    return ConnectType("bytes" if is_bytes else kind, str(one.get("title") or ""))


_KINDS = {"int": "int32", "long": "int64"}
# A record may hold itself.
_DEEPEST_NODE = 64


def types_of_avro(text: str, references: Iterable[str] = ()) -> ConnectType | None:
    """Return the shape of a schema, named by Connect's name, else by Avro's logical type. Raises SchemaRefused."""
    return _of_avro_node(parse(text, references), 0)


def _of_avro_node(node: Node, depth: int) -> ConnectType | None:
    # None for a type that is nested too deep. A union of null and a type has the shape of the type.
    if depth > _DEEPEST_NODE:
        return None
    if isinstance(node, AvroUnion):
        values = [one for _, one in node.values]
        return _of_avro_node(values[0], depth) if len(values) == 1 else ConnectType("union")
    if isinstance(node, Record):
        inner = ((name, _of_avro_node(one, depth + 1)) for name, one in node.fields)
        return ConnectType("struct", node.name, fields={name: one for name, one in inner if one is not None})
    if isinstance(node, AvroArray):
        return ConnectType("array", items=_of_avro_node(node.items, depth + 1))
    if isinstance(node, AvroMap):
        return ConnectType("map", items=_of_avro_node(node.values, depth + 1))
    if isinstance(node, AvroEnum):
        return ConnectType("string")
    if isinstance(node, AvroFixed):
        return ConnectType("bytes", node.logical or "", scale=node.scale)
    return ConnectType(_KINDS.get(node.name, node.name), node.connect or node.logical or "", scale=node.scale)


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
            return True, types_of_avro(found.text, found.texts)
        return True, types_of_json_schema(found.text, found.references)


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
