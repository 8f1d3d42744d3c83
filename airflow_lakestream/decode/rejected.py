"""Rows of the reject table, and a summary of bad records for people.

The summary has reasons by kind, examples, and likely causes, such as settings that do not fit the topic: guesses from
the first bytes and the fields of some bad records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.bad_records import MOST_EXAMPLES, MOST_KINDS, BadRecords, ReasonKind, kind_of
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.policies import ValueFormat
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.connect.debezium_own import RecordForm
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.header_ids import KEY, VALUE
from airflow_lakestream.decode.json.document import parse_object
from airflow_lakestream.decode.keys import KEY_COLUMN
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.decode.lanes.framed import HEADER
from airflow_lakestream.decode.metadata import NO_TIMESTAMP, bad_timestamps, metadata_columns, metadata_schema
from airflow_lakestream.decode.registered import SINGLE_OBJECT, is_framed
from airflow_lakestream.decode.values.outcome import BadRow, Misfit, near_name, pick, shorten

_RECORD = ("topic", "partition", "offset", "timestamp", "key", "headers")
REJECTED_PARTS = RecordPart.of(_RECORD)
# The columns of a reject table: the record, and the reason of the rejection.
RECORD_SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("schema_id", pa.int64()),
        pa.field("stage", pa.string()),
        pa.field("error", pa.string()),
        # The record's own number: producers may write any 64 bits, but a column of timestamps has a range.
        pa.field("timestamp_ms", pa.int64()),
        *metadata_schema(_RECORD),
    ]
)


# The steps at which a record may turn out to be bad.
STAGES = ("record", "decode", "sql", "route", "write")


@dataclass(frozen=True, slots=True)
class StageFailure:
    """A bad record, with the step of `STAGES`."""

    row: BadRow
    stage: str


def rejected_rows(batch: RawBatch, bad: Sequence[StageFailure]) -> pa.Table:
    """Return the bad records of a batch as rows of a reject table, each with its reason and stage.

    `_kafka_timestamp` is null if the record's timestamp is out of range; `timestamp_ms` always has the timestamp.
    """
    records = pick(batch, [failure.row.index for failure in bad])
    timestamps = list(records.timestamps)
    for row in bad_timestamps(records):
        timestamps[row.index] = NO_TIMESTAMP
    columns = [
        records.values,
        pa.array([failure.row.schema_id for failure in bad], pa.int64()),
        pa.array([failure.stage for failure in bad]),
        pa.array([failure.row.reason for failure in bad]),
        pa.array(records.timestamps, pa.int64()),
        *metadata_columns(replace(records, timestamps=timestamps), _RECORD),
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)


def timestamps_of(rows: pa.Table) -> list[int]:
    """Return the original timestamps of rejected records, in milliseconds; -1 for a record without a timestamp."""
    # Not by Python's datetime, which ends with the year 9999.
    micros = rows["_kafka_timestamp"].cast(pa.int64()).to_pylist()
    millis = rows["timestamp_ms"].to_pylist() if "timestamp_ms" in rows.column_names else [None] * len(rows)
    columns = zip(millis, micros, rows["error"].to_pylist(), strict=True)
    return [_of_earlier_version(*row) if own is None else own for own, *row in columns]


# The reason in rows of earlier versions, without `timestamp_ms`, whose timestamp is out of range.
_BAD_TIMESTAMP = re.compile(r"the record's timestamp (-?\d+) ms is out of range$")


def _of_earlier_version(micros: int | None, error: str) -> int:
    if micros is not None:
        return micros // 1000
    match = _BAD_TIMESTAMP.search(error)
    return int(match[1]) if match else NO_TIMESTAMP


# The bad records of a batch whose cause is searched, except values with more bytes than this.
_MOST_EXAMINED = 50
_LONGEST = 64 * 1024
# Limits of the summary: names of fields, characters of a name, and of a value.
_MOST_NAMES = 8
_LONGEST_NAME = 40
_EXCERPT = 80


@dataclass(frozen=True)
class CauseFinder:
    """Finder of likely causes of bad records, by the payload's settings.

    :param payload: settings of keys and values.
    :param columns: the columns of decoded values, or None if values are not decoded.
    """

    payload: PayloadFormats
    columns: pa.Schema | None

    def of(self, batch: RawBatch, bad: Sequence[StageFailure]) -> BadRecords:
        """Return the summary of the bad records of a batch; only some are examined for a cause."""
        examined = self._examined(batch, bad)
        causes = Counter(self._cause(batch.values[failure.row.index].as_py(), failure) or "" for failure in examined)
        return BadRecords(len(bad), _most_frequent(batch, bad), dict(causes))

    def _examined(self, batch: RawBatch, bad: Sequence[StageFailure]) -> Iterator[StageFailure]:
        """Yield the first bad records, except records with a long value."""
        for failure in bad[:_MOST_EXAMINED]:
            value = batch.values[failure.row.index]
            if not value.is_valid or value.as_buffer().size <= _LONGEST:
                yield failure

    def _cause(self, value: bytes | None, bad: StageFailure) -> str | None:
        """Return a likely cause, by the reason, the stage and the first bytes of the value, or None."""
        if value is None:
            return 'the values are null (tombstones): tombstones="skip" only counts such records'
        if bad.stage != "decode" or self.columns is None:
            return None
        for side in (KEY, VALUE):
            if f"__{side}_schema_id, which is not read" in bad.row.reason:
                return f"the {side}s are written without the ids of their schemas, which are in headers"
        if bad.row.reason.startswith("the key: "):
            return f'the keys do not have the format of key_format="{self.payload.key_format}"'
        if not self.payload.format_row.is_text and _is_json(value):
            return f'the values look like JSON, and format="{self.payload.format}" was given: try format="json"'
        if self.payload.format_row.kind is not None:
            return self._of_registered(value, bad) or self._of_document(value[HEADER:])
        if self.payload.format == ValueFormat.JSON:
            return _not_json(value) or self._of_document(value)
        return None

    def _of_registered(self, value: bytes, bad: StageFailure) -> str | None:
        """Return a likely cause for a format with schemas in a registry, or None."""
        given, reason = f'format="{self.payload.format}"', bad.row.reason
        if value.startswith(SINGLE_OBJECT) and "writer_schemas" not in self.payload.format_row.options:
            return f'the values look like Avro\'s single-object encoding, and {given} was given: try format="avro"'
        if not is_framed(value) and bad.row.schema_id is None:
            return (
                "the values do not begin with a zero byte and the id of a schema, as a registry's serializers write "
                f"them, and {given} was given"
            )
        for name, row in FORMATS.items():
            if f"is of type {row.kind}, not " in reason:
                return f"the records were written, by the registry, as {name}, and {given} was given"
        inner = value[HEADER:]
        no_document = self.payload.format == ValueFormat.JSON_SCHEMA and not _is_json(inner)
        if no_document or reason.startswith("message indexes: "):
            formats = '"json_schema"' if _is_json(inner) else '"avro"' if not no_document else '"avro" or "protobuf"'
            return (
                f"the values begin with the id of a schema, and {given} does not fit what follows: try format={formats}"
            )
        if "names match exactly" in reason:
            return "the writer's schema has a required column under a name that differs in case"
        if "is not in the registry" in reason:
            return "the registry does not know the schemas that the records name; schema_registry may be the wrong one"
        return None

    def _of_document(self, value: bytes) -> str | None:
        """Return a likely cause by the members of a JSON object, or None for another value or without a cause."""
        if not _is_json(value):
            return None
        try:
            document = parse_object(value)
        except Misfit:
            return None
        envelope = self.payload.envelope
        inner = document.get("payload") if set(document) == {"schema", "payload"} else document
        is_event = isinstance(inner, dict) and "op" in inner and ("before" in inner or "after" in inner)
        if envelope is None and is_event:
            return 'the values are change events of Debezium: try envelope="debezium"'
        if envelope is None and inner is not document:
            return 'the values are Kafka Connect\'s JSON, with the schema next to the row: try envelope="connect"'
        if self.payload.record_form is RecordForm.DEBEZIUM and not is_event:
            return 'the values are not change events of Debezium, and envelope="debezium" was given'
        return self._missing(inner) if isinstance(inner, dict) and not is_event else None

    def _missing(self, document: Mapping[str, Any]) -> str | None:
        """Return a cause about a required column without a field in the document, or None if all have fields."""
        assert self.columns is not None
        required = [field.name for field in self.columns if not field.nullable and field.name != KEY_COLUMN]
        missing = [name for name in required if name not in document]
        if not missing:
            return None
        for name in missing:
            if (near := near_name(name, document)) is not None:
                return f"the values have a field {_name(near)} for the column {_name(name)}: names match exactly"
        names = ", ".join(map(_name, sorted(document)[:_MOST_NAMES])) or "none"
        return f"the values have no field {_name(missing[0])}, which is required; their fields are {names}"


def _most_frequent(batch: RawBatch, bad: Sequence[StageFailure]) -> tuple[ReasonKind, ...]:
    """Return the most frequent kinds of reasons, each with the number of its records and some examples."""
    kinds: dict[str, str] = {}
    by_kind: dict[tuple[str, str], list[StageFailure]] = {}
    for failure in bad:
        reason = failure.row.reason
        kinds[reason] = kind = kinds.get(reason) or kind_of(reason)
        by_kind.setdefault((failure.stage, kind), []).append(failure)
    frequent = []
    for (stage, kind), failures in sorted(by_kind.items(), key=lambda item: -len(item[1]))[:MOST_KINDS]:
        examples = tuple(_example(batch, failure) for failure in failures[:MOST_EXAMPLES])
        frequent.append(ReasonKind(stage, kind, len(failures), examples))
    return tuple(frequent)


def _example(batch: RawBatch, bad: StageFailure) -> str:
    value = batch.values[bad.row.index].as_py()
    # Four bytes are one character at most.
    text = "null" if value is None else repr(value[: 4 * _EXCERPT].decode(errors="backslashreplace"))
    place = f"{batch.topic}[{batch.partition}] offset {batch.offsets[bad.row.index]}"
    return f"{place}: {bad.row.reason} (value {shorten(text, _EXCERPT)})"


def _not_json(value: bytes) -> str | None:
    """Return a likely cause why a value is not JSON, or None for a value that looks like JSON."""
    if is_framed(value):
        inner = '"json_schema"' if _is_json(value[HEADER:]) else '"avro" or "protobuf"'
        return (
            "the values begin with a zero byte and the id of a schema, as a registry's serializers write them, and "
            f'format="json" was given: try format={inner}, with schema_registry'
        )
    if value.startswith(SINGLE_OBJECT):
        return 'the values look like Avro\'s single-object encoding: try format="avro", with writer_schemas'
    if not _is_json(value):
        return 'the values do not begin as a JSON object does, and format="json" was given'
    return None


def _is_json(value: bytes) -> bool:
    return value.lstrip()[:1] in (b"{", b"[")


def _name(text: str) -> str:
    return repr(shorten(text, _LONGEST_NAME))
