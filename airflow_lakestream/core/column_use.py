"""Columns with values in records, and record fields without a column.

A field without a column is left out, as `unknown_fields="ignore"` asks; but a column without a value may be meant for
the field, under another name. The figures go from the decoder, through other processes, to the committing run. Pure
values, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_lakestream.core.source_types import EventColumnType, combined_types
from airflow_lakestream.exceptions import LakestreamError, Terminal

# The parts of a record whose fields are checked.
VALUE, KEY = "value", "key"
# Fields that an error names, and silent columns that a landing names.
MOST_FIELDS = 8
_MOST_SILENT = 50
# Fewer records do not show a topic's state: somebody may have sent them by hand.
_LEAST = 10


@dataclass(frozen=True, slots=True)
class UnmappedFields:
    """Records without a matching column: the count, a few fields, and the first record's place."""

    count: int
    fields: tuple[str, ...]
    at: str

    def __add__(self, later: UnmappedFields) -> UnmappedFields:
        fields = tuple(dict.fromkeys((*self.fields, *later.fields)))[:MOST_FIELDS]
        return UnmappedFields(self.count + later.count, fields, self.at)


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """Columns with and without values, and fields without a column.

    `columns` are the rows' columns, `filled` the columns with a value and, by path, the nested fields with a value.
    `near` maps the path of a column without a value to a field without a column that has almost the same name. `placed`
    are the parts of records with a field that has a column; `foreign` describes the records of a part without such a
    field. `types` are the columns' types in the records' schemas, by path; see `core.source_types`.
    """

    columns: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    near: Mapping[str, str] = field(default_factory=dict)
    placed: frozenset[str] = frozenset()
    foreign: Mapping[str, UnmappedFields] = field(default_factory=dict)
    types: Mapping[str, EventColumnType] = field(default_factory=dict)

    def __add__(self, later: ColumnUse) -> ColumnUse:
        foreign = dict(self.foreign)
        for part, unmapped in later.foreign.items():
            foreign[part] = foreign[part] + unmapped if part in foreign else unmapped
        return ColumnUse(
            self.columns | later.columns,
            self.filled | later.filled,
            {**later.near, **self.near},
            self.placed | later.placed,
            foreign,
            combined_types(self.types, later.types),
        )

    def silent(self, known: Iterable[str]) -> dict[str, str]:
        """Return the silent columns, each with the field of almost the same name, or an empty text.

        A column without a value is silent if it got values before, if it is the only empty one of several columns, or
        if a field without a column has almost its name. At most _MOST_SILENT columns are returned.

        :param known: columns that got values before.
        """
        empty = self.columns - self.filled
        silent = empty.intersection(known)
        if len(empty) == 1 < len(self.columns):
            silent |= empty
        near = {path: name for path, name in self.near.items() if path not in self.filled}
        names = sorted(silent | set(near))[:_MOST_SILENT]
        return {name: near.get(name, "") for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "columns": sorted(self.columns),
            "filled": sorted(self.filled),
            "near": dict(self.near),
            "placed": sorted(self.placed),
            "foreign": {part: [one.count, list(one.fields), one.at] for part, one in self.foreign.items()},
            "types": {path: one.to_dict() for path, one in self.types.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ColumnUse:
        """Parse the values of `to_dict`. Raises KeyError, TypeError and ValueError."""
        foreign = {
            part: UnmappedFields(int(count), tuple(fields), str(place))
            for part, (count, fields, place) in data["foreign"].items()
        }
        columns, filled, placed = (frozenset(data[name]) for name in ("columns", "filled", "placed"))
        types = {str(path): EventColumnType.from_dict(item) for path, item in data["types"].items()}
        return cls(columns, filled, dict(data["near"]), placed, foreign, types)


class NoFieldHasColumn(LakestreamError, Terminal):
    """No field of the records has a column: every row would be empty."""

    def __init__(self, table: str, part: str, foreign: UnmappedFields, use: ColumnUse) -> None:
        self.table, self.part, self.foreign = table, part, foreign
        near = {path: name for path, name in use.near.items() if path not in use.filled}
        hint = "".join(f" The column {path!r} is almost called as the field {name!r}." for path, name in near.items())
        whose = "keys" if part == KEY else "records"
        columns = ", ".join(sorted(use.columns)[:MOST_FIELDS])
        super().__init__(
            f"{table}: no field of {foreign.count} {whose} from {foreign.at} on has a column, so their rows would be "
            f"empty: the fields are {', '.join(foreign.fields)}; the columns are {columns}. Names match exactly.{hint} "
            "Uncommitted records were discarded. Correct the schema, rename the table's columns, or let "
            'sql rename the fields; unknown_fields="evolve" adds columns for them, "rescue" keeps them as text.'
        )


def check_use(table: str, use: ColumnUse, *, is_first: bool) -> None:
    """Refuse records without any field that has a column. Raises NoFieldHasColumn.

    Values and keys are checked each on their own. Fewer than _LEAST such records are let pass.

    :param is_first: the group has landed nothing yet; a single record is then enough for a refusal.
    """
    for part, foreign in use.foreign.items():
        if part not in use.placed and (is_first or foreign.count >= _LEAST):
            raise NoFieldHasColumn(table, part, foreign, use)


def silent_texts(silent: Mapping[str, str]) -> list[str]:
    """Return silent columns as texts."""
    return [f"{name} (the records have a field {near!r})" if near else name for name, near in silent.items()]


def in_both(first: Mapping[str, str] | None, later: Mapping[str, str]) -> Mapping[str, str]:
    """Return the columns silent in both landings; without a first landing, the columns of the second."""
    return later if first is None else {name: near or first[name] for name, near in later.items() if name in first}
