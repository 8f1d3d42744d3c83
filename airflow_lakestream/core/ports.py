"""Where the technologies meet: each of kafka, decode and iceberg knows these protocols, and none knows the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.landing.unaccounted import LookForRows, no_rows
from airflow_lakestream.core.ledger import Landing, Ledger, Streamed, TopicIdentity
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.records import DecodedBatch, RawBatch, Rows
from airflow_lakestream.core.sharing.pieces import Files
from airflow_lakestream.core.source_types import NEW_TABLE, KeptTypes
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient

# An Arrow schema.
RowSchema = Any
# Returns which rows of a table can't be written, and why.
Trial = Callable[[Rows], Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records read, and the range of offsets that they cover: all of its readable records, often none."""

    covers: OffsetRange
    batch: RawBatch
    size: int


class Conflict(LakestreamError, Transient):
    """The table changed under a run so that what it read can't be committed: it plans again."""


class HeadMoved(Conflict):
    """Files of the table's head are gone while they were looked at: it is not the head any more."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table} was changed while it was looked at, and files of what it was are gone.")


class LedgerConflict(Conflict):
    """Another run landed offsets of this landing first; `ranges` says which."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(f"{table} holds {ranges} already: another run landed them first.")


class TypesConflict(Conflict):
    """Another run landed a column of the source first, with another type."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(f"{table}: another run landed the column {column} with another type of the source first.")


class StreamConflict(Conflict):
    """Another run landed for the group since a batch of a streaming query was planned, or it was rolled back."""

    def __init__(self, table: str, what: str, last: Streamed | None) -> None:
        super().__init__(
            f"{table}: {what} does not follow what its group landed last: {last or 'nothing of a stream'}."
        )


class StaleFiles(Conflict):
    """The table's schema or partitioning is no longer the one that the data files were written for."""

    def __init__(self, table: str, what: str) -> None:
        super().__init__(f"{table}: {what} between plan and commit, so the files written do not fit it any more.")


class RejectsCondemned(Conflict):
    """Another run took this landing for dead, since it found its offsets landed, and removes its rejected records."""

    def __init__(self, table: str, landing_id: str) -> None:
        super().__init__(
            f"{table}: another run took landing {landing_id} for dead, and removes the rejected records that it wrote "
            "before its commit."
        )


class RangesNotLanded(Conflict):
    """Ranges to replace are not, or not any more, in the group's ledger; `ranges` says which. Nothing was replaced."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(f"{table} does not hold {ranges} (any more), so there is nothing to replace there.")


class ReplacedMeanwhile(LakestreamError, Terminal):
    """Another run replaced the same offsets since this one planned: what this one read may be the older decoding."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(
            f"{table}: another run replaced {ranges} after this one had planned to. This run changed nothing: its rows "
            "may be older than those. If its decoding is the one to keep, run it again."
        )


class CannotReplace(LakestreamError, Terminal):
    """The rows of the ranges can't be told apart, read, or read again; nothing was changed."""


class OffsetsGone(Conflict):
    """The log now begins above offsets that were still to be read."""

    def __init__(self, topic: str, partition: int, position: int) -> None:
        self.topic, self.partition, self.position = topic, partition, position
        super().__init__(f"{topic}[{partition}] offset {position} left the log while it was being read.")


class RowsNotWritable(LakestreamError, Terminal):
    """A file could not be made of rows. `trial` finds those that can't be written; None where nobody can tell."""

    def __init__(self, table: str, cause: str, trial: Trial | None) -> None:
        self.trial = trial
        super().__init__(f"{table}: rows can't be written: {cause}")


# Kafka knows no time before 1970: a negative timestamp stands for "none", or is a mistake of the producer.
BEGINNING_MS = 0


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where a time stands in a partition: its first offset with a timestamp at or after it.

    Without such a record the boundary is open, and stands at the partition's end. A time at or before BEGINNING_MS
    stands at the log's start, whatever is there, and is never open: nothing can come before it.
    """

    offset: int
    is_open: bool = False


class Source(Protocol):
    """One topic of one cluster, looked at from outside the log."""

    def look(self) -> TopicState:
        """Return the topic's identity and watermarks, now."""

    def identity(self) -> TopicIdentity:
        """Return which incarnation of the topic is there, now."""

    def starts(self, state: TopicState) -> Mapping[int, int]:
        """Return, by partition, where a group without an origin begins; one left out begins at the log's start."""

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, Boundary]:
        """Return, by partition, where a time stands; nothing at or past the ends in `state`."""

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        """Write the group's committed offsets in Kafka, for lag tools; a failure is logged, never raised."""


class Reader(Protocol):
    """Reads exactly a plan's ranges."""

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[Chunk, None, None]:
        """Yield chunks that together cover the plan's ranges; the chunks of a partition come in offset order.

        Returns early once `cancelled` is set; closing it ends the reading.

        Raises OffsetsGone when the log lost offsets that were still to be read.
        """


class Decoder(Protocol):
    """Turns raw records into rows; called by several threads at once."""

    def decode(self, batch: RawBatch) -> DecodedBatch:
        """Return what becomes of each record, rows in their order. Raises BadRecord where a bad one is to fail."""


class DecoderFactory(Protocol):
    """Makes the decoder for a table's payload schema, or for the one inferred from the first batch."""

    def __call__(self, schema: RowSchema | None, first: RawBatch | None) -> Decoder | None:
        """Return a decoder; None when there is neither a schema nor a record to infer one from.

        It is None for first records, too, that are no rows whatever the columns: they are skipped, unless they wait.
        """

    def waits(self, first: RawBatch) -> bool:
        """Tell whether first records that tell no columns are to be decoded once other records have told them."""

    def trying(self, trial: Trial) -> DecoderFactory:
        """Return the same, for decoders to which rows that the trial finds are bad."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as it was at one moment: its ledger, other groups' ledgers, and what this run landed already.

    `schema` is that of the rows to decode, None when neither a table nor a given schema says it. `part` says in a
    sentence which part the table has in a fan-out, if any. `look_for_rows` finds rows that no ledger accounts for, in
    the table as it was at that moment. `type_remedy` says what to do once a column of the source has another type.
    """

    ledger: Ledger
    others: Mapping[str, Ledger] = field(default_factory=dict)
    landed_by_run: Sequence[tuple[int, Landing]] = ()
    schema: RowSchema | None = None
    exists: bool = True
    part: str | None = None
    look_for_rows: LookForRows = no_rows
    type_remedy: str = NEW_TABLE

    @property
    def types(self) -> KeptTypes:
        """What the ledger has of the source's columns."""
        return KeptTypes(self.ledger.types, self.type_remedy)


class Rejects(Protocol):
    """Keeps records that became no row: written before, and counting from, the next commit of the sink."""

    def reject(self, records: Rows) -> None:
        """Take raw records with the reasons; columns as in `decode.rejected`."""


class Sink(Protocol):
    """One table, written for one consumer group."""

    def load(self, run_id: str) -> TableState:
        """Look at the table again."""

    def write(self, rows: Rows, identity: TopicIdentity) -> None:
        """Take rows for the next commit; files are written as enough has come together."""

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: Any) -> None:
        """Take note of records that were read and became no row: a replace may take out the rows that they had.

        :param offsets: an Arrow array.
        """

    def commit(self, landing: Landing) -> int:
        """Commit the rows taken since the last commit, with the ledger, and return the snapshot's id.

        Raises Conflict when somebody else landed one of the landing's offsets, or changed the table's schema or
        layout: nothing was committed then, and the rows taken are to be discarded.
        """

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Take out the rows of the landing's `replaced` ranges, put in those taken since the last commit: one snapshot.

        The landing comes with the counts of what was read again, and without `removed`. Returned are the snapshot's id
        and the landing as it was committed, with the counts of what was taken out at the head that it replaced.

        Raises Conflict when the ranges are not in the ledger any more, or the table's schema or layout was changed:
        plan again. Raises ReplacedMeanwhile, after which no plan helps, when another replace touched them since `load`.
        Raises CannotReplace where rows can't be told apart, or one to take out was not read again. Whatever is raised,
        nothing was changed, and the rows taken are to be discarded.
        """

    def discard(self) -> None:
        """Delete the files of rows taken since the last commit, and forget those adopted; never raises."""

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        """Say what the commit of one of the run's snapshots changed in the table's schema, in words.

        Of the table as it was at the last `load` or commit; nothing for a snapshot that has expired.
        """


@runtime_checkable
class TakingSink(Sink, Protocol):
    """A sink for which other processes of its run may write files."""

    def outline(self) -> Any:
        """Return what a sink in another process needs to write files for the table as it is, or is going to be.

        Can be pickled.
        """

    def take_over(self, files: Files) -> None:
        """Take files that a process of this run handed over, as if they had been written here."""

    def sweep(self, folder: str) -> None:
        """Delete the files below this folder of the table's data that no snapshot of the table has; never raises."""


@runtime_checkable
class SharedSink(TakingSink, Protocol):
    """A sink whose files may be written by several workers: tasks, processes or executors."""

    def write_below(self, folder: str) -> None:
        """Write files below this folder of the table's data from now on: those that another worker is to commit."""

    def hand_over(self) -> Files:
        """Write out the rows taken, and return what `adopt` needs of the files since the last call.

        Until this worker has ended well they stay its own: `discard` deletes them.
        """

    def misfit(self, files: Files) -> str | None:
        """Say why handed files can't go into the table as it was at the last `load`; None if they can."""

    def let_go(self) -> None:
        """Leave what was handed over to who took it: from now on `discard` does not delete it."""

    def adopt(self, files: Files) -> None:
        """Take files that another worker handed over for the next commit; they are never deleted by `discard`."""


@runtime_checkable
class FrameSink(SharedSink, Protocol):
    """A sink of rows that a function makes of decoded ones; its result tells the table's columns."""

    def outline_beside(self, columns: RowSchema) -> Any:
        """Return the outline of a table that is nowhere: its files lie where those of the real one do."""

    def hold_to(self, payload: Any, metadata: RowSchema, made_by: Any) -> None:
        """Hold the table to the columns of a function's result; the next commit notes the function.

        :param payload: the columns but for those of `metadata`, as a schema of PyIceberg's.
        :param made_by: a `tables.transformed.Transformed`.

        Raises InvalidArgument if the table has no place for them.
        """
