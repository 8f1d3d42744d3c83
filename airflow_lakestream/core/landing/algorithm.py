"""The landing algorithm: from records of a topic to rows of a table, each once. Read this first.

`land` has the steps; the ports hide what each step does to Kafka and to the table.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.column_use import check_use
from airflow_lakestream.core.landing.batch import Batch
from airflow_lakestream.core.landing.job import (
    ConflictCount,
    Contention,
    LandingJob,
    check_bad,
    check_still_there,
    entry_of,
    read_first,
    read_rows,
    take,
)
from airflow_lakestream.core.landing.landed_rows import refuse_doubling, replace_landed
from airflow_lakestream.core.landing.modes import PlanningLook, ResumeMode, refuse_mixture
from airflow_lakestream.core.landing.plan import (
    DamagedBatch,
    LandedByAnotherGroup,
    Plan,
    TopicState,
    check_log,
    first_hole,
    resume_plan,
    without,
)
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.landing.run_log import (
    ReadProgress,
    log_commit,
    log_plan,
    log_silent_columns,
    log_stale_columns,
    ranges_text,
)
from airflow_lakestream.core.ledger import TopicEntry, union
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ports import Conflict, RecordDecoder, RowsNotWritable, TableState, or_discard
from airflow_lakestream.core.sharing.pieces import SharePiece, at_most_offsets
from airflow_lakestream.core.sharing.side_by_side import is_worth_sharing, read_by_children
from airflow_lakestream.exceptions import InvalidArgument

log = logging.getLogger(__name__)

# Seconds between two looks for new records.
FOLLOW_INTERVAL = 0.5
# Offsets read here first to find the columns of a new table, if remote readers or child processes read the rest.
FIRST_OFFSETS = 10_000


def land(job: LandingJob) -> LandingReport:
    """Land all offsets of the run's mode missing in the ledger, and report the landings.

    1. Load the table: its ledger, and the landings of earlier tries of this run.
    2. Look at the topic, and let the mode plan the offset ranges to read. The plans keep the ends of the first look, so
       that the run ends although the topic grows. An interval keeps the ends only once its time is covered.
    3. If nothing is left to plan, end; with an idle timeout, first wait for new records, and plan up to new ends.
    4. Take the pieces that other workers handed over, if any. Read, decode and write the plan's offsets without a
       piece. Commit whenever a limit is reached, rows and ledger together.
    5. Go to 1; also on a conflict with another run, after the uncommitted rows were discarded.
    6. Commit each partition's first hole as the group's offset in Kafka, for lag tools; report what was done.

    A job that replaces first reads the run's own landed offsets again: see `core.landing.landed_rows`.

    Raises LakestreamError. Commits before the error stay. Uncommitted files are deleted, except the files of handed
    pieces.
    """
    report: LandingReport | None = None
    replaced = replace_landed(job) if job.replaces else None
    ends: TopicState | None = None
    conflicts = ConflictCount(partial(Contention, job.table), stop=job.stop, then="Planning again.")
    while True:
        table = job.sink.load(job.run_id)
        now = job.source.look()
        entry = entry_of(job, table, now)
        # A rollback may take the covered time away. The ends are then free again, until the time is covered again.
        ends = (ends or now) if job.mode.ends_are_fixed(entry) else None
        report = report or LandingReport(now.identity.topic, job.table, job.consumer_group, job.mode.interval)
        if replaced is not None:
            report.add(*replaced)
        report.recover(table.landed_by_run)
        report.types = table.types
        # Pieces that overlap the ledger, or no longer fit the table, are left out: their offsets are read again.
        pieces = job.usable(now.identity, entry.held)
        report.known |= table.ledger.filled
        report.is_first = report.is_first and not entry.landed
        landed_before = len(report.snapshot_ids)
        try:
            with or_discard(job.sink):
                plan = plan_of(job, table, entry, now, ends, pieces)
                report.foreign_rows = max(report.foreign_rows, plan.foreign_rows)
                if not _drain(job, table, _cut(plan, job), pieces, report):
                    if _exhausted(job, report) or not _new_records_came(job, plan.state):
                        break
                    # New records came: the next look sets new ends.
                    ends = None
        except (RowsNotWritable, DamagedBatch) as error:
            # The uncommitted rows are discarded; the changed job reads them again.
            job = job.with_loss(error)
            continue
        except Conflict as conflict:
            if len(report.snapshot_ids) > landed_before:
                # A commit since the last conflict is progress: the count begins again.
                conflicts.count = 0
            conflicts.add(conflict)
            continue
        conflicts.count = 0
    return _finish(job, report, entry, now, plan)


def plan_of(
    job: LandingJob,
    table: TableState,
    entry: TopicEntry,
    now: TopicState,
    ends: TopicState | None = None,
    pieces: Sequence[SharePiece] = (),
) -> Plan:
    """Return the plan of the offsets still to read, without the pieces' offsets.

    Raises LandedByAnotherGroup, LandedBesideStream, RowsUnaccounted, and errors of the mode and of `check_log`. The
    refusals count the pieces' offsets, too.

    :param now: the topic at this look.
    :param ends: the topic at the first look, whose ends the plan keeps; None for the ends in `now`.
    """
    state = now if ends is None else _with_ends(now, ends)
    handed = union(piece.ranges for piece in pieces)
    # The pieces' offsets are read already: it does not matter whether Kafka still has them.
    after = replace(entry, landed=entry.landed | handed)
    check_log(after, now, job.table)
    plan = without(job.mode.plan(PlanningLook(job.table, after, state, job.source, job.on_data_loss)), job.unreadable)
    if not job.allow_group_overlap:
        for other, ledger in table.other_ledgers.items():
            if landed_by_other := (plan.ranges | handed) & ledger.entry(now.identity).landed:
                raise LandedByAnotherGroup(landed_by_other, job.consumer_group, other, job.table, table.part)
    refuse_mixture(job.table, job.consumer_group, entry, plan)
    return refuse_doubling(job, table, entry, plan, handed)


def _cut(plan: Plan, job: LandingJob) -> Plan:
    """Cut the plan to `job.within`, the bounds of the run's own reads; a later run lands the offsets outside.

    A plan in bounds adds no covered time to the ledger, since a part of the interval may be outside.
    """
    if job.within is None:
        return plan
    return replace(plan, ranges=plan.ranges & job.within, covered=None)


def _with_ends(state: TopicState, ends: TopicState) -> TopicState:
    """Return the present state with the ends of an earlier look, since the topic may grow during the run.

    Partitions added since that look are left out.
    """
    marks = {p: replace(m, end=min(m.end, ends.marks[p].end)) for p, m in state.marks.items() if p in ends.marks}
    return replace(state, marks=marks)


def _drain(job: LandingJob, table: TableState, plan: Plan, pieces: Sequence[SharePiece], report: LandingReport) -> bool:
    """Take the pieces and read the plan, up to `max_records`; commit as the limits require.

    Returns True after the work, to plan again. Returns False if nothing is to be landed, if `max_records` are read, or
    if no record shows the columns of a new table: then `report.lacks_columns` is set, and nothing is committed. Raises
    the errors of `_postpone`.
    """
    if pieces:
        log.info("%s pieces were handed over: %s", len(pieces), ranges_text(union(piece.ranges for piece in pieces)))
    if not _exhausted(job, report):
        log_plan(job.table, plan, job.mode.interval)
    if not (plan.changes_the_ledger or pieces) or _exhausted(job, report):
        return False
    batch = Batch(plan, early=not report.snapshot_ids)
    for piece in pieces:
        job.shared.adopt(piece.files)
        batch.take(piece)
    decoder = job.decoders(table.schema, None)
    is_remote = job.readers is not None and job.readers.can_read(job, plan)
    shared = is_remote or is_worth_sharing(job, plan)
    if decoder is None and shared:
        decoder = _use_foreseen_columns(job, plan) or _read_first(job, batch, report)
    if not shared:
        decoder, batch = _read_here(job, decoder, batch, report)
    elif decoder is not None:
        batch = (_read_remotely if is_remote else _read_by_children)(job, batch, report)
    report.lacks_columns = decoder is None
    if decoder is None:
        _postpone(job, batch)
        return False
    # The plan's last commit adds the covered time, unless `max_records` ended the reading before the plan's end.
    is_last = _records_left(job, report) is None or batch.records < (_records_left(job, report) or 0)
    if batch.changes_the_ledger or (is_last and plan.covered):
        _commit(job, batch, report, is_last=is_last)
    return True


def _use_foreseen_columns(job: LandingJob, plan: Plan) -> RecordDecoder | None:
    """Return the decoder of a new table's columns, if known before any record is read.

    The sink gets a table without rows: it creates the columns. None if the records decide the columns.
    """
    foreseen = None if job.foresee is None else job.foresee(plan.state.identity.topic)
    if foreseen is None:
        return None
    decoder, no_rows = foreseen
    job.sink.write(no_rows, plan.state.identity)
    return decoder


def _read_first(job: LandingJob, batch: Batch, report: LandingReport) -> RecordDecoder | None:
    """Read the plan's first records, until a record shows the columns of a new table; return the decoder.

    Child processes or executors read the remaining records, and need the columns. The widest partition is tried first,
    then the whole plan. The records read go into the batch, except records that wait for the columns. Returns None if
    no record of the plan shows the columns.
    """
    planned = batch.plan.ranges
    widest = max((planned.of_partition(*key) for key in planned.partitions), key=lambda r: r.width, default=planned)
    for ranges in (at_most_offsets(widest, FIRST_OFFSETS), planned):
        plan = replace(batch.plan, ranges=ranges - batch.covered)
        with closing(read_first(job, plan, _records_left_after(job, batch, report))) as results:
            for decoder, chunk in results:
                take(job.sink, job.rejects, batch, chunk)
                check_bad(job, batch.records, batch.bad, report)
                if decoder is not None:
                    return decoder
    return None


def _read_here(
    job: LandingJob, decoder: RecordDecoder | None, batch: Batch, report: LandingReport
) -> tuple[RecordDecoder | None, Batch]:
    """Read the plan in this process, and commit whenever a limit is reached.

    Returns the decoder (None if no record shows the columns of a new table), and the batch since the last commit.
    """
    most_records = _records_left(job, report)
    progress = ReadProgress(batch.plan.state.identity.topic, batch.plan.ranges.width, most_records)
    with closing(read_rows(job, batch.plan, decoder, most_records)) as results:
        for decoder, chunk in results:
            take(job.sink, job.rejects, batch, chunk)
            progress.add(chunk.covers, chunk.counts.read)
            check_bad(job, batch.records, batch.bad, report)
            # Without a record and without a schema no table can be created yet: the commit waits.
            if decoder is not None and batch.is_due(job.limits):
                batch = _commit(job, batch, report)
    return decoder, batch


def _read_remotely(job: LandingJob, batch: Batch, report: LandingReport) -> Batch:
    """Read the plan's offsets missing in the batch by remote readers; return the batch with their pieces."""
    assert job.readers is not None, "`readers.can_read` was asked before"
    for piece in job.readers.read(job, batch.plan, batch.covered, _records_left_after(job, batch, report)):
        batch.take(piece)
    return batch


def _read_by_children(job: LandingJob, batch: Batch, report: LandingReport) -> Batch:
    """Read the plan's offsets missing in the batch by child processes, and commit whenever a limit is reached.

    Returns the batch since the last commit, for the caller to commit.
    """

    def is_due(read: int, bad: BadRecords, size: int) -> bool:
        check_bad(job, batch.records + read, batch.bad + bad, report)
        return batch.is_due(job.limits, size, read)

    most_records = _records_left_after(job, batch, report)
    with closing(read_by_children(job, batch.plan, batch.covered, most_records, is_due)) as rounds:
        for pieces, is_last in rounds:
            for piece in pieces:
                batch.take(piece)
            if not is_last:
                batch = _commit(job, batch, report)
    return batch


def _commit(job: LandingJob, batch: Batch, report: LandingReport, *, is_last: bool = False) -> Batch:
    """Check and commit the batch, and report the landing; return the empty batch for further records.

    :param is_last: whether this is the plan's last commit, which adds the covered time.
    """
    identity = batch.plan.state.identity
    check_still_there(job, identity)
    counts = batch.total
    check_bad(job, counts.read, batch.bad, report, at_commit=True)
    check_use(job.table, batch.use, is_first=report.is_first)
    report.types.check(job.table, batch.use.types)
    landing = batch.landing(job.run_id, job.engine, report.known, report.types, is_last=is_last)
    started = time.monotonic()
    snapshot_id = job.sink.commit(landing)
    seconds = time.monotonic() - started
    report.add(snapshot_id, landing)
    job.report_commit(snapshot_id, landing, seconds)
    job.handed.take(batch.pieces)
    offsets_left = (batch.plan.ranges - report.entry.landed).width
    log_commit(job.table, snapshot_id, counts, batch.bad, landing.topics[identity].landed, seconds, offsets_left)
    log_silent_columns(job.table, landing.silent)
    log_stale_columns(job.table, landing.types)
    return batch.next()


def _records_left(job: LandingJob, report: LandingReport) -> int | None:
    """Return the number of records that the run may still read, or None without a limit."""
    if job.limits.max_records is None:
        return None
    return max(0, job.limits.max_records - report.counts.read)


def _records_left_after(job: LandingJob, batch: Batch, report: LandingReport) -> int | None:
    """Return the number of records that the run may read in addition to the batch, or None without a limit."""
    left = _records_left(job, report)
    return None if left is None else max(0, left - batch.records)


def _exhausted(job: LandingJob, report: LandingReport) -> bool:
    return _records_left(job, report) == 0


def _postpone(job: LandingJob, batch: Batch) -> None:
    """Leave all offsets to a later run, since no record shows the columns of a new table.

    Raises InvalidArgument if the plan has facts for the ledger that a later run can't find by itself: losses,
    covered time, or a beginning that moves. Without a table they can't be written down.
    """
    plan = batch.plan
    # Where every partition begins at the log's start, a later run finds the same beginning without the ledger.
    at_low = all(plan.origin.get(p, 0) <= marks.low for p, marks in plan.state.marks.items())
    start_is_fixed = isinstance(job.mode, ResumeMode) and not job.mode.start_moves and at_low
    if plan.lost or plan.covered or (plan.origin and not start_is_fixed):
        fact = "the time that is now covered has" if plan.covered else "the offsets where the group begins have"
        raise InvalidArgument(
            "schema",
            f"{job.table} does not exist, no record shows its columns, and {fact} to be written into "
            "the table so that the next run loses no record.",
            'Give a schema, such as schema="id bigint, name string".',
        )
    if batch.records:
        text = "%s records do not show the columns of %s: they are left for the first run with a record that does."
        log.info(text, batch.records, job.table)


def _new_records_came(job: LandingJob, ends: TopicState) -> bool:
    """Wait until the topic has records beyond `ends`; return False after `idle_timeout` seconds or on a stop.

    Returns False at once without an idle timeout.
    """
    if not job.limits.idle_timeout:
        return False
    known_ends: Mapping[int, int] = {p: marks.end for p, marks in ends.marks.items()}
    deadline = time.monotonic() + job.limits.idle_timeout
    while time.monotonic() < deadline:
        if job.stop.wait(FOLLOW_INTERVAL):
            return False
        if any(marks.end > known_ends.get(p, 0) for p, marks in job.source.look().marks.items()):
            return True
    return False


def _finish(job: LandingJob, report: LandingReport, entry: TopicEntry, now: TopicState, plan: Plan) -> LandingReport:
    report.completes = plan.completes
    report.schema_changes = [text for snapshot in report.snapshot_ids for text in job.sink.schema_changes(snapshot)]
    if not entry.origin:
        # A group that never resumed promises nothing about the offsets between its ranges.
        report.remaining_lag = plan.ranges.width
        return report
    report.remaining_lag = resume_plan(entry, now, {}, OnDataLoss.RECORD, job.table).ranges.width
    # Only lag tools read these offsets: the ledger decides what is landed.
    job.source.commit_offsets({p: first_hole(entry, now.identity, p) for p in now.marks})
    return report
