"""The one algorithm: how records get from a topic into a table, once each. Read this first.

`land` says the steps; what each step does to Kafka and to the table is behind the ports.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace

from airflow_lakestream.core.batch import Batch, Limits, at_most
from airflow_lakestream.core.ledger import Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.modes import Look, Mode, Resume, reading_plan
from airflow_lakestream.core.plan import (
    LandedByAnotherGroup,
    Plan,
    TopicReplaced,
    TopicState,
    check_identity,
    check_log,
    first_hole,
    resume_plan,
)
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ports import (
    Chunk,
    Conflict,
    Decoder,
    DecoderFactory,
    Reader,
    Rows,
    Sink,
    Source,
    TableState,
)
from airflow_lakestream.core.readahead import ReadAhead
from airflow_lakestream.core.report import LandingReport
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient

log = logging.getLogger(__name__)

# Every conflict means that another run got on; so many in a row mean that something else is wrong.
MAX_CONFLICTS = 20
# Chunks read and not yet taken, decoded or not.
CHUNKS_AHEAD = 8
# Chunks decoded side by side: Arrow lets go of the interpreter, and takes most of the time.
DECODERS = min(2, os.cpu_count() or 1)
FOLLOW_INTERVAL = 0.5


class Stopped(LakestreamError, Transient):
    """The run was told to stop; what it had not committed left no trace."""

    def __init__(self) -> None:
        super().__init__("the run was stopped between two batches; what was not committed yet was discarded.")


class Contention(LakestreamError, Transient):
    """Other runs kept getting in first."""

    def __init__(self, table: str, last: Conflict) -> None:
        super().__init__(
            f"{MAX_CONFLICTS} times in a row another writer changed {table} between plan and commit (last: {last}) "
            "Nothing was doubled or lost. Let fewer runs of the same group go at once: max_active_runs=1."
        )


@dataclass(frozen=True)
class Job:
    """What to land, from where, into what. `run_id` is the same in every try of one task run.

    `replaces` says that what is landed already of the run's own offsets is read again and takes its place.
    """

    run_id: str
    table: str
    consumer_group: str
    source: Source
    reader: Reader
    decoders: DecoderFactory
    sink: Sink
    mode: Mode = Resume()
    replaces: bool = False
    limits: Limits = Limits()
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    allow_group_overlap: bool = False
    stop: threading.Event = field(default_factory=threading.Event)


def land(job: Job) -> LandingReport:
    """Land all that the run covers and the table lacks, up to the ends of the partitions at the start of the run.

    1. Look at the table: its ledger, and what earlier tries of this run landed.
    2. Look at the topic, and let the mode plan the offset ranges to read. A growing topic does not keep a run from
       ending: from one look on, plans keep to its ends.
    3. With nothing left to plan, end; with an idle timeout, wait for new records first.
    4. Read, decode and write them; commit whenever a limit is reached, each time rows and ledger together.
    5. Go to 1; also on a conflict with another run, after discarding what is not committed.
    6. Mirror the first hole of each partition to Kafka's group, for lag tools; say what was done.

    A job that replaces first reads again what is landed of the run's own offsets: see `_replace`.

    Raises a LakestreamError; whatever is raised, nothing uncommitted stays behind.
    """
    report: LandingReport | None = None
    replaced = _replace(job) if job.replaces else None
    ends: TopicState | None = None
    conflicts = 0
    while True:
        table = job.sink.load(job.run_id)
        now = job.source.look()
        entry = _entry(job, table, now)
        if job.mode.ends_are_fixed(entry):
            ends = ends or now
        report = report or LandingReport(now.identity.topic, job.table, job.consumer_group, job.mode.interval)
        if replaced is not None:
            report.add(*replaced)
        report.recover(table.landed_by_run)
        plan = _plan(job, table, entry, now, ends)
        landed_before = len(report.snapshot_ids)
        try:
            if not _drain(job, table, plan, report):
                if _exhausted(job, report) or not _new_records_came(job, plan.state):
                    break
                ends = None
        except Conflict as conflict:
            job.sink.discard()
            got_on = len(report.snapshot_ids) > landed_before
            conflicts = 1 if got_on else conflicts + 1
            if conflicts == MAX_CONFLICTS:
                raise Contention(job.table, conflict) from conflict
            log.info("%s Planning anew.", conflict)
            continue
        except BaseException:
            job.sink.discard()
            raise
        conflicts = 0
    return _finish(job, report, entry, now, plan)


def _replace(job: Job) -> tuple[int, Landing] | None:
    """Read again what the ledger holds of the run's own offsets, and put it in the place of its rows: one snapshot.

    Returns the snapshot and its landing; None when nothing of it is landed. Always done when asked for: to clear a
    task and to retry it look the same, and to do it again changes no row.
    """
    for _ in range(MAX_CONFLICTS):
        table = job.sink.load(job.run_id)
        now = job.source.look()
        entry = _entry(job, table, now)
        look = Look(job.table, entry, now, job.source, job.on_data_loss)
        ranges = entry.landed & job.mode.own(look)
        if not ranges:
            return None
        log.info("Replacing %s offsets: %s", ranges.width, ranges)
        try:
            return _replace_by_plan(job, table, reading_plan(look, ranges))
        except Conflict as conflict:
            job.sink.discard()
            last = conflict
            log.info("%s Planning anew.", conflict)
        except BaseException:
            job.sink.discard()
            raise
    raise Contention(job.table, last) from last


def _replace_by_plan(job: Job, table: TableState, plan: Plan) -> tuple[int, Landing]:
    identity, batch = plan.state.identity, Batch(plan)
    with closing(_read(job, plan, job.decoders(table.schema, None), None)) as results:
        for _, chunk, rows in results:
            if rows is not None:
                job.sink.write(rows, identity)
            batch.add(chunk)
    _check_still_there(job, identity)
    landing = batch.landing(job.run_id)
    read = landing.topics[identity]
    if read.landed != plan.ranges:
        raise AssertionError(f"read {read.landed} instead of {plan.ranges}")
    change = TopicEntry(replaced=plan.ranges, counts=read.counts, epochs=read.epochs)
    return job.sink.replace(replace(landing, topics={identity: change}))


def _entry(job: Job, table: TableState, now: TopicState) -> TopicEntry:
    """Return the group's books of the topic, checked against the topic as it is now."""
    check_identity(table.ledger, now.identity, job.table)
    entry = table.ledger.entry(now.identity)
    check_log(entry, now, job.table)
    return entry


def _plan(job: Job, table: TableState, entry: TopicEntry, now: TopicState, ends: TopicState | None) -> Plan:
    state = now if ends is None else _with_ends(now, ends)
    plan = job.mode.plan(Look(job.table, entry, state, job.source, job.on_data_loss))
    if not job.allow_group_overlap:
        for other, ledger in table.others.items():
            if taken := plan.ranges & ledger.entry(now.identity).landed:
                raise LandedByAnotherGroup(taken, job.consumer_group, other, job.table)
    if plan.lost:
        log.warning("Lost to retention, recorded in the ledger of %s: %s", job.table, plan.lost)
    if plan.changes_the_ledger:
        log.info("Plan: %s offsets to read: %s", plan.ranges.width, plan.ranges)
    else:
        log.info("%s: %s lacks nothing that is in Kafka now.", now.identity.topic, job.table)
    return plan


def _with_ends(state: TopicState, ends: TopicState) -> TopicState:
    """Keep the ends of the first look, so that a topic which keeps growing can't keep the run from ending."""
    marks = {p: replace(now, end=min(now.end, ends.marks[p].end)) for p, now in state.marks.items() if p in ends.marks}
    return replace(state, marks=marks)


def _drain(job: Job, table: TableState, plan: Plan, report: LandingReport) -> bool:
    """Read the plan to its end, or to `max_records`, committing as the limits ask.

    Returns whether anything was committed. Without a table, a schema and a record there is nowhere to commit to.
    """
    if not plan.changes_the_ledger or _exhausted(job, report):
        return False
    batch = Batch(plan)
    decoder = job.decoders(table.schema, None)
    with closing(_read(job, plan, decoder, _left(job, report))) as results:
        for decoder, chunk, rows in results:
            if rows is not None:
                job.sink.write(rows, plan.state.identity)
            batch.add(chunk)
            # Without a record and without a schema there is no table to create yet: the commit waits for either.
            if decoder is not None and batch.is_due(job.limits):
                batch = _commit(job, batch, report)
    if decoder is None:
        _refuse_to_forget(job, plan)
        return False
    is_last = _left(job, report) is None or batch.records < (_left(job, report) or 0)
    if batch.changes_the_ledger or (is_last and plan.covered):
        _commit(job, batch, report, is_last=is_last)
    return True


def _read(
    job: Job, plan: Plan, decoder: Decoder | None, most_records: int | None
) -> Generator[tuple[Decoder | None, Chunk, Rows | None], None, None]:
    """Yield the plan's chunks with their rows, in order, reading and decoding ahead. Raises Stopped."""
    with ThreadPoolExecutor(DECODERS, thread_name_prefix="lakestream-decode") as pool:
        begin = _Decoding(job, plan, decoder, most_records, pool)
        with ReadAhead(begin, CHUNKS_AHEAD, job.stop) as decoding:
            for future in decoding:
                yield future.result()
    if job.stop.is_set():
        raise Stopped


@dataclass(frozen=True)
class _Decoding:
    """Reads chunks and begins to decode them, as the items of a `ReadAhead`: futures, in the order of the chunks."""

    job: Job
    plan: Plan
    decoder: Decoder | None
    most_records: int | None
    pool: Executor

    def __call__(self, cancelled: threading.Event) -> Iterator[Future[tuple[Decoder | None, Chunk, Rows | None]]]:
        decoder, left = self.decoder, self.most_records
        with closing(self.job.reader.read(self.plan, cancelled)) as chunks:
            for read in chunks:
                chunk = at_most(read, left)
                if decoder is None and len(chunk.batch):
                    # The table gives no schema: the first records do.
                    decoder = self.job.decoders(None, chunk.batch)
                yield self.pool.submit(_decode, decoder, chunk)
                if left is not None:
                    left -= len(chunk.batch)
                    if left == 0:
                        return


def _decode(decoder: Decoder | None, chunk: Chunk) -> tuple[Decoder | None, Chunk, Rows | None]:
    if decoder is None or not len(chunk.batch):
        return decoder, chunk, None
    rows = decoder.decode(chunk.batch)
    # The impossible is checked anyway: a row fewer or more would put every later row under a wrong offset.
    if len(rows) != len(chunk.batch):
        raise AssertionError(f"{len(chunk.batch)} records became {len(rows)} rows at {chunk.covers}")
    return decoder, chunk, rows


def _commit(job: Job, batch: Batch, report: LandingReport, *, is_last: bool = False) -> Batch:
    identity = batch.plan.state.identity
    _check_still_there(job, identity)
    landing = batch.landing(job.run_id, is_last=is_last)
    started = time.monotonic()
    snapshot_id = job.sink.commit(landing)
    report.add(snapshot_id, landing)
    log.info(
        "Committed %s records (%.0f/s) in snapshot %s of %s, commit %.2f s; %s offsets of the plan remain: %s",
        batch.records,
        batch.records / max(batch.age, 1e-3),
        snapshot_id,
        job.table,
        time.monotonic() - started,
        (batch.plan.ranges - report.entry.landed).width,
        landing.topics[identity].landed,
    )
    return batch.next()


def _check_still_there(job: Job, identity: TopicIdentity) -> None:
    """Refuse what was read when the topic was created anew meanwhile. Raises TopicReplaced."""
    found = job.source.identity()
    if found != identity:
        raise TopicReplaced(identity, found, job.consumer_group, job.table)


def _left(job: Job, report: LandingReport) -> int | None:
    """How many records the run may still take; None for any number."""
    if job.limits.max_records is None:
        return None
    return max(0, job.limits.max_records - report.counts.read)


def _exhausted(job: Job, report: LandingReport) -> bool:
    return _left(job, report) == 0


def _refuse_to_forget(job: Job, plan: Plan) -> None:
    """Refuse where a later run needs what has to be written down now, and there is no place to write it."""
    at_low = all(plan.origin.get(p, 0) <= marks.low for p, marks in plan.state.marks.items())
    start_is_fixed = isinstance(job.mode, Resume) and not job.mode.start_moves and at_low
    if plan.lost or plan.covered or (plan.origin and not start_is_fixed):
        what = "the time that is now covered has" if plan.covered else "the offsets where the group begins have"
        raise InvalidArgument(
            "schema",
            f"{job.table} does not exist, no record is there to infer a schema from, and {what} to be written into "
            "the table so that no record is lost until the next run.",
            'Give a schema, such as schema="id bigint, name string".',
        )
    log.info("%s does not exist and there is no record to infer its schema from: nothing was created.", job.table)


def _new_records_came(job: Job, ends: TopicState) -> bool:
    """Wait until the topic has grown; False after `idle_timeout` seconds without."""
    if not job.limits.idle_timeout:
        return False
    known: Mapping[int, int] = {p: marks.end for p, marks in ends.marks.items()}
    deadline = time.monotonic() + job.limits.idle_timeout
    while time.monotonic() < deadline:
        if job.stop.wait(FOLLOW_INTERVAL):
            return False
        if any(marks.end > known.get(p, 0) for p, marks in job.source.look().marks.items()):
            return True
    return False


def _finish(job: Job, report: LandingReport, entry: TopicEntry, now: TopicState, plan: Plan) -> LandingReport:
    report.completes = plan.completes
    if not entry.origin:
        # A group that never resumed promises nothing of what lies between its ranges.
        report.remaining_lag = plan.ranges.width
        return report
    report.remaining_lag = resume_plan(entry, now, {}, OnDataLoss.RECORD, job.table).ranges.width
    job.source.mirror({p: first_hole(entry, now.identity, p) for p in now.marks})
    return report
