"""An Avro schema as Kafka Connect's types, with the names of the source's types."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_lakestream.decode.avro.schema import Array, Enum, Fixed, Map, Node, Primitive, Record, Union, parse
from airflow_lakestream.decode.connect.schema import Shape

_KINDS = {"int": "int32", "long": "int64"}
# A record may hold itself.
_DEEPEST = 64


def shape(text: str, references: Iterable[str] = ()) -> Shape | None:
    """Return the shape of a schema, named by Connect's name, else by Avro's logical type. Raises SchemaRefused."""
    return _shape(parse(text, references), 0)


def _shape(node: Node, depth: int) -> Shape | None:
    if depth > _DEEPEST:
        return None
    if isinstance(node, Union):
        values = [one for _, one in node.values]
        return _shape(values[0], depth) if len(values) == 1 else Shape("union")
    if isinstance(node, Record):
        inner = ((name, _shape(one, depth + 1)) for name, one in node.fields)
        return Shape("struct", node.name, fields={name: one for name, one in inner if one is not None})
    if isinstance(node, Array):
        return Shape("array", items=_shape(node.items, depth + 1))
    if isinstance(node, Map):
        return Shape("map", items=_shape(node.values, depth + 1))
    if isinstance(node, Enum):
        return Shape("string")
    if isinstance(node, Fixed):
        return Shape("bytes", node.logical or "", scale=node.scale)
    return _scalar(node)


def _scalar(node: Primitive) -> Shape:
    return Shape(_KINDS.get(node.name, node.name), node.connect or node.logical or "", scale=node.scale)
