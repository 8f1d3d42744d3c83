"""What a publication sees: the branch and its new files, the engine's own positions, and Kafka's log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from airflow_lakestream.core.landing.plan import TopicState
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import RowSchema, Sink
from airflow_lakestream.core.published import Published
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.records import Rows


@dataclass(frozen=True, slots=True)
class BranchSnapshot:
    """A snapshot that the engine committed to its branch. `summary` is empty for one that has expired."""

    snapshot_id: int
    sequence: int
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """An engine's jobs, of which the first began without a state and each other one with that of the one before.

    :param since: the sequence number of the table's newest snapshot when the first one began: theirs are above.
    :param begins: by partition, where the first one began; they have read nothing below.
    :param passed: offsets that they had behind them while Kafka still had what is there.
    """

    since: int = 0
    begins: Mapping[int, int] = field(default_factory=dict)
    passed: RangeSet = RangeSet()


class Positions(Protocol):
    """What an engine itself says of how far it has read; each engine has its own."""

    @property
    def line(self) -> Line | None:
        """The jobs whose records are being published; None for an engine that keeps no account of them."""

    def is_own(self, summary: Mapping[str, str]) -> bool:
        """Tell by its summary whether the engine has made a snapshot."""

    def is_of_line(self, summary: Mapping[str, str]) -> bool:
        """Tell by its summary whether a job of the line has made a snapshot."""

    def at(self, snapshot: BranchSnapshot) -> Mapping[int, int] | None:
        """Return, by partition, the offset up to which all records are in the branch as of a snapshot.

        None if nothing proves it (any more). A partition that has not been read is left out.
        """

    def beyond(self) -> Mapping[int, int] | None:
        """Return the same for the branch as it is, if more is proven than any snapshot says; else None.

        So it is behind an orderly stop: what the engine read last may be no row, and then no snapshot comes of it.
        """


@dataclass(frozen=True, slots=True)
class BranchFile:
    """A data file that the branch's head has and main was not given yet. `file` is the table format's own value."""

    path: str
    rows: int
    file: Any = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FileRows:
    """The positions of a file's rows.

    :param positions: those of the topic.
    :param repeated: how many of its rows have the position of another one of the file.
    :param strange: how many have no position, or that of another topic.
    """

    positions: RangeSet
    repeated: int = 0
    strange: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """The files of one snapshot of the branch."""

    snapshot: BranchSnapshot
    files: Sequence[BranchFile] = ()

    @property
    def rows(self) -> int:
        """How many rows they have."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class News:
    """What came to the branch, oldest first.

    :param unproven: why nobody can tell whether the branch still has all that the engine has written to it; empty
        where it has.
    """

    steps: Sequence[Step] = ()
    unproven: str = ""


@runtime_checkable
class BranchSink(Sink, Protocol):
    """The sink of a table with branches."""

    def news(self, branch: str, marker: Published | None, positions: Positions) -> News | None:
        """Return what came to the branch since the marker; None without such a branch.

        As of the last `load`. Raises what refuses a branch that can't be published.
        """

    def positions_of(self, file: BranchFile, identity: TopicIdentity) -> FileRows:
        """Read the positions of a file's rows. Raises BranchFileGone, ColumnsMoved."""

    def rows_of(self, file: BranchFile) -> Iterator[Rows]:
        """Yield a file's rows, in the table's columns of today. Raises BranchFileGone, ColumnsMoved."""

    def take_files(self, files: Sequence[BranchFile], identity: TopicIdentity) -> None:
        """Take the branch's files for the next commit.

        They are the branch's: `discard` deletes none of them, whatever becomes of the commit.
        """

    def open_branch(self, branch: str) -> None:
        """Make the branch at main's head, if there is none."""

    def renew_branch(self, branch: str) -> None:
        """Set the branch to main's head, or make it there. Files beyond are left to the removal of orphan files."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What Kafka shows at some offsets: records with a value, records without one, and offsets below the log's start.

    At all others there is nothing to read: the ends of transactions, aborted records, what compaction took.
    """

    values: RangeSet = RangeSet()
    tombstones: RangeSet = RangeSet()
    gone: RangeSet = RangeSet()


class Log(Protocol):
    """Looks at single offsets of the topic."""

    def shown(self, ranges: RangeSet, state: TopicState, stop: threading.Event) -> Shown:
        """Return what Kafka shows at these offsets. Raises Stopped."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A record of which an engine has made other values than ours does, and the columns that have them.

    Without columns the record is no row of ours.
    """

    topic: str
    partition: int
    offset: int
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}: {', '.join(self.columns) or 'no row'}"


@dataclass(frozen=True, slots=True)
class Looked:
    """What a second look at an engine's records and rows has found.

    :param seen: where Kafka shows what has to be a row, and our decoder takes it; or nobody was to look there.
    :param equal: where the engine's rows are known to have our values.
    :param different: where they have others.
    :param named: the first of these, with their columns.
    """

    seen: RangeSet
    equal: RangeSet = RangeSet()
    different: RangeSet = RangeSet()
    named: Sequence[Difference] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """What an engine has written: the rows of its files, each time anew, and the columns of the table's payload."""

    rows: Callable[[], Iterator[Rows]]
    columns: RowSchema


class Proof(Protocol):
    """Looks again at what an engine has read by a decoder of its own, and compares its rows with ours."""

    def check(self, ranges: RangeSet, written: Written, state: TopicState, stop: threading.Event) -> Looked:
        """Look at these offsets, and at those of the rows. Raises BadRecord for one that ours rejects, and Stopped."""
