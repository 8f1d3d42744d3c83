"""Refusals of a publication. Main is unchanged after each."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_lakestream.core.publishing.branch import ValueDifference
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
