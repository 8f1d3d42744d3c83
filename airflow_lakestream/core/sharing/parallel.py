"""A run on several workers: a plan cut into shares, a worker for each share, and a commit of all.

The workers hand over JSON: shares, and pieces with the metadata of files. The commit is an ordinary landing with
pieces, so exactly-once works as always. A share that failed, was read twice or went stale does no harm: the landing
itself reads all offsets without a usable piece.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from airflow_lakestream.core.bad_records import TooManyRejected
from airflow_lakestream.core.column_use import NoFieldHasColumn
from airflow_lakestream.core.landing.algorithm import land, plan_of
from airflow_lakestream.core.landing.batch import Batch
from airflow_lakestream.core.landing.job import (
    ConflictCount,
    Contention,
    LandingJob,
    Stopped,
    check_still_there,
    entry_of,
    read_rows,
    take,
)
from airflow_lakestream.core.landing.modes import IntervalMode
from airflow_lakestream.core.landing.plan import DamagedBatch, Plan
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.landing.run_log import ReadProgress, offsets_text
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import OffsetsGone, RowsNotWritable, TableState, or_discard
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.pieces import HandedPieces, PlanShare, SharePiece, at_most_offsets, split
from airflow_lakestream.core.source_types import SourceTypeChanged
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient

log = logging.getLogger(__name__)

# A task costs a scheduler and a worker about as much as reading this many records.
LEAST_WIDTH = 20_000


class TableGone(LakestreamError, Transient):
    """The table was dropped while workers wrote files."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table} was dropped since the run was planned. Nothing was landed. Clear the whole group.")


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """Shares of a run, and bounds of the commit's own reads.

    :param shares: empty if nothing is to be read by workers.
    :param within: the offsets that the commit may read itself if no usable piece has these; None if only the mode
        sets bounds.
    """

    identity: TopicIdentity
    shares: Sequence[PlanShare]
    within: RangeSet | None


def folder_of(run_id: str) -> str:
    """Return the name of the run's own folder below the table's data."""
    return f"lakestream-{hashlib.sha256(run_id.encode()).hexdigest()[:24]}"


def plan_shares(job: LandingJob, most_shares: int, least_width: int = LEAST_WIDTH) -> SharedPlan:
    """Plan a run, and cut the plan into at most `most_shares` shares of nearly equal width.

    If the table, or the group's origin, is not written down yet, a landing without rows does that first, so that
    all shares are written for one table, from one beginning. No shares are returned if nothing is to be read, or if
    no record shows the columns of a new table.

    Raises InvalidArgument if the job can't be shared, Contention after MAX_CONFLICTS conflicts, and the errors of
    `land` for a plan.
    """
    _refuse(job)
    conflicts = ConflictCount(partial(Contention, job.table), stop=job.stop, then="Planning again.")
    return conflicts.run(partial(_try_to_plan_shares, job, most_shares, least_width))


def _try_to_plan_shares(job: LandingJob, most: int, least_width: int) -> SharedPlan:
    """Plan a run and return its shares; see `plan_shares`. Raises Conflict."""
    # The plan has an origin only if the ledger has none yet. The first round commits the origin, and creates a missing
    # table, without rows; the second round finds both.
    while True:
        table = job.sink.load(job.run_id)
        now = job.source.look()
        entry = entry_of(job, table, now)
        plan = plan_of(job, table, entry, now)
        if (table.exists and not plan.origin) or not plan.ranges:
            return _shares(job, table, plan, most, least_width)
        with or_discard(job.sink):
            if not _commit_without_rows(job, table, plan):
                # Neither a schema nor a record shows the columns of the missing table: no share can land without it.
                return SharedPlan(now.identity, (), _bounds(job, plan.ranges, plan.ranges))


def read_share(job: LandingJob, share: PlanShare, folder: str) -> list[SharePiece]:
    """Read exactly a share, and write the files below `folder`, without a commit.

    A new piece begins whenever the limits ask for a commit. Offsets that Kafka loses meanwhile are left to the
    commit, which decides about them; so are the offsets of a damaged batch, if the job records these as lost. The
    share's pieces are then incomplete.

    Raises TopicReplaced, TableGone, and errors of reading, decoding and writing; no file is left then.
    """
    check_still_there(job, share.identity)
    table = job.sink.load(job.run_id)
    if not table.exists:
        raise TableGone(job.table)
    job.shared.write_below(folder)
    try:
        with or_discard(job.sink):
            pieces = _read_pieces(job, table, share.plan)
            check_still_there(job, share.identity)
    except RowsNotWritable as error:
        return read_share(job.with_trials(error), share, folder)
    return pieces


def land_pieces(job: LandingJob, pieces: Sequence[SharePiece], within: RangeSet | None, folder: str) -> LandingReport:
    """Commit the pieces of several workers, read the offsets without a usable piece, and sweep `folder`.

    All usable pieces are in the first commit. Then this landing itself reads the offsets of the run's plan that no
    usable piece has. The sweep deletes all files below `folder` that are in no commit.

    Raises the errors of `land`. After an error the files stay, for another try. Three errors are exceptions,
    TooManyRejected, NoFieldHasColumn and SourceTypeChanged: the files are swept, since another try would have to
    decode these records again.

    :param within: bounds of this landing's own reads, from `SharedPlan`; None if only the mode sets bounds.
    :param folder: the run's own folder below the table's data, from `folder_of`.
    """
    _refuse(job)
    # The plan was made with the limit on records already: the landing keeps to the plan.
    limits = replace(job.limits, max_records=None)
    try:
        report = land(replace(job, handed=HandedPieces(pieces), within=within, limits=limits))
    except (TooManyRejected, NoFieldHasColumn, SourceTypeChanged):
        job.shared.sweep(folder)
        raise
    job.shared.sweep(folder)
    return report


def _refuse(job: LandingJob) -> None:
    """Refuse a job that several workers can't share. Raises NotShared, InvalidArgument."""
    job.sink.check_shared()
    if job.replaces:
        raise InvalidArgument("replace", "is not for a group of tasks.", "Use KafkaExtractOperator, in one task.")
    if job.limits.idle_timeout:
        raise InvalidArgument(
            "idle_timeout", "is not for a group, whose plan is fixed.", "Use KafkaExtractOperator, in one task."
        )


def _shares(job: LandingJob, table: TableState, plan: Plan, most: int, least_width: int) -> SharedPlan:
    """Split a plan into at most `most` shares of at least `least_width` offsets."""
    report = LandingReport(plan.state.identity.topic, job.table, job.consumer_group)
    report.recover(table.landed_by_run)
    ranges = plan.ranges
    if job.limits.max_records is not None:
        ranges = at_most_offsets(ranges, max(0, job.limits.max_records - report.counts.read))
    identity = plan.state.identity
    shares = [PlanShare.of(plan, part) for part in split(ranges, most, least_width)]
    for number, share in enumerate(shares):
        log.info("Share %s to land: %s.", number, offsets_text(share.ranges))
    return SharedPlan(identity, shares, _bounds(job, plan.ranges, ranges))


def _bounds(job: LandingJob, plan_ranges: RangeSet, ranges: RangeSet) -> RangeSet | None:
    """Return the bounds of the commit's own reads: the ranges of the shares.

    None for a whole interval: the commit may have to close seams, at offsets outside the shares.
    """
    return None if isinstance(job.mode, IntervalMode) and ranges == plan_ranges else ranges


def _commit_without_rows(job: LandingJob, table: TableState, plan: Plan) -> bool:
    """Commit table and origin without rows; return False if neither a schema nor a record shows the columns.

    Returns True after the commit. Raises Conflict, Stopped, and errors of reading and decoding.
    """
    decoder = job.decoders(table.schema, None)
    if decoder is None:
        with closing(job.reader.read(plan, job.stop)) as chunks:
            first = next((chunk.batch for chunk in chunks if len(chunk.batch)), None)
        if job.stop.is_set():
            raise Stopped
        decoder = job.decoders(None, first)
        if first is None or decoder is None:
            return False
        job.sink.write(decoder.decode(first.cut(slice(0))).rows, plan.state.identity)
    # Without ranges: the shares have these. Losses and covered time belong to the commit of the pieces.
    founding = Batch(replace(plan, ranges=RangeSet(), lost=RangeSet(), covered=None))
    landing = founding.landing(f"{job.run_id}/plan", job.engine, table.ledger.filled, table.types)
    check_still_there(job, plan.state.identity)
    job.sink.commit(landing)
    return True


def _read_pieces(job: LandingJob, table: TableState, plan: Plan) -> list[SharePiece]:
    """Read a plan into pieces; offsets that the log lost meanwhile, or that the job gives up, are left out."""
    pieces: list[SharePiece] = []
    batch = Batch(plan)
    progress = ReadProgress(plan.state.identity.topic, plan.ranges.width)
    try:
        with closing(read_rows(job, plan, job.decoders(table.schema, None), None)) as results:
            for _, chunk in results:
                take(job.sink, job.rejects, batch, chunk)
                progress.add(chunk.covers, chunk.counts.read)
                if batch.is_due(job.limits):
                    pieces.append(batch.piece(job.shared.hand_over()))
                    batch = batch.next()
    except (OffsetsGone, DamagedBatch) as e:
        if isinstance(e, DamagedBatch) and not job.gives_up(e):
            raise
        log.warning("%s What was read before is handed over.", e)
    if batch.covers_anything:
        pieces.append(batch.piece(job.shared.hand_over()))
    return pieces
