"""From what the times of a column are made, where records have no instants: numbers since the epoch, or local times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

# From a column's name inwards: names of fields, and ELEMENT inside a list.
Path: TypeAlias = tuple[str, ...]
ELEMENT = "element"
# Inside a map nothing is made from something else.
MAP_STEP = "entries"


class Epoch(StrEnum):
    """What a number counts since 1970-01-01T00:00Z."""

    SECONDS = "epoch_s"
    MILLISECONDS = "epoch_ms"
    MICROSECONDS = "epoch_us"
    NANOSECONDS = "epoch_ns"

    @property
    def words(self) -> str:
        """What it counts, in words."""
        return f"{self.name.lower()} since the epoch"

    @property
    def per_second(self) -> int:
        """How many make a second."""
        return {self.SECONDS: 1, self.MILLISECONDS: 10**3, self.MICROSECONDS: 10**6, self.NANOSECONDS: 10**9}[self]


@dataclass(frozen=True, slots=True)
class TimeSource:
    """What records have where a column has an instant: a number (`unit`), or a time without a zone, meant in `zone`.

    As text it is what a schema says behind the type.
    """

    unit: Epoch | None = None
    zone: str = ""

    def __str__(self) -> str:
        if self.unit is not None:
            return f"from {self.unit}"
        return "at time zone '" + self.zone.replace("\\", "\\\\").replace("'", "''") + "'"
