"""Repair of a table in a single snapshot, after a full audit: missing rows are landed again, doubled rows kept once."""

from __future__ import annotations

import logging
import threading
import uuid
from bisect import bisect_left
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyiceberg.catalog import Catalog

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.damage import TableDamage, TopicDamage, damage_of
from airflow_lakestream.audit.log import bridge_holes
from airflow_lakestream.audit.result import AuditResult, RepairResult
from airflow_lakestream.audit.run import Audit, load
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.config.decoding import DECODING, DecodingSettings
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.settings import SettingField
from airflow_lakestream.config.sql import landed_through
from airflow_lakestream.core.bad_records import USUAL, BadRecords
from airflow_lakestream.core.landing.batch import Batch
from airflow_lakestream.core.landing.job import ConflictCount, LandingJob, check_still_there, read_rows, take
from airflow_lakestream.core.landing.plan import Plan, TopicState, check_log, leader_epochs, reach
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.names import METADATA_NAMES
from airflow_lakestream.core.policies import (
    OnDataLoss,
    OnError,
    SqlInput,
    UnknownFields,
    is_given,
    landing_tombstones,
)
from airflow_lakestream.core.ports import Conflict, RecordChunk, RecordReader, TableState, TopicSource, or_discard
from airflow_lakestream.core.ranges import OffsetRange, PartitionKey, RangeSet, overlapping
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.decode.rejected import RECORD_SCHEMA
from airflow_lakestream.decode.values.outcome import pick
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient
from airflow_lakestream.iceberg.reject_table import rejecting_sink
from airflow_lakestream.iceberg.replace.repair import RepairChange, RowsOutsideLog, repair
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.upkeep import narrow_bounds
from airflow_lakestream.kafka.errors import TopicMissing
from airflow_lakestream.run.job import build_job
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.rejects.settlement import rejects_of
from airflow_lakestream.tables.rejects.sink import RejectingSink
from airflow_lakestream.tables.takeout import shortly
from airflow_lakestream.tables.transformed import refuse_without_spark

log = logging.getLogger(__name__)

TRIES = 5


class RowsLost(LakestreamError, Terminal):
    """Error of missing rows whose records are gone from Kafka; `ranges` are their offsets."""

    def __init__(self, ranges: RangeSet, rows: int, table: str) -> None:
        self.ranges, self.rows = ranges, rows
        super().__init__(
            f"{rows} rows of {table} are missing among {shortly(ranges)}, which Kafka no longer has. Nothing was "
            'repaired. If they are gone for good, repair once with on_data_loss="record": the rest is repaired, and '
            "the ledger keeps these ranges as lost, by receipt."
        )


class FilesLost(LakestreamError, Terminal):
    """Error of lost data files that may have had rows without a Kafka offset; `files` are the paths."""

    def __init__(self, table: str, files: Sequence[str]) -> None:
        self.files = tuple(files)
        super().__init__(
            f"{table}: {files[0]} is lost{f' and {len(files) - 1} more files' if len(files) > 1 else ''}. Its rows "
            "have no Kafka offset, or may have none: they can't be landed again. Nothing was repaired. Put "
            "the files back (from a backup, or a version that the store kept). If they are gone for good, repair once "
            'with on_data_loss="record": the files go out of the table, and what Kafka still has is landed again.'
        )


class NotRepaired(LakestreamError, Transient):
    """Error of a table that other writers have changed during each try of the repair."""

    def __init__(self, table: str, last: Exception) -> None:
        super().__init__(
            f"{table} was changed {TRIES} times in a row between the audit and the repair (last: {last}) Nothing was "
            "repaired. Pause the DAGs that land in it, and repair again."
        )


class RecordsWithoutRow(LakestreamError, Terminal):
    """Error of records that had a row, and of which the repair makes no row."""

    def __init__(self, counts: Counts, covers: OffsetRange, table: str) -> None:
        super().__init__(
            f"{table}: of records of {covers} that have, or had, a row, {counts.filtered} are now filtered and "
            f"{counts.skipped} skipped. Nothing was repaired. Give the repair the same sql, and the same other "
            "arguments, with which they were landed."
        )


class RowsNowBad(LakestreamError, Terminal):
    """Error of records to be landed again, most of which had a row and are bad now."""

    def __init__(self, table: str, read: int, bad: BadRecords, before: int) -> None:
        self.read, self.bad, self.before = read, bad, before
        cause = f" Likely cause: {bad.likely_cause}." if bad.likely_cause else ""
        super().__init__(
            f"{table}: {bad.count} of the {read} records to be repaired are bad, and the ledger counts only "
            f"{before} of them as rejected: most rows would become rejected records. Nothing was repaired.{cause} Bad "
            f"records: {bad}. Give the repair the same format, and the same other arguments, as the landing had. "
            'If they no longer fit any row, land their ranges with mode="ranges", replace=True, max_rejected=1.0.'
        )


class MissingNoMore(Conflict):
    """Error of records that Kafka has deleted between the audit and the repair; `ranges` are their offsets."""

    def __init__(self, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(f"{shortly(ranges)} left Kafka between the audit and the repair.")


@dataclass(frozen=True, kw_only=True)
class TableRepair(DecodingSettings):
    """Repair of all damage in the full audit of a table, group and topic.

    The arguments of decoding are those of `KafkaExtractOperator`. `schema` is only for `sql_input="decoded"`, for
    formats whose fields have no names, and for the sources of times. Rows that a statement made need the same statement
    for the repair.

    :param tombstones: the treatment of records whose value is null, as in `KafkaExtractOperator`.
    :param on_data_loss: if rows are missing whose records are gone from Kafka: `"fail"`, or `"record"` to write a
        receipt.
    """

    audit: Audit
    tombstones: str | None = ExtractConfig.tombstones
    on_data_loss: SettingField[OnDataLoss] = SettingField(ExtractConfig.on_data_loss)

    def __post_init__(self) -> None:
        _ = self.decoding
        landing_tombstones("tombstones", self.tombstones)

    @property
    def decoding(self) -> dict[str, Any]:
        """The arguments for decoding keys and values.

        Raises InvalidArgument for values that a landing refuses, for columns to be added, and for a schema that the
        decoding does not need.
        """
        if self.unknown_fields == UnknownFields.EVOLVE:
            raise InvalidArgument(
                "unknown_fields", '"evolve" adds columns, and a repair adds none.', 'Use "ignore", "rescue" or "fail".'
            )
        payload = self.payload
        needs_schema = self.sql_input == SqlInput.DECODED or payload.format_row.positional or payload.times
        if is_given(self.schema) and not needs_schema:
            raise InvalidArgument(
                "schema",
                'goes with sql_input="decoded" and format="csv", or with sources of times in it: otherwise the columns '
                "are those of the table.",
            )
        decoding = {name: getattr(self, name) for name in DECODING}
        # For its errors only.
        ExtractConfig(topic="any", table="any.any", consumer_group="any", **decoding)
        return decoding

    def run(self, catalog: Catalog) -> AuditResult:
        """Audit, repair the damage in a snapshot, and return a new audit with the repair.

        Wrong bounds of files are corrected afterwards, in another snapshot. If another writer changes the table between
        audit and repair, both begin again, TRIES times at most.

        Raises the errors of the audit and of Kafka, RowsLost, FilesLost, CannotReplace, BadRecord and NotRepaired. An
        error before the repair's commit leaves the table unchanged; after the commit the repaired rows stay.
        """
        audit = replace(self.audit, full=True)
        conflicts = ConflictCount(partial(NotRepaired, audit.table), TRIES)
        result, repaired = conflicts.run(lambda: _RepairAttempt(self, audit, catalog).run())
        if repaired.snapshot_id is not None:
            result = audit.run(catalog)
        if result.narrow:
            repaired = replace(repaired, mended=tuple(result.narrow))
            narrow_bounds.mend(catalog, audit.table, result.wrong_bounds)
            narrow_bounds.mend(catalog, rejects_of(audit.table), result.wrong_bounds_of_rejects)
            result = audit.run(catalog)
        result.repaired = repaired
        return result


@dataclass(frozen=True, slots=True)
class _EntryChange:
    """Change of a topic's ledger entry, and offsets that get no new row.

    :param kept: offsets of doubled rows whose records are gone from Kafka: one of the rows is kept.
    :param left: offsets with a row and a rejected record whose records are gone from Kafka: both stay.
    :param impossible: filter for rows to remove, since the log has no such offsets.
    :param removed: descriptions of these rows.
    """

    entry: TopicEntry
    kept: RangeSet
    left: RangeSet = RangeSet()
    impossible: RowsOutsideLog | None = None
    removed: tuple[str, ...] = ()


@dataclass
class _RepairAttempt:
    """One try of a repair; `names` are the metadata columns of the table."""

    repair: TableRepair
    audit: Audit
    catalog: Catalog
    id: str = field(default_factory=lambda: f"repair {uuid.uuid4().hex}")
    names: tuple[str, ...] = ()

    def run(self) -> tuple[AuditResult, RepairResult]:
        """Audit, and repair the damage; return both results. Raises Conflict if the repair has to begin again."""
        sink, table = self._open()
        result = self.audit.run(self.catalog)
        ledgers = TableLedgers.of(load(self.catalog, self.audit.table), self.audit.consumer_group, self.audit.topic)
        damage = damage_of(result, ledgers)
        self._refuse_losses(damage)
        with or_discard(sink):
            return result, self._repair(damage, sink, table)

    def _open(self) -> tuple[RejectingSink, TableState]:
        """Return the repair's sink, and the table as loaded by the sink.

        The table is loaded before the audit: then the sink notices all later replaces by another writer. Raises
        InvalidArgument without the statement that the rows need.
        """
        table = load(self.catalog, self.audit.table)
        refuse_without_spark(self.audit.table, table.properties, self.audit.consumer_group, "a repair")
        columns, sql_input = table.schema().column_names, landed_through(table.properties, self.audit.consumer_group)
        if sql_input is not None and not is_given(self.repair.sql):
            schema = " and its schema" if sql_input == SqlInput.DECODED else ""
            raise InvalidArgument(
                "sql",
                f"consumer group {self.audit.consumer_group!r} landed in {self.audit.table} through SQL that reads "
                f"{sql_input} records, so only the same statement makes the missing rows.",
                f"Give it: sql, with sql_input={sql_input!r}{schema}.",
            )
        names = tuple(name for name in METADATA_NAMES if metadata_schema([name]).names[0] in columns)
        self.names = names
        design = TableDesign(metadata=metadata_schema(names))
        name, group = self.audit.table, self.audit.consumer_group
        inner = IcebergSink(self.catalog, name, group, design)
        sink = rejecting_sink(inner, self.catalog, name, group, RECORD_SCHEMA)
        return sink, sink.load(self.id)

    def _refuse_losses(self, damage: TableDamage) -> None:
        """Raise RowsLost or FilesLost for rows that can't be landed again, unless losses are recorded."""
        if self.repair.on_data_loss is not OnDataLoss.FAIL:
            return
        with_loss = [topic for topic in damage.topics if topic.rows_vanished]
        if with_loss:
            rows = sum(topic.rows_vanished for topic in with_loss)
            raise RowsLost(union(topic.vanished for topic in with_loss), rows, self.audit.table)
        if files := [file.path for file in damage.lost if file.nulls != 0]:
            raise FilesLost(self.audit.table, files)

    def _repair(self, damage: TableDamage, sink: RejectingSink, table: TableState) -> RepairResult:
        """Commit the repair of the damage; return the result, without a snapshot if nothing can be repaired."""
        changes = {topic.identity: self._read_again(topic, sink, table) for topic in damage.topics}
        left = [*damage.left]
        left += [
            f"{shortly(change.left)}: a row and a rejected record, or several; Kafka no longer has the record."
            for change in changes.values()
            if change.left
        ]
        committed_changes = {identity: change for identity, change in changes.items() if change.entry != TopicEntry()}
        impossible = tuple(change.impossible for change in changes.values() if change.impossible is not None)
        if not (committed_changes or impossible or damage.lost):
            return RepairResult(left=tuple(left))
        landing = Landing(self.id, self.id, {identity: change.entry for identity, change in committed_changes.items()})
        kept = union(change.kept for change in committed_changes.values())
        missing = union(topic.missing for topic in damage.topics)
        lost_files = frozenset(file.path for file in damage.lost)
        committed = repair(sink, RepairChange(landing, kept, bool(missing), impossible, lost_files))
        doubled = union(topic.doubled | topic.with_row_and_reject for topic in damage.topics)
        removed = [text for change in changes.values() for text in change.removed]
        return RepairResult(
            snapshot_id=committed.snapshot_id,
            rows_out=committed.rows_out,
            rows_in=landing.counts.written,
            rejected=landing.counts.rejected,
            landed=missing,
            undoubled=doubled - union(change.left for change in committed_changes.values()),
            adopted=union(entry.landed for entry in landing.topics.values()),
            lost=union(entry.lost for entry in landing.topics.values()),
            left=tuple(left),
            removed=(*removed, *(file.text for file in damage.lost)),
        )

    def _read_again(self, damage: TopicDamage, sink: RejectingSink, table: TableState) -> _EntryChange:
        """Read a topic's damaged ranges into the sink; return the change of the ledger entry.

        Offsets that are only doubled, and whose records are gone from Kafka, keep one of their rows. Raises
        MissingNoMore if missing records are gone from Kafka since the audit, and RowsNowBad if most records are bad
        now.
        """
        job = replace(self._job(damage.identity.topic), sink=sink, rejects=sink)
        state = _look(job.source, damage.identity)
        read, counts, bad = RangeSet(), Counts(), BadRecords()
        if state is not None:
            read, counts, bad = self._read(job, state, damage, table)
        if vanished := damage.missing - read:
            raise MissingNoMore(vanished)
        kept, left = damage.doubled - read, damage.with_row_and_reject - read
        # Rows without a ledger entry are entered as landed.
        adopted = read & damage.unexpected
        lost = damage.vanished if damage.rows_vanished else RangeSet()
        impossible, removed_texts = _impossible_rows(damage, state)
        if not (read or kept or lost):
            return _EntryChange(TopicEntry(), kept, left, impossible, removed_texts)
        # The counts that the ledger has for these offsets until now.
        removed = (read - adopted).width + kept.width + damage.rows_vanished
        # The ledger has only the number of rejected records, not whether a missing record was rejected.
        lacking = damage.rejects_lacking if damage.missing or damage.rows_vanished else min(0, damage.rejects_lacking)
        rejected = min(removed, max(0, lacking + (damage.rejected - left).width))
        # Records that were rejected before may be rejected again.
        if not USUAL.allows(counts.read, counts.rejected - rejected, at_commit=True):
            raise RowsNowBad(self.audit.table, counts.read, bad, rejected)
        entry = TopicEntry(
            landed=adopted,
            lost=lost,
            replaced=(read - adopted) | kept,
            counts=counts + Counts(read=kept.width, written=kept.width),
            removed=Counts(read=removed, written=removed - rejected, rejected=rejected),
            epochs=leader_epochs(state) if read and state is not None else {},
        )
        return _EntryChange(entry, kept, left, impossible, removed_texts)

    def _job(self, topic: str) -> LandingJob:
        """Return a landing's job for a topic, with source, reader and decoders."""
        config = ExtractConfig(
            topic=topic,
            table=self.audit.table,
            consumer_group=self.audit.consumer_group,
            **self.repair.decoding,
            metadata_columns=self.names,
            on_error=OnError.REJECT,
            tombstones=self.repair.tombstones,
            poll_timeout=self.audit.poll_timeout,
        )
        return build_job(
            config, self.audit.kafka, self.catalog, run_id=self.id, where=self.audit.where, stop=self.audit.stop
        )

    def _read(
        self, job: LandingJob, state: TopicState, damage: TopicDamage, table: TableState
    ) -> tuple[RangeSet, Counts, BadRecords]:
        """Write all records of the damaged ranges to the sink; return offsets, counts and bad records.

        Raises RecordsWithoutRow if a record now becomes no row, and LogTruncated.
        """
        check_log(damage.entry, state, job.table)
        topic = damage.identity.topic
        in_kafka = union(RangeSet.of(topic, p, marks.low, marks.end) for p, marks in state.marks.items())
        wanted, entry = damage.ranges & in_kafka, damage.entry
        # Ranges close together are read at once, and `_RangeReader` drops the records between.
        bridged = RangeSet(bridge_holes(wanted)) - entry.lost
        plan = Plan(state, bridged, known_epochs=entry.epochs, known_until=reach(entry))
        tallies: dict[PartitionKey, OffsetTally] = {}
        job, batch = replace(job, reader=_RangeReader(job.reader, wanted)), Batch(plan)
        with closing(read_rows(job, plan, job.decoders(table.schema, None), None)) as results:
            for _, chunk in results:
                if chunk.counts.skipped or chunk.counts.filtered:
                    raise RecordsWithoutRow(chunk.counts, chunk.covers, job.table)
                take(job.sink, job.rejects, batch, chunk, passes_over=True)
                tallies.setdefault((topic, chunk.covers.partition), OffsetTally()).add_offsets(chunk.offsets)
        check_still_there(job, damage.identity)
        read = RangeSet(OffsetRange(*key, *ends) for key, tally in tallies.items() for ends in tally.intervals())
        return read, batch.total, batch.bad


def _impossible_rows(damage: TopicDamage, state: TopicState | None) -> tuple[RowsOutsideLog | None, tuple[str, ...]]:
    """Return the filter for rows at offsets that the log lacks, with descriptions; (None, ()) without such rows.

    :param state: the topic; None if the topic is gone: then no offset is known to be impossible.
    """
    if state is None:
        return None, ()
    topic = damage.identity.topic
    ends = {partition: marks.end for partition, marks in state.marks.items()}
    beyond = damage.unexpected - union(RangeSet.of(topic, p, 0, end) for p, end in ends.items())
    if not (damage.impossible or beyond):
        return None, ()
    texts = (f"{offset_range}, where the log has no records yet" for offset_range in beyond)
    return RowsOutsideLog(topic, ends), (*damage.impossible, *texts)


def _look(source: TopicSource, identity: TopicIdentity) -> TopicState | None:
    """Return the topic's present state; None if the topic is gone, or was created again."""
    try:
        state = source.look()
    except TopicMissing:
        return None
    return state if state.identity == identity else None


@dataclass(frozen=True)
class _RangeReader:
    """Reader of the given ranges within a plan's wider ranges."""

    reader: RecordReader
    ranges: RangeSet

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        """Yield the plan's chunks with only the records in the ranges; see `core.ports.RecordReader`."""
        with closing(self.reader.read(plan, cancelled)) as chunks:
            for chunk in chunks:
                yield replace(chunk, batch=only(chunk.batch, self.ranges))


def only(batch: RawBatch, ranges: RangeSet) -> RawBatch:
    """Return the records of a batch at offsets in the ranges."""
    if not len(batch):
        return batch
    intervals = overlapping(ranges.intervals(batch.topic, batch.partition), batch.offsets[0], batch.offsets[-1])
    indexes: list[int] = []
    for start, end in intervals:
        indexes += range(bisect_left(batch.offsets, start), bisect_left(batch.offsets, end))
    return batch if len(indexes) == len(batch) else pick(batch, indexes)
