"""Fingerprint of a schema in Avro's single-object encoding."""

from __future__ import annotations

import json
from typing import Any

from airflow_lakestream.decode.avro.schema import PRIMITIVES, document, full_name

# The constants of the algorithm in Avro's specification: the fingerprint of no bytes, and a table by byte.
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
