"""Offset ranges of a run, planned from the ledger and the watermarks before the first record is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from airflow_lakestream.core.ledger import Ledger, StreamBatch, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ranges import Interval, RangeSet
from airflow_lakestream.exceptions import LakestreamError, Terminal

ANOTHER_REPLICA = (
    "If another replica has the whole batch, let that replica lead the partition (kafka-leader-election.sh)."
)
# Remedy for an engine that reads a topic by itself, since it begins at one offset of each partition.
BEHIND_DAMAGE = (
    f"{ANOTHER_REPLICA} Else give these offsets up: `lakestream ledger forget --damaged` writes a receipt of exactly "
    "these into the ledger. Run KafkaExtractOperator once with the same group then: it lands what is before and behind "
    "them. Then run this task again (clear it): it begins where the ledger ends."
)


@dataclass(frozen=True, slots=True)
class PartitionWatermarks:
    """Offsets of a partition in the broker: [low, end); `end` is the last stable offset.

    `leader_epoch` is None if the broker does not report epochs.
    """

    low: int
    end: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class TopicState:
    """Identity of a topic and watermarks of the partitions, at a moment."""

    identity: TopicIdentity
    marks: Mapping[int, PartitionWatermarks]


@dataclass(frozen=True, slots=True)
class Plan:
    """Offset ranges to read and ledger facts to write. `origin` is empty unless the run sets the origin.

    `epochs` are the leader epochs to write. `known_epochs` are the ledger's: with them the reader lets Kafka notice
    that offsets were used again after an unclean leader election. They hold up to the ledger's end, `known_until`,
    since another leader may have written the offsets above. `covered` is the time that is covered once the whole plan
    has landed. `completes`: all records of the run's interval are landed. `foreign_rows` counts the topic's rows
    without a ledger that the plan does not double. `streamed` is the plan's batch of a streaming query, which is
    written even without records.
    """

    state: TopicState
    ranges: RangeSet
    lost: RangeSet = RangeSet()
    origin: Mapping[int, int] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)
    known_epochs: Mapping[int, int] = field(default_factory=dict)
    known_until: Mapping[int, int] = field(default_factory=dict)
    covered: Interval | None = None
    completes: bool = False
    foreign_rows: int = 0
    streamed: StreamBatch | None = None

    def known_epoch(self, partition: int, offset: int) -> int | None:
        """Return the ledger's leader epoch for a read from `offset` on; None if unknown, or above the ledger's end."""
        return self.known_epochs.get(partition) if offset <= self.known_until.get(partition, -1) else None

    @property
    def changes_the_ledger(self) -> bool:
        """Whether the plan changes the ledger, with or without rows."""
        return bool(self.ranges or self.lost or self.origin or self.covered or self.streamed)


class DataLoss(LakestreamError, Terminal):
    """Retention removed offsets before the landing; `ranges` are the lost offsets."""

    def __init__(self, ranges: RangeSet, table: str) -> None:
        self.ranges = ranges
        super().__init__(
            f"offsets that {table} does not hold yet are no longer in Kafka: {ranges}. Nothing was landed past them. "
            "Retention or DeleteRecords removed them. If they are gone for good, run once with "
            'on_data_loss="record": what is left is landed, and the ledger keeps the lost ranges as a receipt.'
        )


class BeginningLost(DataLoss):
    """The interval begins at the log's start, and the ledger lacks offsets below: a part may be lost."""

    def __init__(self, ranges: RangeSet, table: str) -> None:
        super().__init__(ranges, table)
        self.args = (
            f"the interval begins at the start of the log: records of it may have been among {ranges}, which {table} "
            "does not hold and Kafka no longer has. Nothing was landed. If they are gone for good, run once with "
            'on_data_loss="record": what is left is landed, and the ledger keeps the lost ranges as a receipt.',
        )


class RangesGone(LakestreamError, Terminal):
    """Kafka no longer has all offsets to replace."""

    def __init__(self, ranges: RangeSet, table: str) -> None:
        self.ranges = ranges
        super().__init__(
            f"{table} holds {ranges}, to be replaced, but Kafka no longer has all of it. Nothing was removed. Replace "
            "a later interval, or ranges that are still there."
        )


class BeginningGone(RangesGone):
    """The interval to replace begins at the log's start, and may contain landed offsets below."""

    def __init__(self, ranges: RangeSet, table: str) -> None:
        super().__init__(ranges, table)
        self.args = (
            f"the interval begins at the start of the log: records of it may be among {ranges}, which {table} holds "
            "and Kafka no longer has. Nothing was removed. Replace a later interval; or run with "
            'on_data_loss="record": what Kafka still has is replaced, and the rows below it stay as they are.',
        )


class DamagedBatch(LakestreamError, Terminal):
    """A damaged batch of records; `ranges` are the unreadable offsets.

    `description` names the batch and the damage. If `is_unreadable_by_broker`, the broker sends nothing, and only then
    `on_data_loss="record"` records the batch as lost.
    """

    def __init__(
        self, topic: str, partition: int, first: int, end: int, problem: str, *, is_unreadable_by_broker: bool = False
    ) -> None:
        self.ranges = RangeSet.of(topic, partition, first, end)
        self.is_unreadable_by_broker = is_unreadable_by_broker
        place = f"{topic}[{partition}] [{first},{end})"
        self.description = f"{place}: the batch of records at offset {first} is damaged in Kafka: {problem}"
        recorded = ', or by runs with on_data_loss="record"' if is_unreadable_by_broker else ""
        super().__init__(
            f"{self.description}. What was not committed yet was discarded, and a retry meets it again. "
            f"{ANOTHER_REPLICA} Else give these offsets up by `lakestream ledger forget --damaged`{recorded}: a "
            "receipt of exactly these is written into the ledger, and the next run goes on behind them."
        )


class TopicReplaced(LakestreamError, Terminal):
    """The topic's name now refers to another topic, or to another cluster."""

    def __init__(self, known: TopicIdentity, found: TopicIdentity, consumer_group: str, table: str) -> None:
        self.known, self.found = known, found
        cause = "the topic was deleted and created again"
        if known.cluster_id != found.cluster_id:
            cause = "the connection leads to another Kafka cluster"
        super().__init__(
            f"{found.topic}: {cause}. {table} holds records of topic id {known.topic_id or '(none)'} in cluster "
            f"{known.cluster_id}; found was topic id {found.topic_id or '(none)'} in cluster {found.cluster_id}. Their "
            f"offsets mean different records, so nothing was landed. To land the new topic into the same table, "
            f"use another consumer_group than {consumer_group!r}; else correct the connection, or use another table."
        )


class LogTruncated(LakestreamError, Terminal):
    """The log is shorter than the landed offsets, or lacks a landed partition."""

    def __init__(self, topic: str, partition: int, landed_until: int, end: int | None, table: str) -> None:
        self.topic, self.partition, self.landed_until, self.end = topic, partition, landed_until, end
        log = "the partition, or that part of its log, is gone" if end is None else f"its log ends at {end}"
        super().__init__(
            f"{topic}[{partition}]: {table} holds offsets up to {landed_until}, but {log}. Offsets may have been used "
            "again for other records (unclean leader election, or a restore from a backup), so nothing was landed. "
            "Find out what happened to the topic; to land it again, use another table or another consumer_group."
        )


class LandedByAnotherGroup(LakestreamError, Terminal):
    """Another consumer group's ledger on the same table holds offsets of this plan."""

    def __init__(self, ranges: RangeSet, consumer_group: str, other: str, table: str, part: str | None = None) -> None:
        self.ranges, self.other = ranges, other
        super().__init__(
            f"consumer group {other!r} has already landed {ranges} in {table}; landing them for {consumer_group!r} "
            f"would put each record in the table twice. Use consumer_group={other!r}, or another table; "
            "allow_group_overlap=True lands them a second time on purpose."
            + (f" Of the table: {part} It has the records that chose it, and no others." if part else "")
        )


def check_identity(ledger: Ledger, identity: TopicIdentity, table: str) -> None:
    """Refuse a topic if the ledger has another incarnation of its name. Raises TopicReplaced."""
    for other in ledger.other_incarnations(identity.topic, identity):
        raise TopicReplaced(other, identity, ledger.consumer_group, table)


def check_log(entry: TopicEntry, state: TopicState, table: str) -> None:
    """Refuse a log with an end below the landed offsets, or without a landed partition. Raises LogTruncated.

    :param state: the topic now, not cut to the ends of an earlier look: other runs may have landed past those.
    """
    for topic, partition in entry.landed.partitions:
        landed_until = entry.landed.intervals(topic, partition)[-1][1]
        marks = state.marks.get(partition)
        if marks is None or marks.end < landed_until:
            raise LogTruncated(topic, partition, landed_until, marks.end if marks else None, table)


def resume_plan(
    entry: TopicEntry, state: TopicState, starts: Mapping[int, int], on_data_loss: OnDataLoss, table: str
) -> Plan:
    """Plan all offsets not landed yet between the group's origin and the ends in `state`.

    Offsets below the log's start go into the plan's `lost`; with `on_data_loss` FAIL they raise DataLoss. A partition
    that came after the origin was fixed begins at 0.

    :param starts: the offsets of `TopicSource.starts`. They become the origin if the ledger has no origin, and are
        ignored otherwise.
    """
    topic = state.identity.topic
    is_first = not entry.origin
    origin = first_origin(entry, state, starts) if is_first else entry.origin
    wanted = union(RangeSet.of(topic, p, origin.get(p, 0), marks.end) for p, marks in state.marks.items())
    need = wanted - entry.held
    lost = need & union(RangeSet.of(topic, p, 0, marks.low) for p, marks in state.marks.items())
    if lost and on_data_loss is OnDataLoss.FAIL:
        raise DataLoss(lost, table)
    return Plan(
        state=state,
        ranges=need - lost,
        lost=lost,
        origin=origin if is_first else {},
        epochs=leader_epochs(state),
        known_epochs=entry.epochs,
        known_until=reach(entry),
    )


def without(plan: Plan, unreadable: RangeSet) -> Plan:
    """Return the plan with the unreadable offsets moved from `ranges` to `lost`."""
    lost = plan.ranges & unreadable
    return replace(plan, ranges=plan.ranges - lost, lost=plan.lost | lost) if lost else plan


def first_origin(entry: TopicEntry, state: TopicState, starts: Mapping[int, int]) -> dict[int, int]:
    """Return, by partition, the beginning of a group without an origin in the ledger.

    A partition that `starts` leaves out begins at the log's start. If the group has landed lower offsets already,
    the partition begins at the first of these: what the log lost since is lost to the group.

    :param starts: the offsets of `TopicSource.starts`.
    """
    in_ledger, topic = entry.held, state.identity.topic
    firsts = {p: in_ledger.intervals(topic, p)[0][0] for _, p in in_ledger.partitions}
    return {p: starts.get(p, min(marks.low, firsts.get(p, marks.low))) for p, marks in state.marks.items()}


def leader_epochs(state: TopicState) -> dict[int, int]:
    """Return the leader epochs to write, by partition, as far as the broker reports epochs."""
    return {p: marks.leader_epoch for p, marks in state.marks.items() if marks.leader_epoch is not None}


def reach(entry: TopicEntry) -> dict[int, int]:
    """Return, by partition, the end of the offsets with known leader epochs: of the held offsets, or the origin."""
    ends = {p: entry.held.intervals(topic, p)[-1][1] for topic, p in entry.held.partitions}
    return {p: max(ends.get(p, 0), entry.origin.get(p, 0)) for p in {*ends, *entry.origin}}


def first_hole(entry: TopicEntry, identity: TopicIdentity, partition: int) -> int:
    """Return the first offset missing in the ledger, at or above the group's origin, to be committed in Kafka."""
    return entry.held.first_missing(identity.topic, partition, entry.origin.get(partition, 0))
