"""An audit from end to end: the snapshot, the topics, and the reading of rows and records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.compare import PartitionAudit, PartitionFacts, judge_partition
from airflow_lakestream.audit.keyed import KeyedTable, keyed_iceberg
from airflow_lakestream.audit.log import LogRecords, read_log
from airflow_lakestream.audit.quick import look_at_files, look_at_rejects, only_topic
from airflow_lakestream.audit.result import AuditResult, CountComparison, UnplacedCounts, rejected_count
from airflow_lakestream.audit.rows import (
    AdoptedRows,
    NoPositions,
    RowPositions,
    UnreadableRows,
    adopted_lines,
    count_rejected,
    count_rows,
)
from airflow_lakestream.audit.statistics import LostFile, SizeOf, TableFiles, table_files, take_out_lost
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.core.names import BESIDE, check_table_name, check_topic
from airflow_lakestream.core.ports import RecordReader
from airflow_lakestream.core.printable import nearest
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import refuse_mirror
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.fan_out import books as fan_out_books
from airflow_lakestream.iceberg.upkeep.narrow_bounds import wrong_bounds
from airflow_lakestream.kafka.errors import TopicMissing
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.lakes import LakeCapability, lake_of
from airflow_lakestream.tables.coordinates import COORDINATES
from airflow_lakestream.tables.positions import PositionColumns, has_adopted
from airflow_lakestream.tables.rejects.settlement import rejects_of
from airflow_lakestream.tables.retention import removed_note
from airflow_lakestream.tables.transformed import without_positions


def judge_topic(
    result: AuditResult,
    ledgers: TableLedgers,
    rows: RowPositions,
    rejected: RowPositions,
    adopted: AdoptedRows,
    topic: str,
    log: LogRecords | None,
) -> None:
    """Compare the partitions of a topic, and add the verdicts and counts to the result.

    :param rows: the table's rows by position, without adopted rows.
    :param log: the records left in Kafka; None if Kafka no longer has the topic: then no row counts as missing.
    """
    audits = []
    impossible = {
        (group.topic, group.partition): group
        for group in rows.impossible
        if group.topic is not None and group.partition is not None
    }
    with_rows = {key for key in (*rows.tallies, *impossible) if key[0] == topic}
    for key in sorted({*ledgers.partitions([topic]), *with_rows}):
        facts = PartitionFacts(
            *key,
            allowed=ledgers.allowed(key),
            rows=rows.tallies.get(key, OffsetTally()) + adopted.within(key),
            rejected=rejected.tallies.get(key, OffsetTally()),
        )
        if log is not None:
            facts.required = ledgers.allowed(key, log.identity)
            facts.readable = log.readable.get(key, OffsetTally())
            facts.shown = log.shown.of_partition(*key)
        facts = ledgers.complete(facts)
        facts = replace(facts, adopted=facts.adopted - adopted.ranges)
        audits.append(replace(judge_partition(facts), impossible=impossible.get(key)))
    if topic in ledgers.topics:
        audits = _count(result, ledgers, adopted, topic, audits)
    result.note_rows_before(topic, audits)
    result.partitions += audits


def _count(
    result: AuditResult, ledgers: TableLedgers, adopted: AdoptedRows, topic: str, audits: list[PartitionAudit]
) -> list[PartitionAudit]:
    """Add comparisons of a topic's counts with the ledgers; return the audits of the topic's partitions.

    The counts show losses that Kafka no longer shows. If the ledger counts skipped or filtered records, the returned
    audits have their missing offsets moved to `not_verifiable`, unless the counts prove that a record is missing.
    """
    counts = ledgers.counts(topic)
    # Skipped and filtered records have no row and no rejected record; the ledger counts them without offsets.
    without_row = counts.skipped + counts.filtered
    # The ledger counts no rows of other tools.
    adopted_rows, adopted_missing = adopted.counted(audits)
    missing = sum(audit.rows_missing for audit in audits) - adopted_missing
    rows = sum(audit.rows - audit.rows_too_many - audit.rows_before for audit in audits) - adopted_rows
    rejected = sum(audit.rejected - audit.rejected_too_many for audit in audits)
    if counts.rejected or rejected:
        result.counts.append(rejected_count(topic, counts.rejected, rejected))
    # The missing ranges explain a part of a difference: only the remainder is reported as a wrong count.
    if not without_row:
        unit = "rows and rejected records" if counts.rejected else "rows"
        expected = counts.written + counts.rejected
        part = f"{topic}, beyond the ranges named"
        result.counts.append(CountComparison(part, expected, rows + rejected + missing, topic, unit))
        return audits
    result.counts.append(CountComparison(topic, counts.written, rows, topic))
    missing_by_count = max(0, counts.written - rows) + max(0, counts.rejected - rejected)
    # The least number of missing records: by the counts, or by the offsets that skipped and filtered records can't
    # explain.
    certainly_missing = max(missing_by_count, missing - without_row)
    if missing and not certainly_missing:
        return [_perhaps_filtered(audit, adopted.ranges) for audit in audits]
    if missing:
        result.notes.append(
            f"{topic}: up to {without_row} of the offsets called missing were skipped or filtered; "
            f"{certainly_missing} records are certainly missing."
        )
    return audits


def _perhaps_filtered(audit: PartitionAudit, adopted: RangeSet) -> PartitionAudit:
    """Return the audit with missing offsets moved to `not_verifiable`: they may be skipped or filtered records.

    :param adopted: adopted offsets. They stay missing, since no landing skipped or filtered their records.
    """
    certainly_missing = audit.missing & adopted
    not_verifiable = audit.not_verifiable | (audit.missing - adopted)
    return replace(
        audit, missing=certainly_missing, rows_missing=certainly_missing.width, not_verifiable=not_verifiable
    )


Loaded = TypeVar("Loaded")


class TableMissing(LakestreamError, Terminal):
    """The table does not exist; the error suggests the nearest table of the namespace."""

    def __init__(self, table: str, catalog: Catalog) -> None:
        self.table = table
        super().__init__(
            f"table: there is no table {table} in the catalog. Correct the name or the Iceberg connection."
            + near_table(catalog, table)
        )


def near_table(catalog: Catalog, table: str) -> str:
    """Return a question for the nearest table of a missing table's namespace, or an empty text."""
    # The text only completes an error, and a failure here must not replace that error.
    with suppress(Exception):
        names = (name for *_, name in catalog.list_tables(catalog.namespace_from(table)) if not name.endswith(BESIDE))
        if near := nearest(table.rpartition(".")[2], names):
            return f" Did you mean '{table.rpartition('.')[0]}.{near}'?"
    return ""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Configuration of an audit, validated on construction. Raises InvalidArgument.

    :param topic: one topic of the group's ledger; None for all.
    :param full: whether every position of the rows and of the topic is read, not only the files' statistics.
    :param kafka: librdkafka's configuration; a quick audit does not use Kafka.
    :param where: name of the Kafka connection for errors.
    :param poll_timeout: seconds without data after which the reading of a partition fails with StalledPartition.
    :param stop: once it is set, a full audit raises AuditStopped.
    """

    table: str
    consumer_group: str
    topic: str | None = None
    full: bool = False
    kafka: Mapping[str, Any] = field(default_factory=dict)
    where: str = "the Kafka connection"
    poll_timeout: float = 30.0
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.check_place()
        if self.topic is not None:
            check_topic(self.topic)

    def check_place(self) -> None:
        """Raise InvalidArgument if `table` is not a valid name of an Iceberg table."""
        check_table_name(self.table)

    def run(self, catalog: Any) -> AuditResult:
        """Audit the table without a change in Kafka or in the table.

        Lost delete files, or lost files of the reject table, end the audit early: the result is then blind. If the rows
        have no positions, only the size of the reject table is compared with the ledgers.

        Raises TableMissing, UnreadableTable, IsMirror, PartOfFanOut, NoLedger, NoPositions, UndecidedLedger,
        UnreadableRows, InvalidArgument for the path of a Delta table, and the errors of the Kafka side.
        """
        table, rejects = load_both(catalog, self.table)
        refuse_mirror(self.table, table.metadata.properties, "audited by topic, partition and offset")
        if note := fan_out_books.note_on(table.metadata.properties):
            raise fan_out_books.PartOfFanOut(self.table, note)
        has_positions = look_for_positions(self.table, table.schema().column_names, table.metadata.properties)
        ledgers = TableLedgers.of(table, self.consumer_group, self.topic)
        head = ledger_store.facts_of(table.metadata).head_id
        result = AuditResult(self.table, self.consumer_group, head, self.full)
        if self.consumer_group not in ledger_store.groups(table):
            result.notes.append("the ledger's table property is gone; it was read from the snapshots instead.")
        topics = self.begin(result, ledgers, table.metadata.properties)
        files = table_files(table, head)
        reject_files = TableFiles() if rejects is None else table_files(rejects, ledger_store.head_of(rejects.metadata))

        def lost_of(table: Table, files: TableFiles) -> list[LostFile]:
            return find_lost(".".join(table.name()), files, lambda path: len(table.io.new_input(path)), ledgers)

        if not result.take_lost(lost_of(table, files), [] if rejects is None else lost_of(rejects, reject_files)):
            return result
        lost_paths = [file.path for file in result.lost_files]
        try:
            result.wrong_bounds += wrong_bounds(table, head, lost_paths)
            if rejects is not None:
                result.wrong_bounds_of_rejects += wrong_bounds(rejects, ledger_store.head_of(rejects.metadata))
        except OSError as e:
            raise UnreadableRows(self.table, e) from e
        adopted = self.adopted(
            result,
            ledgers,
            table.schema().as_arrow(),
            table.metadata.properties,
            lambda columns: count_rows(table, result.snapshot_id, without=lost_paths, columns=columns),
        )
        if not has_positions and not adopted.ranges:
            look_at_rejects(result, ledgers, None if rejects is None else reject_files)
        elif self.full:
            rows = count_rows(table, result.snapshot_id, self.topic, lost_paths) if has_positions else RowPositions()
            rejected = (
                RowPositions() if rejects is None else count_rejected(rejects, table, ledgers.ledgers, self.topic)
            )
            self.judge(result, ledgers, rows, rejected, topics, adopted)
        else:
            look_at_files(result, ledgers, files, topics)
            look_at_rejects(result, ledgers, None if rejects is None else reject_files)
        return result

    def by_key(self, catalog: Any) -> tuple[KeyedTable, TableLedgers, int | None]:
        """Open a table by key at its head; return it with the ledgers, and the head's snapshot or version.

        Raises TableMissing, UnreadableTable, NoLedger, UndecidedLedger and UnreadableRows.
        """
        table = load(catalog, self.table)
        ledgers = TableLedgers.of(table, self.consumer_group, self.topic)
        snapshot_id = ledger_store.facts_of(table.metadata).head_id
        files = table_files(table, snapshot_id)
        lost = find_lost(self.table, files, lambda path: len(table.io.new_input(path)), ledgers)
        keyed = keyed_iceberg(catalog, table)
        lost_paths = {file.path for file in lost}
        existing = [task for task in keyed.files if task.file.file_path not in lost_paths]
        return replace(keyed, files=existing, lost=lost), ledgers, snapshot_id

    def begin(self, result: AuditResult, ledgers: TableLedgers, properties: Mapping[str, str]) -> tuple[str, ...]:
        """Add all parts that the audit can't verify to the result; return the topics to audit.

        These parts are: rows of functions that drop positions (`made`), the numbers of skipped and filtered records,
        whose offsets no ledger has (`by_count`), and, as `notes`, offsets that the group passed over and offsets with
        unproven values.
        """
        result.notes += filter(None, [removed_note(properties)])
        result.made += [
            f"rows that {function.function} made of records of {group}: they keep no topic, partition and offset"
            for group, function in without_positions(properties).items()
        ]
        topics = ledgers.topics if self.topic is None else (self.topic,)
        result.by_count += [
            UnplacedCounts(topic, counts.skipped, counts.filtered)
            for topic in topics
            if (counts := ledgers.counts(topic)).skipped or counts.filtered
        ]
        result.notes += [
            f"{ranges}: above what the group landed first, below where it began to resume; neither landed nor lost."
            for topic in topics
            if (ranges := ledgers.passed_over(topic))
        ]
        result.notes += [
            f"{ranges}: rows of Flink's or Kafka Connect's, not each of which was compared with what the extract makes "
            "of its record: their values are not proven."
            for topic in topics
            if (ranges := ledgers.own_entry(topic).unproven)
        ]
        return topics

    def adopted(
        self,
        result: AuditResult,
        ledgers: TableLedgers,
        schema: pa.Schema,
        properties: Mapping[str, str],
        count: Callable[[PositionColumns], RowPositions],
    ) -> AdoptedRows:
        """Return the rows of other tools, by the columns that their receipts name; empty in a quick audit.

        Also add a line to `result.made` for the adopted offsets that no row proves.

        :param count: counts the table's rows by the positions in the given columns.
        """
        rows = AdoptedRows.find(ledgers, schema, properties, count) if self.full else AdoptedRows()
        result.made += adopted_lines(ledgers, properties, rows.ranges)
        return rows

    def judge(
        self,
        result: AuditResult,
        ledgers: TableLedgers,
        rows: RowPositions,
        rejected: RowPositions,
        topics: tuple[str, ...],
        adopted: AdoptedRows,
    ) -> None:
        """Compare the position of every row with the ledgers and with the records left in Kafka.

        The verdicts are added to the result. Topics without a ledger of any group are compared without Kafka: their
        rows are unexpected.
        """
        if rows.without_position:
            result.notes.append(f"{rows.without_position} rows have no Kafka position: another writer's, not judged.")
        result.findings += [f"unexpected: {group.text}" for group in rows.impossible if None in group.key]
        result.impossible += rows.impossible
        for topic in topics:
            judge_topic(result, ledgers, rows, rejected, adopted, topic, self._read_topic(result, ledgers, topic))
        unknown_topics = {topic for topic, _ in rows.tallies}
        unknown_topics |= {group.topic for group in rows.impossible if group.topic is not None}
        for unknown_topic in sorted(unknown_topics - ledgers.known_topics):
            judge_topic(result, ledgers, rows, rejected, adopted, unknown_topic, None)

    def reader(self) -> RecordReader:
        """Return the reader of the topic's records."""
        return KafkaReader(self.kafka, self.consumer_group, poll_timeout=self.poll_timeout, where=self.where)

    def _read_topic(self, result: AuditResult, ledgers: TableLedgers, topic: str) -> LogRecords | None:
        """Return the landed records that Kafka still has, or None if Kafka no longer has the topic.

        Parts that Kafka does not show are added to `result.blind`.
        """
        source = KafkaSource(self.kafka, topic, self.consumer_group, StartAt(), self.where)
        try:
            log = read_log(ledgers.landed, source, self.reader(), self.stop)
        except TopicMissing:
            result.blind.append(f"topic {topic} no longer exists in Kafka: it is unknown which rows are missing.")
            return None
        if log.damaged:
            result.blind.append(f"{log.damaged}: damaged in Kafka, so that their rows can't be compared with it.")
        if log.identity not in ledgers.identities(topic):
            result.blind.append(
                f"topic {topic} is another topic now (deleted and created again, or another cluster): it is "
                "unknown which rows of the landed topic are missing."
            )
        return log


def look_for_positions(table: str, columns: Sequence[str], properties: Mapping[str, str]) -> bool:
    """Return whether the table has the columns topic, partition and offset.

    Raises NoPositions if it lacks one of them, unless a function made rows without positions, or rows were adopted.
    """
    missing = [name for name in COORDINATES if name not in columns]
    if missing and not without_positions(properties) and not has_adopted(properties):
        raise NoPositions(table, missing)
    return not missing


def find_lost(
    table: str,
    files: TableFiles,
    size_of: SizeOf,
    ledgers: TableLedgers,
    errors: tuple[type[Exception], ...] = (OSError,),
) -> list[LostFile]:
    """Return the lost files, and remove lost data files from `files`.

    A lost file is gone from the store, or has another size than in the table's metadata. Raises UnreadableRows if the
    store does not answer.

    :param table: name of the table, for the error.
    :param errors: the errors of `size_of` if the store does not answer.
    """
    try:
        return take_out_lost(files, size_of, lambda file: only_topic(file, ledgers))
    except errors as e:
        raise UnreadableRows(table, e) from e


def load(catalog: Catalog, table: str) -> Table:
    """Load a table. Raises TableMissing, `fitness.UnreadableTable`, and InvalidArgument for a Delta table's path."""
    lake_of(table).require(LakeCapability.EDITS, "table", table)
    try:
        return fitness.load_table(catalog, table)
    except NoSuchTableError as e:
        raise TableMissing(table, catalog) from e


def load_both(catalog: Catalog, table: str) -> tuple[Table, Table | None]:
    """Load a table and its reject table (None if absent) in consistent snapshots. Raises the errors of `load`."""

    def load_rejects() -> Table | None:
        try:
            return catalog.load_table(rejects_of(table))
        except NoSuchTableError:
            return None

    return load_consistent(
        partial(load, catalog, table), load_rejects, lambda loaded: ledger_store.head_of(loaded.metadata)
    )


def load_consistent(
    load_main: Callable[[], Loaded], load_rejects: Callable[[], Loaded | None], head_of: Callable[[Loaded], object]
) -> tuple[Loaded, Loaded | None]:
    """Load a table and its reject table (None if absent) at consistent heads.

    The loading is repeated until the main table has not changed while the reject table was loaded.

    :param head_of: returns the snapshot or version of a loaded table.
    """
    main = load_main()
    while (rejects := load_rejects()) is not None:
        # Load the reject table last: rejected records are removed only after the main table's commit.
        again = load_main()
        if head_of(again) == head_of(main):
            break
        main = again
    return main, rejects
