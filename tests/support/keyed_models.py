"""Models of tables by key: dicts of keys to rows or versions, that take one record after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

Row = dict[str, Any]
FIELDS = ("a", "b", "op")


def day(number: int) -> datetime:
    """Return a day as a time."""
    return datetime(2026, 1, 10, tzinfo=UTC) + timedelta(days=number)


@dataclass
class GivenRows:
    """Model of a table by key whose records have some of the fields: each field as the last record gave it."""

    by_sequence: bool
    rows: dict[int, Row | None] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    # The rows that were deleted, with the values that they had last.
    deleted: dict[int, Row] = field(default_factory=dict)

    def land(self, key: int, record: Row | None) -> None:
        """Take a record in the order of offsets; a late one changes nothing."""
        place = 0 if record is None or not self.by_sequence else record["at"]
        if place < self.places.get(key, place):
            return
        self.places[key] = place
        nothing = dict.fromkeys(("at", *FIELDS))
        before = self.rows.get(key) or nothing
        if record is None or record.get("op") == "D":
            kept = self.rows.get(key) or self.deleted.get(key, nothing)
            self.rows[key], self.deleted[key] = None, kept if record is None else before | record
        else:
            self.rows[key] = before | record
            self.deleted.pop(key, None)


@dataclass
class Version:
    """A version of a row: its first and its last record, as time and offset, and the row."""

    first: tuple[int, int]
    last: tuple[int, int]
    row: Row


@dataclass
class KeyHistory:
    """Model of a key: its versions, and the places of its deletions, each list in order."""

    columns: Sequence[str]
    versions: list[Version] = field(default_factory=list)
    deletions: list[tuple[int, int]] = field(default_factory=list)

    def land(self, place: tuple[int, int], record: Row) -> None:
        """Take the record that comes next."""
        before = [one for one in self.versions if one.first <= place]
        held = before[-1] if before and not self._ended(before[-1].last, place) else None
        row = (held.row if held else dict.fromkeys(FIELDS)) | record
        is_same = bool(self.columns) and held is not None and self._shown(held.row) == self._shown(row)
        if record.get("op") != "D" and is_same and held is not None:
            if place > held.last:
                held.last, held.row = place, row
            return
        if held is not None and held.last > place:
            self.versions.insert(len(before), Version(held.last, held.last, held.row))
            held.last = held.first
        if record.get("op") == "D":
            self.deletions = sorted([*self.deletions, place])
            return
        after = next((one for one in self.versions if one.first > place), None)
        goes_on = self.columns and after and not self._ended(place, after.first)
        if after and goes_on and self._shown(after.row) == self._shown(row):
            after.first = place
        else:
            self.versions = sorted([*self.versions, Version(place, place, row)], key=lambda one: one.first)

    def rows(self) -> list[Row]:
        """Return the versions as the table has them."""
        found = []
        for number, one in enumerate(self.versions):
            following = [other.first for other in self.versions[number + 1 :]]
            ends = [place for place in (*following, *self.deletions) if place > one.last]
            times = {"_valid_from": day(one.first[0]), "_valid_to": day(min(ends)[0]) if ends else None}
            found.append(one.row | times | {"_is_current": not ends})
        return found

    def _shown(self, row: Row) -> Row:
        return {name: row[name] for name in self.columns}

    def _ended(self, one: tuple[int, int], other: tuple[int, int]) -> bool:
        return any(one < place < other for place in self.deletions)
