"""Progress of a consumer by a Spark checkpoint, a table's ledger, or a group's committed offsets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_lakestream.core.landing.plan import LogTruncated, TopicState
from airflow_lakestream.core.ledger import Ledger, union
from airflow_lakestream.core.ranges import PartitionKey, RangeSet
from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import DriverOutcome, LeaseState
from airflow_lakestream.spark.checkpoint import QueryCheckpoint, read_checkpoint
from airflow_lakestream.watching.asking import NotThere
from airflow_lakestream.watching.causes import StreamCause, StreamReason
from airflow_lakestream.watching.lag.waiting import backlog_of, topics_of
from airflow_lakestream.watching.streams.landings import BranchHistory

if TYPE_CHECKING:
    from airflow_lakestream.kafka.watch import GroupState
    from airflow_lakestream.watching.streams.landings import TableStreams

# Batches of a checkpoint from which the speed is measured: Spark keeps 100.
_BATCHES = 20
# Seconds: the speed is measured from the landings of this time, or from the last few landings.
_STEPS_SINCE = 6 * 3600


@dataclass(frozen=True, slots=True)
class PastCommit:
    """A past commit: time (seconds since the epoch), run, and number of offsets by partition."""

    at: float
    run: str
    offsets: Mapping[PartitionKey, int]


@dataclass(frozen=True)
class ConsumerProgress:
    """Offsets read by a consumer: either `positions` or `ledger` is given.

    `positions` are the next offsets to read, by topic and partition. A partition without a position begins at `begins`;
    None is the start of the log. `name` is for people. `newest_at` is the time of the last progress, in seconds since
    the epoch, or None if unknown. `reasons` describe the consumer's state. `steps` are the last commits, newest first,
    or None if unknown or not asked for.
    """

    name: str
    topics: tuple[str, ...]
    positions: Mapping[str, Mapping[int, int]] | None = None
    ledger: Ledger | None = None
    newest_at: float | None = None
    reasons: tuple[StreamReason, ...] = ()
    steps: tuple[PastCommit, ...] | None = None
    begins: int | None = field(default=None, kw_only=True)

    def unread(self, state: TopicState, ends: Mapping[int, int] | None = None) -> tuple[RangeSet, RangeSet]:
        """Return (readable unread offsets of a topic, unread offsets missing in the log).

        Both end at the last stable offset, as in `state`.

        :param ends: limits for the check of `positions`, by partition: a position above the limit raises LogTruncated.
            Default: the last stable offset. A ledger is always checked against the last stable offset.

        Raises LogTruncated if a partition is gone, or ends below the consumer's offsets; and TopicReplaced if the
        ledger has the topic with another id.
        """
        if self.ledger is not None:
            backlog = backlog_of(self.ledger, state, self.name)
            return backlog.lacking, backlog.lost
        topic = state.identity.topic
        known = (self.positions or {}).get(topic, {})
        for p, position in known.items():
            end = (ends or {}).get(p, state.marks[p].end) if p in state.marks else None
            if end is None or position > end:
                raise LogTruncated(topic, p, position, end, self.name)
        begins = {p: known.get(p, m.low if self.begins is None else self.begins) for p, m in state.marks.items()}
        missing = union(RangeSet.of(topic, p, begins[p], m.end) for p, m in state.marks.items())
        lost = missing & union(RangeSet.of(topic, p, 0, m.low) for p, m in state.marks.items())
        return missing - lost, lost


def of_streams(streams: TableStreams, table: str, consumer_group: str, with_steps: bool = False) -> ConsumerProgress:
    """Return the progress by the ledger of a consumer group in a table.

    :param with_steps: whether to return the last landings as `steps`, too.

    Raises NotThere without the ledger, and the errors in `streams.problems`.
    """
    ledger = streams.ledger(consumer_group)
    if not ledger.topics:
        raise NotThere(_no_ledger_text(f"table {table}", consumer_group, streams.groups()))
    history = streams.history(consumer_group, since_ms=_since(with_steps))
    return _of_history(f"table {table}", ledger, history, with_steps)


def of_checkpoint(location: str, properties: Mapping[str, str] | None, with_steps: bool = False) -> ConsumerProgress:
    """Return the progress of a Spark query, read from the checkpoint.

    The positions are the ends of the last committed batch, or the query's first offsets before the first commit.

    :param properties: properties of the checkpoint's object store; None for a local checkpoint.
    :param with_steps: whether to return the last batches as `steps`, too.

    Raises NotThere without a checkpoint, or if the query has not begun to read; CheckpointDamaged, ForeignCheckpoint.
    """
    checkpoint = read_checkpoint(location, properties)
    if checkpoint is None:
        raise NotThere(f"checkpoint_location: there is no checkpoint at {location!r} yet.")
    if not checkpoint.committed and checkpoint.start is None:
        raise NotThere(f"checkpoint_location: the query of {location!r} has not begun to read yet.")
    ends = checkpoint.ends(checkpoint.committed[-1]) if checkpoint.committed else checkpoint.start or {}
    positions: dict[str, dict[int, int]] = {}
    for (topic, p), offset in ends.items():
        positions.setdefault(topic, {})[p] = offset
    newest = checkpoint.started_at(checkpoint.committed[-1]) if checkpoint.committed else None
    steps = tuple(_steps(checkpoint)) if with_steps else None
    name, reasons = f"checkpoint {location}", _of_query(location, properties)
    # Spark reads new partitions from their start.
    return ConsumerProgress(name, tuple(sorted(positions)), positions, None, newest, reasons, steps, begins=0)


def of_group(state: GroupState, group: str, topics: tuple[str, ...]) -> ConsumerProgress:
    """Return the progress by a consumer group's committed offsets.

    :param topics: the topics of interest; empty: all topics of the group.

    Raises NotThere if the group has committed no offset at all, or no offset of one of the given topics.
    """
    wanted = {topic: offsets for topic, offsets in state.offsets.items() if not topics or topic in topics}
    if not wanted or set(topics) - set(wanted):
        of = f" of {', '.join(sorted(set(topics) - set(wanted)))}" if topics else ""
        known = ", ".join(sorted(state.offsets)) or "no topic"
        raise NotThere(f"group_id: group {group!r} has committed no offset{of}; it has offsets of {known}.")
    reasons = () if state.members else (StreamReason(StreamCause.STOPPED_CONSUMER, f"group {group!r} has no member"),)
    return ConsumerProgress(f"consumer group {group!r}", tuple(sorted(wanted)), wanted, reasons=reasons)


def _since(with_steps: bool) -> int | None:
    return int((time.time() - _STEPS_SINCE) * 1000) if with_steps else None


def _of_history(name: str, ledger: Ledger, history: BranchHistory, with_steps: bool) -> ConsumerProgress:
    # Of the history's reasons only a rollback changes the lag: its records have to be landed again.
    reasons = tuple(one for one in history.reasons(int(time.time() * 1000)) if one.cause is StreamCause.ROLLBACK)
    steps = []
    for record in history.recent if with_steps else ():
        if record.landing is not None:
            entries = record.landing.topics.values()
            offsets = {key: e.landed.of_partition(*key).width for e in entries for key in e.landed.partitions}
            steps.append(PastCommit(record.at_ms / 1000, record.landing.run_id, offsets))
    newest = history.newest.at_ms / 1000 if history.newest is not None else None
    return ConsumerProgress(
        name, topics_of(ledger), None, ledger, newest, reasons, tuple(steps) if with_steps else None
    )


def _of_query(location: str, properties: Mapping[str, str] | None) -> tuple[StreamReason, ...]:
    """Return the reason for a stopped query, by the driver's lease.

    The tuple has one reason. It is empty for a query without a lease or with a running driver.
    """
    lease = read_lease(location, properties)
    if lease is None or lease.state() is LeaseState.HELD:
        return ()
    if lease.state() is LeaseState.VANISHED:
        return (StreamReason(StreamCause.VANISHED_QUERY, f"its driver vanished: {lease}"),)
    if lease.outcome is DriverOutcome.FAILED:
        return (StreamReason(StreamCause.FAILED_QUERY, f"its driver failed: {lease.error}"),)
    return (StreamReason(StreamCause.STOPPED_QUERY, f"its driver has ended ({lease.outcome})"),)


def _steps(checkpoint: QueryCheckpoint) -> Iterator[PastCommit]:
    known = set(checkpoint.planned)
    for batch in reversed(checkpoint.committed[-_BATCHES:]):
        at = checkpoint.started_at(batch) if batch in known else None
        # Without the plan of the batch before, the first offset of this batch is unknown: Spark deletes old plans.
        if at is None or (batch > 0 and batch - 1 not in known):
            return
        starts, ends = checkpoint.starts(batch), checkpoint.ends(batch)
        yield PastCommit(at, str(batch), {key: end - starts.get(key, 0) for key, end in ends.items()})


def _no_ledger_text(name: str, consumer_group: str, groups: tuple[str, ...]) -> str:
    known = ", ".join(groups) or "no group"
    return f"consumer_group: {name} has no ledger of {consumer_group!r}; it has ledgers of {known}."
