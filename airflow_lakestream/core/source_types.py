"""Types of a database's columns by the schemas of change events, as kept in the ledger of a table.

JSON and Avro have a date, and a time, as a number: once a column has another type in the source, its values may still
fit the table's column, with another meaning. The figures go from the decoder, through other processes, to the
committing run, as in `core.column_use`. Pure values, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from airflow_lakestream.exceptions import LakestreamError, Terminal

# The remedy for a table of events; mirrors have another.
NEW_TABLE = (
    "Land the topic from that offset on into a new table. What is before it and not landed yet goes into this one by "
    'mode="ranges".'
)


@dataclass(frozen=True, slots=True)
class SourceType:
    """Type of a source's column, as kept in the ledger.

    `meaning` is the meaning of a value in the table's column, empty if each value is clear by itself; `text` names the
    source's type. Places are positions of events in the source's log, as far as known: `since` of the first event with
    the column, `dropped` of the first later event without it. `stale`: an event with the column came again after that,
    so rows may keep values from before it was dropped.
    """

    meaning: str
    text: str
    since: int | None = None
    dropped: int | None = None
    stale: bool = False

    def to_list(self) -> list[Any]:
        """Return JSON-ready values."""
        return [self.meaning, self.text, self.since, self.dropped, self.stale]


# The log positions of the first and the last of some events.
Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class EventColumnType:
    """Types of a source's column in events, by meaning, each with the name and the first record.

    `there` are the log positions of events with the column, `lacking` of events without; None if unknown.
    """

    types: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    there: Span | None = None
    lacking: Span | None = None

    def __add__(self, later: EventColumnType) -> EventColumnType:
        types = {**self.types, **{key: texts for key, texts in later.types.items() if key not in self.types}}
        return EventColumnType(types, _hull(self.there, later.there), _hull(self.lacking, later.lacking))

    def after(self, kept: SourceType | None) -> SourceType | None:
        """Return the type to keep of the column; None for a column unknown to the ledger and the events.

        :param kept: the column's type in the ledger, or None. Its meaning stays, unless it is still empty.
        """
        if not self.types:
            # The events lack the column.
            return kept and self._placed(kept)
        # The first type with a meaning; a type without a meaning is clear by itself.
        meaning = next(filter(None, self.types), "")
        if kept is None or (meaning and not kept.meaning):
            text, _ = self.types[meaning]
            kept = SourceType(meaning, text) if kept is None else replace(kept, meaning=meaning, text=text)
        return self._placed(kept)

    def _placed(self, kept: SourceType) -> SourceType:
        """Return the type with the places of the column's first event, and of the first later event without it."""
        since, dropped = kept.since, kept.dropped
        if since is None and self.there is not None:
            since = self.there[0]
        if dropped is None and since is not None and self.lacking is not None:
            # A partition that is behind has older events from before the column existed.
            dropped = next((place for place in self.lacking if place > since), None)
        came_again = dropped is not None and self.there is not None and self.there[1] > dropped
        return replace(kept, since=since, dropped=dropped, stale=kept.stale or came_again)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        types = {meaning: list(texts) for meaning, texts in self.types.items()}
        return {"types": types, "there": self.there, "lacking": self.lacking}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EventColumnType:
        """Parse the values of `to_dict`. Raises KeyError, TypeError and ValueError."""
        types = {meaning: (str(text), str(place)) for meaning, (text, place) in data["types"].items()}
        return cls(types, _span(data["there"]), _span(data["lacking"]))


def _hull(first: Span | None, second: Span | None) -> Span | None:
    """Return the log positions of the first and the last event of both spans; None for no event."""
    if first is None or second is None:
        return first or second
    return min(first[0], second[0]), max(first[1], second[1])


def _span(value: Any) -> Span | None:
    return None if value is None else (int(value[0]), int(value[1]))


def combined_types(
    earlier: Mapping[str, EventColumnType], later: Mapping[str, EventColumnType]
) -> dict[str, EventColumnType]:
    """Return the types of two successive parts of the events, by the path of a column or of an inner field."""
    types = dict(earlier)
    for path, column_type in later.items():
        types[path] = types[path] + column_type if path in types else column_type
    return types


def read_types(data: Mapping[str, Iterable[Any]]) -> dict[str, SourceType]:
    """Parse the values of `SourceType.to_list`, by path. Raises TypeError."""
    return {path: SourceType(*values) for path, values in data.items()}


class SourceTypeChanged(LakestreamError, Terminal):
    """A source column's type has changed, and values would have another meaning in the table."""

    reason = "type-changed"

    def __init__(self, table: str, column: str, before: str, seen: str, at: str, remedy: str) -> None:
        self.table, self.column = table, column
        super().__init__(
            f"{table}: the column {column} of the source was {before} before, and is {seen} at {at}: its values would "
            "mean something else in the same column. The database changed the column's type, or dropped the column and "
            "added another one of its name; or the connector's settings for such values were changed. What the run had "
            f"not committed yet was discarded. {remedy} [{self.reason}]"
        )


@dataclass(frozen=True, slots=True)
class LedgerTypes:
    """Types of the source's columns in the ledger, by path, and the remedy for a change."""

    columns: Mapping[str, SourceType] = field(default_factory=dict)
    remedy: str = NEW_TABLE

    def check(self, table: str, seen: Mapping[str, EventColumnType]) -> None:
        """Refuse a column with another meaning than in the ledger, or with two meanings in the events.

        Types without a meaning go with every other type. Raises SourceTypeChanged.
        """
        for path, column_type in seen.items():
            readings = [(meaning, text, place) for meaning, (text, place) in column_type.types.items() if meaning]
            kept = self.columns.get(path)
            before = (kept.meaning, kept.text) if kept is not None and kept.meaning else None
            for meaning, text, place in readings:
                before = before or (meaning, text)
                if meaning != before[0]:
                    raise SourceTypeChanged(table, path, before[1], text, place, self.remedy)

    def changes(self, seen: Mapping[str, EventColumnType]) -> dict[str, SourceType]:
        """Return the columns to change in the ledger after the types seen; unchanged columns are left out."""
        after = {path: one.after(self.columns.get(path)) for path, one in seen.items()}
        return {path: one for path, one in after.items() if one is not None and one != self.columns.get(path)}

    def add(self, changes: Mapping[str, SourceType]) -> LedgerTypes:
        """Return the types with the changes of a landing."""
        return replace(self, columns={**self.columns, **changes}) if changes else self

    @property
    def stale(self) -> list[str]:
        """The columns dropped and added again: rows may have values from before."""
        return [path for path, source_type in sorted(self.columns.items()) if source_type.stale]


def in_new_rows(read: Mapping[str, SourceType], before: Mapping[str, SourceType]) -> dict[str, SourceType]:
    """Return the column types to record in the ledger after all rows of a table were read again.

    Columns in `read` get their type from there. Columns only in `before` are gone from the source and NULL in all rows:
    they keep their type, and lose the marks of a dropped or stale column.
    """
    gone = {path: replace(one, since=None, dropped=None, stale=False) for path, one in before.items()}
    return {**gone, **read}


def other_meaning(first: Mapping[str, SourceType], second: Mapping[str, SourceType]) -> str | None:
    """Return a column with different meanings in two ledgers, or None."""
    both = ((path, kept, second[path]) for path, kept in first.items() if path in second)
    return next((path for path, a, b in both if a.meaning and b.meaning and a.meaning != b.meaning), None)
