"""Batches of a stateful streaming query, each landed whole and once, in order.

Offsets alone do not make a landing exactly once: a batch may have rows and no records, when a watermark closes a
window. So each commit writes down the query and the batch, and the commit guard admits only the next batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_lakestream.core.landing.modes import PlanningLook
from airflow_lakestream.core.landing.plan import Plan, leader_epochs, reach
from airflow_lakestream.core.ledger import StreamBatch, TopicEntry
from airflow_lakestream.core.ranges import Interval, RangeSet
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient

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
