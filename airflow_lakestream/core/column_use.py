"""The columns that records had values for, and the fields of theirs that have no column.

A field without a column is left out, which is what `unknown_fields="ignore"` asks for; but a column that gets nothing
may be the field's own, under another name. The figures go from the decoder, through other processes, to the committing
run. Pure values, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_lakestream.core.source_types import SeenType, all_seen
from airflow_lakestream.exceptions import LakestreamError, Terminal

# The parts of a record whose fields are looked at.
VALUE, KEY = "value", "key"
# Fields that an error names, and columns that a landing does.
MOST_FIELDS = 8
_MOST_SILENT = 50
# Fewer records than these say little about a topic: somebody may have sent them by hand.
_LEAST = 10


@dataclass(frozen=True, slots=True)
class Foreign:
    """Records whose fields have no column: how many, some of the fields, and the place of the first."""

    count: int
    fields: tuple[str, ...]
    at: str

    def __add__(self, later: Foreign) -> Foreign:
        fields = tuple(dict.fromkeys((*self.fields, *later.fields)))[:MOST_FIELDS]
        return Foreign(self.count + later.count, fields, self.at)


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """Which columns got values.

    `columns` are the rows' own, `filled` those that got one, and what is inside them by its path. `near` names, by
    path, a field without a column whose name is almost that of a column without a value. `placed` are the parts of
    records that have a field with a column, `foreign` describes the records of a part that have no such field. `types`
    are what the records' schemas say of the columns, by path; see `core.source_types`.
    """

    columns: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    near: Mapping[str, str] = field(default_factory=dict)
    placed: frozenset[str] = frozenset()
    foreign: Mapping[str, Foreign] = field(default_factory=dict)
    types: Mapping[str, SeenType] = field(default_factory=dict)

    def __add__(self, later: ColumnUse) -> ColumnUse:
        foreign = dict(self.foreign)
        for part, one in later.foreign.items():
            foreign[part] = foreign[part] + one if part in foreign else one
        return ColumnUse(
            self.columns | later.columns,
            self.filled | later.filled,
            {**later.near, **self.near},
            self.placed | later.placed,
            foreign,
            all_seen(self.types, later.types),
        )

    def silent(self, known: Iterable[str]) -> dict[str, str]:
        """Return the columns that should have got a value, with the field that is almost called so, or no text.

        :param known: columns that got values before.
        """
        empty = self.columns - self.filled
        found = empty.intersection(known)
        if len(empty) == 1 < len(self.columns):
            found |= empty
        near = {path: name for path, name in self.near.items() if path not in self.filled}
        names = sorted(found | set(near))[:_MOST_SILENT]
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
        """Read what `to_dict` gave. Raises KeyError, TypeError and ValueError."""
        foreign = {part: Foreign(int(n), tuple(fields), str(at)) for part, (n, fields, at) in data["foreign"].items()}
        columns, filled, placed = (frozenset(data[name]) for name in ("columns", "filled", "placed"))
        types = {str(path): SeenType.from_dict(one) for path, one in data["types"].items()}
        return cls(columns, filled, dict(data["near"]), placed, foreign, types)


class NoFieldHasColumn(LakestreamError, Terminal):
    """No field of the records has a column: every row would be empty."""

    def __init__(self, table: str, part: str, foreign: Foreign, use: ColumnUse) -> None:
        self.table, self.part, self.foreign = table, part, foreign
        near = {path: name for path, name in use.near.items() if path not in use.filled}
        hint = "".join(f" The column {path!r} is almost called as the field {name!r}." for path, name in near.items())
        whose = "keys" if part == KEY else "records"
        columns = ", ".join(sorted(use.columns)[:MOST_FIELDS])
        super().__init__(
            f"{table}: no field of {foreign.count} {whose} from {foreign.at} on has a column, so their rows would be "
            f"empty: the fields are {', '.join(foreign.fields)}; the columns are {columns}. Names match exactly.{hint} "
            "What the run had not committed yet was discarded. Correct the schema, rename the table's columns, or let "
            'sql rename the fields; unknown_fields="evolve" adds columns for them, "rescue" keeps them as text.'
        )


def check_use(table: str, use: ColumnUse, *, is_first: bool) -> None:
    """Refuse rows that would all be empty. Raises NoFieldHasColumn.

    :param is_first: the group has landed nothing yet, so that a single record counts.
    """
    for part, foreign in use.foreign.items():
        if part not in use.placed and (is_first or foreign.count >= _LEAST):
            raise NoFieldHasColumn(table, part, foreign, use)


def silent_texts(silent: Mapping[str, str]) -> list[str]:
    """Return silent columns as texts."""
    return [f"{name} (the records have a field {near!r})" if near else name for name, near in silent.items()]


def in_both(one: Mapping[str, str] | None, other: Mapping[str, str]) -> Mapping[str, str]:
    """Return the silent columns of two landings together; None stands for no landing."""
    return other if one is None else {name: near or one[name] for name, near in other.items() if name in one}
