"""Rows with a position that no record can have: another writer made them. Pure, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OddRows:
    """Rows of one topic and partition (None: NULL), with offsets from `low` to `high`, None for NULL.

    They have a negative partition or offset, the greatest 64-bit number, or only part of topic, partition and offset.
    """

    topic: str | None
    partition: int | None
    low: int | None
    high: int | None
    rows: int

    def __add__(self, other: OddRows) -> OddRows:
        bounds = [bound for bound in (self.low, self.high, other.low, other.high) if bound is not None]
        low, high = (min(bounds), max(bounds)) if bounds else (None, None)
        return OddRows(self.topic, self.partition, low, high, self.rows + other.rows)

    @property
    def key(self) -> tuple[str | None, int | None]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def offsets(self) -> str:
        """The offsets in words."""
        if self.low is None:
            return "offset NULL"
        return f"offset {self.low}" if self.low == self.high else f"offsets {self.low} to {self.high}"

    @property
    def text(self) -> str:
        """The finding as text."""
        place = f"{_or_null(self.topic)}[{_or_null(self.partition)}]"
        return f"{place} {self.offsets} ({self.rows} rows), which no record has"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; None for NULL."""
        names = ("topic", "partition", "low", "high", "rows")
        return {name: getattr(self, name) for name in names}


def sorted_odd(found: dict[tuple[str | None, int | None], OddRows]) -> list[OddRows]:
    """Return them in order, NULL first."""
    return [found[key] for key in sorted(found, key=lambda key: tuple((part is not None, part) for part in key))]


def _or_null(value: object) -> object:
    return "NULL" if value is None else value
