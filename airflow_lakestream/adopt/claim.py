"""Claims that a table has a topic's records up to a position: of another tool, of the rows, or of a person."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from airflow_lakestream.core.landing.plan import TopicState
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient


class StillRunning(LakestreamError, Transient):
    """Refusal of a takeover while the tool is still running."""

    def __init__(self, source: str, sign: str) -> None:
        super().__init__(
            f"{source} is still running: {sign}. What it writes after its position was read would be landed a second "
            "time. Nothing was written. Stop it, wait until it has stopped, and run the command again."
        )


class CannotAdopt(LakestreamError, Terminal):
    """Refusal to adopt: the position does not fit the table's rows, or is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionClaim:
    """A tool's position in a topic.

    A claim has either `ends` or `ranges`. Without both, the rows' own positions decide.

    :param source: the tool in words.
    :param ends: by partition the offset after the last record that the tool has read.
    :param starts: by partition the first offset that the tool has read, as far as known.
    :param ranges: exactly the claimed offsets.
    :param maybe: by partition an end above `ends`: the tool may have written the records between, as only rows can
        prove.
    :param open_end: the error if rows can't prove the offsets of `maybe`; empty if these offsets do not matter.
    :param proved: sentences for people: evidence that the position fits the rows.
    :param trusted: sentences for people: open assumptions.
    """

    source: str
    ends: Mapping[int, int] | None = None
    starts: Mapping[int, int] = field(default_factory=dict)
    ranges: RangeSet | None = None
    maybe: Mapping[int, int] = field(default_factory=dict)
    open_end: str = ""
    proved: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()

    @property
    def is_by_rows(self) -> bool:
        """Whether only the rows have positions."""
        return self.ends is None and self.ranges is None

    @property
    def place(self) -> tuple[object, ...]:
        """Values of the position for a comparison: a running tool changes these values."""
        return self.ends, self.ranges, self.maybe

    def claimed(self, state: TopicState) -> RangeSet:
        """Return the offsets read by the tool; without a known start, from the beginning of the log.

        The result is empty if only the rows have positions.
        """
        if self.ranges is not None:
            return self.ranges
        topic = state.identity.topic
        lows = {partition: marks.low for partition, marks in state.marks.items()}
        ends = self.ends or {}
        return union(
            RangeSet.of(topic, partition, self.starts.get(partition, lows.get(partition, 0)), end)
            for partition, end in ends.items()
        )

    def may_have_rows(self, state: TopicState) -> RangeSet | None:
        """Return the possible offsets of the tool's rows, or None for all offsets."""
        if self.is_by_rows:
            return None
        if self.ranges is not None:
            return self.ranges
        topic = state.identity.topic
        ends = {**(self.ends or {}), **self.maybe}
        # Also offsets below `starts`: an earlier run of the tool may have written their rows.
        return union(RangeSet.of(topic, partition, 0, end) for partition, end in ends.items())


class ToolPosition(Protocol):
    """Position of a tool in a topic."""

    @property
    def has_sign_of_life(self) -> bool:
        """Whether `read` itself notices a running tool.

        If false, the adoption waits before the position is read a second time, to see whether it changes.
        """

    def read(self, topic: str) -> PositionClaim:
        """Return the tool's position. Raises StillRunning, CannotAdopt and the errors of the position's storage."""


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
