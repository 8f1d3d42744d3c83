"""The consumer that a sensor watches, and the questions about its progress in each topic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_lakestream.config import arguments
from airflow_lakestream.config.settings import SettingField
from airflow_lakestream.core.landing.plan import LogTruncated, TopicState
from airflow_lakestream.core.ledger import Ledger, union
from airflow_lakestream.core.names import check_topic
from airflow_lakestream.core.policies import TableFormat, is_given
from airflow_lakestream.core.ranges import PartitionKey, RangeSet
from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import DriverOutcome, LeaseState
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.lakes import LakeCapability, LakeFormat, lake_named, lake_of
from airflow_lakestream.spark.checkpoint import QueryCheckpoint, read_checkpoint
from airflow_lakestream.watching.asking import LookConnections, LookQuestion, NotThere, Step
from airflow_lakestream.watching.causes import StreamCause, StreamReason
from airflow_lakestream.watching.lag.waiting import TopicLook, backlog_of, topics_of
from airflow_lakestream.watching.streams.landings import BranchHistory

if TYPE_CHECKING:
    from airflow_lakestream.kafka.watch import GroupState
    from airflow_lakestream.watching.streams.landings import TableStreams


_BATCHES = 20  # newest batches of a checkpoint from which a query's speed is measured; Spark keeps 100
# Seconds of the past whose landings give a stream's speed; the last few landings always count.
_STEPS_SECONDS = 6 * 3600


@dataclass(frozen=True, slots=True)
class PastCommit:
    """A past commit.

    `at` is its time in seconds since the epoch, `run` the id of the run or batch, `offsets` the number of offsets by
    partition.
    """

    at: float
    run: str
    offsets: Mapping[PartitionKey, int]


@dataclass(frozen=True)
class ConsumerProgress:
    """The offsets that a consumer has read: either `positions` or `ledger` is set.

    :param name: the consumer, in words for people.
    :param positions: by topic and partition, the next offset to read.
    :param newest_at: the time of the last progress in seconds since the epoch, or None if unknown.
    :param reasons: the reasons for which the consumer makes no progress, such as a failed query.
    :param steps: the last commits, the newest first, or None if unknown or not wanted.
    :param begins: the first offset to read of a partition without a position; None: the start of the log.
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
        """Return the unread offsets of a topic as a pair: those in the log, and those that Kafka no longer has.

        Both end at the last stable offset, as in `state`.

        :param ends: by partition, the highest valid position; a higher position raises LogTruncated. None: the last
            stable offset, with which a ledger is always compared.

        Raises LogTruncated if a partition is gone, or ends below the consumer's offsets, and TopicReplaced if the
        ledger has the topic with another id.
        """
        if self.ledger is not None:
            backlog = backlog_of(self.ledger, state, self.name)
            return backlog.lacking, backlog.lost
        topic = state.identity.topic
        positions = (self.positions or {}).get(topic, {})
        for p, position in positions.items():
            end = (ends or {}).get(p, state.marks[p].end) if p in state.marks else None
            if end is None or position > end:
                raise LogTruncated(topic, p, position, end, self.name)
        defaults = {p: marks.low if self.begins is None else self.begins for p, marks in state.marks.items()}
        begins = {**defaults, **positions}
        missing = union(RangeSet.of(topic, p, begins[p], marks.end) for p, marks in state.marks.items())
        lost = missing & union(RangeSet.of(topic, p, 0, marks.low) for p, marks in state.marks.items())
        return missing - lost, lost


def of_streams(streams: TableStreams, table: str, consumer_group: str, with_steps: bool = False) -> ConsumerProgress:
    """Return the progress of a stream, by the ledger of the consumer group in the table.

    :param with_steps: whether to return the last landings as `steps`, too.

    Raises NotThere without the ledger, and the errors in `streams.problems`.
    """
    ledger = streams.ledger(consumer_group)
    if not ledger.topics:
        known = ", ".join(streams.groups()) or "no group"
        raise NotThere(f"consumer_group: table {table} has no ledger of {consumer_group!r}; it has ledgers of {known}.")
    now_ms = int(time.time() * 1000)
    history = streams.history(consumer_group, since_ms=now_ms - _STEPS_SECONDS * 1000 if with_steps else None)
    return ConsumerProgress(
        f"table {table}",
        topics_of(ledger),
        ledger=ledger,
        newest_at=None if history.landed_ms is None else history.landed_ms / 1000,
        # Only a rollback changes the lag: its records have to be landed again. The other reasons do not matter here.
        reasons=tuple(reason for reason in history.reasons(now_ms) if reason.cause is StreamCause.ROLLBACK),
        steps=tuple(_landings(history)) if with_steps else None,
    )


def of_checkpoint(location: str, properties: Mapping[str, str] | None, with_steps: bool = False) -> ConsumerProgress:
    """Return the progress of a Spark query, by its checkpoint.

    The positions are the ends of the last committed batch, or, before the first commit, the query's first offsets.

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
    return ConsumerProgress(
        f"checkpoint {location}",
        tuple(sorted(positions)),
        positions,
        newest_at=newest,
        reasons=_reasons_of_query(location, properties),
        steps=steps,
        # Spark reads new partitions from their start.
        begins=0,
    )


def of_group(state: GroupState, group: str, topics: tuple[str, ...]) -> ConsumerProgress:
    """Return the progress of a consumer group, by its committed offsets.

    :param topics: the topics of interest; empty: all topics of the group.

    Raises NotThere if the group has committed no offset, or no offset of one of these topics.
    """
    positions = {topic: offsets for topic, offsets in state.offsets.items() if not topics or topic in topics}
    if not positions or set(topics) - set(positions):
        of_topics = f" of {', '.join(sorted(set(topics) - set(positions)))}" if topics else ""
        known = ", ".join(sorted(state.offsets)) or "no topic"
        raise NotThere(f"group_id: group {group!r} has committed no offset{of_topics}; it has offsets of {known}.")
    reasons = () if state.members else (StreamReason(StreamCause.STOPPED_CONSUMER, f"group {group!r} has no member"),)
    return ConsumerProgress(f"consumer group {group!r}", tuple(sorted(positions)), positions, reasons=reasons)


def _landings(history: BranchHistory) -> Iterator[PastCommit]:
    """Yield the last landings as commits, the newest first."""
    for record in history.recent:
        if record.landing is not None:
            offsets = {
                partition: entry.landed.of_partition(*partition).width
                for entry in record.landing.topics.values()
                for partition in entry.landed.partitions
            }
            yield PastCommit(record.at_ms / 1000, record.landing.run_id, offsets)


def _reasons_of_query(location: str, properties: Mapping[str, str] | None) -> tuple[StreamReason, ...]:
    """Return the reason for which a query does not run, by the lease of its driver.

    The tuple is empty if the driver is running, or if there is no lease.
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
    """Yield the last batches as commits, the newest first, as far as Spark has kept their plans."""
    planned = set(checkpoint.planned)
    for batch in reversed(checkpoint.committed[-_BATCHES:]):
        at = checkpoint.started_at(batch) if batch in planned else None
        # The end in the plan of the batch before is the first offset of this batch.
        if at is None or (batch > 0 and batch - 1 not in planned):
            return
        starts, ends = checkpoint.starts(batch), checkpoint.ends(batch)
        yield PastCommit(at, str(batch), {key: end - starts.get(key, 0) for key, end in ends.items()})


# Seconds for which looks share an opened connection. After that, changes of the connection in Airflow take effect.
OPENED = 600.0


def _topics(argument: str, value: object) -> tuple[str, ...]:
    topics = arguments.items(argument, value) or ()
    for topic in topics:
        check_topic(topic)
    return topics


@dataclass(frozen=True)
class ConsumerSource:
    """The consumer that a sensor watches. The fields are the sensor's arguments.

    Exactly one of `checkpoint_location`, `table` and `group_id` is given. `topic` is a topic or several; without a
    topic, all topics of the consumer are watched. A table needs `consumer_group`, the name of its ledger.
    `storage_conn_id` opens the store of a checkpoint or a Delta table. Raises InvalidArgument for any other
    combination.
    """

    topic: SettingField[tuple[str, ...]] = SettingField(None, _topics)
    checkpoint_location: str | None = None
    table: str | None = None
    consumer_group: str | None = None
    group_id: str | None = None
    table_format: str = TableFormat.ICEBERG
    kafka_conn_id: str = "kafka_default"
    iceberg_conn_id: str = "iceberg_default"
    storage_conn_id: str | None = None

    def __post_init__(self) -> None:
        arguments.check_one_source(self.checkpoint_location, self.table, self.group_id)
        if is_given(self.table):
            self.lake.check_name(str(self.table))
            if not is_given(self.consumer_group):
                raise InvalidArgument("consumer_group", "is missing: each ledger belongs to a consumer group.")

    @property
    def lake(self) -> LakeFormat:
        """The format of the table."""
        return lake_named("table_format", self.table_format)

    @property
    def subject(self) -> str:
        """The consumer and its topics, as text: the same for sensors that watch the same."""
        arguments = (self.checkpoint_location, self.table, self.consumer_group, self.group_id, *self.topic)
        return " ".join(str(argument) for argument in (self.kafka_conn_id, *arguments) if is_given(argument))

    def read_progress(self, connections: LookConnections, *, with_steps: bool = False) -> Step:
        """Find the progress of the consumer. Returns `ConsumerProgress`.

        :param with_steps: whether to find the last commits, too.

        Raises the errors of `of_streams`, `of_checkpoint` or `of_group`.
        """
        if is_given(self.checkpoint_location):
            location = str(self.checkpoint_location)
            conn_id = self.storage_conn_id if is_given(self.storage_conn_id) else None
            return (
                yield LookQuestion(
                    ("checkpoint", location, conn_id, with_steps),
                    lambda: of_checkpoint(location, connections.store_properties(conn_id), with_steps),
                )
            )
        if is_given(self.group_id):
            watch = yield ask_kafka(connections, self.kafka_conn_id)
            group = str(self.group_id)
            state = yield LookQuestion(("group", self.kafka_conn_id, group), lambda: watch.group(group))
            return of_group(state, group, self.topic)
        return (yield from self._of_table(connections, with_steps))

    def _of_table(self, connections: LookConnections, with_steps: bool) -> Step:
        """Open the table, and find the progress by its ledger."""
        name, group = str(self.table), str(self.consumer_group)
        if LakeCapability.CATALOG in self.lake.can:
            table = yield from ask_table(connections, self.iceberg_conn_id, name)
            place, open_streams = ("ledger", self.iceberg_conn_id), partial(self.lake.part("books"), table)
        else:
            conn_id = self.storage_conn_id if is_given(self.storage_conn_id) else None
            storage = yield LookQuestion(("delta", conn_id), lambda: connections.delta(conn_id), share_seconds=OPENED)
            place, open_streams = ("delta", conn_id or ""), partial(delta_streams, storage, name)
        key = (*place, name, group, with_steps)
        return (yield LookQuestion(key, lambda: of_streams(open_streams(), name, group, with_steps)))

    def unread(self, connections: LookConnections, progress: ConsumerProgress) -> Step:
        """Find the unread offsets and the first unread record of each partition.

        Returns a list of `UnreadOffsets`, one for each topic. Raises the errors of `unread_ranges`.
        """
        answers = []
        for topic_look, ranges, lost in (yield from self.unread_ranges(connections, progress)):
            answers.append((yield from topic_look.behind_holes(ranges, lost)))
        return answers

    def unread_ranges(self, connections: LookConnections, progress: ConsumerProgress) -> Step:
        """Find the unread ranges. Returns by topic a triple: `TopicLook`, unread offsets, lost offsets.

        The unread offsets can be read; Kafka no longer has the lost offsets. Raises NotThere if the consumer has no
        progress in one of the topics, TopicMissing, TopicReplaced, LogTruncated, KafkaUnavailable, KafkaRefused.
        """
        watch = yield ask_kafka(connections, self.kafka_conn_id)
        answers = []
        for topic in self.topic or progress.topics:
            if topic not in progress.topics:
                raise NotThere(
                    f"topic: {progress.name} does not know the topic {topic!r}, only {', '.join(progress.topics)}."
                )
            state = yield self._ask_topic(watch, topic)
            try:
                ranges, lost = progress.unread(state)
            except LogTruncated:
                # The shared answer about the topic may be older than the answer about the consumer. Ask again.
                state = yield self._ask_topic(watch, topic, share_seconds=0.0)
                # A consumer that reads uncommitted records may be past the last stable offset: the log's end counts.
                key = ("high watermarks", self.kafka_conn_id, state.identity)
                ends = yield LookQuestion(key, partial(watch.high_watermarks, state), share_seconds=0.0)
                ranges, lost = progress.unread(state, ends)
            answers.append((TopicLook(self.kafka_conn_id, watch, state), ranges, lost))
        return answers

    def _ask_topic(self, watch: KafkaWatch, topic: str, share_seconds: float | None = None) -> LookQuestion:
        # The key differs with `share_seconds`: the same key would return the shared answer.
        key = ("topic", self.kafka_conn_id, topic, share_seconds is None)
        return LookQuestion(key, lambda: watch.topic(topic), share_seconds)


def ask_kafka(connections: LookConnections, conn_id: str) -> LookQuestion:
    """Return the question for a connection's `KafkaWatch`."""
    return LookQuestion(("kafka", conn_id), lambda: KafkaWatch(*connections.kafka(conn_id)), share_seconds=OPENED)


def delta_streams(storage: Any, name: str) -> TableStreams:
    """Open the streams of a Delta table. Raises NotThere if the table does not exist."""
    lake = lake_of(name)
    streams: TableStreams | None = lake.part("books").at(storage, name)
    if streams is None:
        raise NotThere(f"table: there is no Delta table at {name!r}.{lake.part('near')(storage, name)}")
    return streams


def ask_table(connections: LookConnections, conn_id: str, name: str) -> Step:
    """Ask for the present state of an Iceberg table. Returns the table; raises NotThere, UnreadableTable."""
    catalog = yield LookQuestion(("catalog", conn_id), lambda: connections.catalog(conn_id), share_seconds=OPENED)

    def load() -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        from airflow_lakestream.iceberg.fitness import load_table

        try:
            return load_table(catalog, name)
        except (NoSuchTableError, NoSuchNamespaceError) as e:
            near = lake_of(name).part("near")(catalog, name)
            raise NotThere(f"table: there is no table {name!r} in the catalog of {conn_id!r}.{near}") from e

    return (yield LookQuestion(("table", conn_id, name), load))
