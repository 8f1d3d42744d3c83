"""The one algorithm: how records get from a topic into a table, once each. Read this first.

`land` says the steps; what each step does to Kafka and to the table is behind the ports.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from airflow_lakestream.core.batch import Batch, Limits, at_most
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
from airflow_lakestream.core.readahead import ReadAhead, map_ahead
from airflow_lakestream.core.report import LandingReport
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient

log = logging.getLogger(__name__)

# Every conflict means that another run got on; so many in a row mean that something else is wrong.
MAX_CONFLICTS = 20
CHUNKS_AHEAD = 3
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

    `start_moves` says that a later look at the topic would give the group another origin: start_offset="latest".
    """

    run_id: str
    table: str
    consumer_group: str
    source: Source
    reader: Reader
    decoders: DecoderFactory
    sink: Sink
    limits: Limits = Limits()
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    allow_group_overlap: bool = False
    start_moves: bool = False
    stop: threading.Event = field(default_factory=threading.Event)


def land(job: Job) -> LandingReport:
    """Land all that the group lacks, up to the ends of the partitions at the start of the run.

    1. Look at the table: its ledger, and what earlier tries of this run landed.
    2. Look at the topic, and plan the offset ranges to read. The ends stay those of the first look.
    3. Read, decode and write them; commit whenever a limit is reached, each time rows and ledger together.
    4. On a conflict with another run: discard what is not committed, and go to 1.
    5. With an idle timeout: wait for new records, and go to 1.
    6. Mirror the first hole of each partition to Kafka's group, for lag tools; say what was done.

    Raises a LakestreamError; whatever is raised, nothing uncommitted stays behind.
    """
    report: LandingReport | None = None
    ends: TopicState | None = None
    conflicts = 0
    while True:
        table = job.sink.load(job.run_id)
        state = job.source.look()
        ends = ends or state
        report = report or LandingReport(state.identity.topic, job.table, job.consumer_group)
        report.recover(table.landed_by_run)
        plan = _plan(job, table, state, ends)
        landed_before = len(report.snapshot_ids)
        try:
            _drain(job, table, plan, report)
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
        if _exhausted(job, report) or not _new_records_came(job, ends):
            break
        ends = None
    return _finish(job, report)


def _plan(job: Job, table: TableState, now: TopicState, ends: TopicState) -> Plan:
    identity = now.identity
    check_identity(table.ledger, identity, job.table)
    entry = table.ledger.entry(identity)
    check_log(entry, now, job.table)
    state = _with_ends(now, ends)
    first_origin = {} if entry.origin else job.source.starts(state)
    plan = resume_plan(entry, state, first_origin, job.on_data_loss, job.table)
    if not job.allow_group_overlap:
        for other, ledger in table.others.items():
            if taken := plan.ranges & ledger.entry(identity).landed:
                raise LandedByAnotherGroup(taken, job.consumer_group, other, job.table)
    if plan.lost:
        log.warning("Lost to retention, recorded in the ledger of %s: %s", job.table, plan.lost)
    log.info("Plan: %s offsets to read: %s", plan.ranges.width, plan.ranges)
    return plan


def _with_ends(state: TopicState, ends: TopicState) -> TopicState:
    """Keep the ends of the first look, so that a topic which keeps growing can't keep the run from ending."""
    marks = {p: replace(now, end=min(now.end, ends.marks[p].end)) for p, now in state.marks.items() if p in ends.marks}
    return replace(state, marks=marks)


def _drain(job: Job, table: TableState, plan: Plan, report: LandingReport) -> None:
    """Read the plan to its end, or to `max_records`, committing as the limits ask."""
    if not plan.changes_the_ledger or _exhausted(job, report):
        return
    batch = Batch(plan)
    decoder = job.decoders(table.schema, None)
    with ReadAhead(lambda cancelled: job.reader.read(plan, cancelled), CHUNKS_AHEAD, job.stop) as chunks:
        work = _with_decoders(job, decoder, _up_to(_left(job, report), chunks))
        with closing(map_ahead(_decode, work, DECODERS)) as decoded:
            for decoder, chunk, rows in decoded:
                if job.stop.is_set():
                    break
                if rows is not None:
                    job.sink.write(rows, plan.state.identity)
                batch.add(chunk)
                # Without a record and without a schema there is no table to create yet: the commit waits for either.
                if decoder is not None and batch.is_due(job.limits):
                    batch = _commit(job, batch, report)
    if job.stop.is_set():
        raise Stopped
    if decoder is None:
        _refuse_to_forget_the_start(job, plan)
    elif batch.changes_the_ledger:
        _commit(job, batch, report)


def _up_to(count: int | None, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield chunks until they hold `count` records; the last one may be cut."""
    for chunk in chunks:
        head = at_most(chunk, count)
        yield head
        if count is not None:
            count -= len(head.batch)
            if count == 0:
                return


def _with_decoders(
    job: Job, decoder: Decoder | None, chunks: Iterable[Chunk]
) -> Iterator[tuple[Decoder | None, Chunk]]:
    """Yield each chunk with its decoder; where the table gives no schema, the first records do."""
    for chunk in chunks:
        if decoder is None and len(chunk.batch):
            decoder = job.decoders(None, chunk.batch)
        yield decoder, chunk


def _decode(work: tuple[Decoder | None, Chunk]) -> tuple[Decoder | None, Chunk, Rows | None]:
    decoder, chunk = work
    if decoder is None or not len(chunk.batch):
        return decoder, chunk, None
    rows = decoder.decode(chunk.batch)
    # The impossible is checked anyway: a row fewer or more would put every later row under a wrong offset.
    if len(rows) != len(chunk.batch):
        raise AssertionError(f"{len(chunk.batch)} records became {len(rows)} rows at {chunk.covers}")
    return decoder, chunk, rows


def _commit(job: Job, batch: Batch, report: LandingReport) -> Batch:
    identity = batch.plan.state.identity
    found = job.source.identity()
    if found != identity:
        raise TopicReplaced(identity, found, job.consumer_group, job.table)
    landing = batch.landing(job.run_id)
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


def _left(job: Job, report: LandingReport) -> int | None:
    """How many records the run may still take; None for any number."""
    if job.limits.max_records is None:
        return None
    return max(0, job.limits.max_records - report.counts.read)


def _exhausted(job: Job, report: LandingReport) -> bool:
    return _left(job, report) == 0


def _refuse_to_forget_the_start(job: Job, plan: Plan) -> None:
    """Without a table or a schema there is no place to write the origin; the next run has to find the same one."""
    at_low = all(plan.origin.get(p, 0) <= marks.low for p, marks in plan.state.marks.items())
    if job.start_moves or not at_low:
        raise InvalidArgument(
            "schema",
            f"{job.table} does not exist, no record is there to infer a schema from, and the offsets where the group "
            "begins have to be written into the table so that none is lost until the next run.",
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


def _finish(job: Job, report: LandingReport) -> LandingReport:
    table = job.sink.load(job.run_id)
    state = job.source.look()
    entry = table.ledger.entry(state.identity)
    if entry.origin:
        now = resume_plan(entry, state, {}, OnDataLoss.RECORD, job.table)
        report.remaining_lag = now.ranges.width
        job.source.mirror({p: first_hole(entry, state.identity, p) for p in state.marks})
    return report
