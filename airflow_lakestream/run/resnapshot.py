"""Resnapshot of a mirror: find or request the new rows, build a staging table, and replace the mirror's rows.

The rows that Debezium reads, and all later events, are landed in a second mirror, the staging table
`<table>__resnapshot`. It has its own ledger, so a killed run continues at the same offsets. Then `cdc.swap` commits.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_lakestream.cdc.design import MirrorDesign, check_debezium, strategy_noted
from airflow_lakestream.cdc.events.whole_snapshot import DebeziumSnapshot, SnapshotSearch, origin_of_topic
from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.cdc.swap import CannotSwap, MirrorSwap
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import CommittedLanding, ConflictCount, LandingJob, Stopped
from airflow_lakestream.core.landing.plan import DataLoss, TopicState, check_identity
from airflow_lakestream.core.ledger import Landing, LandingEngine, Ledger, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.names import ANEW, RecordPart
from airflow_lakestream.core.ports import Conflict
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import MIRROR, is_of_records
from airflow_lakestream.core.source_types import in_new_rows
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.signals import SignalTopic, SnapshotSignal
from airflow_lakestream.kafka.source import KafkaSource, SourceFromOffsets, StartAt
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.job import Lake, build_job
from airflow_lakestream.tables.design import TableDesign

log = logging.getLogger(__name__)

TRIES = 10
LOOK_SECONDS = 1.0
# Number of offsets before the topic's end that are searched for an event that names its connector.
_LOOK_BACK = 1_000
# Seconds after which a signal counts as given up.
_SIGNAL_SECONDS = 24 * 3600


class NotAnswered(LakestreamError, Transient):
    """Error of a signal after which Debezium did not read the table, or not to the end."""

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
    """Error of a topic without a snapshot of the whole table."""

    def __init__(self, topic: str, ranges: RangeSet) -> None:
        super().__init__(
            f"{topic}: there is no snapshot of the whole table, from its first row to its last, in "
            f"{ranges or 'an empty topic'}. The mirror is unchanged. Leave out --no-signal to let Debezium read the "
            "table now."
        )


@dataclass(frozen=True)
class SnapshotRequest:
    """Request for all rows of a database's table, as events in the table's topic.

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
        """Ask Debezium for a snapshot, unless it was asked already; return the topic's ends then, and the snapshot.

        Raises NotAnswered, NotSignalled, Stopped.

        :param signal_topic: default: `<topic.prefix>-signal` of the connector in the topic's newest events.
        :param entry: the mirror's ledger entry of the topic.
        :param start_over: whether Debezium is asked even if it was asked already.
        """
        state = self.source.look()
        recent = self._search({p: max(m.low, m.end - _LOOK_BACK) for p, m in state.marks.items()})
        recent.look(state, self.stop)
        origin = recent.origin or origin_of_topic(state.identity.topic)
        topic = SignalTopic(self.connection, self.where, signal_topic or f"{origin.prefix}-signal", origin.prefix)
        signal = None if start_over else self._open_signal(topic, origin.collection, state, entry)
        if signal is None:
            self.report(f"{state.identity.topic}: asking Debezium by {topic.topic} to read {origin.collection} again.")
            signal = topic.ask(origin.collection, {p: m.end for p, m in state.marks.items()}, self._wait)
        return signal.starts, self._await(self._search(signal.starts), topic)

    def _open_signal(
        self, topic: SignalTopic, table: str, state: TopicState, entry: TopicEntry
    ) -> SnapshotSignal | None:
        """Return the last signal if its snapshot is not complete or not landed yet; None otherwise.

        A signal older than a day counts as given up.
        """
        signal = topic.last(table)
        if signal is None or signal.age > _SIGNAL_SECONDS:
            return None
        snapshot = self._search(signal.starts).look(state, self.stop)
        if snapshot is not None and _is_landed(snapshot, state.identity, entry):
            return None
        self.report(f"{state.identity.topic}: Debezium was asked {signal.age:.0f} s ago; it is not asked again.")
        return signal

    def _await(self, search: SnapshotSearch, topic: SignalTopic) -> DebeziumSnapshot:
        """Wait for a complete snapshot. Raises NotAnswered after `timeout` without a further row, and Stopped."""
        last_progress, rows = time.monotonic(), 0
        while True:
            state = self.source.look()
            if (snapshot := search.look(state, self.stop)) is not None:
                return snapshot
            if search.rows > rows:
                last_progress, rows = time.monotonic(), search.rows
                self.report(f"{state.identity.topic}: Debezium has read {rows} rows so far.")
            if time.monotonic() - last_progress > self.timeout:
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
    """Return whether a ledger entry has the snapshot's last event of each partition."""
    last_events = union(RangeSet.of(identity.topic, p, end - 1, end) for p, end in snapshot.ends.items())
    return not last_events - entry.held


class ResnapshotTables:
    """The mirror `table`, and `staging`, the table built to replace the mirror's rows."""

    def __init__(self, lake: Lake, table: str) -> None:
        self._lake, self.table, self.staging = lake, table, f"{table.rstrip('/')}{ANEW}"
        self._format = lake_of(table).part("swap")

    def design(self) -> MirrorDesign:
        """Return the mirror's design. Raises InvalidArgument if the table is not a mirror."""
        return self._design(self.table)

    def staging_key(self) -> tuple[str, ...]:
        """Return the key columns of the staging table."""
        return self._design(self.staging).key or ()

    def staging_id(self) -> str | None:
        """Return the id of the staging table, or None if missing."""
        table_id: str | None = self._format.aside_id(self._lake, self.staging)
        return table_id

    def drop_staging(self) -> None:
        """Drop the staging table."""
        # The table itself last: its presence shows that an earlier run is not finished.
        self._format.drop(self._lake, f"{self.staging}{SUFFIX}", self.staging)

    def swap(self, consumer_group: str, rows: RowStrategy) -> MirrorSwap:
        """Return the swap to replace the mirror's rows by the rows of the staging table.

        :param rows: the mirror's strategy: which rows a key has.
        """
        # Without a key: the swap takes the key of the staging table.
        design = MirrorDesign(TableDesign(metadata=pa.schema([])), rows=rows)
        swap: MirrorSwap = self._format.mirror_swap(self._lake, self.table, consumer_group, design, self.staging)
        return swap

    def _design(self, table: str) -> MirrorDesign:
        """Return the design in a mirror's note. Raises InvalidArgument for a table that no database can send again."""
        properties: Mapping[str, str] | None = self._format.properties_of(self._lake, table)
        if properties is None:
            raise InvalidArgument("table", lake_of(table).missing_text(self._lake, table))
        text = properties.get(MIRROR)
        if text is None:
            raise InvalidArgument("table", f"{table} is not a mirror.", "Only a mirror can be read again.")
        note = json.loads(text)
        if is_of_records(note):
            problem = f"{table} is a table by key of plain records, which no database can send again."
            raise InvalidArgument("table", problem, "To read the topic from its begin, land it in a new table.")
        check_debezium("table", table, note)
        if strategy_noted(note).keeps_versions:
            problem = f"{table} has the history of its rows, and other rows would not have the versions before them."
            raise InvalidArgument("table", problem, "Land the topic in a new table.")
        return MirrorDesign(TableDesign(metadata=pa.schema([])), tuple(note["key"]), strategy_noted(note))


class AsideTooOld(LakestreamError, Terminal):
    """Error of an earlier run's staging table whose further events Kafka no longer has."""

    def __init__(self, staging: str, cause: DataLoss) -> None:
        super().__init__(
            f"{staging} was begun by an earlier run, and Kafka no longer has its missing events: {cause.ranges}. "
            "The mirror is unchanged. Start over with --anew."
        )


class NotReplaced(LakestreamError, Transient):
    """Error of a mirror that another app has changed before each commit."""

    def __init__(self, table: str, last: BaseException) -> None:
        super().__init__(
            f"{table}: {TRIES} times in a row an app landed more before the new rows could be committed (last: {last}) "
            "The mirror is unchanged, and the staging table keeps the new rows. Stop the app, and run the command "
            "again."
        )


@dataclass(frozen=True)
class ResnapshotResult:
    """Result of a resnapshot: the replacing snapshot or version, and the number of rows before and after.

    Both numbers are None if an earlier run had committed the replace.
    """

    table: str
    snapshot_id: int
    rows_before: int | None
    rows: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "table": self.table,
            # As text: browsers would round 64-bit numbers.
            "snapshot_id": str(self.snapshot_id),
            "rows_before": self.rows_before,
            "rows": self.rows,
        }


@dataclass(frozen=True, kw_only=True)
class MirrorResnapshot:
    """Resnapshot of a mirror.

    :param table: the mirror: namespace.table, or the location of a Delta table.
    :param kafka: librdkafka configuration.
    :param topic: default: the topic in the group's ledger.
    :param decoding: the app's arguments for decoding: `format`, `schema_registry`, `schema`, `key`.
    :param signal_topic: default: Debezium's, `<topic.prefix>-signal`.
    :param by_signal: whether Debezium is asked for a snapshot; otherwise the last snapshot in the topic is used.
    :param since: the offsets from which to search for the last snapshot, by partition.
    :param start_over: whether the staging table of an earlier run is discarded.
    :param timeout: seconds without a row after which Debezium counts as not answering.
    :param report: called with progress messages.
    """

    table: str
    consumer_group: str
    kafka: Mapping[str, Any] = field(repr=False)
    where: str = "the Kafka connection"
    topic: str | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)
    signal_topic: str | None = None
    by_signal: bool = True
    since: Mapping[int, int] = field(default_factory=dict)
    start_over: bool = False
    timeout: float = 300
    report: Callable[[str], object] = log.info
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._config("any")

    def run(self, lake: Lake) -> ResnapshotResult:
        """Replace the mirror's rows by the rows of a snapshot, and return the result.

        A staging table of an earlier run is continued, unless `start_over` drops it. If that run had committed the
        replace already, its deletions are remembered, the staging table is dropped, and no row is changed. The staging
        table is dropped after success.

        Raises NotAnswered, NoSnapshot, NotReplaced, AsideTooOld, CannotSwap, and the errors of a landing. After an
        error the mirror is unchanged.
        """
        tables = ResnapshotTables(lake, self.table)
        design = tables.design()
        if self.start_over:
            tables.drop_staging()
        staging_id = tables.staging_id()
        swap = tables.swap(self.consumer_group, design.rows)
        state = swap.mirror.load(_run_of(staging_id or "none"))
        if staging_id is not None and state.landed_by_run:
            swap.table.add_entries(tables.staging_key())
            self.report(f"{self.table}: an earlier run has replaced the rows; its staging table is dropped.")
            tables.drop_staging()
            return ResnapshotResult(self.table, state.landed_by_run[-1][0], None, None)
        topic = self._topic_of(state.ledger)
        if staging_id is None:
            starts, key = self._find(topic, state.ledger, design)
        else:
            self.report(f"{tables.staging}: an earlier run began to build it; this run continues.")
            starts, key = {}, tables.staging_key()
        return self._replace(tables, self._job(lake, topic, starts, key), key, design)

    def _config(self, topic: str, **arguments: Any) -> MirrorConfig:
        """Return the configuration of the staging table's landing."""
        return MirrorConfig(
            topic=topic,
            table=f"{self.table.rstrip('/')}{ANEW}",
            consumer_group=self.consumer_group,
            table_format=lake_of(self.table).format,
            **{**self.decoding, **arguments},
        )

    def _find(self, topic: str, ledger: Ledger, design: MirrorDesign) -> tuple[Mapping[int, int], tuple[str, ...]]:
        """Return the first offsets of the new rows, by partition, and the columns of the key.

        Debezium is asked for a snapshot, or the topic is searched for a snapshot. The key is the configured key, else
        the key of the snapshot's records, else the mirror's.
        """
        config = self._config(topic)
        source = KafkaSource(self.kafka, topic, self.consumer_group, StartAt(), self.where)
        formats = config.payload
        own = {name: getattr(formats, name) for name in ("format", "envelope", "registry", "writer_schemas")}
        payload = PayloadFormats(**own)
        request = SnapshotRequest(
            self.kafka, self.where, source, payload, self.consumer_group, self.timeout, self.report, self.stop
        )
        if self.by_signal:
            entry = ledger.entry(source.identity())
            begin, snapshot = request.ask(self.signal_topic, entry, start_over=self.start_over)
        else:
            begin, snapshot = request.find(self.since)
        starts = {**begin, **snapshot.starts}
        begin_text = ", ".join(f"{topic}[{p}] offset {offset}" for p, offset in sorted(snapshot.starts.items()))
        self.report(f"{topic}: the snapshot has {snapshot.rows} rows, from {begin_text} on.")
        return starts, config.mirror.key or snapshot.key or design.key or ()

    def _job(self, lake: Lake, topic: str, starts: Mapping[int, int], key: tuple[str, ...]) -> LandingJob:
        """Return the job that lands the snapshot in the staging table, from the given offset of each partition."""
        config = self._config(topic, key=list(key))
        job = build_job(config, self.kafka, lake, run_id=f"aside {uuid.uuid4().hex}", where=self.where, stop=self.stop)
        return replace(job, source=SourceFromOffsets(job.source, starts), committed=self._report_commit)

    def _report_commit(self, committed: CommittedLanding) -> None:
        self.report(f"{committed.table}: {committed.landing.counts.read} events landed in the staging table.")

    def _replace(
        self, tables: ResnapshotTables, job: LandingJob, key: tuple[str, ...], design: MirrorDesign
    ) -> ResnapshotResult:
        """Land in the staging table and replace the mirror's rows, again if another app lands in between."""
        conflicts = ConflictCount(partial(NotReplaced, self.table), TRIES, then="Reading on.", report=self.report)
        while True:
            try:
                land(job)
            except DataLoss as e:
                raise AsideTooOld(tables.staging, e) from e
            run_id = _run_of(str(tables.staging_id()))
            swap = tables.swap(self.consumer_group, design.rows)
            landing, reach = self._landing(run_id, swap.mirror.load(run_id).ledger, job)
            try:
                snapshot_id = swap.exchange(landing, key, reach)
            except Conflict as e:
                conflicts.add(e)
                continue
            except CannotSwap:
                tables.drop_staging()
                raise
            self.report(f"{self.table}: all rows are replaced; the staging table is dropped.")
            tables.drop_staging()
            rows = swap.table.swap
            assert rows is not None, "the swap was committed"
            return ResnapshotResult(self.table, snapshot_id, rows.rows_before, rows.rows)

    def _landing(self, run_id: str, ledger: Ledger, job: LandingJob) -> tuple[Landing, RangeSet]:
        """Return the landing of the offsets missing in the mirror's ledger, and all offsets of the new rows.

        The new rows replace all offsets from 0 up to the staging table's ends. Offsets below the mirror's origin are
        not landed by the mirror's group, so the landing leaves them out.
        """
        identity = job.source.identity()
        check_identity(ledger, identity, self.table)
        staging = job.sink.load(run_id).ledger
        mirror_entry, staging_entry = ledger.entry(identity), staging.entry(identity)
        ends = dict(staging_entry.origin)
        for r in staging_entry.held:
            ends[r.partition] = max(r.until_offset, ends.get(r.partition, 0))
        reach = union(RangeSet.of(identity.topic, p, 0, end) for p, end in ends.items() if end)
        below = union(RangeSet.of(identity.topic, p, 0, first) for p, first in mirror_entry.origin.items() if first)
        origin = {} if mirror_entry.origin else dict.fromkeys(ends, 0)
        landed, counts, epochs = reach - below - mirror_entry.held, staging_entry.counts, staging_entry.epochs
        topics = {identity: TopicEntry(landed=landed, counts=counts, origin=origin, epochs=epochs)}
        types, extract = in_new_rows(staging.types, ledger.types), LandingEngine.EXTRACT
        landing = Landing(uuid.uuid4().hex, run_id, topics, engine=extract, types=types, replaces_types=True)
        return landing, reach

    def _topic_of(self, ledger: Ledger) -> str:
        """Return the configured topic, or the only topic of the ledger. Raises InvalidArgument."""
        if self.topic is not None:
            return self.topic
        topics = sorted({identity.topic for identity in ledger.topics})
        if len(topics) != 1:
            problem = f"is needed: the ledger of {self.consumer_group!r} on {self.table} has "
            raise InvalidArgument("--topic", problem + f"{', '.join(topics) or 'no topic'}.", "Is the group right?")
        return topics[0]


def _run_of(staging_id: str) -> str:
    """Return the run id of the replace by a staging table: a further run finds an earlier commit by this id."""
    return f"resnapshot {staging_id}"
