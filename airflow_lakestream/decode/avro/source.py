"""An Avro schema as Kafka Connect's types, with the names of the source's types."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_lakestream.decode.avro.schema import (
    AvroArray,
    AvroEnum,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroUnion,
    Node,
    Record,
    parse,
)
from airflow_lakestream.decode.connect.schema import ConnectType

_KINDS = {"int": "int32", "long": "int64"}
# A record may hold itself.
_DEEPEST = 64


def shape(text: str, references: Iterable[str] = ()) -> ConnectType | None:
    """Return the shape of a schema, named by Connect's name, else by Avro's logical type. Raises SchemaRefused."""
    return _shape(parse(text, references), 0)


def _shape(node: Node, depth: int) -> ConnectType | None:
    # None for a type that is nested too deep. A union of null and a type has the shape of the type.
    if depth > _DEEPEST:
        return None
    if isinstance(node, AvroUnion):
        values = [one for _, one in node.values]
        return _shape(values[0], depth) if len(values) == 1 else ConnectType("union")
    if isinstance(node, Record):
        inner = ((name, _shape(one, depth + 1)) for name, one in node.fields)
        return ConnectType("struct", node.name, fields={name: one for name, one in inner if one is not None})
    if isinstance(node, AvroArray):
        return ConnectType("array", items=_shape(node.items, depth + 1))
    if isinstance(node, AvroMap):
        return ConnectType("map", items=_shape(node.values, depth + 1))
    if isinstance(node, AvroEnum):
        return ConnectType("string")
    if isinstance(node, AvroFixed):
        return ConnectType("bytes", node.logical or "", scale=node.scale)
    return _scalar(node)


def _scalar(node: AvroPrimitive) -> ConnectType:
    return ConnectType(_KINDS.get(node.name, node.name), node.connect or node.logical or "", scale=node.scale)
