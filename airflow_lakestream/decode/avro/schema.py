"""Avro schemas: the parser from text to a tree of types, the columns for the types, and a schema's fingerprint."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from airflow_lakestream.decode.values.outcome import SchemaRefused
from airflow_lakestream.tables.schema.value_ranges import DECIMAL_DIGITS, MOST_SCALE, column_type

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@dataclass(frozen=True)
class AvroPrimitive:
    """Primitive type, one of Avro's eight; `logical` is a valid logical type, or None.

    `connect` is Kafka Connect's name for the meaning of the field, or "". Two types that differ only in `connect` are
    equal.
    """

    name: str
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    connect: str = field(default="", compare=False)


@dataclass(frozen=True)
class AvroFixed:
    """Type of a fixed number of bytes; `logical` is "decimal", "uuid", "duration" or None."""

    name: str
    size: int
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class AvroEnum:
    """Type of a fixed list of symbols."""

    name: str
    symbols: tuple[str, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class AvroArray:
    """Type of an array; `items` is the type of each item."""

    items: Node
    name: str = "array"


@dataclass(frozen=True)
class AvroMap:
    """Type of a map from text to values of the type `values`."""

    values: Node
    name: str = "map"


@dataclass(frozen=True)
class AvroUnion:
    """Choice of types. The `name` is ours: Avro's unions have no name."""

    branches: tuple[Node, ...]
    name: str = "union"

    @property
    def values(self) -> list[tuple[int, Node]]:
        """Branches except null, with the branch numbers."""
        return [(index, node) for index, node in enumerate(self.branches) if node.name != "null"]


@dataclass(eq=False)
class Record:
    """Named fields. Records are compared by identity, since a record may contain itself.

    `defaults` has the fields with a default: older records lack such a field. `aliases` are earlier names of the
    record, `field_aliases` earlier names of its fields.
    """

    name: str
    fields: list[tuple[str, Node]] = field(default_factory=list)
    defaults: set[str] = field(default_factory=set)
    aliases: tuple[str, ...] = ()
    field_aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)


# A type in a parsed schema.
Node = AvroPrimitive | AvroFixed | AvroEnum | AvroArray | AvroMap | AvroUnion | Record

# The valid logical types of each primitive type.
_LOGICAL = {
    "int": ("date", "time-millis"),
    "long": (
        "time-micros",
        *(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
    ),
    "bytes": ("decimal",),
    "string": ("uuid",),
}

# Logical types for the names that Kafka Connect and Debezium add to a field's type, under Avro's names if Avro has the
# type. Debezium's timestamps are wall-clock times, without a zone.
_CONNECT_NAMES = {
    ("int", "io.debezium.time.Date"): "date",
    ("int", "io.debezium.time.Time"): "time-millis",
    ("long", "io.debezium.time.MicroTime"): "time-micros",
    ("long", "io.debezium.time.NanoTime"): "time-nanos",
    ("long", "io.debezium.time.Timestamp"): "local-timestamp-millis",
    ("long", "io.debezium.time.MicroTimestamp"): "local-timestamp-micros",
    ("long", "io.debezium.time.NanoTimestamp"): "local-timestamp-nanos",
    ("string", "io.debezium.time.ZonedTimestamp"): "zoned-timestamp",
    ("string", "io.debezium.data.Uuid"): "uuid",
    ("int", "org.apache.kafka.connect.data.Date"): "date",
    ("int", "org.apache.kafka.connect.data.Time"): "time-millis",
    ("long", "org.apache.kafka.connect.data.Timestamp"): "timestamp-millis",
}
_CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"


def parse(text: str, references: Iterable[str] = ()) -> Node:
    """Return the parsed schema. Raises SchemaRefused.

    :param references: schemas that define further types; each may use only the types of the references before.
    """
    parser = _AvroParser()
    try:
        for reference in references:
            parser.node(document(reference), "")
        return parser.node(document(text), "")
    except (KeyError, TypeError, AttributeError) as error:
        raise SchemaRefused(f"Not an Avro schema ({type(error).__name__}: {error}).") from None
    except RecursionError:
        raise SchemaRefused("The Avro schema is nested too deep.") from None


def document(text: str) -> Any:
    """Return a schema's JSON; a primitive type may be a bare word. Raises SchemaRefused for another text."""
    try:
        return json.loads(text)
    except ValueError:
        name = text.strip()
        if name in PRIMITIVES:
            return name
        raise SchemaRefused(f"Not an Avro schema: not JSON ({text[:60]!r}).") from None


class _AvroParser:
    """Parser of schemas, with the types of all names defined before."""

    def __init__(self) -> None:
        self._names: dict[str, Node] = {}

    def node(self, schema: Any, namespace: str) -> Node:
        """Return the type of a schema's JSON; types with names are kept for later references by name."""
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return self._named(schema, namespace)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, namespace)
        if kind == "enum":
            return self._define(schema, namespace, lambda name: AvroEnum(name, tuple(schema["symbols"])))
        if kind == "fixed":
            return self._define(schema, namespace, lambda name: _fixed(name, schema))
        if kind == "array":
            return AvroArray(self.node(schema["items"], namespace))
        if kind == "map":
            return AvroMap(self.node(schema["values"], namespace))
        if not isinstance(kind, str):
            return self.node(kind, namespace)
        return _logical(kind, schema) if kind in PRIMITIVES else self._named(kind, namespace)

    def _union(self, schema: list[Any], namespace: str) -> AvroUnion:
        branches = tuple(self.node(branch, namespace) for branch in schema)
        if not branches or any(isinstance(branch, AvroUnion) for branch in branches):
            raise SchemaRefused("A union in an Avro schema is empty, or is directly inside another union.")
        return AvroUnion(branches)

    def _named(self, name: str, namespace: str) -> Node:
        if name in PRIMITIVES:
            return AvroPrimitive(name)
        # A schema may refer to a type without a namespace from inside a namespace.
        node = self._names.get(full_name(name, namespace)) or self._names.get(name)
        if node is None:
            raise SchemaRefused(f"The Avro schema names a type that it does not define, and no reference does: {name}.")
        return node

    def _define(self, schema: Any, namespace: str, make: Any) -> Node:
        """Return the type that `make` returns for the full name, and keep the type under this name."""
        name = full_name(schema["name"], schema.get("namespace", namespace))
        inner = name.rpartition(".")[0]
        node: Node = replace(make(name), aliases=tuple(full_name(alias, inner) for alias in _aliases(schema)))
        self._names[name] = node
        return node

    def _record(self, schema: Any, namespace: str) -> Node:
        record = self._define(schema, namespace, Record)
        inner = record.name.rpartition(".")[0]
        # The record's name is defined before the fields are parsed: a record may contain itself.
        fields = [(str(item["name"]), self.node(item["type"], inner)) for item in schema["fields"]]
        assert isinstance(record, Record)
        if len({name for name, _ in fields}) < len(fields):
            raise SchemaRefused(f"Two fields of the Avro record {record.name} have the same name.")
        record.fields.extend(fields)
        record.field_aliases.update({str(item["name"]): _aliases(item) for item in schema["fields"]})
        record.defaults.update(str(item["name"]) for item in schema["fields"] if "default" in item)
        return record


def _aliases(schema: Any) -> tuple[str, ...]:
    # Aliases of another form are ignored: in Avro's specification they are no error.
    aliases = schema.get("aliases", ())
    return tuple(alias for alias in aliases if isinstance(alias, str)) if isinstance(aliases, list) else ()


def full_name(name: str, namespace: str) -> str:
    """Return a name with the namespace, if the name has no namespace yet."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _fixed(name: str, schema: Any) -> AvroFixed:
    size = schema["size"]
    if not isinstance(size, int) or size < 0:
        raise SchemaRefused(f"The Avro type {name} has no size.")
    logical = schema.get("logicalType")
    if logical == "decimal":
        decimal = _decimal(schema)
        return AvroFixed(name, size, "decimal", *decimal) if decimal else AvroFixed(name, size)
    is_valid = (logical == "uuid" and size == 16) or (logical == "duration" and size == 12)
    return AvroFixed(name, size, logical if is_valid else None)


def _logical(kind: str, schema: Any) -> AvroPrimitive:
    # By Avro's specification, a logical type that is unknown, or invalid for this type, is ignored.
    logical, connect = schema.get("logicalType"), str(schema.get("connect.name") or "")
    if logical not in _LOGICAL.get(kind, ()):
        logical = _CONNECT_NAMES.get((kind, connect))
    if logical != "decimal":
        return AvroPrimitive(kind, logical, connect=connect)
    decimal = _decimal(schema)
    return AvroPrimitive(kind, logical, *decimal, connect) if decimal else AvroPrimitive(kind, connect=connect)


def _decimal(schema: Any) -> tuple[int, int] | None:
    """Return precision and scale of a decimal, or None if either is unusable, so that the value is plain bytes.

    A scale below 0 or above the precision is accepted, unlike in Avro's specification: Connect and Debezium write such
    decimals.
    """
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or precision < 1 or abs(scale) > MOST_SCALE:
        return None
    if precision > DECIMAL_DIGITS and schema.get("connect.name") == _CONNECT_DECIMAL:
        # Connect writes a precision of 64 if it only knows the scale.
        return DECIMAL_DIGITS, scale
    return precision, scale


def branch_name(node: Node) -> str:
    """Return the column name of a union's branch: the name of the type, without a namespace."""
    return node.name.rpartition(".")[2]


def arrow_schema(text: str, references: Iterable[str] = ()) -> pa.Schema:
    """Return the columns of a table for records of this schema. Raises SchemaRefused, with the field's path.

    Each column is nullable if the schema is a union of null and a record.
    """
    node = parse(text, references)
    if isinstance(node, AvroUnion) and len(node.values) == 1 and isinstance(node.values[0][1], Record):
        fields = _fields(node.values[0][1], "", ())
        return pa.schema([field.with_nullable(True) for field in fields] if len(node.branches) > 1 else fields)
    if isinstance(node, AvroUnion):
        raise SchemaRefused("The Avro schema is a union of several types: give the columns as schema.")
    if not isinstance(node, Record):
        raise SchemaRefused(f"The Avro schema is of type {node.name}, not a record: a table needs named fields.")
    return pa.schema(_fields(node, "", ()))


def parse_all(texts: Iterable[str]) -> list[Node]:
    """Return the parsed forms of schemas that do not use each other's types. Raises SchemaRefused."""
    return [parse(text) for text in texts]


def arrow_field(name: str, text: str, references: Iterable[str] = ()) -> pa.Field:
    """Return the single column for whole values of this schema, which need not be records. Raises SchemaRefused."""
    return _field(name, parse(text, references), name, ())


def _fields(record: Record, path: str, above: tuple[Record, ...]) -> list[pa.Field]:
    """Return the columns of a record; `above` has the records around this record."""
    if record in above:
        raise SchemaRefused(f"{path}: the record {record.name} holds itself, which no table can: leave the field out.")
    if not record.fields:
        raise SchemaRefused(f"{path or record.name}: a record without fields can't be a column: leave the field out.")
    return [
        _field(name, node, f"{path}.{name}" if path else name, (*above, record), optional=name in record.defaults)
        for name, node in record.fields
    ]


def _field(name: str, node: Node, path: str, above: tuple[Record, ...], *, optional: bool = False) -> pa.Field:
    """Return a column; `optional` is true for a field with a default, which older records lack."""
    nullable = optional or (isinstance(node, AvroUnion) and len(node.values) < len(node.branches))
    return pa.field(name, _type(node, path, above), nullable=nullable)


def _type(node: Node, path: str, above: tuple[Record, ...]) -> pa.DataType:
    if isinstance(node, Record):
        return pa.struct(_fields(node, path, above))
    if isinstance(node, AvroArray):
        return pa.list_(_field("element", node.items, f"{path}[]", above))
    if isinstance(node, AvroMap):
        return pa.map_(pa.string(), _field("value", node.values, f"{path}{{}}", above))
    if isinstance(node, AvroUnion):
        return _union_type(node, path, above)
    return pa.string() if isinstance(node, AvroEnum) else _scalar(node, path)


def _scalar(node: AvroPrimitive | AvroFixed, path: str) -> pa.DataType:
    if node.logical == "decimal":
        return column_type(node.precision, node.scale)
    if node.logical in _LOGICAL_TYPES:
        return _LOGICAL_TYPES[node.logical]
    if isinstance(node, AvroFixed):
        return pa.binary(node.size)
    if node.name == "null":
        raise SchemaRefused(f"{path}: its only type is null: leave the field out.")
    return _TYPES[node.name]


def _union_type(union: AvroUnion, path: str, above: tuple[Record, ...]) -> pa.DataType:
    values = [node for _, node in union.values]
    names = {node.name for node in values if isinstance(node, AvroPrimitive) and node.logical is None}
    if len(values) == 1:
        return _type(values[0], path, above)
    # Numbers of two sizes share a column of the larger size; other types get a struct with a column for each type.
    if len(names) == len(values):
        if names == {"int", "long"}:
            return pa.int64()
        if names == {"float", "double"}:
            return pa.float64()
    if not values:
        raise SchemaRefused(f"{path}: its only type is null: leave the field out.")
    branches = [branch_name(node) for node in values]
    if len(set(branches)) < len(branches):
        raise SchemaRefused(f"{path}: two types of the union are called alike: leave the field out.")
    return pa.struct(
        [pa.field(name, _type(node, f"{path}.{name}", above)) for name, node in zip(branches, values, strict=True)]
    )


_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

_LOGICAL_TYPES = {
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "time-nanos": pa.time64("us"),
    "zoned-timestamp": pa.timestamp("us", "UTC"),
    "uuid": pa.uuid(),
    **{f"timestamp-{unit}": pa.timestamp("us", "UTC") for unit in ("millis", "micros", "nanos")},
    **{f"local-timestamp-{unit}": pa.timestamp("us") for unit in ("millis", "micros", "nanos")},
}


# The constants of the fingerprint in Avro's specification: the fingerprint of no bytes, and a table by byte.
_EMPTY = 0xC15D213AA4D7A795
_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = (_byte >> 1) ^ (_EMPTY & -(_byte & 1))
    _TABLE.append(_byte)


def fingerprint(text: str) -> int:
    """Return the 64-bit Rabin fingerprint of the schema's canonical form, for single-object encoding.

    Raises SchemaRefused if the text is not JSON.
    """
    value = _EMPTY
    for byte in json.dumps(_canonical(document(text), ""), separators=(",", ":"), ensure_ascii=False).encode():
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value


def _canonical(schema: Any, namespace: str) -> Any:
    """Return the schema in Avro's Parsing Canonical Form: full names, only attributes for reading, in fixed order."""
    if isinstance(schema, list):
        return [_canonical(branch, namespace) for branch in schema]
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else full_name(schema, namespace)
    kind = schema["type"]
    if isinstance(kind, (dict, list)):
        return _canonical(kind, namespace)
    if kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        return {"type": kind, inner: _canonical(schema[inner], namespace)}
    if kind not in ("record", "error", "enum", "fixed"):
        return _canonical(kind, namespace)
    name = full_name(schema["name"], schema.get("namespace", namespace))
    form: dict[str, Any] = {"name": name, "type": kind}
    if kind in ("record", "error"):
        inner = name.rpartition(".")[0]
        form["fields"] = [{"name": f["name"], "type": _canonical(f["type"], inner)} for f in schema["fields"]]
    elif kind == "enum":
        form["symbols"] = schema["symbols"]
    else:
        form["size"] = schema["size"]
    return form
