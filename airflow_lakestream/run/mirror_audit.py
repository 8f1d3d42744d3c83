"""Audit of a table by key: its records are merged again, by the mirror's own merge, into a table of a local folder.

That table is the *fold*. It has the records at the offsets of the table's ledgers that Kafka still has, and is compared
with the table row by row. Neither Kafka nor the table is changed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.sql import SqlCatalog

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.compare import DoubledRange, PartitionAudit
from airflow_lakestream.audit.keyed import (
    KeyedRules,
    KeyedTable,
    KeyedVerdict,
    RowFault,
    WrongRow,
    keyed_iceberg,
)
from airflow_lakestream.audit.result import AuditResult
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.audit.tally import OffsetTally, TallySegments
from airflow_lakestream.cdc.design import envelope_noted, sequence_noted, strategy_noted
from airflow_lakestream.cdc.events.logs import BinaryLogs
from airflow_lakestream.cdc.events.records import RecordPayload
from airflow_lakestream.cdc.iceberg import IcebergMirror
from airflow_lakestream.cdc.mirror import Mirror
from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.config.decoding import DECODING, OF_ROWS
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.modes import PlanningLook, reading_plan
from airflow_lakestream.core.landing.plan import DamagedBatch, Plan, TopicReplaced
from airflow_lakestream.core.ledger import TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ports import OffsetsGone, RecordChunk, RecordReader
from airflow_lakestream.core.ranges import Interval, OffsetRange, PartitionKey, RangeSet
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.core.routing import MIRROR, is_of_records
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.errors import TopicMissing
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.job import Lake, build_job
from airflow_lakestream.tables.schema.columns import to_schema

if TYPE_CHECKING:
    from airflow_lakestream.audit.key_comparison import KeyComparison

_FOLDED_TABLE = "audit.rows"
_TRIES = 10
# Number of positions after which Python's numbers become Arrow's, which take a tenth of the memory.
_PART_SIZE = 50_000


@dataclass(frozen=True, kw_only=True)
class MirrorAudit:
    """Audit of a mirror, or of a table by key.

    :param audit: the table, the group and the connection.
    :param landing: the arguments of the mirror that decide its rows: of decoding, and `OF_ROWS`.
    """

    audit: Audit
    landing: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := sorted(self.landing.keys() - {*DECODING, *OF_ROWS}):
            problem = f"has {', '.join(unknown)}, which decides no row, or which the table itself knows."
            raise InvalidArgument("landing", problem, f"It takes {', '.join((*DECODING, *OF_ROWS))}.")

    def run(self, lake: Lake, then: Callable[[ComparedRows], object] | None = None) -> AuditResult:
        """Audit the table, and return the result.

        Raises the errors of the audit, of Kafka and of decoding, and InvalidArgument for arguments that contradict the
        table.

        :param then: called with the compared rows, while both sides still exist.
        """
        # DuckDB is loaded for this audit alone.
        from airflow_lakestream.audit.key_comparison import KeyComparison, opened
        from airflow_lakestream.audit.key_repair import KafkaKeyMatch
        from airflow_lakestream.audit.version_comparison import KeyPartitions, VersionComparison

        note = self.note(lake)
        table, ledgers, snapshot_id = self.audit.by_key(lake)
        result = AuditResult(self.audit.table, self.audit.consumer_group, snapshot_id, self.audit.full, by_key=True)
        identity = single_topic(result, ledgers)
        if not result.take_lost(table.lost, ()) or not self.audit.full or identity is None:
            return result
        compare = VersionComparison if strategy_noted(note).keeps_versions else KeyComparison
        with TemporaryDirectory(prefix="lakestream-audit-") as folder, opened(Path(folder)) as database:
            fold = TopicFold(self.config(identity.topic, note), self.audit, table, note, Path(folder))
            landed = union(entry.landed for _, _, entry in ledgers.entries())
            if compare is VersionComparison and len(landed.partitions) > 1:
                fold.on_events = KeyPartitions(database, table.key).add
            match = None
            if then is not None and isinstance(payload := fold.config.payload, RecordPayload):
                match = KafkaKeyMatch(database, table, payload)
                fold.on_events, fold.on_records = match.add_rows, match.add_records
            try:
                fold.read(identity, landed)
            except (TopicMissing, TopicReplaced) as e:
                result.blind.append(f"no row was compared: {e}")
                return result
            except MirrorStopped as e:
                result.blind.append(f"the topic can't be folded from the records that Kafka still has: {e}")
                return result
            if fold.damaged:
                result.blind.append(f"{fold.damaged}: damaged in Kafka, so that their rows can't be compared with it.")
            is_by_kafka_key = _has_record_key(note) if match is None else match.agrees()
            rules = self._rules(note, ledgers.own_entry(identity.topic), landed, fold, is_by_kafka_key)
            comparison = compare(database, table, fold.table(), rules)
            verdict = comparison.run()
            if then is not None:
                then(ComparedRows(comparison, fold.config, identity.topic, snapshot_id))
        _report(result, identity.topic, verdict, rules, ledgers, fold)
        return result

    def config(self, topic: str, note: Mapping[str, Any], table: str = _FOLDED_TABLE) -> MirrorConfig:
        """Return the configuration for the fold: the arguments of the user, and the arguments in the mirror's note.

        :param table: the table to land in.
        """
        user_arguments = {name: value for name, value in self.landing.items() if value is not None}
        envelope = envelope_noted(note)
        noted: dict[str, Any] = {"envelope": envelope, "soft_delete": bool(note["soft_delete"])}
        if is_of_records(note):
            noted |= {"key": note["key"], "insert_only": bool(note.get("insert_only"))}
            noted |= {} if envelope else {"sequence_by": sequence_noted(note) or None}
        if strategy_noted(note).keeps_versions:
            noted |= {"history": True, "history_columns": note.get("history_columns")}
        # Batches are bounded by bytes, for bounded memory, and in effect not by time.
        return MirrorConfig(
            topic=topic,
            table=table,
            table_format=lake_of(table).format,
            consumer_group=self.audit.consumer_group,
            checkpoint_interval=86_400,
            max_batch_bytes=64 * 2**20,
            poll_timeout=self.audit.poll_timeout,
            **noted | user_arguments,
        )

    def note(self, lake: Lake) -> Mapping[str, Any]:
        """Return the note of the mirror in the table's properties."""
        properties: Mapping[str, str] = lake_of(self.audit.table).part("swap").properties_of(lake, self.audit.table)
        note: Mapping[str, Any] = json.loads(properties[MIRROR])
        return note

    def _rules(
        self, note: Mapping[str, Any], own: TopicEntry, landed: RangeSet, fold: TopicFold, is_by_kafka_key: bool
    ) -> KeyedRules:
        """Return the rules by which a mirror's rows are compared with its topic.

        :param note: the mirror's note in its table.
        :param own: the topic's entry in the mirror's ledger.
        :param landed: the offsets that the ledger counts as landed.
        """
        return KeyedRules(
            landed=landed,
            seen=fold.record_tallies,
            lost=own.lost | fold.damaged,
            is_by_log=not is_of_records(note),
            first_stays=bool(note.get("insert_only")),
            within=fold.config.mirror.within is not None,
            keeps_absent=fold.config.mirror.keeps_absent,
            by_sequence=bool(sequence_noted(note)),
            by_kafka_key=is_by_kafka_key,
            has_other_logs=_log_count(note) != _log_count(fold.note()),
            borrowed=fold.borrowed.parts(),
            columns=tuple(note.get("history_columns") or ()),
            repeats=not is_of_records(note) or bool(note.get("flattened")),
        )


@dataclass(frozen=True)
class ComparedRows:
    """The rows of a table and of the fold, with their comparison.

    :param config: the configuration of the fold.
    :param head: the snapshot or version of the table.
    """

    comparison: KeyComparison
    config: MirrorConfig
    topic: str
    head: int | None


def _has_record_key(note: Mapping[str, Any]) -> bool:
    """Return whether the Kafka keys of Debezium's events have exactly the columns of a mirror's key."""
    return not is_of_records(note) and sorted(note.get("record_key") or ()) == sorted(note["key"])


def _log_count(note: Mapping[str, Any]) -> int:
    """Return the number of binary logs that a mirror has followed, one after the other."""
    return len(BinaryLogs.of_note(note.get("logs")).starts)


def single_topic(result: AuditResult, ledgers: TableLedgers) -> TopicIdentity | None:
    """Return the topic of all rows; or None, with the reason in the result, if the table has rows of several topics."""
    identities = sorted({identity for _, identity, _ in ledgers.entries()})
    if len(identities) == 1:
        return identities[0]
    names = ", ".join(dict.fromkeys(identity.topic for identity in identities))
    result.blind.append(
        f"the table has records of {len(identities)} topics, or of a topic that was created again ({names}), and its "
        "rows do not show of which: they can't be compared with records."
    )
    return None


def _report(
    result: AuditResult, topic: str, verdict: KeyedVerdict, rules: KeyedRules, ledgers: TableLedgers, fold: TopicFold
) -> None:
    """Add wrong rows, and rows and offsets that could not be compared, to the result."""
    own, result.wrong = ledgers.own_entry(topic), verdict.wrong
    partitions = {*(p for _, p in rules.landed.partitions), *verdict.rows, *(row.partition for row in verdict.wrong)}
    for partition in sorted(partitions):
        wrong = [row for row in verdict.wrong if row.partition == partition]
        doubled = [row for row in wrong if row.fault is RowFault.DOUBLED]
        landed = rules.landed.of_partition(topic, partition)
        records = fold.record_count(topic, partition)
        read = fold.read_offsets.of_partition(topic, partition)
        ranges = {fault: _ranges(topic, wrong, fault) for fault in RowFault}
        uncompared = verdict.unseen.get(partition, 0)
        result.partitions.append(
            PartitionAudit(
                topic,
                partition,
                missing=ranges[RowFault.MISSING],
                different=ranges[RowFault.DIFFERENT],
                unexpected=ranges[RowFault.EXTRA],
                doubled=tuple(DoubledRange(row.offset, row.offset + 1, row.times) for row in doubled),
                lost=own.lost.of_partition(topic, partition),
                not_verifiable=landed - read,
                rows=verdict.rows.get(partition, 0),
                rows_unseen=uncompared,
                rows_missing=sum(row.fault is RowFault.MISSING for row in wrong),
                readable=records,
            )
        )
        if records < landed.width:
            result.made.append(_uncompared_text(f"{topic}[{partition}]", landed, read, records, uncompared))
    if verdict.unseen_gone:
        result.made.append(
            f"{verdict.unseen_gone} rows that Kafka shows are deleted, by records that Kafka has no more."
        )
    if verdict.unseen_values:
        result.made.append(f"{verdict.unseen_values} rows have values of records that Kafka has no more.")
    if verdict.left_out:
        result.findings.append(f"{verdict.left_out} more rows are wrong: the first {len(verdict.wrong)} are named.")


def _uncompared_text(partition: str, landed: RangeSet, read: RangeSet, records: int, rows: int) -> str:
    """Return a sentence about landed offsets of a partition that have no record in Kafka any more.

    :param read: the landed offsets that Kafka still has.
    :param records: the number of these offsets with a record.
    :param rows: the number of rows of the other offsets.
    """
    return (
        f"{partition}: {landed.width - records} of {landed.width} landed offsets have no record in Kafka any more: "
        f"{(landed - read).width} expired, {read.width - records} were compacted, or are markers of transactions. "
        f"{rows} rows are of such records, and were not compared."
    )


def _ranges(topic: str, wrong: list[WrongRow], fault: RowFault) -> RangeSet:
    rows = (row for row in wrong if row.fault is fault)
    return RangeSet(OffsetRange(topic, row.partition, row.offset, row.offset + 1) for row in rows)


class TopicFold:
    """The records of a topic merged by key into a mirror in a local folder.

    `record_tallies` counts, by partition, the offsets with a record in Kafka. `read_offsets` are the offsets that were
    read, `damaged` the offsets of damaged batches. `borrowed` are the values that records left out and that the merge
    took from earlier records. `on_events`, if set, is called with all events, `on_records` with a partition's records.

    :param table: the table to compare with, whose columns the fold gets.
    :param note: the note of the mirror in that table's properties.
    """

    def __init__(
        self, config: MirrorConfig, audit: Audit, table: KeyedTable, note: Mapping[str, Any], folder: Path
    ) -> None:
        self.config, self._audit = config, audit
        self.read_offsets, self.damaged, self.borrowed = RangeSet(), RangeSet(), BorrowedValues()
        self.record_tallies: dict[PartitionKey, OffsetTally] = {}
        self.on_events: Callable[[pa.Table], None] | None = None
        self.on_records: Callable[[int, RawBatch], None] | None = None
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/fold"
        self._catalog = SqlCatalog("audit", uri=uri, warehouse=warehouse)
        self._catalog.create_namespace(_FOLDED_TABLE.partition(".")[0])
        # The folded table starts empty: its note leaves out the logs that the mirror has followed already.
        properties = {MIRROR: json.dumps({name: value for name, value in note.items() if name != "logs"})}
        self._catalog.create_table(_FOLDED_TABLE, to_schema(table.columns), properties=properties)

    def record_count(self, topic: str, partition: int) -> int:
        """Return the number of offsets of a partition with a record in Kafka."""
        segments = TallySegments({"records": self.record_tallies.get((topic, partition), OffsetTally())})
        return segments.width(pc.greater(segments.counts["records"], 0))

    def note(self) -> Mapping[str, Any]:
        """Return the note of the mirror in the fold's properties."""
        note: Mapping[str, Any] = json.loads(self._catalog.load_table(_FOLDED_TABLE).properties[MIRROR])
        return note

    def table(self) -> KeyedTable:
        """Return the rows of the fold."""
        return keyed_iceberg(self._catalog, self._catalog.load_table(_FOLDED_TABLE))

    def read(self, identity: TopicIdentity, landed: RangeSet) -> None:
        """Read and merge the landed offsets that Kafka still has.

        If Kafka deletes offsets meanwhile, the remaining offsets are read; after ten tries OffsetsGone is raised.
        Raises the errors of Kafka, of decoding and of the merge.
        """
        kafka, where = self._audit.kafka, self._audit.where
        job = build_job(self.config, kafka, self._catalog, run_id="audit", where=where, stop=self._audit.stop, dry=True)
        inner = mirror_of(job)
        assert isinstance(inner.table, IcebergMirror), "the fold is an Iceberg table"
        inner.table.borrowed, inner.noted = self.borrowed.add, self.on_events
        if (current := job.source.identity()) != identity:
            raise TopicReplaced(identity, current, self._audit.consumer_group, self._audit.table)
        job = replace(job, reader=_NotingReader(job.reader, self.record_tallies, self.on_records))
        tries = 0
        while True:
            try:
                land(replace(job, mode=_FoldMode(landed - self.damaged)))
                break
            except DamagedBatch as e:
                self.damaged |= e.ranges
            except OffsetsGone:
                tries += 1
                if tries == _TRIES:
                    raise
        self.read_offsets = job.sink.load("audit").ledger.entry(identity).landed


def mirror_of(job: LandingJob) -> Mirror:
    """Return the mirror of a job."""
    inner = getattr(job.sink, "inner", None)
    assert isinstance(inner, Mirror), "the job is of a mirror's configuration"
    return inner


class BorrowedValues:
    """The positions (partition, offset) of records that left out a column's value, by column."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, pa.Table]] = []
        self._unfinished: dict[str, list[tuple[int, int]]] = {}

    def add(self, column: str, partition: int, offset: int) -> None:
        """Add the position of a record without a value of a column."""
        positions = self._unfinished.setdefault(column, [])
        positions.append((partition, offset))
        if len(positions) == _PART_SIZE:
            self._finish_part(column)

    def parts(self) -> list[tuple[str, pa.Table]]:
        """Return columns with tables of positions (`part`, `off`); a column may have several tables."""
        for column in list(self._unfinished):
            self._finish_part(column)
        return self._parts

    def _finish_part(self, column: str) -> None:
        partitions, offsets = zip(*self._unfinished.pop(column), strict=True)
        positions = {"part": pa.array(partitions, pa.int32()), "off": pa.array(offsets, pa.int64())}
        self._parts.append((column, pa.table(positions)))


@dataclass(frozen=True)
class _FoldMode:
    """`core.landing.modes.RunMode` of the landed offsets that Kafka still has."""

    landed: RangeSet
    interval: Interval | None = None

    def ends_are_fixed(self, entry: TopicEntry) -> bool:
        """Return True: the ledgers fix the ends."""
        return True

    def plan(self, look: PlanningLook) -> Plan:
        """Return the plan of the offsets that are not folded yet."""
        topic = look.state.identity.topic
        in_kafka = union(RangeSet.of(topic, p, marks.low, marks.end) for p, marks in look.state.marks.items())
        return reading_plan(look, (self.landed & in_kafka) - look.entry.landed)

    def own(self, look: PlanningLook) -> RangeSet:
        """Return an empty set: a fold replaces nothing."""
        return RangeSet()


@dataclass(frozen=True)
class _NotingReader:
    """`core.ports.RecordReader` that counts the offsets with a record, by partition, in `tallies`."""

    inner: RecordReader
    tallies: dict[PartitionKey, OffsetTally]
    on_records: Callable[[int, RawBatch], None] | None = None

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        """Yield the plan's records; see `core.ports.RecordReader`."""
        with closing(self.inner.read(plan, cancelled)) as chunks:
            for chunk in chunks:
                key = plan.state.identity.topic, chunk.covers.partition
                self.tallies.setdefault(key, OffsetTally()).add_offsets(chunk.batch.offsets)
                if self.on_records is not None:
                    self.on_records(chunk.covers.partition, chunk.batch)
                yield chunk
