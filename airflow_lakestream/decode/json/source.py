"""A JSON Schema of Kafka Connect's converter as Connect's types, with the names of the source's types.

Titles name Connect's types; "connect.type" distinguishes base64 from other text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_lakestream.decode.connect.schema import ConnectType
from airflow_lakestream.decode.json.schema_columns import NUMBERS, SchemaAlternatives
from airflow_lakestream.decode.values.outcome import SchemaRefused

_DEEPEST = 64


def shape(text: str, references: Iterable[tuple[str, str]] = ()) -> ConnectType | None:
    """Return the shape of a schema. Raises SchemaRefused.

    Kinds are JSON's words, except "bytes", "map", "struct" and "union"; names are the titles, Connect's names.
    """
    try:
        schemas = SchemaAlternatives(text, references)
        return _shape(schemas, schemas.root, 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise SchemaRefused(f"Not a JSON Schema of Kafka Connect's converter: {e!r}") from e


def _shape(schemas: SchemaAlternatives, schema: Any, depth: int) -> ConnectType | None:
    if depth > _DEEPEST:
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
        inner = ((str(name), _shape(schemas, member, depth + 1)) for name, member in one["properties"].items())
        return ConnectType("struct", fields={name: member for name, member in inner if member is not None})
    if kind in ("object", "array"):
        items = one.get("additionalProperties" if kind == "object" else "items")
        of_items = _shape(schemas, items, depth + 1) if isinstance(items, dict) else None
        return ConnectType("map" if kind == "object" else "array", items=of_items)
    is_bytes = kind == "string" and one.get("connect.type") == "bytes"
    return ConnectType("bytes" if is_bytes else kind, str(one.get("title") or ""))
