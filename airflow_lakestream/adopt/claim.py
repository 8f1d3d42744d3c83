"""What another tool says of a table: up to where it has put a topic's records into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from airflow_lakestream.core.landing.plan import TopicState
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient


class StillRunning(LakestreamError, Transient):
    """The other tool has not been stopped."""

    def __init__(self, source: str, sign: str) -> None:
        super().__init__(
            f"{source} is still running: {sign}. What it writes after its position was read would be landed a second "
            "time. Nothing was written. Stop it, wait until it has stopped, and run the command again."
        )


class CannotAdopt(LakestreamError, Terminal):
    """The position can't be that of this table's rows, or can't be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A tool's position. `ends` has the next offset by partition; `starts` where it began, as far as that is known.

    With `ranges` instead, exactly these offsets are claimed. With none of the three, the rows alone tell. `maybe` are
    offsets beyond, by partition up to an end: the tool may have written them, and only rows can tell. Where rows
    can't, `open_end` is the error.

    `proved` and `trusted` are sentences for people: what shows that the position is the rows', and what nothing shows.
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
        """Whether the rows alone tell."""
        return self.ends is None and self.ranges is None

    @property
    def place(self) -> tuple[object, ...]:
        """What changes while the tool runs."""
        return self.ends, self.ranges, self.maybe

    def claimed(self, state: TopicState) -> RangeSet:
        """Return the offsets that the tool has read. Without a known start they begin where the log does."""
        if self.ranges is not None:
            return self.ranges
        topic = state.identity.topic
        lows = {p: marks.low for p, marks in state.marks.items()}
        ends = self.ends or {}
        return union(RangeSet.of(topic, p, self.starts.get(p, lows.get(p, 0)), end) for p, end in ends.items())

    def may_have_rows(self, state: TopicState) -> RangeSet | None:
        """Return the offsets at which rows can be the tool's; None for all."""
        if self.is_by_rows:
            return None
        if self.ranges is not None:
            return self.ranges
        topic = state.identity.topic
        ends = {**(self.ends or {}), **self.maybe}
        # Below its start too: an earlier run of the tool may have written them.
        return union(RangeSet.of(topic, p, 0, end) for p, end in ends.items())


class ToolPosition(Protocol):
    """Where a tool stands."""

    @property
    def has_sign_of_life(self) -> bool:
        """Whether `read` itself notices a tool that runs; else it is looked at twice."""

    def read(self, topic: str) -> Claim:
        """Return the tool's position. Raises StillRunning, CannotAdopt and the errors of where it is kept."""
