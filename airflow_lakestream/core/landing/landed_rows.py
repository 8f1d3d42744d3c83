"""Rows in the table before a landing: doubled by no group's first landing, replaced in a single snapshot on request."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
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
from airflow_lakestream.core.landing.modes import PlanningLook, ResumeMode, RunMode, reading_plan
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.landing.run_log import ReadProgress, log_commit, log_plan, log_silent_columns
from airflow_lakestream.core.landing.unaccounted import ForeignRowQuery, LookForRows, RowsUnaccounted, texts
from airflow_lakestream.core.ledger import Landing, Ledger, TopicEntry, union
from airflow_lakestream.core.ports import RowsNotWritable, TableState, or_discard
from airflow_lakestream.core.ranges import RangeSet

log = logging.getLogger(__name__)


def refuse_doubling(job: LandingJob, table: TableState, entry: TopicEntry, plan: Plan, handed: RangeSet) -> Plan:
    """Return the plan with `foreign_rows` set. Raises RowsUnaccounted if the plan would double rows.

    Checks only if the group lands or resumes the topic for the first time: later rows are in its ledger. Otherwise the
    plan is returned unchanged.

    :param handed: the offsets of the handed pieces, landed together with the plan's.
    """
    is_first = not entry.landed or bool(plan.origin)
    if not is_first or not (plan.changes_the_ledger or handed):
        return plan
    query = what_to_ask(job.mode, entry, plan, handed, [table.ledger, *table.other_ledgers.values()])
    rows = look(table.look_for_rows, query, job.table, job.consumer_group)
    return replace(plan, foreign_rows=rows)


def what_to_ask(
    mode: RunMode, entry: TopicEntry, plan: Plan, handed: RangeSet, ledgers: Iterable[Ledger]
) -> ForeignRowQuery:
    """Return the query for rows doubled by a plan.

    Known are all offsets of the topic's name landed by any group. A resuming group asks for rows from its beginning on,
    other modes ask for rows at the offsets to land.
    """
    topic = plan.state.identity.topic
    landed = (held.landed for ledger in ledgers for key, held in ledger.topics.items() if key.topic == topic)
    if not isinstance(mode, ResumeMode):
        return ForeignRowQuery(topic, union(landed), ranges=plan.ranges | handed)
    # A group that begins at the log's start is to have all records: look from there, or a gap would go unseen.
    begins = {} if plan.origin and mode.from_the_first else {**plan.origin, **entry.origin}
    return ForeignRowQuery(topic, union(landed), begins)


def look(look_for_rows: LookForRows, query: ForeignRowQuery, table: str, consumer_group: str) -> int:
    """Return the number of foreign rows outside the offsets to land, and warn of them.

    Raises RowsUnaccounted for foreign rows at the offsets to land.
    """
    rows = look_for_rows(query)
    if rows.in_the_way:
        raise RowsUnaccounted(table, consumer_group, query.topic, rows.in_the_way)
    if rows.outside:
        log.warning(
            "%s holds %s rows of %s that no ledger accounts for, outside the offsets that %r lands; they stay as they "
            "are: %s",
            table,
            rows.foreign_rows,
            query.topic,
            consumer_group,
            texts(rows.outside, query.topic),
        )
    return rows.foreign_rows


def replace_landed(job: LandingJob) -> tuple[int, Landing] | None:
    """Read the run's own landed offsets again, and replace the rows in a single snapshot.

    Returns the snapshot and its landing, or None if no own offset is landed. A requested replace is always done: a
    cleared task and a retry look the same, and a second replace changes no row. The offsets of rows that retention
    removed are left out.

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
    """Plan the landed ranges of the run again, and replace their rows; None if no range is landed."""
    table = job.sink.load(job.run_id)
    now = job.source.look()
    entry = entry_of(job, table, now)
    if table.keeps_removed:
        entry = replace(entry, landed=entry.landed - entry.forgotten)
    planning = PlanningLook(job.table, entry, now, job.source, job.on_data_loss)
    ranges = entry.landed & job.mode.own(planning)
    if not ranges:
        return None
    plan = reading_plan(planning, ranges)
    log_plan(job.table, plan, job.mode.interval, again=True)
    with or_discard(job.sink):
        return _by_plan(job, table, plan)


def _by_plan(job: LandingJob, table: TableState, plan: Plan) -> tuple[int, Landing]:
    """Read a plan again, and replace its rows in one commit; return the snapshot's id and the landing."""
    identity, batch = plan.state.identity, Batch(plan)
    if job.readers is not None and job.readers.can_read(job, plan):
        for piece in job.readers.read(job, plan, RangeSet(), None):
            batch.take(piece)
    else:
        _read_in_this_process(job, table, batch)
    check_bad(job, batch.records, batch.bad, None, at_commit=True)
    filled_before = table.ledger.filled
    check_use(job.table, batch.use, is_first=False)
    table.types.check(job.table, batch.use.types)
    check_still_there(job, identity)
    landing = batch.landing(job.run_id, job.engine, filled_before, table.types)
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
            take(job.sink, job.rejects, batch, chunk, passes_over=True)
            progress.add(chunk.covers, chunk.counts.read)
            check_bad(job, batch.records, batch.bad, None)
