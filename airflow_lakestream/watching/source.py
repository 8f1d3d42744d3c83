"""The consumer of a sensor, and the questions about the progress of the consumer in each topic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_lakestream.config import arguments
from airflow_lakestream.core.landing.plan import LogTruncated
from airflow_lakestream.core.names import check_topic
from airflow_lakestream.core.policies import TableFormat, is_given
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.lakes.formats import LakeCapability, LakeFormat, lake_named, lake_of
from airflow_lakestream.watching import books
from airflow_lakestream.watching.asking import LookConnections, LookQuestion, NotThere
from airflow_lakestream.watching.books import ConsumerProgress
from airflow_lakestream.watching.lag.waiting import Asking, TopicLook

if TYPE_CHECKING:
    from airflow_lakestream.watching.streams.landings import TableStreams

# Seconds that an opened connection is used: later changes to it then take effect.
OPENED = 600.0


@dataclass(frozen=True)
class ConsumerSource:
    """The consumer of a sensor: exactly `checkpoint_location`, `table` or `group_id` is given.

    The fields are the sensor's arguments. `topic` is a topic or several; None: all topics of the consumer. A table
    needs `consumer_group`, the name of its ledger. `storage_conn_id` opens the store of a checkpoint or a Delta table.
    Raises InvalidArgument for any other combination.
    """

    topic: Any = None
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
        for topic in self.topics:
            check_topic(topic)
        if is_given(self.table):
            self.lake.check_name(str(self.table))
            if not is_given(self.consumer_group):
                raise InvalidArgument("consumer_group", "is missing: each ledger belongs to a consumer group.")

    @property
    def topics(self) -> tuple[str, ...]:
        """The given topics; empty: all topics of the consumer."""
        return arguments.items("topic", self.topic) or ()

    @property
    def lake(self) -> LakeFormat:
        """The format of the table."""
        return lake_named("table_format", self.table_format)

    @property
    def subject(self) -> str:
        """Name of the consumer and topics."""
        named = (self.checkpoint_location, self.table, self.consumer_group, self.group_id, *self.topics)
        return " ".join(str(one) for one in (self.kafka_conn_id, *named) if is_given(one))

    def read_progress(self, connections: LookConnections, *, with_steps: bool = False) -> Asking:
        """Find the progress of the consumer. Returns `ConsumerProgress`.

        :param with_steps: whether the progress has the last commits, too.

        Raises the errors of `books.of_streams`, `books.of_checkpoint` or `books.of_group`.
        """
        if is_given(self.checkpoint_location):
            where = str(self.checkpoint_location)
            conn_id = self.storage_conn_id if is_given(self.storage_conn_id) else None
            return (
                yield LookQuestion(
                    ("checkpoint", where, conn_id, with_steps),
                    lambda: books.of_checkpoint(where, connections.store_properties(conn_id), with_steps),
                )
            )
        if is_given(self.group_id):
            watch = yield ask_kafka(connections, self.kafka_conn_id)
            group = str(self.group_id)
            state = yield LookQuestion(("group", self.kafka_conn_id, group), lambda: watch.group(group))
            return books.of_group(state, group, self.topics)
        return (yield from self._of_table(connections, with_steps))

    def _of_table(self, connections: LookConnections, with_steps: bool) -> Asking:
        name, group = str(self.table), str(self.consumer_group)
        if LakeCapability.CATALOG in self.lake.can:
            table = yield from ask_table(connections, self.iceberg_conn_id, name)
            place, look = ("ledger", self.iceberg_conn_id), partial(self.lake.part("books"), table)
        else:
            conn_id = self.storage_conn_id if is_given(self.storage_conn_id) else None
            storage = yield LookQuestion(("delta", conn_id), lambda: connections.delta(conn_id), keep=OPENED)
            place, look = ("delta", conn_id or ""), partial(delta_streams, storage, name)
        key = (*place, name, group, with_steps)
        return (yield LookQuestion(key, lambda: books.of_streams(look(), name, group, with_steps)))

    def unread(self, connections: LookConnections, progress: ConsumerProgress) -> Asking:
        """Find the unread offsets and the first unread record of each partition.

        Returns a list of `UnreadOffsets`, one for each topic. Raises the errors of `unread_ranges`.
        """
        answers = []
        for topic_look, ranges, lost in (yield from self.unread_ranges(connections, progress)):
            answers.append((yield from topic_look.behind_holes(ranges, lost)))
        return answers

    def unread_ranges(self, connections: LookConnections, progress: ConsumerProgress) -> Asking:
        """Find the unread ranges. Returns a list of (`waiting.TopicLook`, unread, lost), by topic.

        `unread` are the unread offsets that can be read, `lost` the unread offsets that Kafka no longer has. Raises
        NotThere if the consumer has no progress in a given topic, TopicMissing, TopicReplaced, LogTruncated,
        KafkaUnavailable, KafkaRefused.
        """
        watch = yield ask_kafka(connections, self.kafka_conn_id)
        answers = []
        for topic in self.topics or progress.topics:
            if topic not in progress.topics:
                raise NotThere(
                    f"topic: {progress.name} does not know the topic {topic!r}, only {', '.join(progress.topics)}."
                )
            state = yield self._ask_topic(watch, topic)
            try:
                ranges, lost = progress.unread(state)
            except LogTruncated:
                # Shared answers may have different ages: the topic's may be older than the consumer's. Ask again.
                state = yield self._ask_topic(watch, topic, keep=0.0)
                # A consumer of uncommitted records may also be past the first open transaction: use the log's end.
                key = ("high watermarks", self.kafka_conn_id, state.identity)
                ends = yield LookQuestion(key, partial(watch.high_watermarks, state), keep=0.0)
                ranges, lost = progress.unread(state, ends)
            answers.append((TopicLook(self.kafka_conn_id, watch, state), ranges, lost))
        return answers

    def _ask_topic(self, watch: KafkaWatch, topic: str, keep: float | None = None) -> LookQuestion:
        # With `keep` the key is another, or the kept answer would be returned.
        return LookQuestion(("topic", self.kafka_conn_id, topic, keep is None), lambda: watch.topic(topic), keep)


def ask_kafka(connections: LookConnections, conn_id: str) -> LookQuestion:
    """Ask for a `KafkaWatch` of a connection."""
    return LookQuestion(("kafka", conn_id), lambda: KafkaWatch(*connections.kafka(conn_id)), keep=OPENED)


def delta_streams(storage: Any, name: str) -> TableStreams:
    """Open a Delta table. Raises NotThere."""
    lake = lake_of(name)
    streams: TableStreams | None = lake.part("books").at(storage, name)
    if streams is None:
        raise NotThere(f"table: there is no Delta table at {name!r}.{lake.part('near')(storage, name)}")
    return streams


def ask_table(connections: LookConnections, conn_id: str, name: str) -> Asking:
    """Ask for the present state of an Iceberg table. Returns the table; raises NotThere, UnreadableTable."""
    catalog = yield LookQuestion(("catalog", conn_id), lambda: connections.catalog(conn_id), keep=OPENED)

    def load() -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        from airflow_lakestream.iceberg.fitness import load_table

        try:
            return load_table(catalog, name)
        except (NoSuchTableError, NoSuchNamespaceError) as e:
            near = lake_of(name).part("near")(catalog, name)
            raise NotThere(f"table: there is no table {name!r} in the catalog of {conn_id!r}.{near}") from e

    return (yield LookQuestion(("table", conn_id, name), load))
