"""Finder of schemas for a new table's columns, in the registry and in `writer_schemas`."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pyarrow as pa

from airflow_lakestream.decode.avro.schema import fingerprint
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.decode.lanes.framed import HEADER
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.registry.client import RegisteredSchema, RegistryClient, SchemaNotFound, SchemaText

log = logging.getLogger(__name__)

# The first bytes of Avro's single-object encoding.
SINGLE_OBJECT = b"\xc3\x01"
# The first records whose schemas are read, and the most ids of schemas that are requested.
_SAMPLE = 1_000
_MOST_IDS = 20


@dataclass(frozen=True)
class SchemaFinder:
    """Finder of schemas for the keys or the values of a topic.

    :param registry: the registry, or None.
    :param writer_schemas: schemas of Avro's single-object encoding, as JSON text.
    """

    registry: RegistryClient | None
    writer_schemas: tuple[str, ...] = ()

    def find(self, format_name: str, topic: str, side: str, values: pa.Array) -> SchemaText:
        """Return the schema for the columns of a new table.

        The sources, in this order: 1. The schema in `writer_schemas` that the first records name; without a registry,
        the last of `writer_schemas`. 2. The newest schema of the subject. 3. The schema in the registry that the first
        records name.

        :param side: "key" or "value".
        :param values: the first records' keys or values.

        Raises InvalidArgument without a schema, or if the subject has a schema of another format; and the registry's
        errors.
        """
        sample = [value for value in values.slice(0, _SAMPLE).to_pylist() if value]
        if self.writer_schemas and (text := self._of_writer_schemas(sample)):
            log.info("%s: the columns of the %s come from the schema in writer_schemas.", topic, side)
            return SchemaText(text)
        kind = FORMATS[format_name].kind
        if self.registry is None or kind is None:
            remedy = "Give the columns as schema." if kind is None else "Set schema_registry, or give them as schema."
            raise InvalidArgument("schema", f"the columns of the {side} of {topic} are unknown.", remedy)
        subject = f"{topic}-{side}"
        schema = self._latest(self.registry, format_name, topic, side)
        if schema is None:
            return self._by_records(self.registry, format_name, subject, sample)
        log.info("%s: the columns come from schema %s, the latest of subject %s.", topic, schema.id, subject)
        return _schema_text(format_name, schema, sample)

    def by_head(self, format_name: str, head: bytes) -> SchemaText | None:
        """Return the schema that a value's first bytes name, or None if the schema is unknown or of another format."""
        if head.startswith(SINGLE_OBJECT):
            # The eight bytes behind the mark are the fingerprint.
            text = self._by_fingerprint.get(head[2:10])
            return None if text is None else SchemaText(text)
        if self.registry is None or len(head) < HEADER or head[0]:
            return None
        try:
            schema = self.registry.schema(int.from_bytes(head[1:HEADER], "big"))
        except SchemaNotFound:
            return None
        return _schema_text(format_name, schema, [head]) if schema.kind == FORMATS[format_name].kind else None

    def newest(self, format_name: str, topic: str, side: str, *, nested: bool = False) -> SchemaText | None:
        """Return the newest schema of the subject, or None if the schema is missing, or has several messages.

        If a schema has several messages, only a record names its message.

        :param nested: whether messages inside of other messages count, too.

        Raises InvalidArgument if the subject has a schema of another format; and the registry's errors.
        """
        schema = None if self.registry is None else self._latest(self.registry, format_name, topic, side)
        if schema is None:
            return None
        text, count_messages = _schema_text(format_name, schema, []), FORMATS[format_name].messages
        return text if count_messages is None or count_messages(text, nested) == 1 else None

    def foreseen(self, format_name: str, topic: str) -> SchemaText | None:
        """Return the result of `find` for values, or None if the result depends on records; see `newest` for errors."""
        return None if self.writer_schemas else self.newest(format_name, topic, "value", nested=True)

    def _latest(self, registry: RegistryClient, format_name: str, topic: str, side: str) -> RegisteredSchema | None:
        """Return the newest schema of the subject, or None. Raises InvalidArgument for a schema of another format."""
        subject = f"{topic}-{side}"
        try:
            schema = registry.latest(subject)
        except SchemaNotFound:
            return None
        if schema.kind != FORMATS[format_name].kind:
            raise InvalidArgument(
                "format" if side == "value" else "key_format",
                f"it is {format_name!r}, and subject {subject} of the registry has a schema of type {schema.kind}.",
            )
        return schema

    def _by_records(self, registry: RegistryClient, name: str, subject: str, sample: list[bytes]) -> SchemaText:
        """Return the first schema that the records name and that the registry has in this format."""
        kind = FORMATS[name].kind
        ids = list(dict.fromkeys(int.from_bytes(v[1:HEADER], "big") for v in sample if is_framed(v)))
        for schema_id in ids[:_MOST_IDS]:
            try:
                schema = registry.schema(schema_id)
            except SchemaNotFound:
                continue
            if schema.kind == kind:
                log.info("There is no subject %s: the columns come from schema %s of its records.", subject, schema_id)
                values = [v for v in sample if is_framed(v) and int.from_bytes(v[1:HEADER], "big") == schema_id]
                return _schema_text(name, schema, values)
        raise InvalidArgument(
            "schema",
            f"the registry has neither a subject {subject} nor, of type {kind}, a schema that the first records name.",
            "Give the columns as schema, register the subject, or correct format and schema_registry.",
        )

    @property
    def _by_fingerprint(self) -> dict[bytes, str]:
        return {fingerprint(text).to_bytes(8, "little"): text for text in self.writer_schemas}

    def _of_writer_schemas(self, sample: list[bytes]) -> str | None:
        """Return the schema of `writer_schemas` that the first records name; the last one without a registry."""
        by_fingerprint = self._by_fingerprint
        for value in sample:
            if value.startswith(SINGLE_OBJECT) and value[2:10] in by_fingerprint:
                return by_fingerprint[value[2:10]]
        return None if self.registry is not None else self.writer_schemas[-1]


def _schema_text(format_name: str, schema: RegisteredSchema, sample: list[bytes]) -> SchemaText:
    """Return a schema's text, with the message of the first framed value in the sample."""
    references = tuple((name, reference.text) for name, reference in schema.all_references())
    framed = [] if FORMATS[format_name].messages is None else [value for value in sample if is_framed(value)]
    return SchemaText(schema.text, references, _message(framed[0]) if framed else (0,))


def is_framed(value: bytes) -> bool:
    """Return whether a value begins with Confluent's header and has more bytes."""
    return len(value) > HEADER and value[0] == 0


def _message(value: bytes) -> tuple[int, ...]:
    """Return the index path of a framed Protobuf value's message, or (0,), the first message, if invalid."""
    numbers: list[int] = []
    number = shift = 0
    for byte in value[HEADER : HEADER + 64]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append((number >> 1) ^ -(number & 1))
            number = shift = 0
            if len(numbers) > numbers[0]:
                break
    count = numbers[0] if numbers else 0
    indexes = tuple(numbers[1 : count + 1])
    return indexes if 0 < count == len(indexes) and min(indexes) >= 0 else (0,)
