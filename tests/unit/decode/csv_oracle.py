"""What a record of CSV must become, read character by character; the values of fields are read by JSON's oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from tests.unit.decode import oracle
from tests.unit.decode.oracle import Rejected


def row(schema: pa.Schema, value: bytes | None, delimiter: str = ",") -> dict[str, Any]:
    """Return the row, as `Table.to_pylist` shows it. Raises Rejected."""
    texts = [None] * len(schema) if value is None else fields(_text(value), delimiter)
    if len(texts) != len(schema):
        raise Rejected("number of fields")
    return {
        field.name: oracle._field(field, None if text is None else _value(text, field.type), False)
        for field, text in zip(schema, texts, strict=True)
    }


def fields(line: str, delimiter: str = ",") -> list[str | None]:
    """Return the texts of a line's fields, None for one without quotes and without text. Raises Rejected."""
    line = line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line
    rest = iter([*line, None])
    found, char = [], next(rest)
    while True:
        text, char = _quoted(rest) if char == '"' else _bare(char, rest, delimiter)
        if char not in (delimiter, None):
            raise Rejected("text behind a quote")
        found.append(text)
        if char is None:
            return found
        char = next(rest)


def _quoted(rest: Iterator[str | None]) -> tuple[str, str | None]:
    """Return the text until the closing quote, and the character behind that."""
    text = ""
    while (char := next(rest)) is not None:
        if char == '"' and (char := next(rest)) != '"':
            return text, char
        text += str(char)
    raise Rejected("not closed")


def _bare(char: str | None, rest: Iterator[str | None], delimiter: str) -> tuple[str | None, str | None]:
    text = ""
    while char is not None and char != delimiter:
        if char in '"\r\n':
            raise Rejected("neither closed nor quoted")
        text, char = text + char, next(rest)
    return text or None, char


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Rejected("no UTF-8") from None


def _value(text: str, kind: pa.DataType) -> Any:
    if not (t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_nested(kind)):
        return text
    try:
        found = json.loads(text, parse_float=oracle.Num, parse_int=oracle.Num, parse_constant=_constant)
    except (ValueError, RecursionError):
        raise Rejected("no JSON") from None
    if found is None or oracle._depth(found) > 200 or oracle._surrogates(found):
        raise Rejected("null, or no plain value")
    return found


def _constant(name: str) -> None:
    raise Rejected(name)
