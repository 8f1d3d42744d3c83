"""The values that parameters may take, and how to write a number of seconds or bytes."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeVar

from airflow_lakestream.exceptions import InvalidArgument, UnknownValue


class ModeName(StrEnum):
    """Which offsets a run covers; see `core.landing.modes`."""

    RESUME = "resume"
    INTERVAL = "interval"
    RANGES = "ranges"


class StartOffset(StrEnum):
    """Where a group's first resume begins."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    COMMITTED = "committed"


class OnDataLoss(StrEnum):
    """What to do when retention removed offsets that should have been landed."""

    FAIL = "fail"
    RECORD = "record"


class TableFormat(StrEnum):
    """The format of a table."""

    ICEBERG = "iceberg"
    DELTA = "delta"

    @classmethod
    def of(cls, table: str) -> TableFormat:
        """Tell it by a table's name: a catalog's is namespace.table, a Delta table's is its path or URI."""
        return cls.DELTA if "/" in table else cls.ICEBERG


class SchemaEvolution(StrEnum):
    """How a landing may change the table's schema: not at all, by new columns, or also by wider types."""

    NONE = "none"
    ADD = "add"
    WIDEN = "widen"


class UnknownFields(StrEnum):
    """What to do with a field that the table has no column for."""

    IGNORE = "ignore"
    RESCUE = "rescue"
    EVOLVE = "evolve"
    FAIL = "fail"


class SqlInput(StrEnum):
    """What a SQL statement reads: keys and values as text, or the decoded columns."""

    RAW = "raw"
    DECODED = "decoded"


class OnError(StrEnum):
    """What to do with a record that can't become a row without loss."""

    FAIL = "fail"
    REJECT = "reject"
    SKIP = "skip"


class OutOfRange(StrEnum):
    """What to do with a database value that the column's type can't hold: a bad record, the nearest value, or NULL."""

    REJECT = "reject"
    CLAMP = "clamp"
    NULL = "null"


class TimestampsFiner(StrEnum):
    """What to do with a timestamp or a time that is finer than microseconds: a bad record, or its microsecond."""

    REJECT = "reject"
    TRUNCATE = "truncate"


class MergeMode(StrEnum):
    """How a mirror's changed rows come into its table: by new files, by deletes in place, or as each file suggests."""

    AUTO = "auto"
    COPY_ON_WRITE = "copy-on-write"
    MERGE_ON_READ = "merge-on-read"


class StateStore(StrEnum):
    """Where executors keep a streaming query's state while it runs; the checkpoint has it in either case."""

    MEMORY = "memory"
    ROCKSDB = "rocksdb"


class Tombstones(StrEnum):
    """What a record without a value becomes: a row of nulls, only a count, or a bad record."""

    KEEP = "keep"
    SKIP = "skip"
    REJECT = "reject"


class Missing(StrEnum):
    """What to do while something that a look needs does not exist, or its connection does not work."""

    WAIT = "wait"
    FAIL = "fail"


class OnEmpty(StrEnum):
    """How a run without anything to land ends."""

    SUCCESS = "success"
    SKIP = "skip"


def is_given(value: object) -> bool:
    """Tell whether there is a value. A template renders an empty param as the text "None", which is none."""
    return not (value is None or (isinstance(value, str) and value.strip() in ("", "None")))


# What stands for the records in a statement: rendered to itself, it is no template of Airflow's.
OF_INPUT = re.compile(r"\{\{-?\s*input\s*-?\}\}")


def is_template(text: str) -> bool:
    """Tell whether a text is rendered by Airflow before a run has it."""
    return any(mark in text for mark in ("{{", "{%", "{#"))


Choice = TypeVar("Choice", bound=StrEnum)


def choose(kind: type[Choice], argument: str, value: object) -> Choice:
    """Return the member of `kind` that `value` names. Raises UnknownValue, which lists the known ones."""
    try:
        return kind(str(value))
    except ValueError:
        raise UnknownValue(argument, value, [member.value for member in kind]) from None


# What can be added to a time of today.
_MOST_SECONDS = 1e10
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(argument: str, value: object) -> float:
    """Return a positive number of seconds from a number, or from text such as "60", "60s", "5m", "500ms", "3d"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value))
    if isinstance(value, bool) or match is None or match[2] not in _UNITS:
        raise InvalidArgument(argument, f"{value!r} is not a number of seconds.", 'Write 60, "60s", "5m" or "3d".')
    if (found := float(match[1]) * _UNITS[match[2]]) > _MOST_SECONDS:
        raise InvalidArgument(argument, f"{value!r} is more than three hundred years.", "Write a shorter time.")
    return found


_BYTES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "kib": 2**10, "m": 2**20, "mb": 2**20, "mib": 2**20}
_BYTES |= {"g": 2**30, "gb": 2**30, "gib": 2**30}


def size_in_bytes(argument: str, value: object) -> int:
    """Return a positive number of bytes from a number, or from text such as "256 MiB"."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", str(value).lower())
    if isinstance(value, bool) or match is None or match[2] not in _BYTES or int(match[1]) == 0:
        raise InvalidArgument(argument, f"{value!r} is not a positive size.", 'Write 268435456 or "256MiB".')
    return int(match[1]) * _BYTES[match[2]]
