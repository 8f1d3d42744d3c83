"""Kinds of values in each column of JSON documents, the best types for them, and remarks about unfit types.

Previews and the first run of a landing report such remarks before a table has its columns for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.document import Json, JsonNumber, parse_object, to_text
from airflow_lakestream.decode.values import iso8601
from airflow_lakestream.decode.values.outcome import Misfit, excerpt
from airflow_lakestream.tables.schema.types import ELEMENT, EpochUnit, Path, TimeSource, type_text

# The deepest level of a reported column; each object and each list is one level.
_DEEPEST = 5
# The most items of a list that are counted: a list may be as long as a document of megabytes.
_MOST_ITEMS = 100


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
LIKELY_UNITS: Mapping[ValueKind, EpochUnit] = _LIKELY | _LIKELY_FRACTION
_INTEGER_OF: Mapping[EpochUnit | None, ValueKind] = {unit: kind for kind, unit in _LIKELY.items()}
_FRACTION_OF: Mapping[EpochUnit | None, ValueKind] = {unit: kind for kind, unit in _LIKELY_FRACTION.items()}
_INTEGERS = frozenset({ValueKind.INTEGER, *_LIKELY})
_NUMBERS = _INTEGERS | {ValueKind.FRACTION, *_LIKELY_FRACTION}
# The kinds of values that a type takes unchanged. A string takes all kinds; for types outside of this table, nothing
# is known.
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
# By kind of values, the best type for the kind, and the kinds that this type takes unchanged.
_BEST = {
    ValueKind.BOOLEAN: ("boolean", frozenset({ValueKind.BOOLEAN})),
    ValueKind.INTEGER: ("bigint", _INTEGERS),
    ValueKind.FRACTION: ("double", _NUMBERS),
    ValueKind.ZONED: ("timestamp", frozenset({ValueKind.ZONED})),
    ValueKind.NAIVE: ("timestamp_ntz", frozenset({ValueKind.NAIVE})),
    **{kind: (f"timestamp from {unit}", _NUMBERS) for kind, unit in LIKELY_UNITS.items()},
}
_NAIVE_REMEDY = "Their zone is missing. To land them as instants, write {column}, or another zone, in {where}."


@dataclass(frozen=True)
class KindCount:
    """A kind of values in a column: the number of values, and the first value with partition and offset."""

    kind: ValueKind
    count: int
    partition: int
    offset: int
    value: str

    def __str__(self) -> str:
        # The first word of a kind, such as "time with a zone", gets the plural's s.
        noun, _, further = str(self.kind).replace(",", " ,").partition(" ")
        words = f"{noun}{'' if self.count == 1 else 's'} {further}".rstrip().replace(" ,", ",")
        return f"{self.count} {words} (such as {self.value} at [{self.partition}] {self.offset})"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {**asdict(self), "kind": str(self.kind)}


Kinds = Mapping[str, Sequence[KindCount]]


@dataclass
class _KindSeen:
    """The first value of a kind with its position, and the number of values so far."""

    partition: int
    offset: int
    first: Json
    count: int = 0

    def counted(self, kind: ValueKind) -> KindCount:
        text = self.first if type(self.first) is str else to_text(self.first)
        return KindCount(kind, self.count, self.partition, self.offset, excerpt(text, 40))


def kinds_of(batches: Sequence[RawBatch]) -> Kinds:
    """Return, by column, the kinds of values in the documents.

    A field of an object is `object.field`, a value of a list `list[]`. The most frequent kind comes first. Nulls, and
    values that are not a JSON object, are skipped. Fields more than five levels deep count only as part of their
    object, and so do the values of a list after its hundredth.
    """
    by_column: dict[str, dict[ValueKind, _KindSeen]] = {}
    for batch in batches:
        for offset, value in zip(batch.offsets, batch.values.to_pylist(), strict=True):
            with suppress(Misfit):
                document = parse_object(value) if value is not None else {}
                for name, kind, inner_value in _values(document, "", 0):
                    kinds = by_column.setdefault(name, {})
                    if kind not in kinds:
                        kinds[kind] = _KindSeen(batch.partition, offset, inner_value)
                    kinds[kind].count += 1
    return {
        name: sorted((seen.counted(kind) for kind, seen in kinds.items()), key=lambda counted: -counted.count)
        for name, kinds in by_column.items()
    }


def remarks(columns: Schema, kinds: Kinds, times: Mapping[Path, TimeSource], where: str = "--schema") -> Iterator[str]:
    """Yield remarks about columns, which help a person to choose the types before the table is made.

    A remark is about values that the type of their column does not take unchanged, numbers that are likely times, or
    times without a zone.

    :param columns: the planned columns.
    :param kinds: from `kinds_of`.
    :param times: columns whose times are made from another type, by path: they take numbers, or times without a zone.
    :param where: the place of the columns' DDL, for the remedy.
    """
    naive = frozenset({ValueKind.NAIVE})
    taken_by_times = {".".join(path): _NUMBERS if source.unit else naive for path, source in times.items()}
    types = {columns.find_column_name(field_id): field.field_type for field_id, field in _fields(columns).items()}
    for name, kind_counts in kinds.items():
        path = ".".join(path_of(name))
        chosen = types.get(path)
        if chosen is None:
            continue
        taken = taken_by_times.get(path) or _TAKEN.get(type(chosen))
        is_taken = taken is not None and all(counted.kind in taken for counted in kind_counts)
        if not is_taken and (len(kind_counts) > 1 or taken is not None):
            meaning = _meaning(name, type_text(chosen), kind_counts, taken, where)
            yield f"{name}: {'; '.join(map(str, kind_counts))}. {meaning}".rstrip()
        elif path in taken_by_times:
            continue
        elif (unit := likely_unit(kind_counts)) and not isinstance(chosen, iceberg.StringType):
            yield f"{name}: {'; '.join(map(str, kind_counts))}. {_epoch_remedy(name, unit, where)}"
        elif kind_counts[0].kind is ValueKind.NAIVE and isinstance(chosen, iceberg.TimestampType):
            column = _ddl(name, "timestamp at time zone 'UTC'")
            yield f"{name}: {kind_counts[0]}. {_NAIVE_REMEDY.format(column=column, where=where)}"


def likely_unit(kind_counts: Sequence[KindCount]) -> EpochUnit | None:
    """Return the unit if all values of a column are numbers that are likely times of this unit, else None."""
    units = {LIKELY_UNITS.get(counted.kind) for counted in kind_counts}
    return units.pop() if len(units) == 1 else None


def path_of(name: str) -> Path:
    """Return the path in a schema for a column's name of `kinds_of`: `a[].b` is ("a", "element", "b")."""
    return tuple(name.replace("[]", f".{ELEMENT}").split("."))


def _epoch_remedy(name: str, unit: EpochUnit, where: str) -> str:
    return f"To land them as times, write {_ddl(name, f'timestamp from {unit}')} in {where}."


def _ddl(name: str, kind: str) -> str:
    """Return a column's definition in double quotes; for a list's values, the definition of the list."""
    column = name.rpartition(".")[2]
    while column.endswith("[]"):
        column, kind = column.removesuffix("[]"), f"array<{kind}>"
    return f'"{column} {kind}"'


def _meaning(
    name: str, chosen: str, kind_counts: Sequence[KindCount], taken: frozenset[ValueKind] | None, where: str
) -> str:
    """Return the number of bad records under the chosen type, or under the best type of the most frequent kind.

    The text may be empty.

    :param chosen: the column's type, as text.
    :param taken: the kinds that this type takes unchanged; None for a string and for unlisted types.
    """
    if taken is not None:
        text = f"As {chosen}, {_bad_records(kind_counts, taken)}."
        likely = [c.kind for c in kind_counts if c.kind not in taken and c.kind in LIKELY_UNITS]
        if chosen != "timestamp" or not likely:
            return text
        return f"{text} {_epoch_remedy(name, LIKELY_UNITS[likely[0]], where)}"
    if chosen != "string":
        return ""
    kept = "As string all are kept, as their text"
    best = _BEST.get(kind_counts[0].kind)
    if best is None:
        return f"{kept}."
    kind, fitting = best
    return f"{kept}. With {_ddl(name, kind)} in {where}, {_bad_records(kind_counts, fitting)}."


def _bad_records(kind_counts: Sequence[KindCount], taken: frozenset[ValueKind]) -> str:
    count = sum(counted.count for counted in kind_counts if counted.kind not in taken)
    return f"{count} of these values " + ("is a bad record" if count == 1 else "are bad records")


def _fields(columns: Schema) -> Mapping[int, Any]:
    return {field_id: columns.find_field(field_id) for field_id in columns.field_ids}


def _values(document: Mapping[str, Json], above: str, depth: int) -> Iterator[tuple[str, ValueKind, Json]]:
    for name, value in document.items():
        yield from _with_inner(f"{above}{name}", value, depth)


def _with_inner(path: str, value: Json, depth: int) -> Iterator[tuple[str, ValueKind, Json]]:
    """Yield path, kind and value of a value and its inner values, down to _DEEPEST levels and _MOST_ITEMS items."""
    if value is None:
        return
    yield path, _kind(value), value
    if depth == _DEEPEST:
        return
    if isinstance(value, dict):
        yield from _values(value, f"{path}.", depth + 1)
    elif isinstance(value, list):
        for item in value[:_MOST_ITEMS]:
            yield from _with_inner(f"{path}[]", item, depth + 1)


def _kind(value: Json) -> ValueKind:
    if isinstance(value, bool):
        return ValueKind.BOOLEAN
    if isinstance(value, JsonNumber):
        unit = iso8601.epoch_unit(value)
        if value.is_integer_literal:
            return _INTEGER_OF.get(unit, ValueKind.INTEGER)
        return _FRACTION_OF.get(unit, ValueKind.FRACTION)
    if isinstance(value, str):
        return _kind_of_text(value)
    return ValueKind.OBJECT if isinstance(value, dict) else ValueKind.ARRAY


def _kind_of_text(text: str) -> ValueKind:
    # A fast check, which is enough for most texts.
    if len(text) < len("2026-11-20T05:05") or text[4] != "-":
        return ValueKind.TEXT
    for kind in (ValueKind.ZONED, ValueKind.NAIVE):
        with suppress(Misfit):
            iso8601.micros(text, zoned=kind is ValueKind.ZONED)
            return kind
    return ValueKind.TEXT
