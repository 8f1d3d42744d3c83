"""Publication of another engine's branch on main, each record once. `publish` has the steps.

The engine's files are taken as they are. Exactly-once comes from the commit, as in every landing: files and ledger are
one commit on main, which the guard lets in only while all of its offsets are missing in the ledger. The engine's own
positions are checked against the rows themselves, and the offsets without a row against Kafka.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from airflow_lakestream.core.landing.job import CommittedLanding, ConflictCount, Contention, Stopped
from airflow_lakestream.core.landing.landed_rows import look
from airflow_lakestream.core.landing.modes import LandedBesideStream
from airflow_lakestream.core.landing.plan import (
    LandedByAnotherGroup,
    TopicReplaced,
    TopicState,
    check_identity,
    check_log,
    first_hole,
    first_origin,
    leader_epochs,
    resume_plan,
)
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.landing.run_log import log_commit
from airflow_lakestream.core.landing.unaccounted import ForeignRowQuery
from airflow_lakestream.core.ledger import Landing, LandingEngine, TopicEntry, union
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ports import Conflict, TableState, TopicSource, or_discard
from airflow_lakestream.core.publishing.branch import (
    BranchSink,
    BranchStep,
    EngineOutput,
    EnginePositions,
    ProofResult,
    PublicationOutcome,
    RowProof,
    TopicLogView,
)
from airflow_lakestream.core.publishing.refusals import (
    BranchRows,
    EngineClaim,
    LandedAhead,
    PositionsUnknown,
    RecordDoubted,
    RowsDiffer,
    RowsUnseen,
    check_left_out,
    check_rows,
    reckon,
)
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import BadRecord

log = logging.getLogger(__name__)

# The rows whose positions are held at a time; a snapshot with more rows is published whole.
MOST_ROWS = 4_000_000


class RowlessMeaning(StrEnum):
    """Meaning of a record read by the engine without a row in the branch."""

    FILTERED = "filtered"  # left out on purpose: the engine's program has a condition
    MISSING = "missing"  # not landed: the next run of the extract lands it


@dataclass(frozen=True)
class PublicationJob:
    """Job of a publication: the branch, the table and the group.

    `run_id` is the same in every try of one task run. `source` has the beginning of a group without an origin.
    `committed` is called with each commit, and raises nothing. `proof` reads the engine's records again and compares
    its rows with ours; without a proof, the ledger keeps the rows as unproven.
    """

    run_id: str
    table: str
    consumer_group: str
    branch: str
    engine: LandingEngine
    source: TopicSource
    log: TopicLogView
    sink: BranchSink
    positions: EnginePositions
    rowless: RowlessMeaning = RowlessMeaning.MISSING
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    most_rows: int = MOST_ROWS
    stop: threading.Event = field(default_factory=threading.Event)
    committed: Callable[[CommittedLanding], None] | None = None
    proof: RowProof | None = None


def begin(job: PublicationJob) -> dict[int, int]:
    """Prepare table and branch for the engine's first start; return the start offsets by partition.

    The start is the first offset that the group lacks. A group without an origin gets its origin here, in a landing
    without rows, which creates the table if it is missing. Raises the errors of a landing.
    """
    starts = _begin(job, begins_again=False)
    job.sink.open_branch(job.branch)
    return starts


def _begin(job: PublicationJob, begins_again: bool) -> dict[int, int]:
    """Write down the group's origin, and lost offsets; return the first missing offsets by partition.

    Both go into a landing without rows, if the ledger lacks them. A conflict begins again. Raises Stopped, and
    Contention after MAX_CONFLICTS conflicts.

    :param begins_again: an engine without a state reads all missing offsets again, so offsets lost since the origin
        are a loss, too.
    """
    conflicts = ConflictCount(partial(Contention, job.table), stop=job.stop)
    while True:
        table, now, entry = _look(job)
        if entry.origin and not begins_again:
            break
        starts = {} if entry.origin else job.source.starts(now)
        plan = resume_plan(entry, now, starts, job.on_data_loss, job.table)
        if not (plan.origin or plan.lost):
            break
        claim = EngineClaim(now, entry, entry.origin or plan.origin, {})
        _refuse_foreign_rows(job, table, claim, RangeSet())
        try:
            _commit(job, claim, PublicationOutcome(lost=plan.lost), None, None)
        except Conflict as conflict:
            conflicts.add(conflict)
    return {p: first_hole(entry, now.identity, p) for p in now.marks}


def begin_again(job: PublicationJob, note: Callable[[Mapping[int, int]], None] | None = None) -> dict[int, int]:
    """Prepare table and branch for an engine without a state, to read again all offsets missing on main.

    The branch begins again at main's head: what it had beyond that is read again. Raises LandedAhead if the ledger has
    offsets above the first missing offset: the engine would land them twice. Raises DataLoss, too.

    :param note: writes down the beginning of another `EngineJobLine`. From then on the branch's contents do not
        count, even if this process dies before the branch is set back. None if no record is ever filtered.
    """
    starts = _begin(job, begins_again=True)
    entry = job.sink.load(job.run_id).ledger.entry(job.source.identity())
    ahead = union(
        RangeSet.of(topic, p, max(start, starts.get(p, 0)), end)
        for topic, p in entry.held.partitions
        for start, end in entry.held.intervals(topic, p)
    )
    if ahead:
        raise LandedAhead(job.table, job.consumer_group, ahead)
    if note is not None:
        note(starts)
    job.sink.renew_branch(job.branch)
    return starts


def publish(job: PublicationJob) -> LandingReport:
    """Publish the branch's new snapshots since the last publication on main.

    1. Look at the table, its ledger and its branch; look at the topic.
    2. Take the branch's new snapshots, oldest first, up to a snapshot whose position the engine proves.
    3. Claim the offsets from the last publication to that position: the engine has read these. Compare the files'
       rows with the rows that our decoder makes of the same records. Read the rows' positions, and refuse
       contradictions to claim or ledger.
    4. Look into Kafka for records at the claimed offsets without a row.
    5. Commit files and ledger together, with the marker of the snapshot. Go to 1; also on a conflict.

    The end is reached if step 2 finds no snapshot, or if the commit would change neither ledger nor rows.

    Raises LakestreamError; after any error main has no row that the ledger lacks, and no file is deleted.
    """
    report: LandingReport | None = None
    conflicts = ConflictCount(partial(Contention, job.table), stop=job.stop)
    while True:
        table, now, entry = _look(job)
        report = report or LandingReport(now.identity.topic, job.table, job.consumer_group)
        report.recover(table.landed_by_run)
        try:
            with or_discard(job.sink):
                if not _take_step(job, table, now, entry, report):
                    break
        except Conflict as conflict:
            conflicts.add(conflict)
        else:
            conflicts.count = 0
    return _finish(job, report, entry, now)


def _take_step(
    job: PublicationJob, table: TableState, now: TopicState, entry: TopicEntry, report: LandingReport
) -> bool:
    """Publish the branch's next snapshots; return False if nothing is left to publish.

    Also False for a missing branch, or if no position of the engine is known. Raises the refusals, and Conflict.
    """
    marker = entry.published.get(job.branch)
    new_snapshots = job.sink.new_snapshots(job.branch, marker, job.positions)
    if new_snapshots is None:
        return False
    steps, ends = _next_steps(job, new_snapshots.steps)
    if ends is None:
        return False
    before = {} if marker is None else dict(marker.ends)
    # Offsets once read stay read: a rescaled or restored job may not have read a partition again yet.
    ends = {p: max(ends.get(p, 0), before.get(p, 0)) for p in {*ends, *before}}
    begins = entry.origin or first_origin(entry, now, job.source.starts(now))
    claim = EngineClaim(now, entry, begins, ends, before)
    claim.check_ends(job.table, job.branch)
    looked = _look_again(job, claim, steps, table)
    rows = check_rows(job.sink, steps, claim, job.table, job.branch)
    if looked is not None:
        _check_seen(job, rows, looked.seen)
    shown = job.log.shown(rowless, now, job.stop) if (rowless := claim.new - rows.positions) else None
    line = job.positions.line if job.rowless is RowlessMeaning.FILTERED else None
    if job.rowless is RowlessMeaning.FILTERED and shown is not None:
        check_left_out(claim, line, new_snapshots, shown, job.table, job.branch)
    reckoning = reckon(claim, rows, shown, line, job.on_data_loss, job.table)
    if not (reckoning.changes_the_ledger or rows.files):
        return False
    _refuse_foreign_rows(job, table, claim, reckoning.landed)
    job.sink.take_files(rows.files, now.identity)
    unproven = rows.positions if looked is None else rows.positions - looked.equal
    _commit(job, claim, replace(reckoning, unproven=unproven), steps[-1] if steps else None, report)
    return True


def _look_again(
    job: PublicationJob, claim: EngineClaim, steps: Sequence[BranchStep], table: TableState
) -> ProofResult | None:
    """Compare the new rows with ours, including rows landed by another run; return None without a proof.

    Raises RowsDiffer for different values. Raises RecordDoubted for a record that is bad by our decoder: it may
    have spoilt the engine's rows of the records behind it.
    """
    if job.proof is None:
        return None
    files = [file for step in steps for file in step.files]
    written = EngineOutput(lambda: (rows for file in files for rows in job.sink.rows_of(file)), table.schema)
    try:
        looked = job.proof.check(claim.read, written, claim.state, job.stop)
    except BadRecord as bad:
        raise RecordDoubted(job.table, job.branch, bad) from bad
    if looked.different:
        raise RowsDiffer(job.table, job.branch, looked.different, looked.named)
    return looked


def _check_seen(job: PublicationJob, rows: BranchRows, seen: RangeSet) -> None:
    """Refuse rows of records that have left Kafka before the proof could read them. Raises RowsUnseen.

    With `on_data_loss` RECORD the rows are taken, with a warning.

    :param seen: the offsets that the proof has seen.
    """
    if not (unseen := rows.positions - seen):
        return
    if job.on_data_loss is OnDataLoss.FAIL:
        raise RowsUnseen(job.table, job.branch, unseen)
    log.warning(
        "%s: the records at %s have left Kafka; their rows are taken as %s made them.", job.table, unseen, job.engine
    )


def _next_steps(
    job: PublicationJob, new_snapshots: Sequence[BranchStep]
) -> tuple[Sequence[BranchStep], dict[int, int] | None]:
    """Return the oldest steps to publish together, and the engine's ends after the last step.

    Together are all steps up to a known position, with at most `most_rows` rows, but at least to the first known
    position. The ends are None if there is nothing to publish. Raises PositionsUnknown if there are files and no
    position of the engine is known.
    """
    publishable: tuple[Sequence[BranchStep], dict[int, int]] | None = None
    rows = 0
    for number, step in enumerate(new_snapshots, 1):
        rows += step.rows
        if publishable is not None and rows > job.most_rows:
            return publishable
        ends = job.positions.at(step.snapshot) if step.snapshot.summary else None
        if ends is not None:
            publishable = new_snapshots[:number], dict(ends)
    beyond = job.positions.beyond()
    if beyond is not None:
        return new_snapshots, dict(beyond)
    if publishable is None and any(step.files for step in new_snapshots):
        raise PositionsUnknown(job.table, job.branch, new_snapshots[-1].snapshot.snapshot_id)
    return publishable or ((), None)


def _look(job: PublicationJob) -> tuple[TableState, TopicState, TopicEntry]:
    """Look at the table and the topic; return both, and the topic's entry in the ledger.

    Raises Stopped, an error for another topic or log, and LandedBesideStream for streamed rows.
    """
    if job.stop.is_set():
        raise Stopped
    table, now = job.sink.load(job.run_id), job.source.look()
    check_identity(table.ledger, now.identity, job.table)
    entry = table.ledger.entry(now.identity)
    check_log(entry, now, job.table)
    if entry.streamed is not None:
        problem = (
            f"its rows are made by a streaming query ({entry.streamed}), whose state would lack what is published."
        )
        raise LandedBesideStream(job.table, job.consumer_group, problem)
    return table, now, entry


def _refuse_foreign_rows(job: PublicationJob, table: TableState, claim: EngineClaim, landed: RangeSet) -> None:
    """Refuse offsets landed by another group, and rows on main without a ledger.

    Raises LandedByAnotherGroup, and RowsUnaccounted in the group's first publication.

    :param landed: the offsets to be landed by this publication.
    """
    identity = claim.state.identity
    for other, ledger in table.other_ledgers.items():
        if landed_by_other := landed & ledger.entry(identity).landed:
            raise LandedByAnotherGroup(landed_by_other, job.consumer_group, other, job.table, table.part)
    # Foreign rows can only be met by the group's first publication: later rows are in its ledger.
    if claim.entry.landed and claim.entry.origin:
        return
    ledgers = (table.ledger, *table.other_ledgers.values())
    entries = (item for ledger in ledgers for item in ledger.topics.items())
    known = union(entry.landed for key, entry in entries if key.topic == identity.topic)
    look(table.look_for_rows, ForeignRowQuery(identity.topic, known, claim.begins), job.table, job.consumer_group)


def _commit(
    job: PublicationJob,
    claim: EngineClaim,
    reckoning: PublicationOutcome,
    last: BranchStep | None,
    report: LandingReport | None,
) -> None:
    """Commit the branch's files to main with the offsets in the ledger, and add the landing to the report."""
    identity = claim.state.identity
    if (current := job.source.identity()) != identity:
        raise TopicReplaced(identity, current, job.consumer_group, job.table)
    entry = TopicEntry(
        landed=reckoning.landed,
        lost=reckoning.lost,
        counts=reckoning.total,
        origin={} if claim.entry.origin else claim.begins,
        epochs=leader_epochs(claim.state),
        published=claim.marker(job.branch, None if last is None else last.snapshot),
        unproven=reckoning.unproven,
    )
    lows = {p: marks.low for p, marks in claim.state.marks.items()}
    by_partition = {identity: reckoning.counts}
    landing = Landing(uuid.uuid4().hex, job.run_id, {identity: entry}, by_partition, engine=job.engine, lows=lows)
    started = time.monotonic()
    snapshot_id = job.sink.commit(landing)
    seconds = time.monotonic() - started
    if report is not None:
        report.add(snapshot_id, landing)
    if job.committed is not None:
        job.committed(CommittedLanding(job.table, snapshot_id, landing, seconds))
    log_commit(job.table, snapshot_id, reckoning.total, reckoning.bad, reckoning.landed, seconds, 0)
    if reckoning.missing:
        log.warning(
            "%s: the branch %r has no row of %s, which Kafka still shows. They stay to be landed: the next run of "
            "KafkaExtractOperator with group %r lands them.",
            job.table,
            job.branch,
            reckoning.missing,
            job.consumer_group,
        )


def _finish(job: PublicationJob, report: LandingReport, entry: TopicEntry, now: TopicState) -> LandingReport:
    report.schema_changes = [text for snapshot in report.snapshot_ids for text in job.sink.schema_changes(snapshot)]
    if entry.origin:
        report.remaining_lag = resume_plan(entry, now, {}, OnDataLoss.RECORD, job.table).ranges.width
        job.source.commit_offsets({p: first_hole(entry, now.identity, p) for p in now.marks})
    return report
