"""The kinds of values that JSON documents have in each column: what a type is chosen by, and what it does to others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.document import Json, Number, parse_object, to_text
from airflow_lakestream.decode.values import iso8601
from airflow_lakestream.decode.values.outcome import Misfit
from airflow_lakestream.onramp.shown import excerpt
from airflow_lakestream.tables.schema.types import type_text

# Deeper columns are a part of the one that is told.
_DEEPEST = 4


class Kind(StrEnum):
    """What a JSON value is, as far as types of columns tell it apart."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    EPOCH_MS = "integer, likely milliseconds since the epoch"
    FRACTION = "number with a fraction"
    ZONED = "time with a zone"
    NAIVE = "time without a zone"
    TEXT = "text"
    OBJECT = "object"
    ARRAY = "array"


# The kinds that a type takes as they are; a string takes all.
_TAKEN: Mapping[type[Any], frozenset[Kind]] = {
    iceberg.BooleanType: frozenset({Kind.BOOLEAN}),
    iceberg.LongType: frozenset({Kind.INTEGER, Kind.EPOCH_MS}),
    iceberg.DoubleType: frozenset({Kind.INTEGER, Kind.EPOCH_MS, Kind.FRACTION}),
    iceberg.TimestamptzType: frozenset({Kind.ZONED}),
    iceberg.TimestampType: frozenset({Kind.NAIVE}),
    iceberg.StructType: frozenset({Kind.OBJECT}),
    iceberg.ListType: frozenset({Kind.ARRAY}),
}
# By kind, the type that takes it best.
_BEST = {
    Kind.BOOLEAN: "boolean",
    Kind.INTEGER: "bigint",
    Kind.EPOCH_MS: "bigint",
    Kind.FRACTION: "double",
    Kind.ZONED: "timestamp",
    Kind.NAIVE: "timestamp_ntz",
}
_EPOCH_REMEDY = (
    'likely times: to land them as such, --sql-input decoded --schema "{name} bigint, ..." '
    '--sql "SELECT ..., make_timestamptz({name} * 1000) AS {name} FROM {{{{ input }}}}"'
)
_NAIVE_REMEDY = (
    "no zone is said: if it is not UTC, land instants by --sql-input decoded and "
    "\"SELECT ..., timezone('Europe/Berlin', {name}) AS {name} FROM {{{{ input }}}}\""
)


@dataclass(frozen=True)
class KindSeen:
    """A kind of values of one column: how many there are, and one of them with its place."""

    kind: Kind
    count: int
    partition: int
    offset: int
    value: str

    def __str__(self) -> str:
        return f"{self.count} {self.kind} (such as [{self.partition}] {self.offset}: {self.value})"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {**asdict(self), "kind": str(self.kind)}


Kinds = Mapping[str, Sequence[KindSeen]]


def kinds_of(batches: Sequence[RawBatch]) -> Kinds:
    """Return what the documents have in each column, by its name, that of a field in an object behind a point.

    The most frequent kind comes first. Nulls, and values that are no JSON object, say nothing.
    """
    found: dict[str, dict[Kind, KindSeen]] = {}
    for batch in batches:
        for offset, value in zip(batch.offsets, batch.values.to_pylist(), strict=True):
            with suppress(Misfit):
                document = parse_object(value) if value is not None else {}
                for name, kind, one in _values(document, ""):
                    kinds = found.setdefault(name, {})
                    seen = kinds.get(kind) or KindSeen(
                        kind, 0, batch.partition, offset, excerpt(one if type(one) is str else to_text(one), 40)
                    )
                    kinds[kind] = replace(seen, count=seen.count + 1)
    return {name: sorted(kinds.values(), key=lambda one: -one.count) for name, kinds in found.items()}


def remarks(columns: Schema, kinds: Kinds) -> Iterator[str]:
    """Yield what a person should know before a table has these columns: mixed kinds, and numbers that are times."""
    types = {columns.find_column_name(field_id): field.field_type for field_id, field in _fields(columns).items()}
    for name, seen in kinds.items():
        chosen = types.get(name)
        if chosen is None:
            continue
        taken = _TAKEN.get(type(chosen))
        if len(seen) > 1 and not (taken and all(one.kind in taken for one in seen)):
            yield f"{name}: {'; '.join(map(str, seen))}. {_meaning(name, type_text(chosen), seen, taken)}"
        elif seen[0].kind is Kind.EPOCH_MS and len(seen) == 1 and isinstance(chosen, iceberg.LongType):
            yield f"{name}: {seen[0]}: {_EPOCH_REMEDY.format(name=name)}"
        elif seen[0].kind is Kind.NAIVE and len(seen) == 1 and isinstance(chosen, iceberg.TimestampType):
            yield f"{name}: {seen[0]}: {_NAIVE_REMEDY.format(name=name)}"


def _meaning(name: str, chosen: str, seen: Sequence[KindSeen], taken: frozenset[Kind] | None) -> str:
    """Say what becomes of each kind by the type that was chosen, and by the one of the most frequent kind."""
    if taken is not None:
        bad = sum(one.count for one in seen if one.kind not in taken)
        return f"As {chosen}, {bad} of these values are bad records."
    best, others = _BEST.get(seen[0].kind), sum(one.count for one in seen[1:])
    if best is None or chosen != "string":
        return f"As {chosen} all are kept, as their text."
    kept = f'As string all are kept, as their text; with --schema "{name} {best}, ..." {others} '
    return kept + ("is a bad record." if others == 1 else "are bad records.")


def _fields(columns: Schema) -> Mapping[int, Any]:
    return {one: columns.find_field(one) for one in columns.field_ids}


def _values(document: Mapping[str, Json], above: str) -> Iterator[tuple[str, Kind, Json]]:
    for name, value in document.items():
        if value is None:
            continue
        path = f"{above}{name}"
        yield path, _kind(value), value
        if isinstance(value, dict) and path.count(".") < _DEEPEST:
            yield from _values(value, f"{path}.")


def _kind(value: Json) -> Kind:
    if isinstance(value, bool):
        return Kind.BOOLEAN
    if isinstance(value, Number):
        if not value.is_integer_literal:
            return Kind.FRACTION
        return Kind.EPOCH_MS if iso8601.epoch_unit(value) == "milliseconds" else Kind.INTEGER
    if isinstance(value, str):
        return next((kind for kind in (Kind.ZONED, Kind.NAIVE) if _is_time(value, kind)), Kind.TEXT)
    return Kind.OBJECT if isinstance(value, dict) else Kind.ARRAY


def _is_time(text: str, kind: Kind) -> bool:
    if len(text) < len("2026-11-20T05:05"):
        return False
    try:
        iso8601.micros(text, zoned=kind is Kind.ZONED)
    except Misfit:
        return False
    return True
