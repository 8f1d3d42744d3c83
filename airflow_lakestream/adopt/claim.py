"""Claim of another tool: up to a position, the table has a topic's records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from airflow_lakestream.core.landing.plan import TopicState
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient


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

    With `ranges`, exactly these offsets are claimed, and `ends` is None. Without `ends` and `ranges`, only the rows
    have positions.

    :param source: the tool in words.
    :param ends: by partition the offset after the last record that the tool has read.
    :param starts: by partition the first offset that the tool has read, as far as known.
    :param maybe: by partition an end above `ends`: the tool may have written the records up to there, and only rows can
        prove it.
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
        lows = {p: marks.low for p, marks in state.marks.items()}
        ends = self.ends or {}
        return union(RangeSet.of(topic, p, self.starts.get(p, lows.get(p, 0)), end) for p, end in ends.items())

    def may_have_rows(self, state: TopicState) -> RangeSet | None:
        """Return the possible offsets of the tool's rows, or None for all offsets."""
        if self.is_by_rows:
            return None
        if self.ranges is not None:
            return self.ranges
        topic = state.identity.topic
        ends = {**(self.ends or {}), **self.maybe}
        # Also below its start: an earlier run of the tool may have written them.
        return union(RangeSet.of(topic, p, 0, end) for p, end in ends.items())


class ToolPosition(Protocol):
    """Position of a tool in a topic."""

    @property
    def has_sign_of_life(self) -> bool:
        """Whether `read` itself notices a running tool.

        If false, the adoption waits before the position is read a second time, to see whether it changes.
        """

    def read(self, topic: str) -> PositionClaim:
        """Return the tool's position. Raises StillRunning, CannotAdopt and the errors of the position's storage."""
