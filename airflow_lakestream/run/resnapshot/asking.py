"""Beginning of a table's new rows in the topic: after a request to Debezium, or at an earlier snapshot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_lakestream.cdc.events.whole_snapshot import DebeziumSnapshot, SnapshotSearch, origin_of_topic
from airflow_lakestream.core.landing.job import Stopped
from airflow_lakestream.core.landing.plan import TopicState
from airflow_lakestream.core.ledger import TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.records import RecordPart
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.signals import SignalTopic, SnapshotSignal
from airflow_lakestream.kafka.source import KafkaSource

LOOK_SECONDS = 1.0


# Offsets before the topic's end that are searched for an event that names its connector.
_LOOK_BACK = 1_000


# A signal older than this counts as given up.
_ASKED_SECONDS = 24 * 3600


class NotAnswered(LakestreamError, Transient):
    """Debezium did not read the table, or not to the end."""

    def __init__(self, topic: str, signals: str, rows: int, timeout: float) -> None:
        progress = f"{rows} rows of it came, and then none" if rows else "no row of it came"
        super().__init__(
            f"{topic}: Debezium was asked by signal topic {signals} to read the table again, and {progress} for "
            f"{timeout:g} s. The mirror is unchanged. Is the connector running? It needs kafka in "
            f"signal.enabled.channels, signal.kafka.topic={signals} and signal.kafka.bootstrap.servers. A table "
            "without rows sends none: TRUNCATE it in the database, and the mirror follows. Run the command again to "
            "keep waiting; with --anew it asks once more."
        )


class NoSnapshot(LakestreamError, Terminal):
    """The topic has no snapshot of the whole table."""

    def __init__(self, topic: str, ranges: RangeSet) -> None:
        super().__init__(
            f"{topic}: there is no snapshot of the whole table, from its first row to its last, in "
            f"{ranges or 'an empty topic'}. The mirror is unchanged. Leave out --no-signal to let Debezium read the "
            "table now."
        )


@dataclass(frozen=True)
class SnapshotRequest:
    """Request for the rows of a topic.

    :param connection: librdkafka configuration.
    :param where: name of the connection for errors.
    :param payload: format of the topic's values.
    :param timeout: seconds without a row after which Debezium counts as not answering.
    :param report: called with progress messages.
    """

    connection: Mapping[str, object]
    where: str
    source: KafkaSource
    payload: PayloadFormats
    consumer_group: str
    timeout: float
    report: Callable[[str], object]
    stop: threading.Event

    def find(self, since: Mapping[int, int]) -> tuple[Mapping[int, int], DebeziumSnapshot]:
        """Return the first offsets searched, and the last snapshot of the whole table. Raises NoSnapshot.

        :param since: the offset from which to search, by partition; default: the log's start.
        """
        state = self.source.look()
        topic = state.identity.topic
        begin = {p: max(marks.low, since.get(p, 0)) for p, marks in state.marks.items()}
        self.report(f"{topic}: looking for the last snapshot of the whole table.")
        snapshot = self._search(begin).look(state, self.stop)
        if snapshot is None:
            looked = {p: m.end for p, m in state.marks.items() if begin[p] < m.end}
            raise NoSnapshot(topic, union(RangeSet.of(topic, p, begin[p], end) for p, end in looked.items()))
        return begin, snapshot

    def ask(
        self, signal_topic: str | None, entry: TopicEntry, *, start_over: bool
    ) -> tuple[Mapping[int, int], DebeziumSnapshot]:
        """Ask Debezium for a snapshot, and wait for the rows.

        Returns the topic's ends at the request, and the snapshot. A request of the last day without a landed snapshot
        is waited for, and not repeated. Raises NotAnswered, NotSignalled, Stopped.

        :param signal_topic: default: named by the connector's topic.prefix, as in the topic's newest events.
        :param entry: the mirror's ledger entry of the topic.
        :param start_over: ask even if Debezium was asked already.
        """
        state = self.source.look()
        recent = self._search({p: max(m.low, m.end - _LOOK_BACK) for p, m in state.marks.items()})
        recent.look(state, self.stop)
        origin = recent.origin or origin_of_topic(state.identity.topic)
        topic = SignalTopic(self.connection, self.where, signal_topic or f"{origin.prefix}-signal", origin.prefix)
        asked = None if start_over else self._asked_before(topic, origin.collection, state, entry)
        if asked is None:
            self.report(f"{state.identity.topic}: asking Debezium by {topic.topic} to read {origin.collection} again.")
            asked = topic.ask(origin.collection, {p: m.end for p, m in state.marks.items()}, self._wait)
        return asked.starts, self._await(self._search(asked.starts), topic)

    def _asked_before(
        self, topic: SignalTopic, table: str, state: TopicState, entry: TopicEntry
    ) -> SnapshotSignal | None:
        """Return the last signal if the snapshot is still to come or to be landed; else None.

        A signal older than a day counts as given up.
        """
        asked = topic.last(table)
        if asked is None or asked.age > _ASKED_SECONDS:
            return None
        snapshot = self._search(asked.starts).look(state, self.stop)
        if snapshot is not None and _is_landed(snapshot, state.identity, entry):
            return None
        self.report(f"{state.identity.topic}: Debezium was asked {asked.age:.0f} s ago; it is not asked again.")
        return asked

    def _await(self, search: SnapshotSearch, topic: SignalTopic) -> DebeziumSnapshot:
        since, rows = time.monotonic(), 0
        while True:
            state = self.source.look()
            if (snapshot := search.look(state, self.stop)) is not None:
                return snapshot
            if search.rows > rows:
                since, rows = time.monotonic(), search.rows
                self.report(f"{state.identity.topic}: Debezium has read {rows} rows so far.")
            if time.monotonic() - since > self.timeout:
                raise NotAnswered(state.identity.topic, topic.topic, rows, self.timeout)
            self._wait(LOOK_SECONDS)

    def _search(self, starts: Mapping[int, int]) -> SnapshotSearch:
        parts = frozenset({RecordPart.KEY})
        reader = KafkaReader(self.connection, self.consumer_group, poll_timeout=30, where=self.where, parts=parts)
        return SnapshotSearch(self.payload, reader, dict(starts))

    def _wait(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise Stopped


def _is_landed(snapshot: DebeziumSnapshot, identity: TopicIdentity, entry: TopicEntry) -> bool:
    lasts = union(RangeSet.of(identity.topic, p, end - 1, end) for p, end in snapshot.ends.items())
    return not lasts - entry.held
