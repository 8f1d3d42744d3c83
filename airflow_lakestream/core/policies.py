"""Values of parameters, formats of keys and values, and parsers of seconds and bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from airflow_lakestream.exceptions import InvalidArgument, UnknownValue


class NamedChoice(StrEnum):
    """One of an argument's texts. Errors show it as the text that the user writes."""

    def __repr__(self) -> str:
        return repr(str(self))


class ModeName(NamedChoice):
    """Mode of a run: the choice of the offsets; see `core.landing.modes`."""

    RESUME = "resume"
    INTERVAL = "interval"
    RANGES = "ranges"


class StartOffset(NamedChoice):
    """Beginning of a group's first resume."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    COMMITTED = "committed"


class OnDataLoss(NamedChoice):
    """Reaction to offsets removed by retention before the landing."""

    FAIL = "fail"
    RECORD = "record"


class TableFormat(NamedChoice):
    """The format of a table."""

    ICEBERG = "iceberg"
    DELTA = "delta"


class SchemaEvolution(NamedChoice):
    """Allowed changes of a table's schema by a landing: no changes, new columns, or also wider types."""

    NONE = "none"
    ADD = "add"
    WIDEN = "widen"


class UnknownFields(NamedChoice):
    """Treatment of a field without a column."""

    IGNORE = "ignore"
    RESCUE = "rescue"
    EVOLVE = "evolve"
    FAIL = "fail"


class SqlInput(NamedChoice):
    """Input of a SQL statement: keys and values as text, or the decoded columns."""

    RAW = "raw"
    DECODED = "decoded"


class OnError(NamedChoice):
    """Treatment of a bad record."""

    FAIL = "fail"
    REJECT = "reject"
    SKIP = "skip"


class OutOfRange(NamedChoice):
    """Treatment of a database value outside the column's type: a bad record, the nearest value, or NULL."""

    REJECT = "reject"
    CLAMP = "clamp"
    NULL = "null"


class TimestampsFiner(NamedChoice):
    """Treatment of a timestamp or a time finer than microseconds: a bad record, or the microsecond."""

    REJECT = "reject"
    TRUNCATE = "truncate"


class MergeMode(NamedChoice):
    """Way of a mirror's changed rows into the table: new files, deletes in place, or a choice for each file."""

    AUTO = "auto"
    COPY_ON_WRITE = "copy-on-write"
    MERGE_ON_READ = "merge-on-read"


class MaintainMode(NamedChoice):
    """Compaction of small files at the end of a landing's run: when many are there, or never."""

    AUTO = "auto"
    NEVER = "never"


class StateStore(NamedChoice):
    """Store of a streaming query's state in the executors; the checkpoint has the state in either case."""

    MEMORY = "memory"
    ROCKSDB = "rocksdb"


class Tombstones(NamedChoice):
    """Outcome of a record without a value: a row of nulls, only a count, a bad record, or a deletion of its key's row.

    `DELETE` is for a table by key only.
    """

    KEEP = "keep"
    SKIP = "skip"
    REJECT = "reject"
    DELETE = "delete"


def landing_tombstones(argument: str, value: object) -> Tombstones:
    """Return the outcome of tombstones in a landing of records. Raises InvalidArgument, also for `DELETE`."""
    outcome = choose(Tombstones, argument, value)
    if outcome is Tombstones.DELETE:
        problem = "'delete' is for a table by key, whose rows a record can delete."
        remedy = 'Use KafkaMirrorOperator with envelope=None, in a pipeline mode: upsert; or "keep", "skip", "reject".'
        raise InvalidArgument(argument, problem, remedy)
    return outcome


class MissingPolicy(NamedChoice):
    """Reaction to a missing object of a look, or to a failing connection."""

    WAIT = "wait"
    FAIL = "fail"


class OnEmpty(NamedChoice):
    """End of a run without anything to land."""

    SUCCESS = "success"
    SKIP = "skip"


def is_given(value: object) -> bool:
    """Return whether a value is given. A template renders an empty param as the text "None": not a value."""
    return not (value is None or (isinstance(value, str) and value.strip() in ("", "None")))


# The placeholder of the records in a statement: rendered to itself, it is not a template of Airflow.
OF_INPUT = re.compile(r"\{\{-?\s*input\s*-?\}\}")


def is_template(text: str) -> bool:
    """Return whether Airflow renders a text before the run."""
    return any(mark in text for mark in ("{{", "{%", "{#"))


def is_literal(value: object) -> bool:
    """Return whether a value is final: without a template, and not another task's result."""
    if isinstance(value, str):
        return not is_template(value)
    if isinstance(value, Mapping):
        return all(is_literal(part) for item in value.items() for part in item)
    if isinstance(value, list | tuple):
        return all(map(is_literal, value))
    return isinstance(value, int | float | datetime | timedelta)


Choice = TypeVar("Choice", bound=StrEnum)


def choose(kind: type[Choice], argument: str, value: object) -> Choice:
    """Return the member of `kind` named by `value`. Raises UnknownValue with the known names."""
    try:
        return kind(str(value))
    except ValueError:
        raise UnknownValue(argument, value, [member.value for member in kind]) from None


# The most seconds that can be added to a time of today.
_MOST_SECONDS = 1e10
# Seconds of each unit of time.
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(argument: str, value: object) -> float:
    """Return seconds, 0 or more, from a number or a text: "60", "60s", "5m", "500ms", "3d".

    Raises InvalidArgument for any other text, and for more than three hundred years.
    """
    # A small number's text has an exponent.
    if isinstance(value, float) and 0 <= value <= _MOST_SECONDS:
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value))
    if isinstance(value, bool) or match is None or match[2] not in _UNITS:
        raise InvalidArgument(argument, f"{value!r} is not a number of seconds.", 'Write 60, "60s", "5m" or "3d".')
    if (seconds := float(match[1]) * _UNITS[match[2]]) > _MOST_SECONDS:
        raise InvalidArgument(argument, f"{value!r} is more than three hundred years.", "Write a shorter time.")
    return seconds


def with_short_unit(value: object) -> str:
    """Return a time in the notation of `seconds`, "7d", also from words: "7 days", "10 seconds", "2 weeks"."""
    return re.sub(r"^\s*(\d+)\s*(millisecond|second|minute|hour|day|week)s?\s*$", _short_unit, str(value))


def _short_unit(match: re.Match[str]) -> str:
    if match[2] == "week":
        return f"{7 * int(match[1])}d"
    return match[1] + {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}[match[2]]


# Bytes of each unit of size.
_BYTES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "kib": 2**10, "m": 2**20, "mb": 2**20, "mib": 2**20}
_BYTES |= {"g": 2**30, "gb": 2**30, "gib": 2**30}


def size_in_bytes(argument: str, value: object) -> int:
    """Return a positive number of bytes from a number, or from a text like "256 MiB". Raises InvalidArgument.

    All units are powers of 1024: "kb" is 1024 bytes, too.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", str(value).lower())
    if isinstance(value, bool) or match is None or match[2] not in _BYTES or int(match[1]) == 0:
        raise InvalidArgument(argument, f"{value!r} is not a positive size.", 'Write 268435456 or "256MiB".')
    return int(match[1]) * _BYTES[match[2]]


class ValueFormat(NamedChoice):
    """Format of a record's value."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json_schema"
    CSV = "csv"
    RAW = "raw"


class KeyFormat(NamedChoice):
    """Format of a record's key; `RAW` is bytes, `STRING` is text in UTF-8."""

    STRING = "string"
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json_schema"


class ValueEnvelope(NamedChoice):
    """The wrapping around the row in a value.

    `CONNECT` is the {"schema": ..., "payload": ...} of Kafka Connect's JSON converter. `DEBEZIUM` is a change event
    with the row before and after it, with or without Connect's wrapping.
    """

    CONNECT = "connect"
    DEBEZIUM = "debezium"


class DocumentEnvelope(NamedChoice):
    """A program whose JSON documents wrap the changed rows of a MySQL database, for a mirror."""

    MAXWELL = "maxwell"
    CANAL = "canal"


def check_delimiter(text: str) -> None:
    """Raise InvalidArgument unless the text is an ASCII character fit to separate fields."""
    if not re.fullmatch(r"[\t -~]", text) or text == '"':
        raise InvalidArgument("csv_delimiter", f"{text!r} is not one character of ASCII.", 'Write ";", "|" or a tab.')


# Debezium's default placeholder for a value that the database did not send.
UNAVAILABLE = "__debezium_unavailable_value"


class UnavailableValues(NamedChoice):
    """Treatment of a value left out of an event, by an extract: a bad record, or NULL with a note."""

    REJECT = "reject"
    NULL = "null"


def octets_of(placeholder: str) -> bytes:
    """Return the octets of a connector's `unavailable.value.placeholder`, a text or `hex:` with digits.

    Raises InvalidArgument for wrong digits, and for an empty placeholder.
    """
    try:
        placeholder_bytes = bytes.fromhex(placeholder[4:]) if placeholder.startswith("hex:") else placeholder.encode()
    except ValueError:
        placeholder_bytes = b""
    if not placeholder_bytes:
        problem = f"{placeholder!r} is neither a text nor hex: with hexadecimal digits."
        raise InvalidArgument(
            "unavailable_placeholder", problem, "Write the connector's unavailable.value.placeholder."
        )
    return placeholder_bytes
