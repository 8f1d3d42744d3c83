"""Sources of a column's times in records without instants: numbers since the epoch, or local times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

# A path goes from a column's name inwards: names of fields, and ELEMENT inside a list.
Path: TypeAlias = tuple[str, ...]
ELEMENT = "element"
# Inside a map no times are made from a source.
MAP_STEP = "entries"


class EpochUnit(StrEnum):
    """Unit of a number since 1970-01-01T00:00Z."""

    SECONDS = "epoch_s"
    MILLISECONDS = "epoch_ms"
    MICROSECONDS = "epoch_us"
    NANOSECONDS = "epoch_ns"

    @property
    def words(self) -> str:
        """The unit in words."""
        return f"{self.name.lower()} since the epoch"

    @property
    def per_second(self) -> int:
        """The number of units in a second."""
        return {self.SECONDS: 1, self.MILLISECONDS: 10**3, self.MICROSECONDS: 10**6, self.NANOSECONDS: 10**9}[self]


@dataclass(frozen=True, slots=True)
class TimeSource:
    """Source of an instant in records: a number (`unit`), or a time without a zone, read as in `zone`.

    Its text follows the type in a schema.
    """

    unit: EpochUnit | None = None
    zone: str = ""

    def __str__(self) -> str:
        if self.unit is not None:
            return f"from {self.unit}"
        return "at time zone '" + self.zone.replace("\\", "\\\\").replace("'", "''") + "'"
