"""Batch of a run: records read since the last commit, and limits for the next commit."""

from __future__ import annotations

import functools
import operator
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_lakestream.core.bad_records import USUAL, BadRecords, RejectLimit
from airflow_lakestream.core.column_use import ColumnUse
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ledger import Counts, Landing, LandingEngine, TopicEntry, add_counts, union
from airflow_lakestream.core.ports import RecordChunk, RecordDecoder
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.records import DecodedBatch
from airflow_lakestream.core.sharing.pieces import Files, SharePiece
from airflow_lakestream.core.source_types import LedgerTypes

# The first commit of a long run comes early: it shows progress, and finds out soon if the catalog refuses it.
EARLY_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits for the commits and for the end of a run.

    :param max_records: the most records that the run reads; None for all.
    :param max_batch_bytes: bytes of records after which a commit is made.
    :param checkpoint_interval: seconds after which a commit is made.
    :param idle_timeout: seconds to wait for new records before the run ends; 0 ends the run at once.
    :param max_rejected: the most bad records of the run.
    """

    max_records: int | None = None
    max_batch_bytes: int = 256 * 2**20
    checkpoint_interval: float = 60.0
    idle_timeout: float = 0.0
    max_rejected: RejectLimit = USUAL


@dataclass(frozen=True, slots=True)
class DecodedChunk:
    """A decoded chunk without the records: the rows are as large, and may wait for the sink.

    :param covers: the offset range, holes included.
    :param offsets: the records' offsets.
    :param size: the records' bytes.
    :param outcome: None for a chunk that needed no decoder.
    """

    covers: OffsetRange
    offsets: Sequence[int]
    size: int
    outcome: DecodedBatch | None

    @property
    def counts(self) -> Counts:
        """The counts of the records; without a decoder, all records are skipped."""
        skipped = len(self.offsets)
        return Counts(read=skipped, skipped=skipped) if self.outcome is None else self.outcome.counts

    @property
    def bad(self) -> BadRecords:
        """The bad records of the chunk."""
        return BadRecords() if self.outcome is None else self.outcome.bad

    @property
    def use(self) -> ColumnUse:
        """The columns with values in the records."""
        return ColumnUse() if self.outcome is None else self.outcome.use


def decode(decoder: RecordDecoder | None, chunk: RecordChunk) -> DecodedChunk:
    """Decode a chunk. The outcome is None without records or without a decoder: then the records are skipped."""
    outcome = None
    if decoder is not None and len(chunk.batch):
        outcome = decoder.decode(chunk.batch)
        # Checked although impossible: one row more or fewer would put all later rows at wrong offsets.
        if len(outcome.rows) != outcome.counts.written:
            raise AssertionError(f"{len(chunk.batch)} records of {chunk.covers} became {len(outcome.rows)} rows")
    return DecodedChunk(chunk.covers, chunk.batch.offsets, chunk.size, outcome)


class Batch:
    """Offsets, counts and pieces read since the last commit.

    :param first: no part of the plan is committed yet.
    :param early: no part of the run is committed yet; see `is_due`.
    """

    def __init__(self, plan: Plan, *, first: bool = True, early: bool = False) -> None:
        self.plan = plan
        self._first = first
        self._early = early
        self._covered: list[OffsetRange] = []
        self.counts: dict[int, Counts] = {}
        self.bad = BadRecords()
        self.use = ColumnUse()
        self.pieces: list[SharePiece] = []
        self._bytes = 0
        self._since = time.monotonic()

    def add(self, chunk: DecodedChunk) -> None:
        """Count a chunk after the sink has taken the rows: offsets, outcomes, column use and bytes."""
        if chunk.counts.read != len(chunk.offsets):
            raise AssertionError(f"{len(chunk.offsets)} records of {chunk.covers} were counted as {chunk.counts}")
        self._covered.append(chunk.covers)
        self.counts = add_counts(self.counts, {chunk.covers.partition: chunk.counts})
        self.bad += chunk.bad
        self.use += chunk.use
        self._bytes += chunk.size

    def take(self, piece: SharePiece) -> None:
        """Count a piece of another worker after the sink has taken the files.

        Its bytes do not count here, since they are in files already.
        """
        self.pieces.append(piece)
        self.counts = add_counts(self.counts, piece.by_partition)
        self.bad += piece.bad
        self.use += piece.use

    def is_due(self, limits: RunLimits, more_bytes: int = 0, records: int = 0) -> bool:
        """Return whether to commit now: at `max_batch_bytes`, or after `checkpoint_interval` seconds.

        The first commit of a run that needs several comes earlier, at EARLY_BYTES.

        :param more_bytes: bytes that child processes have read and not handed over yet.
        :param records: the number of records in these bytes.
        """
        size, read = self._bytes + more_bytes, self.records + records
        if self._early and read and size >= EARLY_BYTES:
            width = min(self.plan.ranges.width, limits.max_records or self.plan.ranges.width)
            # With as many bytes per record as so far, the plan does not fit into a single commit.
            if size * width > limits.max_batch_bytes * read:
                return True
        return size >= limits.max_batch_bytes or self.age >= limits.checkpoint_interval

    @property
    def total(self) -> Counts:
        """The counts of all partitions."""
        return sum(self.counts.values(), Counts())

    @property
    def records(self) -> int:
        """The number of records read."""
        return self.total.read

    @property
    def age(self) -> float:
        """Seconds since the last commit."""
        return time.monotonic() - self._since

    @property
    def covered(self) -> RangeSet:
        """The offsets read in this process."""
        return RangeSet(self._covered)

    @property
    def covers_anything(self) -> bool:
        """Whether any offsets were read, with or without rows."""
        return bool(self._covered)

    @property
    def changes_the_ledger(self) -> bool:
        """Whether a commit would change the ledger, with or without rows."""
        return bool(self._covered or self.pieces) or (self._first and bool(self.plan.lost or self.plan.origin))

    def landing(
        self,
        run_id: str,
        engine: LandingEngine | None,
        filled_before: frozenset[str],
        ledger_types: LedgerTypes,
        *,
        is_last: bool = False,
    ) -> Landing:
        """Return the landing to commit this batch: the net change of the ledger.

        :param filled_before: the columns that got values of the group before.
        :param ledger_types: the types of the source's columns in the ledger.
        :param is_last: this is the plan's last commit, which adds the covered time.
        """
        # Origin and loss receipts go with the first commit: they hold from there on.
        entry = TopicEntry(
            landed=RangeSet(self._covered) | union(piece.ranges for piece in self.pieces),
            lost=self.plan.lost if self._first else RangeSet(),
            counts=self.total,
            origin=self.plan.origin if self._first else {},
            epochs=self._epochs(),
            covered=(self.plan.covered,) if is_last and self.plan.covered else (),
            streamed=self.plan.streamed,
        )
        identity = self.plan.state.identity
        function_rows = [piece.made for piece in self.pieces if piece.made is not None]
        return Landing(
            uuid.uuid4().hex,
            run_id,
            {identity: entry},
            {identity: self.counts},
            engine=engine,
            bad=self.bad,
            filled=(self.use.filled & self.use.columns) - filled_before,
            types=ledger_types.changes(self.use.types),
            silent=self.use.silent(filled_before),
            lows={partition: marks.low for partition, marks in self.plan.state.marks.items()},
            made=functools.reduce(operator.add, function_rows) if function_rows else None,
        )

    def piece(self, files: Files) -> SharePiece:
        """Return this batch, with `files`, as a piece for the commit by another worker."""
        ranges, counts = RangeSet(self._covered), self.counts
        return SharePiece(self.plan.state.identity, ranges, counts, self.plan.epochs, files, self.bad, use=self.use)

    def _epochs(self) -> dict[int, int]:
        # The oldest epochs: the next reader must notice an unclean election that took place while pieces were read.
        epochs = dict(self.plan.epochs)
        for piece in self.pieces:
            for partition, epoch in piece.epochs.items():
                epochs[partition] = min(epoch, epochs.get(partition, epoch))
        return epochs

    def next(self) -> Batch:
        """Return the empty batch after this batch's commit."""
        return Batch(self.plan, first=False)


def at_most(chunk: RecordChunk, count: int | None) -> RecordChunk:
    """Cut a chunk after the first `count` records, at least one; None means no cut.

    A cut chunk covers the offsets up to the last record left, and keeps the size of the whole chunk.
    """
    if count is None or len(chunk.batch) <= count:
        return chunk
    head = chunk.batch.cut(slice(count))
    return RecordChunk(replace(chunk.covers, until_offset=head.offsets[-1] + 1), head, chunk.size)


def from_record(chunk: RecordChunk, number: int) -> RecordChunk:
    """Return a chunk without the records before this number, and without their offsets."""
    tail = chunk.batch.cut(slice(number, None))
    return RecordChunk(replace(chunk.covers, from_offset=tail.offsets[0]), tail, chunk.size)
