"""A JSON Schema as Kafka Connect's converter writes it: which type the source has, beside how it is written.

Titles name Connect's types; "connect.type" tells base64 from other text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from airflow_lakestream.decode.connect.schema import Shape
from airflow_lakestream.decode.json.schema import References
from airflow_lakestream.decode.values.outcome import SchemaRefused

_DEEPEST = 64


def shape(text: str, references: Iterable[tuple[str, str]] = ()) -> Shape | None:
    """Return what a schema describes, in JSON's words and with Connect's names. Raises SchemaRefused."""
    try:
        named = {name: json.loads(content) for name, content in references}
        return _Shapes(References(json.loads(text), named)).of(None, 0)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise SchemaRefused(f"Not a JSON Schema of Kafka Connect's converter: {e!r}") from e


class _Shapes:
    def __init__(self, references: References) -> None:
        self._references = references

    def of(self, schema: Any, depth: int) -> Shape | None:
        if depth > _DEEPEST:
            return None
        schema = self._references.resolved(self._references.root if schema is None else schema, "")
        choices = schema.get("anyOf") or schema.get("oneOf")
        if choices:
            values = [one for one in choices if one.get("type") != "null"]
            return self.of(values[0], depth) if len(values) == 1 else Shape("union")
        kinds = schema.get("type")
        kinds = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
        if len(kinds) != 1:
            return Shape("union")
        return self._single(str(kinds[0]), schema, depth)

    def _single(self, kind: str, schema: dict[str, Any], depth: int) -> Shape | None:
        if kind == "object" and schema.get("properties"):
            inner = ((str(name), self.of(one, depth + 1)) for name, one in schema["properties"].items())
            return Shape("struct", fields={name: one for name, one in inner if one is not None})
        if kind == "object":
            items = schema.get("additionalProperties")
            return Shape("map", items=self.of(items, depth + 1) if isinstance(items, dict) else None)
        if kind == "array":
            items = schema.get("items")
            return Shape("array", items=self.of(items, depth + 1) if isinstance(items, dict) else None)
        name = str(schema.get("title") or "")
        if kind == "string":
            kind = "bytes" if schema.get("connect.type") == "bytes" else kind
        # Decimals that are written as numbers are numbers like others.
        return Shape(kind, "" if kind == "number" else name)
