"""Inputs and outcome of a publication: the branch and new files, the engine's own positions, and Kafka's log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.landing.plan import TopicState
from airflow_lakestream.core.ledger import Counts, PublicationMarker, TopicIdentity
from airflow_lakestream.core.ports import RowSchema, Sink
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.records import Rows


@dataclass(frozen=True, slots=True)
class BranchSnapshot:
    """A snapshot committed by the engine to a branch.

    :param sequence: the snapshot's sequence number.
    :param summary: empty for an expired snapshot.
    """

    snapshot_id: int
    sequence: int
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineJobLine:
    """Jobs of an engine in sequence: the first began without a state, each further job with the previous job's state.

    :param since: the sequence number of the table's newest snapshot when the first job began: the line's are above.
    :param begins: by partition, the offset at which the first job began; the line has read nothing below.
    :param passed: offsets that the line had read while Kafka still had the records.
    """

    since: int = 0
    begins: Mapping[int, int] = field(default_factory=dict)
    passed: RangeSet = RangeSet()


class EnginePositions(Protocol):
    """An engine's own account of the positions read."""

    @property
    def line(self) -> EngineJobLine | None:
        """The line of jobs with the records to publish; None for an engine without an account of jobs."""

    def is_own(self, summary: Mapping[str, str]) -> bool:
        """Return whether the engine made a snapshot, by the summary."""

    def is_of_line(self, summary: Mapping[str, str]) -> bool:
        """Return whether a job of the line made a snapshot, by the summary."""

    def at(self, snapshot: BranchSnapshot) -> Mapping[int, int] | None:
        """Return, by partition, the end of the offsets with all records in the branch as of a snapshot.

        None if nothing proves it (any more). A partition that has not been read is left out.
        """

    def beyond(self) -> Mapping[int, int] | None:
        """Return, by partition, the same ends for the present branch, if beyond every snapshot's; else None.

        This happens after an orderly stop: the records read last may be no rows, and then no snapshot is made.
        """


@dataclass(frozen=True, slots=True)
class BranchFile:
    """A data file of the branch's head, not yet on main. `file` is the table format's own value."""

    path: str
    rows: int
    file: Any = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FileRows:
    """The positions of a file's rows.

    :param positions: the positions in the topic.
    :param repeated: the number of rows with the position of another row of the file.
    :param strange: the number of rows without a position, or with a position of another topic.
    """

    positions: RangeSet
    repeated: int = 0
    strange: int = 0


@dataclass(frozen=True, slots=True)
class BranchStep:
    """Files of a snapshot of the branch."""

    snapshot: BranchSnapshot
    files: Sequence[BranchFile] = ()

    @property
    def rows(self) -> int:
        """The number of rows in the files."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class NewSnapshots:
    """New snapshots of a branch, oldest first.

    :param unproven: the reason why the branch may lack files that the engine has written to it; empty if it is known
        to have all.
    """

    steps: Sequence[BranchStep] = ()
    unproven: str = ""


@runtime_checkable
class BranchSink(Sink, Protocol):
    """The sink of a table with branches."""

    def new_snapshots(
        self, branch: str, marker: PublicationMarker | None, positions: EnginePositions
    ) -> NewSnapshots | None:
        """Return the branch's new snapshots since the marker, as of the last `load`; None without a branch.

        Raises PublicationRefused for a branch that can't be published.

        :param marker: the last publication of the branch; None before the first publication.
        :param positions: recognizes the engine's own snapshots.
        """

    def positions_of(self, file: BranchFile, identity: TopicIdentity) -> FileRows:
        """Read the positions of a file's rows. Raises BranchFileGone, ColumnsMoved.

        :param identity: the topic; positions of another topic count as strange.
        """

    def rows_of(self, file: BranchFile) -> Iterator[Rows]:
        """Yield a file's rows, in the table's present columns. Raises BranchFileGone, ColumnsMoved."""

    def take_files(self, files: Sequence[BranchFile], identity: TopicIdentity) -> None:
        """Take the branch's files for the next commit.

        They stay the branch's: `discard` does not delete them, even if the commit fails.
        """

    def open_branch(self, branch: str) -> None:
        """Create a missing branch at main's head."""

    def renew_branch(self, branch: str) -> None:
        """Set or create the branch at main's head. Files beyond are left to the removal of orphan files."""


@dataclass(frozen=True, slots=True)
class LogContents:
    """Contents of Kafka at given offsets.

    At all other offsets there is nothing to read: ends of transactions, aborted records, compacted records.

    :param values: offsets of records with a value.
    :param tombstones: offsets of records without a value.
    :param gone: offsets below the log's start.
    """

    values: RangeSet = RangeSet()
    tombstones: RangeSet = RangeSet()
    gone: RangeSet = RangeSet()


class TopicLogView(Protocol):
    """Reader of single offsets of the topic."""

    def shown(self, ranges: RangeSet, state: TopicState, stop: threading.Event) -> LogContents:
        """Return the contents of Kafka at these offsets. Raises Stopped."""


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A record with different values by an engine than by our decoder, and the columns of these values.

    Without columns, our decoder makes no row of the record.
    """

    topic: str
    partition: int
    offset: int
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}: {', '.join(self.columns) or 'no row'}"


@dataclass(frozen=True, slots=True)
class ProofResult:
    """Result of a second look at an engine's records and rows.

    :param seen: offsets whose record Kafka shows, and our decoder makes a row of; or that were not to be checked.
    :param equal: offsets at which the engine's rows are known to have our values.
    :param different: offsets at which the values differ.
    :param named: the first differences, with their columns.
    """

    seen: RangeSet
    equal: RangeSet = RangeSet()
    different: RangeSet = RangeSet()
    named: Sequence[ValueDifference] = ()


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """Rows of an engine's files, read again at each call, and the columns of the table's payload."""

    rows: Callable[[], Iterator[Rows]]
    columns: RowSchema


class RowProof(Protocol):
    """Second look at an engine's records, to compare the engine's rows with the rows of our decoder."""

    def check(self, ranges: RangeSet, written: EngineOutput, state: TopicState, stop: threading.Event) -> ProofResult:
        """Check these offsets and the rows' offsets against the rows of our decoder.

        Differences are part of the result. Raises Stopped, and BadRecord for a record bad by our decoder.

        :param ranges: the offsets that the engine has read.
        :param written: the engine's rows of these offsets.
        """


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
