"""Strict parser of a message's bytes into a JSON object, with every number kept as text."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from airflow_lakestream.decode.values.outcome import Misfit, shorten

# The deepest level of a document. Without a limit, Python's recursion limit, which depends on the caller's stack, would
# make a record good in one place and bad in another.
MAX_DEPTH = 200

Json = Any


class JsonNumber(str):
    """Text of a JSON number, unchanged, such as `1.0`, `1e3` or `-0`."""

    __slots__ = ()

    @property
    def is_integer_literal(self) -> bool:
        """Whether the text has neither a fraction nor an exponent."""
        return self.removeprefix("-").isdigit()


def parse_object(value: bytes) -> dict[str, Json]:
    """Return the JSON object in `value`. Raises Misfit for another value, or a value that is not strict JSON."""
    document = parse_document(value)
    if not isinstance(document, dict):
        raise Misfit(f"the document is {describe(document)}, not an object")
    return document


def parse_document(value: bytes) -> Json:
    """Return the JSON value in `value`, with numbers as JsonNumber.

    Raises Misfit for another text: invalid UTF-8 or JSON, a lone surrogate, or a document nested too deeply.
    """
    text = _text(value)
    if nested_too_deep(value):
        raise Misfit(f"nested deeper than {MAX_DEPTH} levels")
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise Misfit(_explain(text, error)) from None
    except RecursionError:
        raise Misfit("nested too deep for this process") from None
    if "\\u" in text:
        _reject_lone_surrogates(document)
    return document


def _text(value: bytes) -> str:
    if not value or value.isspace():
        raise Misfit("the value is empty")
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Misfit(f"invalid UTF-8 at byte {error.start}") from None
    if text.startswith("\ufeff"):
        raise Misfit("starts with a byte order mark")
    return text


def _no_constant(name: str) -> NoReturn:
    raise Misfit(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_float=JsonNumber, parse_int=JsonNumber, parse_constant=_no_constant)


def _explain(text: str, error: json.JSONDecodeError) -> str:
    if error.msg == "Extra data":
        return f"more than one document: the first ends at character {error.pos}"
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
        return f"not valid JSON: truncated ({error.msg} at character {error.pos} of {len(text)})"
    return f"not valid JSON: {error.msg} at character {error.pos}, near {shorten(text[error.pos :], 20)!r}"


def _reject_lone_surrogates(document: Json) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Misfit("a string holds a lone surrogate (half of a \\ud83d\\ude00 pair)") from None


_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def nested_too_deep(value: bytes) -> bool:
    """Return whether a document is nested deeper than MAX_DEPTH levels; cheap if a document has few brackets."""
    # A shorter document that is deeper is not closed, and fails as truncated.
    if len(value) <= 2 * MAX_DEPTH or value.count(b"{") + value.count(b"[") <= MAX_DEPTH:
        return False
    depth = 0
    for bracket in _STRINGS.sub(b"", value).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"{[" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def to_text(value: Json) -> str:
    """Return compact JSON text, with numbers as originally written."""
    if isinstance(value, JsonNumber):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{to_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def describe(value: Json) -> str:
    """Return a JSON value in words, for the reason of a bad record: the kind, and a short excerpt of a scalar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the boolean {to_text(value)}"
    if isinstance(value, JsonNumber):
        return f"the number {shorten(value)}"
    if isinstance(value, str):
        return f"the string {shorten(value)!r}"
    return "an object" if isinstance(value, dict) else "an array"
