"""Kinds of values in each column of JSON documents, the best types for each, and values unfit for a type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.document import Json, JsonNumber, parse_object, to_text
from airflow_lakestream.decode.values import iso8601
from airflow_lakestream.decode.values.outcome import Misfit
from airflow_lakestream.onramp.shown import excerpt
from airflow_lakestream.tables.schema.time_sources import EpochUnit, Path, TimeSource
from airflow_lakestream.tables.schema.types import type_text

# Deeper columns are part of the reported column.
_DEEPEST = 4


class ValueKind(StrEnum):
    """Kind of a JSON value, distinguished only if it matters for the type of a column."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    EPOCH_S = f"integer, likely {EpochUnit.SECONDS.words}"
    EPOCH_MS = f"integer, likely {EpochUnit.MILLISECONDS.words}"
    EPOCH_US = f"integer, likely {EpochUnit.MICROSECONDS.words}"
    EPOCH_NS = f"integer, likely {EpochUnit.NANOSECONDS.words}"
    FRACTION = "number with a fraction"
    EPOCH_S_FRACTION = f"number with a fraction, likely {EpochUnit.SECONDS.words}"
    EPOCH_MS_FRACTION = f"number with a fraction, likely {EpochUnit.MILLISECONDS.words}"
    ZONED = "time with a zone"
    NAIVE = "time without a zone"
    TEXT = "text"
    OBJECT = "object"
    ARRAY = "array"


_LIKELY = {
    ValueKind.EPOCH_S: EpochUnit.SECONDS,
    ValueKind.EPOCH_MS: EpochUnit.MILLISECONDS,
    ValueKind.EPOCH_US: EpochUnit.MICROSECONDS,
    ValueKind.EPOCH_NS: EpochUnit.NANOSECONDS,
}
_LIKELY_FRACTION = {ValueKind.EPOCH_S_FRACTION: EpochUnit.SECONDS, ValueKind.EPOCH_MS_FRACTION: EpochUnit.MILLISECONDS}
_LIKELIEST = _LIKELY | _LIKELY_FRACTION
_INTEGERS = frozenset({ValueKind.INTEGER, *_LIKELY})
_NUMBERS = _INTEGERS | {ValueKind.FRACTION, *_LIKELY_FRACTION}
# The kinds that a type takes unchanged. A string takes every kind; other types are not listed.
_TAKEN: Mapping[type[Any], frozenset[ValueKind]] = {
    iceberg.BooleanType: frozenset({ValueKind.BOOLEAN}),
    iceberg.IntegerType: frozenset({ValueKind.INTEGER}),
    iceberg.LongType: _INTEGERS,
    iceberg.FloatType: _NUMBERS,
    iceberg.DoubleType: _NUMBERS,
    iceberg.TimestamptzType: frozenset({ValueKind.ZONED}),
    iceberg.TimestampType: frozenset({ValueKind.NAIVE}),
    iceberg.StructType: frozenset({ValueKind.OBJECT}),
    iceberg.ListType: frozenset({ValueKind.ARRAY}),
}
# By kind, the type that takes it best.
_BEST = {
    ValueKind.BOOLEAN: "boolean",
    **dict.fromkeys(_INTEGERS, "bigint"),
    **dict.fromkeys(_NUMBERS - _INTEGERS, "double"),
    ValueKind.ZONED: "timestamp",
    ValueKind.NAIVE: "timestamp_ntz",
}
_EPOCH_REMEDY = 'likely times: in --schema, "{name} timestamp from {unit}" makes instants of them'
_NAIVE_REMEDY = (
    "the zone is missing: in --schema, \"{name} timestamp at time zone 'UTC'\", or another zone, makes instants of them"
)


@dataclass(frozen=True)
class KindCount:
    """A kind of values of a column: the number of values, and the first value with partition and offset."""

    kind: ValueKind
    count: int
    partition: int
    offset: int
    value: str

    def __str__(self) -> str:
        return f"{self.count} {self.kind} (such as [{self.partition}] {self.offset}: {self.value})"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {**asdict(self), "kind": str(self.kind)}


Kinds = Mapping[str, Sequence[KindCount]]


def kinds_of(batches: Sequence[RawBatch]) -> Kinds:
    """Return, by column, the kinds of values in the documents; a field of an object is `object.field`.

    The most frequent kind comes first. Nulls, and values that are not a JSON object, are skipped. Fields more than four
    levels deep count only as part of their object.
    """
    found: dict[str, dict[ValueKind, KindCount]] = {}
    for batch in batches:
        for offset, value in zip(batch.offsets, batch.values.to_pylist(), strict=True):
            with suppress(Misfit):
                document = parse_object(value) if value is not None else {}
                for name, kind, one in _values(document, ""):
                    kinds = found.setdefault(name, {})
                    kind_count = kinds.get(kind) or KindCount(
                        kind, 0, batch.partition, offset, excerpt(one if type(one) is str else to_text(one), 40)
                    )
                    kinds[kind] = replace(kind_count, count=kind_count.count + 1)
    return {name: sorted(kinds.values(), key=lambda one: -one.count) for name, kinds in found.items()}


def remarks(columns: Schema, kinds: Kinds, times: Mapping[Path, TimeSource]) -> Iterator[str]:
    """Yield remarks about columns, for a person to decide before the table is made.

    A remark is about values that the type of their column does not take unchanged, numbers that are likely times, or
    times without a zone.

    :param columns: the planned columns.
    :param kinds: from `kinds_of`.
    :param times: columns whose times are made from another type, by path: they take numbers, or times without a zone.
    """
    made = {".".join(path): _NUMBERS if source.unit else frozenset({ValueKind.NAIVE}) for path, source in times.items()}
    types = {columns.find_column_name(field_id): field.field_type for field_id, field in _fields(columns).items()}
    for name, kind_counts in kinds.items():
        chosen = types.get(name)
        if chosen is None:
            continue
        taken, last = made.get(name) or _TAKEN.get(type(chosen)), name.rpartition(".")[2]
        is_taken = taken is not None and all(one.kind in taken for one in kind_counts)
        if not is_taken and (len(kind_counts) > 1 or taken is not None):
            meaning = _meaning(name, type_text(chosen), kind_counts, taken)
            yield f"{name}: {'; '.join(map(str, kind_counts))}. {meaning}".rstrip()
        elif len(kind_counts) > 1 or name in made:
            continue
        elif (unit := _LIKELIEST.get(kind_counts[0].kind)) and not isinstance(chosen, iceberg.StringType):
            yield f"{name}: {kind_counts[0]}: {_EPOCH_REMEDY.format(name=last, unit=unit)}"
        elif kind_counts[0].kind is ValueKind.NAIVE and isinstance(chosen, iceberg.TimestampType):
            yield f"{name}: {kind_counts[0]}: {_NAIVE_REMEDY.format(name=last)}"


def _meaning(name: str, chosen: str, kind_counts: Sequence[KindCount], taken: frozenset[ValueKind] | None) -> str:
    """Describe the fate of each kind under the chosen type, and under the type of the most frequent kind.

    The text may be empty.

    :param chosen: the column's type, as text.
    :param taken: the kinds that this type takes unchanged; None for a string and for unlisted types.
    """
    if taken is not None:
        bad = sum(one.count for one in kind_counts if one.kind not in taken)
        text = f"As {chosen}, {bad} of these values are bad records."
        likely = [one.kind for one in kind_counts if one.kind not in taken and one.kind in _LIKELIEST]
        if chosen != "timestamp" or not likely:
            return text
        return f"{text} They are {_EPOCH_REMEDY.format(name=name.rpartition('.')[2], unit=_LIKELIEST[likely[0]])}."
    best, others_count = _BEST.get(kind_counts[0].kind), sum(one.count for one in kind_counts[1:])
    if chosen != "string":
        return ""
    if best is None:
        return "As string all are kept, as their text."
    text_if_string = f'As string all are kept, as their text; with --schema "{name} {best}, ..." {others_count} '
    return text_if_string + ("is a bad record." if others_count == 1 else "are bad records.")


def _fields(columns: Schema) -> Mapping[int, Any]:
    return {one: columns.find_field(one) for one in columns.field_ids}


def _values(document: Mapping[str, Json], above: str) -> Iterator[tuple[str, ValueKind, Json]]:
    for name, value in document.items():
        if value is None:
            continue
        path = f"{above}{name}"
        yield path, _kind(value), value
        if isinstance(value, dict) and path.count(".") < _DEEPEST:
            yield from _values(value, f"{path}.")


def _kind(value: Json) -> ValueKind:
    if isinstance(value, bool):
        return ValueKind.BOOLEAN
    if isinstance(value, JsonNumber):
        is_whole, unit = value.is_integer_literal, iso8601.epoch_unit(value)
        likely = _LIKELY if is_whole else _LIKELY_FRACTION
        usual = ValueKind.INTEGER if is_whole else ValueKind.FRACTION
        return next((kind for kind, one in likely.items() if one is unit), usual)
    if isinstance(value, str):
        return next((kind for kind in (ValueKind.ZONED, ValueKind.NAIVE) if _is_time(value, kind)), ValueKind.TEXT)
    return ValueKind.OBJECT if isinstance(value, dict) else ValueKind.ARRAY


def _is_time(text: str, kind: ValueKind) -> bool:
    if len(text) < len("2026-11-20T05:05"):
        return False
    try:
        iso8601.micros(text, zoned=kind is ValueKind.ZONED)
    except Misfit:
        return False
    return True
