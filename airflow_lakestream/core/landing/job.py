"""Parts of a run, and steps of every kind of run: the ledger entry, reading a plan, and conflicts with other runs."""

from __future__ import annotations

import logging
import os
import random
import threading
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, TypeVar

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.landing.batch import Batch, DecodedChunk, RunLimits, at_most, decode, from_record
from airflow_lakestream.core.landing.modes import ResumeMode, RunMode
from airflow_lakestream.core.landing.plan import (
    DamagedBatch,
    Plan,
    TopicReplaced,
    TopicState,
    check_identity,
    check_log,
)
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import Landing, LandingEngine, TopicEntry, TopicIdentity
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ports import (
    Conflict,
    DecoderFactory,
    RecordChunk,
    RecordDecoder,
    RecordReader,
    RejectStore,
    RowsNotWritable,
    Sink,
    TableState,
    TopicSource,
)
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.records import Rows
from airflow_lakestream.core.sharing.pieces import HandedPieces, SharePiece
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.runtime.interpreter import ReadAhead, shorten_turns
from airflow_lakestream.runtime.processes import ChildProcesses

log = logging.getLogger(__name__)

# Chunks read ahead, decoded or not. Eight were no faster, and held 50 MiB more with records of 1 MiB.
CHUNKS_AHEAD = 4
# A chunk with more bytes, of large records, counts for several.
USUAL_BYTES = 4 * 2**20
# Chunks decoded in parallel: Arrow releases the interpreter's lock, and takes most of the time.
DECODERS = min(2, os.cpu_count() or 1)


class Stopped(LakestreamError, Transient):
    """The run was stopped; uncommitted records were discarded."""

    def __init__(self) -> None:
        super().__init__("the run was stopped between two batches; what was not committed yet was discarded.")


@dataclass(frozen=True, slots=True)
class CommittedLanding:
    """A committed landing of a table, with the snapshot and the seconds of the commit."""

    table: str
    snapshot_id: int
    landing: Landing
    seconds: float


class NewTableColumns(Protocol):
    """Source of a new table's columns before any record is read."""

    def __call__(self, topic: str) -> tuple[RecordDecoder, Rows] | None:
        """Return a decoder and an empty table with the columns; None if the records decide the columns."""


class RemoteReaders(Protocol):
    """Remote readers of a whole plan for a landing: the executors of Spark."""

    def can_read(self, job: LandingJob, plan: Plan) -> bool:
        """Return whether the executors can and should read the plan."""

    def read(self, job: LandingJob, plan: Plan, done: RangeSet, most: int | None) -> Sequence[SharePiece]:
        """Read the plan's offsets by executors; the sink has then taken all files of the returned pieces.

        Raises Conflict if the log lost offsets meanwhile, and errors of reading, decoding and writing.

        :param done: offsets of the plan that were read before, and are left out.
        :param most: the most records to read; None for all.
        """


@dataclass(frozen=True)
class LandingJob:
    """Source, target and settings of a landing. `run_id` is the same in every try of a task run.

    :param source: the topic seen from outside the log; `reader` reads its records.
    :param rejects: the store of rejected records; None if no record is rejected.
    :param mode: plans the offsets of the run.
    :param replaces: the run's own landed offsets are read again, and replace their rows.
    :param allow_group_overlap: offsets that another group has landed may be landed again.
    :param stop: if set, the run ends between two chunks by Stopped.
    :param handed: pieces that other workers read, to be committed by this run.
    :param within: the only offsets that the run may read itself, in addition to the handed pieces; None without bounds.
    :param children: processes that may read in place of this process.
    :param readers: remote readers, Spark's executors.
    :param committed: called with each commit; raises nothing.
    :param foresee: may know a new table's columns before a record is read.
    :param careful: the decoders try to write each row, since some rows can't be written.
    :param unreadable: offsets to record as lost, since their batches are damaged.
    :param engine: the landing engine, for the snapshot's summary.
    """

    run_id: str
    table: str
    consumer_group: str
    source: TopicSource
    reader: RecordReader
    decoders: DecoderFactory
    sink: Sink
    rejects: RejectStore | None = None
    mode: RunMode = ResumeMode()
    replaces: bool = False
    limits: RunLimits = RunLimits()
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    allow_group_overlap: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    handed: HandedPieces = field(default_factory=HandedPieces)
    within: RangeSet | None = None
    children: ChildProcesses | None = None
    readers: RemoteReaders | None = None
    committed: Callable[[CommittedLanding], None] | None = None
    foresee: NewTableColumns | None = None
    careful: bool = False
    unreadable: RangeSet = RangeSet()
    engine: LandingEngine = LandingEngine.EXTRACT

    def gives_up(self, damaged: DamagedBatch) -> bool:
        """Return whether the offsets of a damaged batch are recorded as lost, and the run goes on.

        True if the broker itself can't read the batch, and `on_data_loss` is RECORD.
        """
        return damaged.is_unreadable_by_broker and self.on_data_loss is OnDataLoss.RECORD

    def with_loss(self, error: RowsNotWritable | DamagedBatch) -> LandingJob:
        """Discard the uncommitted rows, and return the job to go on with after an error.

        After RowsNotWritable, the new job tries each row: see `with_trials`. After DamagedBatch, the new job records
        the batch's offsets as lost, if `gives_up` allows that. Otherwise the error is raised.
        """
        if isinstance(error, RowsNotWritable):
            return self.with_trials(error)
        self.sink.discard()
        if not self.gives_up(error):
            raise error
        log.warning("%s They are recorded as lost.", error)
        return replace(self, unreadable=self.unreadable | error.ranges)

    def with_trials(self, error: RowsNotWritable) -> LandingJob:
        """Discard the uncommitted rows, and return the job with a trial of each chunk's rows before the sink.

        Rows that fail the trial become bad records. The new job is `careful`: child processes do not read for it, since
        trying is slow. Raises the error if this job is careful already, or if the error has no trial.
        """
        self.sink.discard()
        if self.careful or error.trial is None:
            raise error
        log.warning("%s. What is not committed is read again, trying each record, which takes longer.", error)
        return replace(self, careful=True, decoders=self.decoders.with_trial(error.trial))

    @property
    def shared(self) -> Sink:
        """The sink, for several workers. Raises NotShared."""
        self.sink.check_shared()
        return self.sink

    def usable(self, identity: TopicIdentity, in_ledger: RangeSet) -> Sequence[SharePiece]:
        """Return the handed pieces still fit for a commit; the offsets of unfit pieces are read again.

        :param in_ledger: the topic's offsets that the ledger has as landed or lost.
        """
        return self.handed.usable(identity, in_ledger, lambda files: self.shared.misfit(files))

    def report_commit(self, snapshot_id: int, landing: Landing, seconds: float) -> None:
        """Report a commit to `committed`, if given."""
        if self.committed is not None:
            self.committed(CommittedLanding(self.table, snapshot_id, landing, seconds))


def entry_of(job: LandingJob, table: TableState, now: TopicState) -> TopicEntry:
    """Return the group's ledger entry of the topic, checked against the topic's present state.

    Raises TopicReplaced if the ledger has another incarnation of the topic, and LogTruncated if the log ends below the
    landed offsets.
    """
    check_identity(table.ledger, now.identity, job.table)
    entry = table.ledger.entry(now.identity)
    check_log(entry, now, job.table)
    return entry


def take(
    sink: Sink, rejects: RejectStore | None, batch: Batch, chunk: DecodedChunk, *, passes_over: bool = False
) -> None:
    """Hand a chunk's rows to the sink and its rejected records to the reject store, and count the records.

    :param passes_over: the sink also notes records without a row: a replace removes their rows of an earlier decoding.
    """
    identity = batch.plan.state.identity
    if (outcome := chunk.outcome) is not None:
        sink.write(outcome.rows, identity)
        if outcome.rejected is not None:
            if rejects is None:
                raise AssertionError(f"{outcome.counts.rejected} rejected records, but no reject table")
            rejects.reject(outcome.rejected)
        if passes_over and outcome.rowless is not None:
            sink.pass_over(identity, chunk.covers.partition, outcome.rowless)
    batch.add(chunk)


def check_bad(
    job: LandingJob, read: int, bad: BadRecords, report: LandingReport | None, *, at_commit: bool = False
) -> None:
    """Refuse a run with more bad records than the limit, committed records included. Raises TooManyRejected.

    :param read: records read since the last commit.
    :param bad: the bad records among them; without any, nothing is checked.
    :param report: what the run has committed; None if nothing.
    :param at_commit: a limit that is a share of the records is checked, too.
    """
    landed, before = (0, BadRecords()) if report is None else (report.counts.read, report.bad)
    # A commit without new bad records is allowed: the earlier ones were, perhaps under another limit.
    if bad.count:
        job.limits.max_rejected.check(job.table, landed + read, before + bad, landed, at_commit=at_commit)


def check_still_there(job: LandingJob, identity: TopicIdentity) -> None:
    """Refuse the records read if the topic was created again meanwhile. Raises TopicReplaced."""
    current = job.source.identity()
    if current != identity:
        raise TopicReplaced(identity, current, job.consumer_group, job.table)


def read_rows(
    job: LandingJob, plan: Plan, decoder: RecordDecoder | None, most_records: int | None
) -> Generator[tuple[RecordDecoder | None, DecodedChunk], None, None]:
    """Yield (decoder, decoded chunk) for the plan's chunks, reading and decoding ahead. Raises Stopped.

    The chunks of a partition come in offset order, except chunks that wait for the columns of a new table: these come
    behind the chunk that shows the columns, or not at all if no chunk does.

    :param decoder: None to find the columns in the first records. Chunks before that have the decoder None.
    :param most_records: the most records to yield; None for all. Waiting and skipped chunks beyond that are left to the
        next run.
    """
    with shorten_turns(), ThreadPoolExecutor(DECODERS, thread_name_prefix="lakestream-decode") as pool:
        begin = _ChunkDecoding(job, plan, decoder, most_records, pool)
        with ReadAhead(begin, CHUNKS_AHEAD, job.stop, _ChunkDecoding.weigh) as decoding:
            for _, future in decoding:
                yield future.result()
    if job.stop.is_set():
        raise Stopped


def read_in_turn(job: LandingJob, plan: Plan, decoder: RecordDecoder) -> Generator[DecodedChunk, None, None]:
    """Yield the plan's decoded chunks like `read_rows`, in this thread alone. Raises Stopped.

    For a process with one processor: more threads would only contend for the interpreter.
    """
    with closing(job.reader.read(plan, job.stop)) as chunks:
        for chunk in chunks:
            yield decode(decoder, chunk)
    if job.stop.is_set():
        raise Stopped


def read_first(
    job: LandingJob, plan: Plan, most_records: int | None
) -> Generator[tuple[RecordDecoder | None, DecodedChunk], None, None]:
    """Yield decoded chunks like `read_rows`, up to the first chunk with a decoder. Raises Stopped.

    Chunks without a decoder have skipped records. Chunks whose records wait for the columns are left out: they are
    still to be read.
    """
    chunk: RecordChunk | None
    records_left = most_records
    with closing(job.reader.read(plan, job.stop)) as chunks:
        for read in chunks:
            decoder, chunk = _begin(job, read, records_left)
            if decoder is None and job.decoders.keeps_for_later(chunk.batch):
                continue
            if decoder is None and (chunk := _skipped(chunk, records_left)) is None:
                continue
            records_left = _after(records_left, chunk)
            yield _decode(decoder, chunk)
            if decoder is not None:
                return
    if job.stop.is_set():
        raise Stopped


def _begin(job: LandingJob, read: RecordChunk, records_left: int | None) -> tuple[RecordDecoder | None, RecordChunk]:
    """Return the decoder by a chunk's records, or None, and the chunk, cut to the limit.

    If only records beyond the limit show the columns, the chunk begins with the first of these: else a run with a limit
    would read the same records forever. A chunk that shows no columns is not cut.
    """
    chunk = at_most(read, records_left)
    decoder = job.decoders(None, chunk.batch) if len(chunk.batch) else None
    if decoder is not None or len(chunk.batch) == len(read.batch):
        return decoder, chunk
    decoder = job.decoders(None, read.batch)
    if decoder is None:
        return None, read
    numbers = range(len(chunk.batch), len(read.batch))
    first = bisect_left(numbers, True, key=lambda n: job.decoders(None, read.batch.cut(slice(n + 1))) is not None)
    return decoder, at_most(from_record(read, numbers[first]), records_left)


def _skipped(chunk: RecordChunk, records_left: int | None) -> RecordChunk | None:
    """Return a chunk of skipped records, cut so that one record is left to show the columns; None if none fits."""
    if records_left is None or len(chunk.batch) < records_left:
        return chunk
    return at_most(chunk, records_left - 1) if records_left > 1 else None


def _after(records_left: int | None, chunk: RecordChunk) -> int | None:
    """Return the number of records left after a chunk, or None without a limit."""
    return None if records_left is None else records_left - len(chunk.batch)


# A chunk's bytes, and the future of its decoder and decoded chunk.
_Pending: TypeAlias = "tuple[int, Future[tuple[RecordDecoder | None, DecodedChunk]]]"


@dataclass(frozen=True)
class _ChunkDecoding:
    """Items of a `ReadAhead`: each chunk's bytes and the future of the decoding, in the chunks' order."""

    job: LandingJob
    plan: Plan
    decoder: RecordDecoder | None
    most_records: int | None
    pool: Executor

    def __call__(self, cancelled: threading.Event) -> Iterator[_Pending]:
        """Yield each chunk of the plan, given to the pool, up to `most_records`; chunks without columns wait."""
        decoder, records_left = self.decoder, self.most_records
        waiting: list[RecordChunk] = []
        chunk: RecordChunk | None
        with closing(self.job.reader.read(self.plan, cancelled)) as chunks:
            for read in chunks:
                if decoder is None:
                    # The table gives no schema: infer it from the first records.
                    decoder, chunk = _begin(self.job, read, records_left)
                else:
                    chunk = at_most(read, records_left)
                if decoder is None and self.job.decoders.keeps_for_later(chunk.batch):
                    waiting.append(chunk)
                    continue
                if decoder is None and (chunk := _skipped(chunk, records_left)) is None:
                    continue
                records_left = _after(records_left, chunk)
                pending = chunk.size, self.pool.submit(_decode, decoder, chunk)
                # The consumer may be slow: drop the records as soon as they are decoded.
                del read, chunk
                yield pending
                # After the records that showed the columns: a new table is created by them.
                while waiting and decoder is not None and records_left != 0:
                    late = at_most(waiting.pop(0), records_left)
                    records_left = _after(records_left, late)
                    yield late.size, self.pool.submit(_decode, decoder, late)
                if records_left == 0:
                    return

    @staticmethod
    def weigh(pending: _Pending) -> float:
        """Return an item's weight in usual chunks."""
        return max(1, pending[0] / USUAL_BYTES)


def _decode(decoder: RecordDecoder | None, chunk: RecordChunk) -> tuple[RecordDecoder | None, DecodedChunk]:
    return decoder, decode(decoder, chunk)


# Each conflict means that another run made progress; this many in a row mean another fault.
MAX_CONFLICTS = 20
# From the third conflict in a row on, a run waits up to this many seconds per conflict.
GIVE_WAY = 0.05


class Contention(LakestreamError, Transient):
    """Concurrent writers changed the table first, MAX_CONFLICTS times in a row."""

    def __init__(self, table: str, last: Exception) -> None:
        super().__init__(
            f"{MAX_CONFLICTS} times in a row another writer changed {table} between plan and commit (last: {last}) "
            "No record was doubled or lost. Run fewer runs of the same group at once: max_active_runs=1."
        )


Value = TypeVar("Value")


@dataclass
class ConflictCount:
    """The conflicts in a row of a run that begins again, from a new look, after each.

    :param failure: makes the error of the last conflict.
    :param most: with this many conflicts in a row the run fails.
    :param stop: ends a wait. The run waits from the third conflict in a row on, for a random time: two tries of a run
        go in step, and the slower one would lose each time. Without `stop` it does not wait.
    :param then: ends the line about a conflict.
    """

    failure: Callable[[Exception], LakestreamError]
    most: int = MAX_CONFLICTS
    stop: threading.Event | None = None
    then: str = "Looking again."
    report: Callable[[str], object] = log.info
    count: int = 0

    def add(self, conflict: Exception) -> None:
        """Report the next conflict in a row, and wait. Raises the failure at the last one."""
        self.count += 1
        if self.count == self.most:
            raise self.failure(conflict) from conflict
        self.report(f"{conflict} {self.then}")
        if self.count > 2 and self.stop is not None:
            self.stop.wait(random.uniform(0, GIVE_WAY * self.count))  # noqa: S311  # the wait spreads the tries of runs; no secret depends on it

    def run(self, once: Callable[[], Value], kinds: type[Exception] | tuple[type[Exception], ...] = Conflict) -> Value:
        """Return the value of `once`, called again after each conflict. Raises the failure, and all other errors."""
        while True:
            try:
                return once()
            except kinds as conflict:
                self.add(conflict)
