"""Reckoning of a publication: the engine's claim, the rows in the files, and Kafka's records for the rest."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.landing.plan import DataLoss, TopicState
from airflow_lakestream.core.ledger import Counts, PublicationMarker, TopicEntry, union
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.publishing.branch import (
    BranchFile,
    BranchSink,
    BranchSnapshot,
    BranchStep,
    EngineJobLine,
    FileRows,
    LogContents,
    NewSnapshots,
)
from airflow_lakestream.core.publishing.refusals import (
    BeyondTheLog,
    BranchHistoryLost,
    LeftOutUnproven,
    RowsOnMain,
    RowsTwice,
    RowsUnproven,
    RowsWithoutPosition,
)
from airflow_lakestream.core.ranges import RangeSet

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineClaim:
    """Offsets read by an engine's own account, and the group's ledger entry.

    :param begins: by partition, the group's beginning; 0 for any other.
    :param ends: by partition, the end of the offsets that the engine has read.
    :param before: the ends of the last publication.
    """

    state: TopicState
    entry: TopicEntry
    begins: Mapping[int, int]
    ends: Mapping[int, int]
    before: Mapping[int, int] = field(default_factory=dict)

    @property
    def read_in_total(self) -> RangeSet:
        """All offsets read by the engine since the group began."""
        topic = self.state.identity.topic
        return union(RangeSet.of(topic, p, self.begins.get(p, 0), end) for p, end in self.ends.items())

    @property
    def read(self) -> RangeSet:
        """The offsets read since the last publication, landed or not."""
        topic = self.state.identity.topic
        return self.read_in_total - union(RangeSet.of(topic, p, 0, end) for p, end in self.before.items())

    @property
    def new(self) -> RangeSet:
        """The offsets read since the last publication and missing in the ledger."""
        return self.read - self.held

    @property
    def held(self) -> RangeSet:
        """The offsets in the ledger."""
        return self.entry.held

    def check_ends(self, table: str, branch: str) -> None:
        """Refuse offsets read beyond the log's end, or in an unknown partition. Raises BeyondTheLog."""
        topic, marks = self.state.identity.topic, self.state.marks
        beyond = {p: end for p, end in self.ends.items() if p not in marks or end > marks[p].end}
        if beyond:
            ends = {p: marks[p].end if p in marks else "no such partition" for p in beyond}
            where = ", ".join(f"{topic}[{p}] {end} (log: {ends[p]})" for p, end in sorted(beyond.items()))
            raise BeyondTheLog(table, branch, where)

    def marker(self, branch: str, last: BranchSnapshot | None) -> dict[str, PublicationMarker]:
        """Return the ledger's new marker of the branch, empty without progress of the engine.

        :param last: the last published snapshot; None if only the engine's ends moved: then the known snapshot stays.
        """
        known = self.entry.published.get(branch)
        if last is not None:
            return {branch: PublicationMarker(last.snapshot_id, last.sequence, dict(self.ends))}
        if self.ends:
            at = (0, 0) if known is None else (known.snapshot_id, known.sequence)
            return {branch: PublicationMarker(*at, dict(self.ends))}
        return {}


@dataclass(frozen=True)
class PublicationOutcome:
    """Landed, lost and missing offsets of a publication, and the counts by partition.

    :param unproven: offsets of landed rows whose values have not been compared with ours.
    """

    landed: RangeSet = RangeSet()
    lost: RangeSet = RangeSet()
    missing: RangeSet = RangeSet()
    counts: Mapping[int, Counts] = field(default_factory=dict)
    bad: BadRecords = BadRecords()
    unproven: RangeSet = RangeSet()

    @property
    def total(self) -> Counts:
        """The counts of all partitions."""
        return sum(self.counts.values(), Counts())

    @property
    def changes_the_ledger(self) -> bool:
        """Whether any offsets are landed or lost."""
        return bool(self.landed or self.lost)


@dataclass(frozen=True)
class BranchRows:
    """Files to take, and the positions of all rows, each once."""

    positions: RangeSet = RangeSet()
    files: Sequence[BranchFile] = ()


def check_rows(
    sink: BranchSink, steps: Sequence[BranchStep], claim: EngineClaim, table: str, branch: str
) -> BranchRows:
    """Read the positions of new files' rows, and refuse rows unfit to land; return the files to take.

    Files with all rows on main already are left out.

    Raises RowsWithoutPosition, RowsTwice, RowsOnMain, RowsUnproven, BranchHistoryLost, BranchFileGone,
    ColumnsMoved.
    """
    topic, read_in_total, held = claim.state.identity.topic, claim.read_in_total, claim.held
    positions, twice = RangeSet(), 0
    files: list[BranchFile] = []
    places: list[str] = []
    for step in steps:
        for file in step.files:
            file_rows = sink.positions_of(file, claim.state.identity)
            if _is_on_main(step, file, file_rows, held, table, branch):
                continue
            if file_rows.strange:
                raise RowsWithoutPosition(table, branch, topic, file.path, file_rows.strange)
            again = file_rows.positions & positions
            if repeated := file_rows.repeated + again.width:
                twice += repeated
                places.append(str(again) if again else file.path)
            positions |= file_rows.positions
            files.append(file)
    if twice:
        raise RowsTwice(table, branch, twice, "; ".join(places[:5]))
    if unproven := positions - read_in_total:
        raise RowsUnproven(table, branch, unproven)
    return BranchRows(positions, files)


def _is_on_main(step: BranchStep, file: BranchFile, found: FileRows, held: RangeSet, table: str, branch: str) -> bool:
    """Return whether the ledger has all rows of a file already: the file is then left out.

    That is allowed only if the file's snapshot has expired, so that the file is older than the branch. Raises
    RowsOnMain if the snapshot is known, and BranchHistoryLost if only some of the rows are in the ledger.
    """
    taken = found.positions & held
    if not taken:
        return False
    if step.snapshot.summary:
        raise RowsOnMain(table, branch, taken)
    if taken != found.positions or found.strange:
        raise BranchHistoryLost(table, branch, file.path)
    return True


class LostOrLeftOut(DataLoss):
    """Records are gone without proof of a read by the engine; `ranges` are the offsets."""

    def __init__(self, ranges: RangeSet, table: str) -> None:
        super().__init__(ranges, table)
        self.args = (
            f"the records at {ranges} are no longer in Kafka, and {table} has no row of them. No checkpoint shows that "
            "they were read before they went, so sql may have left them out, or they are lost. Nothing was landed past "
            'them. Run once with on_data_loss="record": what is left is landed, and the ledger keeps these ranges as a '
            "receipt.",
        )


def check_left_out(
    claim: EngineClaim,
    line: EngineJobLine | None,
    new_snapshots: NewSnapshots,
    shown: LogContents,
    table: str,
    branch: str,
) -> None:
    """Refuse omissions without proof: records perhaps unread by the engine, or rows perhaps lost by the branch.

    Proof is the line of the engine's jobs, with a branch that has all of the line's files. Only records at offsets
    below the line's beginning are then refused.

    :param line: the engine's jobs; None if unknown.
    :param shown: Kafka's records at the new offsets without a row.

    Raises LeftOutUnproven.
    """
    there = shown.values | shown.tombstones
    if line is None or new_snapshots.unproven:
        if doubtful := there if line is None else there | (shown.gone & line.passed):
            reason = new_snapshots.unproven or "what its jobs have read is not noted"
            raise LeftOutUnproven(table, branch, doubtful, reason)
        return
    topic = claim.state.identity.topic
    if unread := there & union(RangeSet.of(topic, p, 0, at) for p, at in line.begins.items()):
        reason = "the engine's job began behind them. Main was rolled back to before that"
        raise LeftOutUnproven(table, branch, unread, reason)


def reckon(
    claim: EngineClaim,
    rows: BranchRows,
    shown: LogContents | None,
    line: EngineJobLine | None,
    on_data_loss: OnDataLoss,
    table: str,
) -> PublicationOutcome:
    """Return the offset ranges and counts of the publication.

    An offset without a row is lost if Kafka no longer has the record. A record that Kafka shows is missing, to be
    landed by the extract; or filtered, if the engine leaves records out on purpose. All further offsets are landed.

    :param shown: Kafka's records at the new offsets without a row; None if all have a row.
    :param line: the jobs of an engine that leaves records out on purpose; None for any other engine.

    Raises DataLoss if records are gone without proof that they were left out, and `on_data_loss` is FAIL.
    """
    shown = shown or LogContents()
    topic = claim.state.identity.topic
    filters = line is not None
    # Records that the engine's jobs had read before they were gone are left out on purpose, not lost.
    lost = shown.gone if line is None else shown.gone - line.passed
    if lost and on_data_loss is OnDataLoss.FAIL:
        raise LostOrLeftOut(lost, table) if filters else DataLoss(lost, table)
    if uncounted := shown.gone - lost:
        log.info("%s: how many records there were at %s is not known: they count as none.", table, uncounted)
    missing = RangeSet() if filters else shown.values
    filtered = shown.values | shown.tombstones if filters else RangeSet()
    skipped = RangeSet() if filters else shown.tombstones
    counts = {}
    for p in sorted({p for part in (rows.positions, filtered, skipped) for _, p in part.partitions}):
        written, left, passed = (part.of_partition(topic, p).width for part in (rows.positions, filtered, skipped))
        counts[p] = Counts(written + left + passed, written, skipped=passed, filtered=left)
    # Rows may come late, at offsets that an earlier publication called missing.
    return PublicationOutcome((claim.new - missing - lost) | rows.positions, lost, missing, counts)
