"""The format of a topic's values, guessed from a sample."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_lakestream.core.policies import ValueEnvelope, ValueFormat
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.header_ids import VALUE, named_by_header
from airflow_lakestream.decode.json.document import parse_object
from airflow_lakestream.decode.json.infer import infer_schema
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.decode.values.outcome import Misfit
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.registry.client import RegistryClient, SchemaNotFound
from airflow_lakestream.registry.config import RegistryConfig
from airflow_lakestream.tables.schema.columns import to_schema
from airflow_lakestream.tables.schema.types import schema_text

_HEADER = 5
_SINGLE_OBJECT = b"\xc3\x01"
# Of a longer document only the beginning is read.
_PARSED = 256 * 1024
_DELIMITERS = ",;\t|"
# Fewer lines than this are not taken for CSV: any two texts may have equally many commas.
_LEAST_LINES = 3
# This share of the lines has to have the same number of fields.
_ALIKE = 0.9
_LITERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false")


@dataclass(frozen=True)
class FormatGuess:
    """A guess about values: arguments of a landing (`decoding`), and the reason in words.

    `problem` describes the information that is missing for decoding, and the remedy; None if nothing is missing.
    """

    decoding: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    problem: str | None = None

    @property
    def format(self) -> str | None:
        """The format, or None if unknown."""
        return self.decoding.get("format")


def guess_format(
    values: Sequence[bytes | None], registry: RegistryConfig | None, bare: Collection[int] = ()
) -> FormatGuess:
    """Return a guess of the format: the kind of more than half of the values, else raw.

    :param values: a sample; None for a tombstone.
    :param registry: resolves the ids of schemas in values, or None without a registry.
    :param bare: positions of values whose schemas are named by headers: these values contain no schema id.

    Raises the registry's errors.
    """
    known = [value for value in values if value is not None]
    if not known:
        what = "is empty" if not values else "has tombstones only (records without a value) where it was looked at"
        return FormatGuess(problem=f"The topic {what}: say format and schema, or produce a record first.")
    kind_of, named = _ValueClassifier(registry), frozenset(bare)
    kinds = Counter(
        _bare(value) if at in named else kind_of(value) for at, value in enumerate(values) if value is not None
    )
    kind, count = kinds.most_common(1)[0]
    if 2 * count <= len(known):
        kind, count = "bytes", len(known)
    reason = f"{count} of {len(known)} values {_KIND_TEXTS[kind]}"
    return _GUESS_BY_KIND[kind](reason, known)


class _ValueClassifier:
    """Classifies a value by the first bytes and the syntax. The kinds are the keys of `_KIND_TEXTS`."""

    def __init__(self, registry: RegistryConfig | None) -> None:
        self._registry = None if registry is None else RegistryClient(registry)
        self._of_kind = {row.kind: name for name, row in FORMATS.items() if row.kind is not None}

    def __call__(self, value: bytes) -> str:
        if value.startswith(_SINGLE_OBJECT):
            return "single"
        if len(value) > _HEADER and value[0] == 0 and (found := self._framed(value)) is not None:
            return found
        if value[:_PARSED].lstrip()[:1] == b"{" and (found := _document(value)) is not None:
            return found
        return "text" if _is_line(value) else "bytes"

    # A zero byte and an id: the registry knows the kind of the schema. None if it has no such schema.
    def _framed(self, value: bytes) -> str | None:
        if self._registry is None:
            return ValueFormat.JSON_SCHEMA if _document(value[_HEADER:]) is not None else "framed"
        try:
            kind = self._registry.schema(int.from_bytes(value[1:_HEADER], "big")).kind
        except SchemaNotFound:
            return None
        return self._of_kind.get(kind)


# JSON without a schema id is decoded like any JSON; other formats need the schema in the header.
def _bare(value: bytes) -> str:
    return (_document(value) if value[:_PARSED].lstrip()[:1] == b"{" else None) or "bare"


def _document(value: bytes) -> str | None:
    """Return the kind of a JSON object, plain or in an envelope, or None for other values.

    A long value counts as plain JSON by its braces alone.
    """
    if len(value) > _PARSED:
        return ValueFormat.JSON if value.lstrip()[:1] == b"{" and value.rstrip()[-1:] == b"}" else None
    try:
        document = parse_object(value)
    except Misfit:
        return None
    inner = document.get("payload") if set(document) == {"schema", "payload"} else document
    if isinstance(inner, dict) and "op" in inner and ("before" in inner or "after" in inner):
        return ValueEnvelope.DEBEZIUM
    return ValueFormat.JSON if inner is document else ValueEnvelope.CONNECT


def _is_line(value: bytes) -> bool:
    try:
        text = value[:_PARSED].decode()
    except UnicodeDecodeError:
        return False
    return text.replace("\t", " ").rstrip("\r\n").isprintable()


_KIND_TEXTS = {
    "single": "are Avro in single-object encoding",
    "framed": "begin with a zero byte and the id of a schema",
    "bare": "have the ids of their schemas in headers",
    "text": "are text",
    "bytes": "are neither JSON nor text, and have no schema in a registry",
    ValueFormat.JSON: "are JSON objects",
    ValueEnvelope.DEBEZIUM: "are change events of Debezium in JSON",
    ValueEnvelope.CONNECT: "are Kafka Connect's JSON, with a schema next to each row",
    ValueFormat.AVRO: "name a schema of Avro in the registry",
    ValueFormat.PROTOBUF: "name a schema of Protobuf in the registry",
    ValueFormat.JSON_SCHEMA: "name a JSON Schema in the registry",
}


def _as(**decoding: str) -> Callable[[str, Sequence[bytes]], FormatGuess]:
    return lambda reason, _: FormatGuess(decoding, reason)


def _stuck(format_name: str | None, remedy: str) -> Callable[[str, Sequence[bytes]], FormatGuess]:
    decoding = {} if format_name is None else {"format": format_name}
    return lambda reason, _: FormatGuess(decoding, reason, f"{reason}. {remedy}")


# Text is CSV if most lines have the same number of fields, by the delimiter that gives the most; otherwise raw.
def _text(reason: str, values: Sequence[bytes]) -> FormatGuess:
    lines = [value.decode() for value in values if len(value) <= _PARSED and _is_line(value)]
    best: tuple[int, str, int] | None = None
    for delimiter in _DELIMITERS:
        counts = Counter(len(_fields(line, delimiter)) for line in lines)
        width, count = counts.most_common(1)[0] if counts else (0, 0)
        if width > 1 and len(lines) >= _LEAST_LINES and count >= _ALIKE * len(lines):
            best = max(best or (0, "", 0), (width, delimiter, count))
    if best is None:
        return FormatGuess({"format": ValueFormat.RAW}, f"{reason}, and no table")
    width, delimiter, count = best
    decoding = {"format": ValueFormat.CSV, "schema": _csv_columns(lines, delimiter, width)}
    if delimiter != ",":
        decoding["csv_delimiter"] = delimiter
    return FormatGuess(
        decoding, f"{count} of {len(values)} values are text of {width} fields, with {delimiter!r} between them"
    )


_GUESS_BY_KIND: Mapping[str, Callable[[str, Sequence[bytes]], FormatGuess]] = {
    "single": _stuck(ValueFormat.AVRO, "Give the schemas of its writers: --writer-schemas."),
    "framed": _stuck(None, "Say where the registry is: --schema-registry http://registry:8081."),
    "bare": lambda reason, _: FormatGuess({}, reason, f"{reason}. Of each one, {named_by_header(VALUE)}."),
    "text": _text,
    "bytes": _as(format=ValueFormat.RAW),
    ValueEnvelope.DEBEZIUM: _as(format=ValueFormat.JSON, envelope=ValueEnvelope.DEBEZIUM),
    ValueEnvelope.CONNECT: _as(format=ValueFormat.JSON, envelope=ValueEnvelope.CONNECT),
    **{
        name: _as(format=name)
        for name in (ValueFormat.JSON, ValueFormat.AVRO, ValueFormat.PROTOBUF, ValueFormat.JSON_SCHEMA)
    },
}


def _fields(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


def _csv_columns(lines: Sequence[str], delimiter: str, width: int) -> str:
    """Return DDL for CSV fields, named column_1 and so on, with types inferred from the text of the fields."""
    rows = [fields for line in lines if len(fields := _fields(line, delimiter)) == width]
    names = [f"column_{n}" for n in range(1, width + 1)]
    values = pa.array([document_of_texts(names, row) for row in rows], pa.binary())
    try:
        found = infer_schema(RawBatch("csv", 0, range(len(values)), [0] * len(values), values))
    except InvalidArgument:
        found = pa.schema([])
    return schema_text(to_schema(pa.schema([pa.field(n, _type(found, n)) for n in names])))


def document_of_texts(names: Sequence[str], texts: Sequence[str | None]) -> bytes:
    """Return a JSON object with a CSV record's fields.

    A text that is a number or a boolean becomes one in JSON, an empty text or None becomes null.
    """
    members = zip(names, texts, strict=True)
    return ("{" + ", ".join(f"{json.dumps(name)}: {_json(text)}" for name, text in members) + "}").encode()


def _type(found: pa.Schema, name: str) -> pa.DataType:
    return found.field(name).type if name in found.names else pa.string()


def _json(text: str | None) -> str:
    if not text:
        return "null"
    return text if _LITERAL.fullmatch(text) else json.dumps(text)
