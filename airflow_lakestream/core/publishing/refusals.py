"""Reckoning of a publication: the engine's claim, the rows in the files, Kafka's records for the rest; and refusals.

Main is unchanged after each refusal.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    PublicationOutcome,
    ValueDifference,
)
from airflow_lakestream.core.ranges import RangeSet, shown
from airflow_lakestream.exceptions import BadRecord, LakestreamError, Terminal, Transient

ANEW = (
    "Stop the engine's job. What main lacks is in Kafka: drop the branch (ALTER TABLE ... DROP BRANCH) and start the "
    "job without state, which begins where the ledger ends; or let KafkaExtractOperator go on with the same group."
)
CHECKED_AGAIN = (
    "Loosen the check, and run the task again (clear it): the branch is checked again, and published. Or mend what "
    "writes the records, stop the engine's job, drop the branch (ALTER TABLE ... DROP BRANCH), and run the task again: "
    "it begins where the ledger ends. A changed statement of Flink's needs no dropping."
)
BY_THE_EXTRACT = (
    "Run KafkaExtractOperator once with the same group: it lands the good records and rejects the bad ones. Then run "
    "this task again: it begins where the ledger ends."
)


class PublicationRefused(LakestreamError, Terminal):
    """The branch contradicts the ledger, or the engine's own account; main is unchanged."""

    def __init__(self, table: str, branch: str, problem: str, remedy: str = ANEW) -> None:
        self.table, self.branch = table, branch
        super().__init__(f"{table}: the branch {branch!r} can't be published: {problem} Main is unchanged. {remedy}")


class RowsOnMain(PublicationRefused):
    """Rows of the branch's new files are on main already: the engine went back, or another run landed the rows."""

    def __init__(self, table: str, branch: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        problem = (
            f"its new files have rows of {ranges}, which the ledger has already. The engine began again at an older "
            "checkpoint or savepoint, or at offsets that were set back; or another run landed these meanwhile."
        )
        remedy = (
            "Stop every other writer of the branch, and run this task again: the branch begins again at main, and the "
            "engine begins where the ledger ends."
        )
        super().__init__(table, branch, problem, remedy)


class RowsTwice(PublicationRefused):
    """The branch's new files have records more than once."""

    def __init__(self, table: str, branch: str, rows: int, where: str) -> None:
        self.rows = rows
        problem = (
            f"its new files have {rows} rows of records that they have already ({where}). Two jobs write to the "
            "branch, or one began again at an older checkpoint; or its program makes several rows of a record."
        )
        super().__init__(table, branch, problem)


class RowsUnproven(PublicationRefused):
    """Rows of the branch's new files are at offsets not read, by the engine's own account."""

    def __init__(self, table: str, branch: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        problem = (
            f"its new files have rows of {ranges}, which are below the group's first offset, or beyond what the engine "
            "had read when it wrote them. Two jobs write to the branch, or it reads another topic than it reports."
        )
        super().__init__(table, branch, problem)


class RowsWithoutPosition(PublicationRefused):
    """Rows have no position in the topic."""

    def __init__(self, table: str, branch: str, topic: str, path: str, rows: int) -> None:
        problem = (
            f"{rows} rows of {path} have no _kafka_topic, _kafka_partition and _kafka_offset, or those of another "
            f"topic than {topic}."
        )
        remedy = "Let the engine write these columns; a topic of its own needs a branch, and a group, of its own."
        super().__init__(table, branch, problem, remedy)


class RowsUnseen(PublicationRefused):
    """Records left Kafka before the engine's decoding could be checked."""

    def __init__(self, table: str, branch: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        problem = f"the records at {ranges} have left Kafka, so that the branch's rows of them can't be checked."
        remedy = (
            'Take the rows as they are: prove="off", or on_data_loss="record" of Flink. Publish more often, or keep '
            "the records longer."
        )
        super().__init__(table, branch, problem, remedy)


class RecordDoubted(PublicationRefused):
    """The engine has read a record rejected by our decoder: the engine's rows may be wrong."""

    def __init__(self, table: str, branch: str, bad: BadRecord) -> None:
        problem = (
            f"{bad}. The engine has not failed on it, and the engine's rows of this record, or of later records, may "
            "be wrong."
        )
        super().__init__(table, branch, problem, BY_THE_EXTRACT)


class RowsDiffer(PublicationRefused):
    """The engine's rows differ in values from the extract's rows."""

    def __init__(self, table: str, branch: str, ranges: RangeSet, named: Sequence[ValueDifference]) -> None:
        self.ranges, self.named = ranges, tuple(named)
        count, first = ranges.width, "; ".join(map(str, named))
        rows = "1 row has" if count == 1 else f"{count} rows have"
        more = f"; all of them: {ranges}" if count > len(named) else ""
        problem = f"{rows} other values than the extract makes of the records ({first}{more})."
        remedy = f'{BY_THE_EXTRACT} To take the values as the engine makes them, set prove="off".'
        super().__init__(table, branch, problem, remedy)


class BranchRewritten(PublicationRefused):
    """The branch was changed by more than the engine's appends."""

    def __init__(self, table: str, branch: str, snapshot_id: int, problem: str) -> None:
        problem = f"its snapshot {snapshot_id} {problem}. Only appends of the one engine can be published."
        super().__init__(table, branch, problem)


class BranchCut(PublicationRefused):
    """Snapshots of the engine have left the branch, perhaps with unpublished rows."""

    def __init__(self, table: str, branch: str, snapshot_id: int) -> None:
        self.snapshot_id = snapshot_id
        problem = f"snapshot {snapshot_id} of the engine is not in the branch's history any more. The branch "
        super().__init__(table, branch, f"{problem}was dropped, set back or replaced.")


class LeftOutUnproven(PublicationRefused):
    """Records have no row, without proof of an omission by the engine."""

    def __init__(self, table: str, branch: str, ranges: RangeSet, reason: str) -> None:
        self.ranges = ranges
        problem = f"it has no rows of {ranges}, and nothing shows that sql has left these records out: {reason}."
        super().__init__(table, branch, problem)


class MainHasBranch(PublicationRefused):
    """Main was set to the branch by hand, past the ledger."""

    def __init__(self, table: str, branch: str, snapshot_id: int) -> None:
        problem = (
            f"main has snapshot {snapshot_id} of the branch in its history: somebody set main to the branch by hand."
        )
        remedy = (
            "Roll main back to before that, and publish. Or keep the rows, and make the ledger from them: "
            "`lakestream ledger rebuild`."
        )
        super().__init__(table, branch, problem, remedy)


class BranchHistoryLost(PublicationRefused):
    """Snapshots between the last publication and the branch's oldest snapshot have expired."""

    def __init__(self, table: str, branch: str, path: str) -> None:
        problem = (
            f"the snapshot that added {path} has expired before it was published, and some of the file's rows are on "
            "main."
        )
        super().__init__(table, branch, problem)


class ColumnsMoved(PublicationRefused):
    """The engine writes former columns, with names now given to different columns."""

    def __init__(self, table: str, branch: str, path: str, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.problem = (
            f"{path} has {shown([repr(name) for name in columns], 5, 'columns')} of before. These were dropped and "
            "added again, or renamed and their names given to other columns, while the engine wrote them: values meant "
            "for the present columns would be in other columns, or nowhere."
        )
        super().__init__(table, branch, self.problem)


class BranchFileGone(PublicationRefused):
    """A file of the branch is gone."""

    def __init__(self, table: str, branch: str, path: str) -> None:
        super().__init__(table, branch, f"{path} is gone, and the branch's head still has it.")


class BeyondTheLog(PublicationRefused):
    """The engine reports offsets beyond the log's end."""

    def __init__(self, table: str, branch: str, where: str) -> None:
        problem = (
            f"the engine reports that it has read beyond the log's end: {where}. It reads another topic, or another"
        )
        super().__init__(table, branch, f"{problem} cluster; or records of transactions that are still open.")


class PositionsUnknown(LakestreamError, Transient):
    """The engine's position for the branch's newest files can't be found."""

    def __init__(self, table: str, branch: str, snapshot_id: int) -> None:
        super().__init__(
            f"{table}: what the engine had read for snapshot {snapshot_id} of the branch {branch!r} can't be found: "
            "its checkpoint is gone, or is not written yet. Nothing was published; the next publication looks "
            "again. Keep more checkpoints, or publish more often. " + ANEW
        )


class LandedAhead(LakestreamError, Terminal):
    """The ledger has offsets above a hole: an engine starting at the hole would land these offsets again."""

    def __init__(self, table: str, consumer_group: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(
            f"{table} holds {ranges}, and lacks offsets below. Another engine begins at one offset of a partition, and "
            "would land these again. Run KafkaExtractOperator once with the group "
            f"{consumer_group!r}: it lands the holes alone."
        )


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
        earlier = self.entry.published.get(branch)
        if last is not None:
            return {branch: PublicationMarker(last.snapshot_id, last.sequence, dict(self.ends))}
        if self.ends:
            last_snapshot = (0, 0) if earlier is None else (earlier.snapshot_id, earlier.sequence)
            return {branch: PublicationMarker(*last_snapshot, dict(self.ends))}
        return {}


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

    Raises RowsWithoutPosition, RowsTwice, RowsOnMain, RowsUnproven, BranchHistoryLost, BranchFileGone, ColumnsMoved.
    """
    topic, read_in_total, in_ledger = claim.state.identity.topic, claim.read_in_total, claim.held
    positions, twice = RangeSet(), 0
    files: list[BranchFile] = []
    places: list[str] = []
    for step in steps:
        for file in step.files:
            file_rows = sink.positions_of(file, claim.state.identity)
            if _is_on_main(step, file, file_rows, in_ledger, table, branch):
                continue
            if file_rows.strange:
                raise RowsWithoutPosition(table, branch, topic, file.path, file_rows.strange)
            repeated_positions = file_rows.positions & positions
            if repeated := file_rows.repeated + repeated_positions.width:
                twice += repeated
                places.append(str(repeated_positions) if repeated_positions else file.path)
            positions |= file_rows.positions
            files.append(file)
    if twice:
        raise RowsTwice(table, branch, twice, "; ".join(places[:5]))
    if unproven := positions - read_in_total:
        raise RowsUnproven(table, branch, unproven)
    return BranchRows(positions, files)


def _is_on_main(step: BranchStep, file: BranchFile, rows: FileRows, held: RangeSet, table: str, branch: str) -> bool:
    """Return whether the ledger has all rows of a file already: the file is then left out.

    That is allowed only if the file's snapshot has expired, so that the file is older than the branch. Raises
    RowsOnMain if the snapshot is known, and BranchHistoryLost if only some of the rows are in the ledger.
    """
    landed = rows.positions & held
    if not landed:
        return False
    if step.snapshot.summary:
        raise RowsOnMain(table, branch, landed)
    if landed != rows.positions or rows.strange:
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
    """Refuse records without a row, unless it is proven that the engine has read and left out the records.

    The proof is the line of the engine's jobs, each continuing from the state before, with a complete branch. Then only
    records from before the beginning of the line are refused.

    :param line: the engine's jobs; None if unknown.
    :param shown: Kafka's records at the new offsets without a row.

    Raises LeftOutUnproven.
    """
    in_kafka = shown.values | shown.tombstones
    if line is None or new_snapshots.unproven:
        if doubtful := in_kafka if line is None else in_kafka | (shown.gone & line.passed):
            reason = new_snapshots.unproven or "what its jobs have read is not noted"
            raise LeftOutUnproven(table, branch, doubtful, reason)
        return
    topic = claim.state.identity.topic
    if unread := in_kafka & union(RangeSet.of(topic, p, 0, begin) for p, begin in line.begins.items()):
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
        widths = [part.of_partition(topic, p).width for part in (rows.positions, skipped, filtered)]
        counts[p] = Counts(sum(widths), written=widths[0], skipped=widths[1], filtered=widths[2])
    # Rows may come late, at offsets that an earlier publication called missing.
    return PublicationOutcome((claim.new - missing - lost) | rows.positions, lost, missing, counts)
