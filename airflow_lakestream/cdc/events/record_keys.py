"""Columns of the records' keys: the key of the database's table, or the columns set in the connector."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.decode.connect.decoder import unwrapped
from airflow_lakestream.registry.client import RegistryClient, SchemaNotFound

# The columns of a record without a key.
NO_KEY = "[]"
# The bytes of a schema id before a key, with the zero byte.
_HEADER = 5
# A form is a sequence of member names. Keys of one topic have one form, or a few after a change of the key; keys of
# more forms are parsed one by one.
_MOST_FORMS = 8
# Text that is not an object: it begins with another character than a brace. (UTF-16 and UTF-32 have zeros next to each
# character.)
_NO_OBJECT = r"(?s)^[ \t\r\n]*([!-z|}~]([^\x00].*)?)?$"
_VALUE = r'(?:"(?:[^"\\]|\\.)*"|\{[^{}]*\}|[^",{}\[\]]+)'


def names_in(keys: pa.Array, registry: RegistryClient | None, prefixes: dict[bytes, str]) -> pa.Array:
    """Return the columns of each key, as a list in JSON; `NO_KEY` without a key, null for an unreadable key.

    :param registry: has the schemas of keys that begin with a schema id; without a registry, such keys are unreadable.
    :param prefixes: Connect's schemas in earlier keys, by the keys' prefixes; new prefixes are added.
    """
    texts = np.full(len(keys), None, object)
    is_null = keys.is_null().to_numpy(zero_copy_only=False)
    texts[is_null] = NO_KEY
    has_id = pc.starts_with(keys, b"\x00").fill_null(False).to_numpy(zero_copy_only=False)
    if registry is not None and has_id.any():
        _note_registered(keys, np.flatnonzero(has_id), registry, texts)
    in_json = np.flatnonzero(~is_null & ~has_id)
    for part in unwrapped(keys.take(pa.array(in_json)), prefixes) if len(in_json) else ():
        _note_json(part.payloads, in_json[part.places], texts)
    return pa.array(texts, pa.string())


def as_list(names: str | None) -> list[str] | None:
    """Return the columns of a key, or None for an unreadable key."""
    columns: list[str] | None = None if names is None else json.loads(names)
    return columns


def _note_json(keys: pa.Array, places: np.ndarray, texts: np.ndarray) -> None:
    """Note the columns of JSON keys in `texts`, parsing a single key of each form.

    :param places: the index of each key in `texts`.
    :param texts: for each key of the batch its columns, as a list in JSON.
    """
    # Text, such as StringConverter makes of keys, has as many forms as values.
    no_object = pc.match_substring_regex(keys, _NO_OBJECT).fill_null(False).to_numpy(zero_copy_only=False)
    texts[places[no_object]] = None
    todo = np.flatnonzero(~no_object)
    for _ in range(_MOST_FORMS):
        if not len(todo):
            return
        names = _names(keys[int(todo[0])].as_py())
        has_form = np.zeros(len(todo), np.bool_)
        if names:
            todo_keys = keys.take(pa.array(todo))
            has_form = (
                pc.match_substring_regex(todo_keys, _form(names)).fill_null(False).to_numpy(zero_copy_only=False).copy()
            )
        # The parsed key itself, also if it has no form.
        has_form[0] = True
        texts[places[todo[has_form]]] = None if names is None else json.dumps(names)
        todo = todo[~has_form]
    for index in todo.tolist():
        names = _names(keys[index].as_py())
        texts[places[index]] = None if names is None else json.dumps(names)


def _form(names: Sequence[str]) -> str:
    """Return a pattern for JSON objects with exactly these members, in this order."""
    members = r"\s*,\s*".join(rf"{re.escape(json.dumps(name, ensure_ascii=False))}\s*:\s*{_VALUE}" for name in names)
    return rf"(?s)^\s*\{{\s*{members}\s*\}}\s*$"


def _names(key: bytes | None) -> list[str] | None:
    """Return the names of a JSON key's members, or None if the key is not a JSON object."""
    if key is None:
        return []
    try:
        document = json.loads(key)
    except (ValueError, RecursionError):
        return None
    return list(document) if isinstance(document, dict) else None


def _note_registered(keys: pa.Array, places: np.ndarray, registry: RegistryClient, texts: np.ndarray) -> None:
    """Note the columns of keys in Avro or JSON Schema in `texts`, from the registered schemas.

    :param places: the indices of these keys, in `keys` and in `texts`.
    """
    headers = pc.binary_slice(keys.take(pa.array(places)), 0, _HEADER).dictionary_encode()
    for number, header in enumerate(headers.dictionary.to_pylist()):
        names = _registered(registry, int.from_bytes(header[1:], "big"))
        own_places = places[np.flatnonzero(headers.indices.to_numpy() == number)]
        texts[own_places] = None if names is None else json.dumps(names)


def _registered(registry: RegistryClient, schema_id: int) -> list[str] | None:
    """Return the names of a registered schema's fields, or None if the schema is unknown or has no fields."""
    try:
        schema = json.loads(registry.schema(schema_id).text)
    except (SchemaNotFound, ValueError):
        return None
    if not isinstance(schema, dict):
        return None
    if isinstance(schema.get("properties"), dict):
        return list(schema["properties"])
    fields = schema.get("fields")
    return [str(field["name"]) for field in fields] if isinstance(fields, list) else None
