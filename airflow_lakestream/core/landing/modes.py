"""Modes of a run: plans from the ledger and from a look at the topic.

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
from airflow_lakestream.core.ledger import StreamBatch, TopicEntry, union
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ports import BEGINNING_MS, TimeBoundary, TopicSource
from airflow_lakestream.core.ranges import Interval, OffsetRange, RangeSet, coalesce
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient


@dataclass(frozen=True, slots=True)
class PlanningLook:
    """Base of a plan: the group's ledger entry of the topic, and the topic's present state.

    :param table: the table's name, for errors.
    :param state: the topic; a run with fixed ends cuts the ends here.
    :param source: returns a new group's beginnings, and the boundaries of a time.
    """

    table: str
    entry: TopicEntry
    state: TopicState
    source: TopicSource
    on_data_loss: OnDataLoss

    def below_low(self) -> RangeSet:
        """Return all offsets below the log's start."""
        topic = self.state.identity.topic
        return union(RangeSet.of(topic, p, 0, marks.low) for p, marks in self.state.marks.items())


class RunMode(Protocol):
    """Mode of a run: the choice of the offsets to cover."""

    @property
    def interval(self) -> Interval | None:
        """The interval to complete, in milliseconds since the epoch; None for modes without an interval."""

    def ends_are_fixed(self, entry: TopicEntry) -> bool:
        """Return whether the run's later plans keep the ends of the first look, since the topic may grow.

        :param entry: the group's ledger entry at this look; only the answer of an interval depends on the entry.
        """

    def plan(self, look: PlanningLook) -> Plan:
        """Return the plan of the remaining work; a plan without changes ends the run.

        Raises DataLoss if the log has lost offsets to land and `look.on_data_loss` is FAIL, and errors of the mode.
        """

    def own(self, look: PlanningLook) -> RangeSet:
        """Return the run's own offsets, landed or not: a replace reads the landed part again.

        A mode that can't replace returns an empty set. Raises RangesGone if Kafka no longer has landed offsets that
        are, or may be, the run's own.
        """


@dataclass(frozen=True, slots=True)
class ResumeMode:
    """All offsets not landed yet between the group's origin and the ends at the start of the run.

    `start_moves`: a later look at the topic would give the group another origin (start_offset="latest").
    `from_the_first`: the group begins at the log's start, and so is to have everything (start_offset="earliest").
    """

    start_moves: bool = False
    from_the_first: bool = False
    interval: Interval | None = field(default=None, init=False)

    def ends_are_fixed(self, entry: TopicEntry) -> bool:
        """Return True for any entry: the ends of the first look stay."""
        return True

    def plan(self, look: PlanningLook) -> Plan:
        """Return the plan of all missing offsets from the group's origin on. Raises DataLoss; see `resume_plan`."""
        starts = {} if look.entry.origin else look.source.starts(look.state)
        return resume_plan(look.entry, look.state, starts, look.on_data_loss, look.table)

    def own(self, look: PlanningLook) -> RangeSet:
        """Return an empty set for any look: a resuming run has no own offsets, and replaces nothing."""
        return RangeSet()


@dataclass(frozen=True, slots=True)
class RangesMode:
    """The ranges given by hand, as (partition, from, until)."""

    ranges: tuple[tuple[int, int, int], ...]
    interval: Interval | None = field(default=None, init=False)

    def ends_are_fixed(self, entry: TopicEntry) -> bool:
        """Return True for any entry: the ranges are fixed."""
        return True

    def plan(self, look: PlanningLook) -> Plan:
        """Return the plan of the given ranges' offsets missing in the ledger.

        Offsets below the log's start go into the plan's `lost`; with `on_data_loss` FAIL they raise DataLoss. Raises
        the errors of `_given`, too.
        """
        need = self._given(look) - look.entry.held
        lost = need & look.below_low()
        if lost and look.on_data_loss is OnDataLoss.FAIL:
            raise DataLoss(lost, look.table)
        return reading_plan(look, need - lost, lost)

    def _given(self, look: PlanningLook) -> RangeSet:
        """Return the offsets of the given ranges, landed or not.

        Raises InvalidArgument for unknown partitions and for offsets beyond the log's end.
        """
        topic = look.state.identity.topic
        for partition, _, until in self.ranges:
            marks = look.state.marks.get(partition)
            if marks is None:
                partitions = ", ".join(map(str, sorted(look.state.marks)))
                raise InvalidArgument("ranges", f"{topic} has no partition {partition}; it has {partitions}.")
            if until > marks.end:
                raise InvalidArgument(
                    "ranges", f"{topic}[{partition}] ends at {marks.end}, before {until}: no record is there yet."
                )
        return RangeSet(OffsetRange(topic, *triple) for triple in self.ranges)

    def own(self, look: PlanningLook) -> RangeSet:
        """Return the offsets of the given ranges, landed or not.

        Raises RangesGone if landed offsets of the ranges are below the log's start, and the errors of `_given`.
        """
        given_ranges = self._given(look)
        if landed_and_gone := look.entry.landed & given_ranges & look.below_low():
            raise RangesGone(landed_and_gone, look.table)
        return given_ranges


@dataclass(frozen=True, slots=True)
class IntervalMode:
    """The offsets from B(start) to B(end); B(t) is the first offset with a timestamp at or after t.

    Times are milliseconds since the epoch. B never falls as t rises, so adjacent intervals whose boundaries are closed
    have disjoint offsets; a late record belongs to the interval that its offset is in. A boundary is open while no
    record at or after it exists: it is then at the partition's current end, and records may still come there.
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
        """Return True once the ledger's covered time contains the interval.

        Before, each plan reads up to the boundaries of its own look. The commit that adds the covered time is followed
        by one more look, which closes the seam: the ends of that look stay.
        """
        return self._is_covered(entry)

    def plan(self, look: PlanningLook) -> Plan:
        """Return the plan of the missing offsets in the covered time around the interval.

        The covered time around is the ledger's, joined with the interval. The plan adds the interval to the covered
        time if the ledger lacks it and records are to be landed or may still come. The plan `completes` the interval if
        nothing is to be landed and the boundary at the interval's end is open in no partition.

        Raises BeginningLost if the log may have lost offsets of the interval and `on_data_loss` is FAIL.
        """
        entry, state, source = look.entry, look.state, look.source
        # The covered period around the interval: a seam with a neighbour is planned, too.
        periods = coalesce([*entry.covered, (self.start_ms, self.end_ms)])
        start, end = next(part for part in periods if part[0] <= self.start_ms < part[1])
        lows, highs = source.boundaries(state, start), source.boundaries(state, end)
        # Whether records may still come is decided at the interval's own end; the covered time around may end later.
        own_highs = highs if end == self.end_ms else source.boundaries(state, self.end_ms)
        # Records that the log has lost were not from before 1970.
        lost = RangeSet() if end <= BEGINNING_MS else _beginning_lost(look, lows)
        if lost and look.on_data_loss is OnDataLoss.FAIL:
            raise BeginningLost(lost, look.table)
        need = _between(state, lows, highs) - entry.held - lost
        is_open = any(boundary.is_open for boundary in own_highs.values())
        is_covered = self._is_covered(entry)
        # With an open end the covered time is written even without an offset: a later run then closes the seam.
        nothing_left = not need and not lost and (is_covered or not is_open)
        return reading_plan(
            look,
            need,
            lost,
            covered=None if is_covered or nothing_left else (self.start_ms, self.end_ms),
            completes=nothing_left and not is_open,
        )

    def own(self, look: PlanningLook) -> RangeSet:
        """Return the offsets from B(start) to B(end), landed or not; an empty set for an interval before 1970.

        Raises BeginningGone if the interval begins at the log's start, and landed offsets below may be its own. With
        `on_data_loss` RECORD these are left out instead.
        """
        if self.end_ms <= BEGINNING_MS:
            return RangeSet()
        lows = look.source.boundaries(look.state, self.start_ms)
        landed_and_gone = look.entry.landed & _below_log_start(look, lows)
        if landed_and_gone and look.on_data_loss is OnDataLoss.FAIL:
            raise BeginningGone(landed_and_gone, look.table)
        return _between(look.state, lows, look.source.boundaries(look.state, self.end_ms))

    def _is_covered(self, entry: TopicEntry) -> bool:
        return any(start <= self.start_ms and self.end_ms <= end for start, end in entry.covered)


def parse_ranges(value: Sequence[Sequence[int]]) -> RangesMode:
    """Return the mode for ranges given as [[partition, from, until], ...].

    Raises InvalidArgument for entries of another form, for an empty range, and without any range.
    """
    ranges = []
    for item in value:
        if len(item) != 3 or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in item):
            raise InvalidArgument("ranges", f"{item!r} is not [partition, from, until].", "Write [[0, 100, 250]].")
        partition, start, until = item
        if until <= start:
            raise InvalidArgument("ranges", f"{item!r} is empty: until has to be above from.")
        ranges.append((partition, start, until))
    if not ranges:
        raise InvalidArgument("ranges", "there is none.", "Write [[partition, from, until], ...].")
    return RangesMode(tuple(ranges))


def _between(state: TopicState, lows: Mapping[int, TimeBoundary], highs: Mapping[int, TimeBoundary]) -> RangeSet:
    """Return the offsets between the lower and the upper boundary of each partition."""
    topic = state.identity.topic
    return union(RangeSet.of(topic, p, low.offset, highs[p].offset) for p, low in lows.items())


def _beginning_lost(look: PlanningLook, lows: Mapping[int, TimeBoundary]) -> RangeSet:
    """Return the possibly lost offsets of the interval.

    These are the offsets below a boundary at the log's start, without offsets below the group's origin and offsets in
    the ledger. A boundary above the log's start proves that no offset of the interval was lost.
    """
    topic = look.state.identity.topic
    origin = union(RangeSet.of(topic, p, 0, offset) for p, offset in look.entry.origin.items())
    return _below_log_start(look, lows) - origin - look.entry.held


def _below_log_start(look: PlanningLook, lows: Mapping[int, TimeBoundary]) -> RangeSet:
    """Return the offsets below the log's start, of each partition with a boundary at the log's start.

    Such a boundary may have been lower before the log lost its first records.
    """
    topic = look.state.identity.topic
    at_start = {p: m.low for p, m in look.state.marks.items() if p in lows and lows[p].offset == m.low}
    return union(RangeSet.of(topic, p, 0, low) for p, low in at_start.items())


def reading_plan(
    look: PlanningLook,
    ranges: RangeSet,
    lost: RangeSet | None = None,
    covered: Interval | None = None,
    completes: bool = False,
) -> Plan:
    """Return the plan to read `ranges`, with the facts of the look.

    :param lost: offsets to record as lost; default: none are lost.
    :param covered: see `Plan`.
    :param completes: see `Plan`.
    """
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


# Offsets alone do not make a landing exactly once: a batch may have rows and no records, when a watermark closes a
# window. So each commit writes down the query and the batch, and the commit guard admits only the next batch.
WAYS_OUT = (
    "Put the checkpoint back that belongs to it; or drop the table, or roll it back to before the first batch, and "
    "start again with an empty checkpoint_location; or land into another table."
)


class StreamRolledBack(LakestreamError, Transient):
    """The table was rolled back under a running query; the next start takes the checkpoint back, too."""

    def __init__(self, table: str, batch: StreamBatch, last: StreamBatch | None) -> None:
        super().__init__(
            f"{table} was rolled back while the query ran: it holds {last or 'no batch'}, and next would be {batch}. "
            "Nothing was landed. The next start goes on from there."
        )


class StreamReplaced(LakestreamError, Terminal):
    """The table's batches are of another query, and do not fit this query's state."""

    def __init__(self, table: str, problem: str, last: StreamBatch) -> None:
        super().__init__(
            f"{table} holds {last}, {problem} Nothing was landed: it could double rows, or lose some. {WAYS_OUT}"
        )


class LandedBesideStream(LakestreamError, Terminal):
    """A group has landings by a streaming query and by another way, and both need the group's offsets."""

    def __init__(self, table: str, consumer_group: str, problem: str) -> None:
        super().__init__(f"{table}: {problem} Nothing was landed. Use another consumer_group than {consumer_group!r}.")


@dataclass(frozen=True, slots=True)
class StreamBatchMode:
    """A batch of a streaming query, as the mode of a run.

    :param streamed: the batch with the query and the watermark, as the ledger keeps it.
    :param starts: the query's first offsets, by partition.
    :param ranges: the batch's offsets; empty for a batch that only a watermark caused.
    :param consumer_group: the group's name, for errors.
    """

    streamed: StreamBatch
    starts: Mapping[int, int]
    ranges: RangeSet
    consumer_group: str
    interval: Interval | None = field(default=None, init=False)

    def ends_are_fixed(self, entry: TopicEntry) -> bool:
        """Return True for any entry: the batch is fixed."""
        return True

    def plan(self, look: PlanningLook) -> Plan:
        """Return the plan of the whole batch, or an empty plan if the table has the batch already.

        Raises StreamReplaced if the table has batches of another query, or this batch or a later one with other
        offsets. Raises StreamRolledBack if the table lacks earlier batches. Raises LandedBesideStream if the group
        landed by another way: any offset before the first batch, or offsets of this batch.
        """
        entry, streamed = look.entry, self.streamed
        last = entry.streamed
        if last == streamed and not self.ranges - entry.held:
            return Plan(look.state, RangeSet())
        if last is not None and (last.query_id != streamed.query_id or last.batch_id >= streamed.batch_id):
            raise StreamReplaced(look.table, f"and the checkpoint is at {streamed}.", last)
        if (-1 if last is None else last.batch_id) + 1 < streamed.batch_id:
            raise StreamRolledBack(look.table, streamed, last)
        if landed_otherwise := (entry.held if last is None else self.ranges & entry.held):
            problem = f"offsets that {streamed} has were landed by another way: {landed_otherwise}."
            raise LandedBesideStream(look.table, self.consumer_group, problem)
        return Plan(
            state=look.state,
            ranges=self.ranges,
            origin={} if entry.origin else self.starts,
            epochs=leader_epochs(look.state),
            known_epochs=entry.epochs,
            known_until=reach(entry),
            streamed=streamed,
        )

    def own(self, look: PlanningLook) -> RangeSet:
        """Return an empty set for any look: a batch replaces no offsets."""
        return RangeSet()


def refuse_mixture(table: str, consumer_group: str, entry: TopicEntry, plan: Plan) -> None:
    """Refuse records from outside the streaming query of the group's rows. Raises LandedBesideStream.

    Such records would be in the table, but not in the query's state.
    """
    if entry.streamed is not None and plan.streamed is None and (plan.ranges or plan.lost):
        problem = f"its rows are made by a streaming query ({entry.streamed}), whose state would lack what is landed."
        raise LandedBesideStream(table, consumer_group, problem)
