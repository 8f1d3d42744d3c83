"""Which offsets a run covers: three modes, each of which plans from the ledger and a look at the topic.

A run plans, lands, and plans again until nothing is left. Resume and interval share a group's ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from airflow_lakestream.core.landing.plan import (
    BeginningGone,
    BeginningLost,
    DataLoss,
    Plan,
    RangesGone,
    TopicState,
    leader_epochs,
    reach,
    resume_plan,
)
from airflow_lakestream.core.ledger import TopicEntry, union
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ports import BEGINNING_MS, Boundary, Source
from airflow_lakestream.core.ranges import Interval, OffsetRange, RangeSet, coalesce
from airflow_lakestream.exceptions import InvalidArgument


@dataclass(frozen=True, slots=True)
class Look:
    """What a run plans from: the group's books of the topic, and the topic now."""

    table: str
    entry: TopicEntry
    state: TopicState
    source: Source
    on_data_loss: OnDataLoss

    def below_low(self) -> RangeSet:
        """Return all offsets that once were in the log and no longer are."""
        topic = self.state.identity.topic
        return union(RangeSet.of(topic, p, 0, marks.low) for p, marks in self.state.marks.items())


class Mode(Protocol):
    """One way to decide which offsets a run covers."""

    @property
    def interval(self) -> Interval | None:
        """The time that the run is to complete, in milliseconds since the epoch; None if the mode has none."""

    def ends_are_fixed(self, entry: TopicEntry) -> bool:
        """Tell whether later plans keep the ends of this look, so that the run ends although the topic grows."""

    def plan(self, look: Look) -> Plan:
        """Return what is left to do; a plan that changes nothing ends the run."""

    def own(self, look: Look) -> RangeSet:
        """Return the run's own offsets, landed or not: those that `replace` replaces.

        Raises RangesGone if landed ones can't be read again, or some may be among those that can't.
        """


@dataclass(frozen=True, slots=True)
class Resume:
    """All that is not landed yet between the group's origin and the ends at the start of the run.

    `start_moves`: a later look at the topic would give the group another origin (start_offset="latest").
    `from_the_first`: the group begins at the log's start, and so is to have everything (start_offset="earliest").
    """

    start_moves: bool = False
    from_the_first: bool = False
    interval: Interval | None = field(default=None, init=False)

    def ends_are_fixed(self, entry: TopicEntry) -> bool:
        """Return True: those of the first look."""
        return True

    def plan(self, look: Look) -> Plan:
        """Return what the group lacks."""
        starts = {} if look.entry.origin else look.source.starts(look.state)
        return resume_plan(look.entry, look.state, starts, look.on_data_loss, look.table)

    def own(self, look: Look) -> RangeSet:
        """Return nothing: a resuming run has no offsets of its own."""
        return RangeSet()


@dataclass(frozen=True, slots=True)
class ByRanges:
    """The ranges given by hand, as (partition, from, until)."""

    ranges: tuple[tuple[int, int, int], ...]
    interval: Interval | None = field(default=None, init=False)

    def ends_are_fixed(self, entry: TopicEntry) -> bool:
        """Return True: the ranges say where they end."""
        return True

    def plan(self, look: Look) -> Plan:
        """Return what the ledger lacks of the ranges."""
        need = self._given(look) - look.entry.held
        lost = need & look.below_low()
        if lost and look.on_data_loss is OnDataLoss.FAIL:
            raise DataLoss(lost, look.table)
        return reading_plan(look, need - lost, lost)

    def _given(self, look: Look) -> RangeSet:
        """Return the ranges. Raises InvalidArgument for offsets that the log does not have yet."""
        topic = look.state.identity.topic
        for partition, _, until in self.ranges:
            marks = look.state.marks.get(partition)
            if marks is None:
                known = ", ".join(map(str, sorted(look.state.marks)))
                raise InvalidArgument("ranges", f"{topic} has no partition {partition}; it has {known}.")
            if until > marks.end:
                raise InvalidArgument(
                    "ranges",
                    f"{topic}[{partition}] ends at {marks.end}, before {until}: no record is there yet.",
                )
        return RangeSet(OffsetRange(topic, *given) for given in self.ranges)

    def own(self, look: Look) -> RangeSet:
        """Return the ranges."""
        given = self._given(look)
        if gone := look.entry.landed & given & look.below_low():
            raise RangesGone(gone, look.table)
        return given


@dataclass(frozen=True, slots=True)
class ByInterval:
    """The offsets from B(start) to B(end), where B(t) is the first offset with a timestamp at or after t.

    Times are milliseconds since the epoch. B never falls as t rises, so adjacent intervals whose boundaries are closed
    have disjoint offsets; a late record belongs to the interval that its offset is in. A boundary is open while no
    record at or after it exists: it then stands at the partition's current end, and records may still come there.
    The ledger keeps the covered time, which closes seams: a run plans the whole covered time around its interval, and
    the run that commits last looks once more after its commit.
    """

    start_ms: int
    end_ms: int

    @property
    def interval(self) -> Interval:
        """The interval."""
        return self.start_ms, self.end_ms

    def ends_are_fixed(self, entry: TopicEntry) -> bool:
        """Return True once the interval is covered: the next look closes the seam."""
        return self._is_covered(entry)

    def plan(self, look: Look) -> Plan:
        """Return what the ledger lacks of the covered time around the interval."""
        entry, state, source = look.entry, look.state, look.source
        whole = coalesce([*entry.covered, (self.start_ms, self.end_ms)])
        start, end = next(part for part in whole if part[0] <= self.start_ms < part[1])
        lows, highs = source.boundaries(state, start), source.boundaries(state, end)
        own_highs = highs if end == self.end_ms else source.boundaries(state, self.end_ms)
        # Records that the log has lost were not from before 1970.
        lost = RangeSet() if end <= BEGINNING_MS else _beginning_lost(look, lows)
        if lost and look.on_data_loss is OnDataLoss.FAIL:
            raise BeginningLost(lost, look.table)
        need = _between(state, lows, highs) - entry.held - lost
        is_open = any(boundary.is_open for boundary in own_highs.values())
        is_covered = self._is_covered(entry)
        nothing_left = not need and not lost and (is_covered or not is_open)
        return reading_plan(
            look,
            need,
            lost,
            covered=None if is_covered or nothing_left else (self.start_ms, self.end_ms),
            completes=nothing_left and not is_open,
        )

    def own(self, look: Look) -> RangeSet:
        """Return the interval's own offsets."""
        if self.end_ms <= BEGINNING_MS:
            return RangeSet()
        lows = look.source.boundaries(look.state, self.start_ms)
        gone = look.entry.landed & _below_log_start(look, lows)
        if gone and look.on_data_loss is OnDataLoss.FAIL:
            raise BeginningGone(gone, look.table)
        return _between(look.state, lows, look.source.boundaries(look.state, self.end_ms))

    def _is_covered(self, entry: TopicEntry) -> bool:
        return any(start <= self.start_ms and self.end_ms <= end for start, end in entry.covered)


def parse_ranges(value: Sequence[Sequence[int]]) -> ByRanges:
    """Return the mode for ranges given as [[partition, from, until], ...]. Raises InvalidArgument."""
    ranges = []
    for given in value:
        if len(given) != 3 or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in given):
            raise InvalidArgument("ranges", f"{given!r} is not [partition, from, until].", "Write [[0, 100, 250]].")
        partition, start, until = given
        if until <= start:
            raise InvalidArgument("ranges", f"{given!r} is empty: until has to be above from.")
        ranges.append((partition, start, until))
    if not ranges:
        raise InvalidArgument("ranges", "there is none.", "Write [[partition, from, until], ...].")
    return ByRanges(tuple(ranges))


def _between(state: TopicState, lows: Mapping[int, Boundary], highs: Mapping[int, Boundary]) -> RangeSet:
    topic = state.identity.topic
    return union(RangeSet.of(topic, p, low.offset, highs[p].offset) for p, low in lows.items())


def _beginning_lost(look: Look, lows: Mapping[int, Boundary]) -> RangeSet:
    """Return offsets that may belong to the interval: below a boundary at the log's start, not in the ledger."""
    topic = look.state.identity.topic
    origin = union(RangeSet.of(topic, p, 0, offset) for p, offset in look.entry.origin.items())
    return _below_log_start(look, lows) - origin - look.entry.held


def _below_log_start(look: Look, lows: Mapping[int, Boundary]) -> RangeSet:
    """Return the removed offsets of each partition whose boundary stands at the log's start."""
    topic = look.state.identity.topic
    at_start = {p: m.low for p, m in look.state.marks.items() if p in lows and lows[p].offset == m.low}
    return union(RangeSet.of(topic, p, 0, low) for p, low in at_start.items())


def reading_plan(
    look: Look,
    ranges: RangeSet,
    lost: RangeSet | None = None,
    covered: Interval | None = None,
    completes: bool = False,
) -> Plan:
    """Return the plan to read these ranges."""
    return Plan(
        state=look.state,
        ranges=ranges,
        lost=lost or RangeSet(),
        epochs=leader_epochs(look.state),
        known_epochs=look.entry.epochs,
        known_until=reach(look.entry),
        covered=covered,
        completes=completes,
    )
