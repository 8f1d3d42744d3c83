"""Replacement of landed rows: a new read of the offsets, and new rows in a single snapshot."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

from airflow_lakestream.core.column_use import check_use
from airflow_lakestream.core.landing.batch import Batch
from airflow_lakestream.core.landing.job import (
    ConflictCount,
    Contention,
    LandingJob,
    check_bad,
    check_still_there,
    entry_of,
    read_rows,
    take,
)
from airflow_lakestream.core.landing.modes import PlanningLook, reading_plan
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.landing.run_log import ReadProgress, log_commit, log_plan, log_silent_columns
from airflow_lakestream.core.ledger import Landing, TopicEntry
from airflow_lakestream.core.ports import RowsNotWritable, TableState
from airflow_lakestream.core.ranges import RangeSet

log = logging.getLogger(__name__)


def replace_landed(job: LandingJob) -> tuple[int, Landing] | None:
    """Read the run's own landed offsets again, and replace the rows in a single snapshot.

    Returns the snapshot and its landing, or None if no own offset is landed. A requested replace is always done: a
    cleared task and a retry look the same, and a second replace changes no row.

    Raises RangesGone, ReplacedMeanwhile and CannotReplace, Contention after MAX_CONFLICTS conflicts, and the errors of
    reading. After any error no row was changed.
    """
    try:
        return ConflictCount(partial(Contention, job.table), stop=job.stop, then="Planning again.").run(
            partial(_replace_once, job)
        )
    except RowsNotWritable as error:
        # Once at most: the careful job raises the error.
        return replace_landed(job.with_trials(error))


def _replace_once(job: LandingJob) -> tuple[int, Landing] | None:
    table = job.sink.load(job.run_id)
    now = job.source.look()
    entry = entry_of(job, table, now)
    look = PlanningLook(job.table, entry, now, job.source, job.on_data_loss)
    ranges = entry.landed & job.mode.own(look)
    if not ranges:
        return None
    plan = reading_plan(look, ranges)
    log_plan(job.table, plan, job.mode.interval, again=True)
    try:
        return _by_plan(job, table, plan)
    except BaseException:
        job.sink.discard()
        raise


def _by_plan(job: LandingJob, table: TableState, plan: Plan) -> tuple[int, Landing]:
    identity, batch = plan.state.identity, Batch(plan)
    if job.readers is not None and job.readers.can_read(job, plan):
        for piece in job.readers.read(job, plan, RangeSet(), None):
            batch.take(piece)
    else:
        _read_in_this_process(job, table, batch)
    check_bad(job, batch.records, batch.bad, None, at_commit=True)
    known = table.ledger.filled
    check_use(job.table, batch.use, is_first=False)
    table.types.check(job.table, batch.use.types)
    check_still_there(job, identity)
    landing = batch.landing(job.run_id, job.engine, known, table.types)
    read = landing.topics[identity]
    # Each range is replaced as a whole: an offset that was not read would lose its row.
    if read.landed != plan.ranges:
        raise AssertionError(f"read {read.landed} instead of {plan.ranges}")
    change = TopicEntry(replaced=plan.ranges, counts=read.counts, epochs=read.epochs)
    started = time.monotonic()
    snapshot_id, replaced = job.sink.replace(replace(landing, topics={identity: change}))
    seconds = time.monotonic() - started
    job.report_commit(snapshot_id, replaced, seconds)
    log_commit(job.table, snapshot_id, read.counts, batch.bad, plan.ranges, seconds)
    log_silent_columns(job.table, replaced.silent)
    return snapshot_id, replaced


def _read_in_this_process(job: LandingJob, table: TableState, batch: Batch) -> None:
    """Read the plan's records in this process, for the sink and the batch.

    The sink notes records without a row: the replace removes their rows of an earlier decoding. Raises TooManyRejected,
    and the errors of reading.
    """
    progress = ReadProgress(batch.plan.state.identity.topic, batch.plan.ranges.width)
    with closing(read_rows(job, batch.plan, job.decoders(table.schema, None), None)) as results:
        for _, chunk in results:
            take(job, batch, chunk)
            progress.add(chunk.covers, chunk.counts.read)
            if (outcome := chunk.outcome) is not None and outcome.rowless is not None:
                job.sink.pass_over(batch.plan.state.identity, chunk.covers.partition, outcome.rowless)
            check_bad(job, batch.records, batch.bad, None)
