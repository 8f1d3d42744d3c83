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
    "Loosen the check, and run the task again (clear it): the branch is checked anew, and published. Or mend what "
    "writes the records, stop the engine's job, drop the branch (ALTER TABLE ... DROP BRANCH), and run the task again: "
    "it begins where the ledger ends. A changed statement of Flink's needs no dropping."
)
BY_THE_EXTRACT = (
    "Run KafkaExtractOperator once with the same group: it lands the good records and rejects the bad ones. Then run "
    "this task again: it begins where the ledger ends."
)


class PublicationRefused(LakestreamError, Terminal):
    """The branch contradicts the ledger, or the engine's own account; main is unchanged."""

    def __init__(self, table: str, branch: str, what: str, remedy: str = ANEW) -> None:
        self.table, self.branch = table, branch
        super().__init__(f"{table}: the branch {branch!r} can't be published: {what} Main is unchanged. {remedy}")


class RowsOnMain(PublicationRefused):
    """Rows of the branch's new files are on main already: the engine went back, or another run landed the rows."""

    def __init__(self, table: str, branch: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        what = (
            f"its new files have rows of {ranges}, which the ledger has already. The engine began again at an older "
            "checkpoint or savepoint, or at offsets that were set back; or another run landed these meanwhile."
        )
        remedy = (
            "Stop what else writes to the branch, and run this task again: the branch begins anew, and the engine "
            "where the ledger ends."
        )
        super().__init__(table, branch, what, remedy)


class RowsTwice(PublicationRefused):
    """The branch's new files have records more than once."""

    def __init__(self, table: str, branch: str, rows: int, where: str) -> None:
        self.rows = rows
        what = (
            f"its new files have {rows} rows of records that they have already ({where}). Two jobs write to the "
            "branch, or one began again at an older checkpoint; or its program makes several rows of a record."
        )
        super().__init__(table, branch, what)


class RowsUnproven(PublicationRefused):
    """Rows of the branch's new files are at offsets not read, by the engine's own account."""

    def __init__(self, table: str, branch: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        what = (
            f"its new files have rows of {ranges}, which lie below where the group began, or beyond what the engine "
            "had read when it wrote them. Two jobs write to the branch, or it reads another topic than it says."
        )
        super().__init__(table, branch, what)


class RowsWithoutPosition(PublicationRefused):
    """Rows have no position in the topic."""

    def __init__(self, table: str, branch: str, topic: str, path: str, rows: int) -> None:
        what = (
            f"{rows} rows of {path} have no _kafka_topic, _kafka_partition and _kafka_offset, or those of another "
            f"topic than {topic}."
        )
        remedy = "Let the engine write these columns; a topic of its own needs a branch, and a group, of its own."
        super().__init__(table, branch, what, remedy)


class RowsUnseen(PublicationRefused):
    """Records left Kafka before the engine's decoding could be checked."""

    def __init__(self, table: str, branch: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        what = f"the records at {ranges} have left Kafka, so that nobody can tell whether its rows of them are right."
        remedy = (
            'Take the rows as they are: prove="off", or on_data_loss="record" of Flink. Publish more often, or keep '
            "the records longer."
        )
        super().__init__(table, branch, what, remedy)


class RecordDoubted(PublicationRefused):
    """The engine has read a record rejected by our decoder: the engine's rows may be wrong."""

    def __init__(self, table: str, branch: str, bad: BadRecord) -> None:
        what = (
            f"{bad}. The engine has read over that, and what it made of this record, or of those behind it, may be "
            "wrong."
        )
        super().__init__(table, branch, what, BY_THE_EXTRACT)


class RowsDiffer(PublicationRefused):
    """The engine's rows differ in values from the extract's rows."""

    def __init__(self, table: str, branch: str, ranges: RangeSet, named: Sequence[ValueDifference]) -> None:
        self.ranges, self.named = ranges, tuple(named)
        count, first = ranges.width, "; ".join(map(str, named))
        rows = "1 row has" if count == 1 else f"{count} rows have"
        more = f"; all of them: {ranges}" if count > len(named) else ""
        what = f"{rows} other values than the extract makes of the records ({first}{more})."
        remedy = f'{BY_THE_EXTRACT} To take the values as the engine makes them, say prove="off".'
        super().__init__(table, branch, what, remedy)


class BranchRewritten(PublicationRefused):
    """The branch was changed by more than the engine's appends."""

    def __init__(self, table: str, branch: str, snapshot_id: int, what: str) -> None:
        told = f"snapshot {snapshot_id} of it {what}. Only appends of the one engine can be published."
        super().__init__(table, branch, told)


class BranchCut(PublicationRefused):
    """Snapshots of the engine have left the branch, perhaps with unpublished rows."""

    def __init__(self, table: str, branch: str, snapshot_id: int) -> None:
        self.snapshot_id = snapshot_id
        what = f"snapshot {snapshot_id}, which the engine has made there, is not in its history any more. The branch "
        super().__init__(table, branch, f"{what}was dropped, set back or replaced.")


class LeftOutUnproven(PublicationRefused):
    """Records have no row, without proof of an omission by the engine."""

    def __init__(self, table: str, branch: str, ranges: RangeSet, why: str) -> None:
        self.ranges = ranges
        what = f"it has no rows of {ranges}, and nothing shows that sql has left these records out: {why}."
        super().__init__(table, branch, what)


class MainHasBranch(PublicationRefused):
    """Main was set to the branch by hand, past the ledger."""

    def __init__(self, table: str, branch: str, snapshot_id: int) -> None:
        what = f"main has snapshot {snapshot_id} of it in its own history: somebody set main to the branch by hand."
        remedy = (
            "Roll main back to before that, and publish. Or keep the rows, and make the ledger from them: "
            "`lakestream ledger rebuild`."
        )
        super().__init__(table, branch, what, remedy)


class BranchHistoryLost(PublicationRefused):
    """Snapshots between the last publication and the branch's oldest snapshot have expired."""

    def __init__(self, table: str, branch: str, path: str) -> None:
        what = (
            f"the snapshot that added {path} has expired before it was published, and some of the file's rows are on "
            "main."
        )
        super().__init__(table, branch, what)


class ColumnsMoved(PublicationRefused):
    """The engine writes former columns, with names now given to different columns."""

    def __init__(self, table: str, branch: str, path: str, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.what = (
            f"{path} has {shown([repr(name) for name in columns], 5, 'columns')} of before. These were dropped and "
            "added again, or renamed and their names given to others, while the engine wrote them: what it meant for "
            "the columns of today would be in others, or nowhere."
        )
        super().__init__(table, branch, self.what)


class BranchFileGone(PublicationRefused):
    """A file of the branch is gone."""

    def __init__(self, table: str, branch: str, path: str) -> None:
        super().__init__(table, branch, f"{path} is gone, which the branch's head still has.")


class BeyondTheLog(PublicationRefused):
    """The engine reports offsets beyond the log's end."""

    def __init__(self, table: str, branch: str, where: str) -> None:
        what = f"the engine says that it has read beyond the log's end: {where}. It reads another topic, or another"
        super().__init__(table, branch, f"{what} cluster; or records of transactions that are still open.")


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
