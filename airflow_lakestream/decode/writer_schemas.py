"""Writers' schemas of a batch's records, and the types of the source's columns in these schemas.

The schemas are inside the records, or named by an id; `core.source_types` compares new with earlier types.
A type of the source is described by the meaning of its values in the table's column, since the values alone do not show
whether a number is a number of days. In a column of timestamps, a timestamp has the same meaning in any unit; in a
column of integers, which takes numbers unchanged, milliseconds differ from microseconds. Text needs no description.
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

# The bytes that name the schema in Avro's single-object encoding: a mark and the fingerprint.
_SINGLE_HEADER = 10
# The most bytes of the path of a Protobuf message.
_LONGEST_PATH = 64

# A schema's text in the record; or the first bytes of a value, which name a schema: see `SchemaFinder.by_head`.
Writer: TypeAlias = str | bytes


def writers(
    values: pa.Array, format_name: str, finder: SchemaFinder, prefixes: dict[bytes, str]
) -> Iterator[tuple[Writer, Integers]]:
    """Yield the schemas of values, with the positions of the records.

    In Connect's JSON, values without a schema are left out, and a schema may be yielded several times. In other
    formats, the first bytes of a value name the schema, even if the schema is unknown; null values are left out.

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
        is_single = pc.starts_with(values, SINGLE_OBJECT)
        heads = pc.if_else(is_single, pc.binary_slice(values, 0, _SINGLE_HEADER), heads)
    encoded = heads.dictionary_encode()
    # The number of each record's schema, -1 for null; null is then the first group, which is left out.
    numbers = pc.fill_null(encoded.indices, -1).to_numpy()
    counts = np.bincount(numbers + 1, minlength=len(encoded.dictionary) + 1)
    places = np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])[1:]
    # The schemas of many records first: requests for unknown ids are limited.
    for number in np.argsort(-counts[1:], kind="stable").tolist():
        yield encoded.dictionary[number].as_py(), places[number]


def _with_messages(values: pa.Array) -> pa.Array:
    """Return the first bytes of Protobuf values: the schema's id, and the path of the message in the schema."""
    length = HEADER + 1
    heads = pc.binary_slice(values, 0, length)
    while length < HEADER + _LONGEST_PATH:
        encoded = heads.dictionary_encode()
        is_cut = [len(head) == length and not _has_whole_path(head) for head in encoded.dictionary.to_pylist()]
        if not any(is_cut):
            break
        length += 1
        needs_more = pa.array([*is_cut, False], pa.bool_()).take(pc.fill_null(encoded.indices, len(is_cut)))
        heads = pc.if_else(needs_more, pc.binary_slice(values, 0, length), heads)
    return heads


def _has_whole_path(head: bytes) -> bool:
    """Return whether a value's first bytes contain the whole path of the message: a count, then the indexes."""
    path = head[HEADER:]
    # Each number ends with its only byte below 0x80.
    numbers = sum(byte < 0x80 for byte in path)
    # The count has zigzag form, which doubles it. A count of several bytes is too large for a path: no more is needed.
    return numbers > 0 and (path[0] >= 0x80 or numbers > path[0] >> 1)


# The deepest level of nested types.
_DEEPEST_SCHEMA = 64


def types_of_json_schema(text: str, references: Iterable[tuple[str, str]] = ()) -> ConnectType | None:
    """Return the shape of a JSON Schema of Kafka Connect's converter. Raises SchemaRefused.

    The shape's `kind` is JSON's word, or "bytes", "map", "struct" or "union"; its `name` is the title, Connect's name.
    """
    try:
        schemas = SchemaAlternatives(text, references)
        return _of_json_schema(schemas, schemas.root, 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise SchemaRefused(f"Not a JSON Schema of Kafka Connect's converter: {e!r}") from e


def _of_json_schema(schemas: SchemaAlternatives, schema: Any, depth: int) -> ConnectType | None:
    if depth > _DEEPEST_SCHEMA:
        return None
    alternatives = [one for one in schemas.of(schema, "The JSON schema") if one["type"] != {"null"}]
    if len(alternatives) != 1:
        return ConnectType("union")
    (alternative,) = alternatives
    kinds = alternative["type"] - {"null"}
    # Decimals that are written as numbers can't be distinguished from other numbers.
    if "number" in kinds and kinds <= NUMBERS:
        return ConnectType("number")
    if len(kinds) != 1:
        return ConnectType("union")
    (kind,) = kinds
    if kind == "object" and alternative.get("properties"):
        members = alternative["properties"].items()
        inner = ((str(name), _of_json_schema(schemas, member, depth + 1)) for name, member in members)
        return ConnectType("struct", fields={name: shape for name, shape in inner if shape is not None})
    if kind in ("object", "array"):
        items = alternative.get("additionalProperties" if kind == "object" else "items")
        of_items = _of_json_schema(schemas, items, depth + 1) if isinstance(items, dict) else None
        return ConnectType("map" if kind == "object" else "array", items=of_items)
    is_bytes = kind == "string" and alternative.get("connect.type") == "bytes"
    return ConnectType("bytes" if is_bytes else kind, str(alternative.get("title") or ""))


# Connect's words for Avro's types.
_KINDS = {"int": "int32", "long": "int64"}
# The deepest level of nested types: a record may contain itself.
_DEEPEST_NODE = 64


def types_of_avro(text: str, references: Iterable[str] = ()) -> ConnectType | None:
    """Return the shape of an Avro schema; names are Connect's, or Avro's logical types. Raises SchemaRefused."""
    return _of_avro_node(parse(text, references), 0)


def _of_avro_node(node: Node, depth: int) -> ConnectType | None:
    """Return the shape of a type, or None if nested too deep; a union of null and a type has the type's shape."""
    if depth > _DEEPEST_NODE:
        return None
    if isinstance(node, AvroUnion):
        branches = [branch for _, branch in node.values]
        return _of_avro_node(branches[0], depth) if len(branches) == 1 else ConnectType("union")
    if isinstance(node, Record):
        inner = ((name, _of_avro_node(field, depth + 1)) for name, field in node.fields)
        return ConnectType("struct", node.name, fields={name: shape for name, shape in inner if shape is not None})
    if isinstance(node, AvroArray):
        return ConnectType("array", items=_of_avro_node(node.items, depth + 1))
    if isinstance(node, AvroMap):
        return ConnectType("map", items=_of_avro_node(node.values, depth + 1))
    if isinstance(node, AvroEnum):
        return ConnectType("string")
    if isinstance(node, AvroFixed):
        return ConnectType("bytes", node.logical or "", scale=node.scale)
    return ConnectType(_KINDS.get(node.name, node.name), node.connect or node.logical or "", scale=node.scale)


# The most schemas that are kept: a topic has few schemas at a time.
_MOST_KEPT = 1_000
# The deepest level of inner fields.
_DEEPEST = 16


class SourceTypes:
    """Finder of the source's types for a payload's columns. Thread-safe.

    Only values with an envelope have a source, a database.
    """

    def __init__(self, payload: PayloadFormats) -> None:
        self._payload = payload
        self._prefixes: dict[bytes, str] = {}
        self._rows: dict[Writer, Mapping[str, ConnectType] | None] = {}

    def of(self, batch: RawBatch, rows: pa.Table, places: Integers) -> dict[str, EventColumnType]:
        """Return the types of columns and inner fields in the schemas of the records, by path.

        For a schema without a column, the column's type has the log positions of the schema's events as `lacking`.

        :param rows: the good rows of the batch.
        :param places: positions of the rows' records in the batch.
        """
        payload = self._payload
        if payload.envelope is None or not len(batch):
            return {}
        columns = [(rows.schema.field(name), payload.field_of(name)) for name in payload.own_columns(rows.column_names)]
        types: dict[str, EventColumnType] = {}
        for writer, writer_places in writers(batch.values, payload.format, payload.finder, self._prefixes):
            if not (shapes := self._row(writer)):
                continue
            place = f"{batch.topic}[{batch.partition}] offset {batch.offsets[int(writer_places[0])]}"
            span = self._span(rows, places, writer_places)
            for column, name in columns:
                shape = shapes.get(name)
                of_writer = {} if shape is not None else {column.name: EventColumnType(lacking=span)}
                for path, meaning, text in _meanings(shape, column.type, column.name):
                    there = span if path == column.name else None
                    of_writer[path] = EventColumnType({meaning: (text, place)}, there=there)
                for path, column_type in of_writer.items():
                    types[path] = types[path] + column_type if path in types else column_type
        return types

    def _span(self, rows: pa.Table, places: Integers, writer_places: Integers) -> tuple[int, int] | None:
        """Return the log positions of the first and the last event of a schema, or None if unknown."""
        name = self._payload.place_column
        if name is None or name not in rows.column_names:
            return None
        ends = pc.min_max(rows[name].filter(pa.array(np.isin(places, writer_places))))
        return None if not ends["min"].is_valid else (ends["min"].as_py(), ends["max"].as_py())

    def _row(self, writer: Writer) -> Mapping[str, ConnectType] | None:
        """Return the source's columns in records of a schema, or None if the schema is unknown or not of rows."""
        if writer not in self._rows:
            is_known, row = self._read(writer)
            # Not kept if unknown: the schema may be registered in a moment.
            if not is_known or len(self._rows) >= _MOST_KEPT:
                return row
            self._rows[writer] = row
        return self._rows[writer]

    def _read(self, writer: Writer) -> tuple[bool, Mapping[str, ConnectType] | None]:
        """Return whether the schema is known, and the columns as in `_row`."""
        try:
            is_known, shape = self._shape(writer)
        except SchemaRefused:
            # The decoder reports the error.
            return True, None
        if shape is None or self._payload.envelope != ValueEnvelope.DEBEZIUM:
            return is_known, None if shape is None else shape.fields
        images = [shape.fields[name] for name in IMAGES if name in shape.fields]
        if "op" not in shape.fields or not images:
            return is_known, None
        return is_known, {name: field for image in images for name, field in image.fields.items()}

    def _shape(self, writer: Writer) -> tuple[bool, ConnectType | None]:
        """Return whether a schema is known, and the schema's shape or None. Raises SchemaRefused."""
        if isinstance(writer, str):
            return True, connect_schema.parse(writer)
        schema = self._payload.schema_of(self._payload.format, writer)
        if schema is None:
            return False, None
        if self._payload.format == ValueFormat.AVRO:
            return True, types_of_avro(schema.text, schema.texts)
        return True, types_of_json_schema(schema.text, schema.references)


# The forms of values ("number", "text", and other kinds unchanged) by Connect's or JSON Schema's kind.
_FORMS = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "float", "float32", "double", "float64"), "number"),
    "integer": "number",
    "string": "text",
}
_CONTAINERS = ("struct", "array", "map", "union")
# Meanings of Avro's logical types, for types without a name of Connect's.
_AVRO = {("int32", "date"): "date", ("bytes", "decimal"): "decimal"} | {
    (kind, f"{meaning}-{unit}"): meaning.removeprefix("local-")
    for kind in ("int32", "int64")
    for meaning in ("time", "timestamp", "local-timestamp")
    for unit in ("millis", "micros", "nanos")
}
# Names of plain numbers.
_PLAIN = ("io.debezium.time.Year",)


def _meanings(
    shape: ConnectType | None, kind: pa.DataType, path: str, depth: int = 0
) -> Iterator[tuple[str, str, str]]:
    """Yield path, meaning of the values, and name of the source's type, for a column and all inner fields.

    Yields no item for a column that the source's schema lacks (`shape` is None).
    """
    if shape is None or depth > _DEEPEST:
        return
    yield path, _meaning(shape, kind), _text(shape)
    if shape.kind == "struct" and t.is_struct(kind):
        for field in kind:
            yield from _meanings(shape.fields.get(field.name), field.type, f"{path}.{field.name}", depth + 1)
    elif shape.kind == "array" and (t.is_list(kind) or t.is_large_list(kind)):
        yield from _meanings(shape.items, kind.value_type, f"{path}[]", depth + 1)
    elif shape.kind == "map" and t.is_map(kind):
        yield from _meanings(shape.items, kind.item_type, f"{path}{{}}", depth + 1)


def _meaning(shape: ConnectType, kind: pa.DataType) -> str:
    """Return the meaning of a source type's values in a column, or "" if the values themselves show their meaning."""
    form, as_text = _FORMS.get(shape.kind, shape.kind), t.is_string(kind) or t.is_large_string(kind)
    if shape.name == VARIABLE_DECIMAL and not t.is_struct(kind):
        return "" if as_text else "number"
    if form in _CONTAINERS:
        return form
    if (meaning := _logical_name(shape)) is not None and (as_text or _holds(kind, meaning)):
        # Decimals are plain numbers. Whether a timestamp has a zone depends on the column, not on the source's type.
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
    """Return whether a column's type is the type for a meaning, such as dates for "date"."""
    checks = {"date": t.is_date, "time": t.is_time, "timestamp": t.is_timestamp, "decimal": t.is_decimal}
    return bool(checks[meaning](kind))


def _text(shape: ConnectType) -> str:
    """Return the name of a source's type, such as "int32 (io.debezium.time.Date)"."""
    scale = f", scale {shape.scale}" if _logical_name(shape) == "decimal" else ""
    return f"{shape.kind} ({shape.name}{scale})" if shape.name and shape.kind not in _CONTAINERS else shape.kind
