"""Replay of rejected records from the reject table, after a correction of a schema or a setting.

A replay replaces exactly the offsets of rejected records, by the landing algorithm. The records are read from the
reject table, since Kafka may have deleted them. Each record is in the table or in the reject table at any time, since
the commit of the main table decides both. So a new reason needs a commit of the main table, too; without a new row and
a new reason nothing is committed.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.sql import landed_through
from airflow_lakestream.core.bad_records import RejectLimit
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import ConflictCount
from airflow_lakestream.core.landing.modes import RangesMode
from airflow_lakestream.core.landing.plan import PartitionWatermarks, Plan, TopicState
from airflow_lakestream.core.ledger import REPLAY, Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.names import METADATA_NAMES
from airflow_lakestream.core.policies import ModeName, OnError, is_given
from airflow_lakestream.core.ports import RecordChunk, ReplacedMeanwhile, TimeBoundary
from airflow_lakestream.core.ranges import OffsetRange, PartitionKey, RangeSet
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.metadata import PART_FIELDS, metadata_schema
from airflow_lakestream.decode.rejected import STAGES, timestamps_of
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient, UnknownValue
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.job import Lake, build_job
from airflow_lakestream.run.rejected import open_rejected
from airflow_lakestream.tables.coordinates import OFFSET, PARTITION
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.rejects.sink import RejectingSink
from airflow_lakestream.tables.transformed import refuse_without_spark

log = logging.getLogger(__name__)

# Bytes of values that are landed at once, each time in a snapshot.
BATCH_BYTES = 64 * 2**20
TRIES = 5
# Arguments that decide how records are decoded. Without any of these, the stored reasons are better than new ones.
_DECODING_ARGUMENTS = ("format", "schema", "schema_registry", "sql")


class CannotReplay(LakestreamError, Terminal):
    """Error of a table whose rejected records can't be landed again."""


class NotReplayed(LakestreamError, Transient):
    """Error of records that another run has changed in each try."""

    def __init__(self, table: str, last: BaseException) -> None:
        super().__init__(
            f"{table}: {TRIES} times in a row another run changed the records between the look and the commit (last: "
            f"{last}) What was replayed before stays; the others are rejected as they were. Replay again."
        )


class RejectsTakenMeanwhile(LakestreamError, Transient):
    """Error of rejected records that another run has landed or removed meanwhile."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        super().__init__(f"{table}: {ranges} are not among the rejected records any more.")


@dataclass(frozen=True, slots=True)
class RejectSelection:
    """Selection of rejected records: a stage, a text in the reason, and a limit."""

    stage: str | None = None
    reason: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.stage not in (None, *STAGES):
            raise UnknownValue("stage", self.stage, STAGES)
        if self.limit is not None and self.limit < 1:
            raise InvalidArgument("limit", f"{self.limit} is not a number of records above 0.")

    def select(self, rows: pa.Table) -> pa.Table:
        """Return the rows of the stage and the reason; the caller applies the limit."""
        if self.stage is not None:
            rows = rows.filter(pc.equal(rows["stage"], self.stage))
        if self.reason is not None:
            rows = rows.filter(pc.match_substring(rows["error"], self.reason))
        return rows


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay.

    :param counts: counts of the records by outcome.
    :param snapshot_ids: the committed snapshots of the table.
    :param empty: columns without a value in all rows of the replay; None without a row.
    """

    counts: Counts = Counts()
    snapshot_ids: tuple[int, ...] = ()
    empty: tuple[str, ...] | None = None

    @property
    def note(self) -> str:
        """A sentence (with a leading blank) on a replay without a commit, or on columns without a value; or empty."""
        if self.counts.read > 0 and not self.snapshot_ids:
            return " Nothing was committed: each of them is bad as before."
        return f" Columns without a value: {', '.join(self.empty)}." if self.empty else ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "replayed": self.counts.read,
            "rows": self.counts.written,
            "still_rejected": self.counts.rejected,
            "skipped": self.counts.skipped,
            "filtered": self.counts.filtered,
            # As text: browsers would round 64-bit numbers.
            "snapshot_ids": [str(snapshot_id) for snapshot_id in self.snapshot_ids],
            "empty_columns": list(self.empty or ()),
        }


@dataclass(frozen=True, kw_only=True)
class RejectReplay:
    """Replay of the chosen rejected records of a table and a group.

    :param decoding: arguments of `KafkaExtractOperator` that decide the outcome of a record: `format`, `schema`,
        `unknown_fields`, `schema_evolution`, `key_format`, `schema_registry`, `tombstones`, `sql` and so on.
    """

    table: str
    consumer_group: str
    chosen: RejectSelection = RejectSelection()
    decoding: Mapping[str, Any] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._config("any", RangeSet.of("any", 0, 0, 1), ())

    def run(self, lake: Lake) -> ReplayResult:
        """Land the chosen records again; records that are still bad stay rejected.

        Their reasons are new if `decoding` has a format, a schema, a registry or a statement; otherwise they keep their
        reasons. The records are landed in batches of BATCH_BYTES, each in a snapshot. A batch whose records are all bad
        for the same reasons as before commits nothing. If another run changes records meanwhile, the remaining records
        are looked up again, TRIES times at most.

        :param lake: opens the table: a catalog, or a Delta table's store.

        Raises TableMissing, CannotReplay, NotReplayed, and the errors of a replace. The failed batch has changed
        nothing; batches before it stay.
        """
        result = ReplayResult()
        replayed: dict[TopicIdentity, RangeSet] = {}

        def replay_remaining() -> ReplayResult:
            nonlocal result
            for identity, ranges in self._batches(lake, replayed):
                result = self._land(lake, identity, ranges, result)
                replayed[identity] = replayed.get(identity, RangeSet()) | ranges
            return result

        conflicts = ConflictCount(partial(NotReplayed, self.table), TRIES)
        return conflicts.run(replay_remaining, (ReplacedMeanwhile, RejectsTakenMeanwhile))

    def _batches(
        self, lake: Lake, replayed: Mapping[TopicIdentity, RangeSet]
    ) -> Iterator[tuple[TopicIdentity, RangeSet]]:
        """Yield the offsets of the chosen records, in batches for a landing each.

        Raises CannotReplay for a table of a fan-out, and InvalidArgument without the statement that the rows need.

        :param replayed: offsets of earlier batches, which are left out and count towards the limit.
        """
        view = open_rejected(lake, self.table, self.consumer_group)
        if note := view.note:
            raise CannotReplay(
                f"{self.table}: {note} A record of a fan-out is landed in several tables by one ledger, and can't be "
                "replaced. Nothing was changed."
            )
        refuse_without_spark(self.table, view.properties, self.consumer_group, "a replay")
        sql_input = landed_through(view.properties, self.consumer_group)
        if sql_input is not None and not is_given(self.decoding.get("sql")):
            raise InvalidArgument(
                "sql",
                f"consumer group {self.consumer_group!r} landed in {self.table} through SQL that reads {sql_input} "
                "records, so only a statement makes rows of its rejected records.",
                f"Give it, with sql_input={sql_input!r}.",
            )
        # The number of records that the limit still allows; None: no limit.
        remaining = self.chosen.limit
        if remaining is not None:
            remaining -= sum(ranges.width for ranges in replayed.values())
        for identity, entry in view.ledger(self.consumer_group).topics.items():
            ranges = entry.landed - replayed.get(identity, RangeSet())
            offsets: list[OffsetRange] = []
            size = 0
            columns = ("stage", "error", "value")
            for part in view.counting(self.consumer_group, topic=identity.topic, ranges=ranges, columns=columns):
                rows = self.chosen.select(part.filter(pc.equal(part["topic_id"], identity.topic_id)))
                if remaining is not None:
                    rows = rows.slice(0, remaining)
                    remaining -= len(rows)
                lengths = pc.fill_null(pc.binary_length(rows["value"]), 0).to_pylist()
                records = zip(rows[PARTITION].to_pylist(), rows[OFFSET].to_pylist(), lengths, strict=True)
                for partition, offset, length in records:
                    offsets.append(OffsetRange(identity.topic, partition, offset, offset + 1))
                    size += length
                    if size >= BATCH_BYTES:
                        yield identity, RangeSet(offsets)
                        offsets, size = [], 0
            if offsets:
                yield identity, RangeSet(offsets)

    def _land(self, lake: Lake, identity: TopicIdentity, ranges: RangeSet, before: ReplayResult) -> ReplayResult:
        """Land a batch; return the result of the batches `before` and of this batch."""
        columns = open_rejected(lake, self.table).columns
        names = tuple(name for name in METADATA_NAMES if metadata_schema([name]).names[0] in columns)
        config = self._config(identity.topic, ranges, names)
        job = build_job(config, {}, lake, run_id=f"{REPLAY}{uuid.uuid4().hex}", stop=self.stop)
        records = RejectedRecords(lake, self.table, self.consumer_group, identity)
        keeps_reasons = not any(is_given(self.decoding.get(name)) for name in _DECODING_ARGUMENTS)
        outcome, sink = _ReplayOutcome(records, keeps_reasons), cast(RejectingSink, job.sink)
        sink.noted, sink.reviewed = outcome.note_columns, outcome.review
        try:
            # Without child processes, which do not have this reader.
            report = land(replace(job, source=records, reader=records, children=None))
        except _NothingChanges as same:
            log.info("%s: %s: bad for the same reasons as before, so nothing is committed.", self.table, ranges)
            return replace(before, counts=before.counts + same.counts)
        empty = before.empty
        if report.counts.written:
            candidates = columns if empty is None else empty
            filled = outcome.filled | set(metadata_schema(names).names)
            empty = tuple(name for name in candidates if name not in filled)
        return ReplayResult(before.counts + report.counts, (*before.snapshot_ids, *report.snapshot_ids), empty)

    def _config(self, topic: str, ranges: RangeSet, names: tuple[str, ...]) -> ExtractConfig:
        """Return the configuration of a batch's landing; `names` are the table's metadata columns."""
        return _ReplayConfig(
            topic=topic,
            table=self.table,
            table_format=lake_of(self.table).format,
            consumer_group=self.consumer_group,
            **self.decoding,
            metadata_columns=names,
            on_error=OnError.REJECT,
            # No limit: all records were bad before, and bad records do not indicate a wrong setting.
            max_rejected=RejectLimit(share=1.0),
            mode=ModeName.RANGES,
            ranges=RangesMode(tuple((r.partition, r.from_offset, r.until_offset) for r in ranges)),
            replace=True,
        )


@dataclass(frozen=True)
class RejectedRecords:
    """`core.ports.TopicSource` and `RecordReader` on a reject table; the topic's state is from the ledger.

    :param reasons: by partition and offset, the stored stage and reason of each record of the last read.
    """

    lake: Lake
    table: str
    group: str
    topic: TopicIdentity
    reasons: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict, compare=False)

    def look(self) -> TopicState:
        """Return the topic's state by the ledger: each partition from 0 to the end of the held offsets."""
        ends: dict[int, int] = {}
        for r in self._entry().held:
            ends[r.partition] = max(r.until_offset, ends.get(r.partition, 0))
        return TopicState(self.topic, {p: PartitionWatermarks(0, end) for p, end in ends.items()})

    def identity(self) -> TopicIdentity:
        """Return the topic incarnation of the rejected records."""
        return self.topic

    def starts(self, state: TopicState) -> Mapping[int, int]:
        """Return the ledger's origin."""
        return dict(self._entry().origin)

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, TimeBoundary]:
        """Refuse: a replay has no interval."""
        raise AssertionError("a replay asks for offsets, not for times")

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        """Commit no offsets: a replay lands no new offsets."""

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        """Yield the plan's records; all records of a partition are in the chunk of its first range.

        Returns early once `cancelled` is set. Raises RejectsTakenMeanwhile if a record of the plan is not rejected any
        more.
        """
        batches = self._batches(plan.ranges)
        for r in plan.ranges:
            if cancelled.is_set():
                return
            batch = batches.pop((r.topic, r.partition), None)
            if batch is None:
                batch = RawBatch(r.topic, r.partition, [], [], pa.array([], pa.binary()))
            yield RecordChunk(r, batch, batch.values.nbytes)

    def _batches(self, ranges: RangeSet) -> dict[PartitionKey, RawBatch]:
        """Return the rejected records in ranges, by partition. Raises RejectsTakenMeanwhile if a record is missing."""
        parts = list(open_rejected(self.lake, self.table).counting(self.group, ranges=ranges))
        if not parts:
            raise RejectsTakenMeanwhile(self.table, ranges)
        rows = pa.concat_tables(parts)
        rows = rows.filter(pc.equal(rows["topic_id"], self.topic.topic_id)).sort_by(OFFSET)
        self.reasons.clear()
        self.reasons.update(_reasons_of(rows))
        batches = {}
        present = RangeSet()
        for partition in pc.unique(rows[PARTITION]).to_pylist():
            batch = _batch(self.topic.topic, partition, rows.filter(pc.equal(rows[PARTITION], partition)))
            batches[self.topic.topic, partition] = batch
            present |= RangeSet(OffsetRange(batch.topic, partition, o, o + 1) for o in batch.offsets)
        if missing := ranges - present:
            raise RejectsTakenMeanwhile(self.table, missing)
        return batches

    def _entry(self) -> TopicEntry:
        return open_rejected(self.lake, self.table).ledger(self.group).entry(self.topic)


class _NothingChanges(Exception):
    """Exception for ending a landing before the commit: each record is bad for the same reason as before."""

    def __init__(self, counts: Counts) -> None:
        super().__init__(f"{counts.read} records are bad for the same reasons as before")
        self.counts = counts


class _ReplayConfig(ExtractConfig):
    """Configuration of a replay's landing."""

    @property
    def design(self) -> TableDesign:
        """Design of the table, without a note of the statement, which has made only the replay's rows."""
        return replace(super().design, notes={})


@dataclass
class _ReplayOutcome:
    """Outcome of a replay until its commit, for a `RejectingSink`; only a change is committed.

    :param before: the records before the replay.
    :param keeps_reasons: whether records that are bad again keep their stored reasons.
    :param filled: the columns with a value in any row.
    """

    before: RejectedRecords
    keeps_reasons: bool
    filled: set[str] = field(default_factory=set)

    def note_columns(self, rows: pa.Table) -> None:
        """Add the columns with a value to `filled`."""
        pairs = zip(rows.column_names, rows.columns, strict=True)
        self.filled |= {name for name, column in pairs if column.null_count < len(column)}

    def review(self, landing: Landing, rejected: Sequence[pa.Table]) -> tuple[Landing, list[pa.Table]]:
        """Return the landing to commit, and the records that are bad again, with reasons. Raises _NothingChanges."""
        old_reasons = self.before.reasons
        records = [_with_reasons(part, old_reasons) if self.keeps_reasons else part for part in rejected]
        reasons = dict(pair for part in records for pair in _reasons_of(part))
        if landing.counts.rejected == landing.counts.read and reasons == old_reasons:
            raise _NothingChanges(landing.counts)
        # Without silent columns: a few records do not show which columns the topic's records fill.
        return replace(landing, silent={}), records


def _reasons_of(rows: pa.Table) -> Iterator[tuple[tuple[int, int], tuple[str, str]]]:
    """Yield (partition, offset) and (stage, reason) of each rejected record."""
    positions = zip(rows[PARTITION].to_pylist(), rows[OFFSET].to_pylist(), strict=True)
    reasons = zip(rows["stage"].to_pylist(), rows["error"].to_pylist(), strict=True)
    return zip(positions, reasons, strict=True)


def _with_reasons(rows: pa.Table, reasons: Mapping[tuple[int, int], tuple[str, str]]) -> pa.Table:
    """Return rejected records in which `reasons`, by partition and offset, replace their own stages and reasons."""
    pairs = [reasons.get(position, own) for position, own in _reasons_of(rows)]
    new_columns = {"stage": [stage for stage, _ in pairs], "error": [reason for _, reason in pairs]}
    for name, values in new_columns.items():
        column = rows.schema.field(name)
        rows = rows.set_column(rows.schema.get_field_index(name), column, pa.array(values, column.type))
    return rows


def _column(rows: pa.Table, field: pa.Field) -> pa.Array:
    """Return a part of the records; NULL for parts that a reject table does not keep."""
    if field.name not in rows.column_names:
        return pa.nulls(len(rows), field.type)
    return rows[field.name].combine_chunks().cast(field.type)


def _batch(topic: str, partition: int, rows: pa.Table) -> RawBatch:
    """Return rows of a reject table as the original records."""
    return RawBatch(
        topic,
        partition,
        rows[OFFSET].to_pylist(),
        timestamps_of(rows),
        rows["value"].combine_chunks(),
        **{part: _column(rows, field) for part, field in PART_FIELDS.items()},
    )
