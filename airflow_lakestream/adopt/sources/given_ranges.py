"""Positions from no other system: the rows' own positions, and ranges given by a person."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_lakestream.adopt.claim import PositionClaim
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.exceptions import InvalidArgument

_RANGE = re.compile(r"([A-Za-z0-9._-]+)\[(\d+)\]:(\d+)-(\d+)")


def parse_ranges(texts: Sequence[str], argument: str) -> RangeSet:
    """Parse ranges like orders[0]:100-250, without the end offset. Raises InvalidArgument.

    :param argument: the argument's name, for the error.
    """
    ranges = []
    for text in texts:
        match = _RANGE.fullmatch(text.strip())
        if match is None or int(match[4]) <= int(match[3]):
            raise InvalidArgument(argument, f"{text!r} is not a range.", 'Write "orders[0]:100-250", 250 not included.')
        ranges.append(OffsetRange(match[1], int(match[2]), int(match[3]), int(match[4])))
    return RangeSet(ranges)


@dataclass(frozen=True)
class OwnRows:
    """`adopt.claim.ToolPosition` of rows with positions, for any tool."""

    has_sign_of_life: bool = False

    def read(self, topic: str) -> PositionClaim:
        """Return a claim without offsets, since the rows decide; `topic` is not used."""
        return PositionClaim(
            source="rows", trusted=("that no other tool still writes: the table did not change for a while",)
        )


@dataclass(frozen=True)
class GivenRanges:
    """`adopt.claim.ToolPosition` of ranges given by a person.

    :param texts: ranges such as orders[0]:100-250.
    """

    texts: Sequence[str]
    has_sign_of_life: bool = False

    def read(self, topic: str) -> PositionClaim:
        """Return the ranges. Raises InvalidArgument for ranges of another topic."""
        ranges = parse_ranges(self.texts, "--from ranges")
        if not ranges:
            raise InvalidArgument("--from ranges", "needs ranges.", 'Write --from ranges "orders[0]:0-250".')
        if others := sorted({name for name, _ in ranges.partitions} - {topic}):
            raise InvalidArgument("--from ranges", f"{', '.join(others)} is not the topic {topic!r}.")
        return PositionClaim(source="ranges", ranges=ranges, trusted=("that the table has exactly these ranges",))
