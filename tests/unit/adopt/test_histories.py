"""Random histories: another tool lands ranges and loses some, its rows are adopted, the next extract lands the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.adopt.claim import CannotAdopt, PositionClaim
from airflow_lakestream.adopt.run import AdoptionDecision, TableRowPositions, TopicAdoption
from airflow_lakestream.audit.rows import RowPositions
from airflow_lakestream.core.landing.plan import PartitionWatermarks, Plan, TopicState, resume_plan
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ports import RecordChunk
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.tables.coordinates import COORDINATES

IDENTITY = TopicIdentity("clicks", "id", "cluster")
Place = tuple[int, int]


@dataclass
class Log:
    """A topic as Kafka shows it: where partitions begin and end, and the offsets with a record, markers left out."""

    marks: dict[int, PartitionWatermarks]
    records: set[Place]

    def look(self) -> TopicState:
        return TopicState(IDENTITY, self.marks)

    def read(self, plan: Plan, stop: threading.Event) -> Iterator[RecordChunk]:
        for one in plan.ranges:
            span = range(one.from_offset, one.until_offset)
            offsets = [offset for offset in span if (one.partition, offset) in self.records]
            nothing = pa.nulls(len(offsets), pa.binary())
            yield RecordChunk(one, RawBatch("clicks", one.partition, offsets, [-1] * len(offsets), nothing), 0)


@dataclass
class History:
    """What a tool has done: its rows, up to where it has read, and where it began."""

    log: Log
    rows: set[Place]
    starts: dict[int, int]
    ends: dict[int, int]


@st.composite
def histories(draw: st.DrawFn, *, loses: bool = True) -> History:
    marks, records, rows = {}, set(), set()
    starts, ends = {}, {}
    for partition in range(draw(st.integers(1, 3))):
        low = draw(st.integers(0, 4))
        end = low + draw(st.integers(0, 14))
        marks[partition] = PartitionWatermarks(low, end)
        there = {o for o in range(end) if draw(st.integers(0, 4))}
        records |= {(partition, o) for o in there if o >= low}
        if draw(st.integers(0, 4)) == 0:
            # It has never read this one.
            continue
        starts[partition] = draw(st.integers(0, low))
        ends[partition] = draw(st.integers(low, end))
        done = {o for o in there if starts[partition] <= o < ends[partition]}
        if loses:
            done -= draw(st.sets(st.sampled_from(sorted(done)), max_size=4)) if done else set()
        rows |= {(partition, o) for o in done}
    return History(Log(marks, records), rows, starts, ends)


def positions(rows: set[Place], *, all_have_positions: bool) -> TableRowPositions:
    placed = sorted(rows) if all_have_positions else []
    columns = [["clicks"] * len(placed), [p for p, _ in placed], [o for _, o in placed]]
    types = [pa.string(), pa.int32(), pa.int64()]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    found = RowPositions.of([pa.table(dict(zip(COORDINATES, arrays, strict=True)))])
    return TableRowPositions(
        rows=found, all_have_positions=all_have_positions, in_own_columns=True, text="", total=len(rows)
    )


def decide(
    history: History, claim: PositionClaim, *, all_have_positions: bool, held: RangeSet | None = None
) -> AdoptionDecision | None:
    """Decide; None where there is nothing to adopt."""
    log: Any = history.log
    topic = TopicAdoption(
        claim, positions(history.rows, all_have_positions=all_have_positions), held or RangeSet(), log, log
    )
    try:
        return topic.decide()
    except CannotAdopt as e:
        if "nothing to adopt" not in str(e):
            raise
        return None


def landed_next(decision: AdoptionDecision, log: Log) -> tuple[set[Place], set[Place]]:
    """Return the records that the next extract lands, and the offsets that it takes as lost."""
    state = log.look()
    plan = resume_plan(decision.entry, state, {}, OnDataLoss.RECORD, "t")
    places = {(one.partition, o) for one in plan.ranges for o in range(one.from_offset, one.until_offset)}
    return places & log.records, {(o.partition, n) for o in plan.lost for n in range(o.from_offset, o.until_offset)}


@pytest.mark.long
@given(histories(), st.booleans())
def test_the_next_run_lands_exactly_what_has_no_row(history: History, by_rows: bool) -> None:
    claim = (
        PositionClaim(source="rows")
        if by_rows
        else PositionClaim(source="tool", ends=history.ends, starts=history.starts)
    )
    decision = decide(history, claim, all_have_positions=True)
    if decision is None:
        assert not history.rows
        return
    landed, _ = landed_next(decision, history.log)
    assert landed.isdisjoint(history.rows)
    begins = {p: min((o for q, o in history.rows if q == p), default=m.low) for p, m in history.log.marks.items()}
    if not by_rows:
        begins = {p: min(begins[p], history.starts.get(p, begins[p])) for p in begins}
    due = {(p, o) for p, o in history.log.records if o >= begins[p]}
    assert landed == due - history.rows
    assert not decision.entry.adopted
    assert decision.entry.counts.written == len(history.rows)


@given(histories(loses=False))
def test_where_rows_tell_nothing_the_next_run_begins_at_the_tools_position(history: History) -> None:
    claim = PositionClaim(source="tool", ends=history.ends, starts=history.starts)
    decision = decide(history, claim, all_have_positions=False)
    if decision is None:
        assert history.rows.isdisjoint(history.log.records)
        return
    landed, lost = landed_next(decision, history.log)
    assert landed | (history.rows & history.log.records) == history.log.records
    assert landed.isdisjoint(history.rows)
    assert not lost
    assert decision.entry.adopted == decision.entry.landed
    assert decision.entry.counts.written == 0


@given(histories(), st.data())
def test_a_position_behind_the_rows_is_refused(history: History, data: st.DataObject) -> None:
    if not history.rows:
        return
    partition, offset = data.draw(st.sampled_from(sorted(history.rows)))
    behind = {**history.ends, partition: offset}
    with pytest.raises(CannotAdopt, match=r"has rows at .*beyond the position"):
        decide(history, PositionClaim(source="tool", ends=behind), all_have_positions=True)


@given(histories(), st.data())
def test_a_position_ahead_of_the_log_is_refused(history: History, data: st.DataObject) -> None:
    partition = data.draw(st.sampled_from(sorted(history.log.marks)))
    ahead = {**history.ends, partition: history.log.marks[partition].end + 1}
    with pytest.raises(CannotAdopt, match=r"ahead of the log, which ends at"):
        decide(history, PositionClaim(source="tool", ends=ahead), all_have_positions=False)
    with pytest.raises(CannotAdopt, match="no such partition"):
        decide(history, PositionClaim(source="tool", ends={**history.ends, 99: 0}), all_have_positions=False)


@given(histories(), st.data())
def test_what_ledgers_hold_is_not_adopted_a_second_time(history: History, data: st.DataObject) -> None:
    some = data.draw(st.sets(st.sampled_from(sorted(history.rows)))) if history.rows else set()
    held = RangeSet(one for p, o in some for one in RangeSet.of("clicks", p, o, o + 1))
    decision = decide(history, PositionClaim(source="rows"), all_have_positions=True, held=held)
    if decision is None:
        assert history.rows == some
        return
    assert not decision.entry.landed & held
    assert decision.entry.counts.written == len(history.rows - some)
