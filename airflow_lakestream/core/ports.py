"""Ports between Kafka, the decoders and the table formats: each technology knows only these protocols."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.landing.unaccounted import LookForRows, no_rows
from airflow_lakestream.core.ledger import Landing, Ledger, StreamBatch, TopicIdentity
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.records import DecodedBatch, RawBatch, Rows
from airflow_lakestream.core.sharing.pieces import Files
from airflow_lakestream.core.source_types import NEW_TABLE, LedgerTypes
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient

# An Arrow schema.
RowSchema = Any
# Returns the rows of a table that can't be written, by number, with the reason.
Trial = Callable[[Rows], Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """All readable records of an offset range; the batch is often empty.

    :param covers: the offset range, holes included.
    :param batch: the records.
    :param size: the records' bytes.
    """

    covers: OffsetRange
    batch: RawBatch
    size: int


class Conflict(LakestreamError, Transient):
    """The table changed under a run, and the run has to plan again."""


class HeadMoved(Conflict):
    """Files of the table's former head disappeared while the table was read."""

    def __init__(self, table: str) -> None:
        super().__init__(f"{table} was changed while it was read, and files of its former state are gone.")


class LedgerConflict(Conflict):
    """Another run landed offsets of this landing first; `ranges` are the offsets."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(f"{table} holds {ranges} already: another run landed them first.")


class TypesConflict(Conflict):
    """Another run landed a column of the source first, with another type."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(f"{table}: another run landed the column {column} with another type of the source first.")


class StreamConflict(Conflict):
    """Another run landed for the group since a streaming batch was planned, or the table was rolled back."""

    def __init__(self, table: str, batch: str, last: StreamBatch | None) -> None:
        super().__init__(
            f"{table}: {batch} does not follow what its group landed last: {last or 'no landing of a stream'}."
        )


class StaleFiles(Conflict):
    """The table's schema or partitioning changed after the data files were written."""

    def __init__(self, table: str, change: str) -> None:
        super().__init__(f"{table}: {change} between plan and commit, so the files written do not fit it any more.")


class RejectsCondemned(Conflict):
    """Another run took this landing for dead, and removes the landing's rejected records."""

    def __init__(self, table: str, landing_id: str) -> None:
        super().__init__(
            f"{table}: another run took landing {landing_id} for dead, and removes the rejected records that it wrote "
            "before its commit."
        )


class RangesNotLanded(Conflict):
    """Ranges to replace are not (any more) in the group's ledger; `ranges` are the missing offsets."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(f"{table} does not hold {ranges} (any more), so there is nothing to replace there.")


class RemovedMeanwhile(Conflict):
    """Removal of old rows in ranges to replace, since this run's plan; `ranges` are the offsets of the rows."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(f"{table}: retention removed the rows of {ranges} after this run had planned to replace them.")


class ReplacedMeanwhile(LakestreamError, Terminal):
    """Another run replaced the same offsets after this run's plan: this run's rows may be of an older decoding."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(
            f"{table}: another run replaced {ranges} after this one had planned to. This run changed nothing: its rows "
            "may be older than those. If its decoding is the one to keep, run it again."
        )


class CannotReplace(LakestreamError, Terminal):
    """The rows of the ranges can't be distinguished, read, or read again; no row was changed."""


class NotShared(InvalidArgument):
    """Records choose the tables: several workers can't write them for one commit."""

    def __init__(self) -> None:
        super().__init__("table", "tables that records choose are written by one worker.", "Use KafkaExtractOperator.")


class OffsetsGone(Conflict):
    """The log now begins above offsets still to be read."""

    def __init__(self, topic: str, partition: int, position: int) -> None:
        self.topic, self.partition, self.position = topic, partition, position
        super().__init__(f"{topic}[{partition}] offset {position} left the log while it was being read.")


class RowsNotWritable(LakestreamError, Terminal):
    """A file could not be made of rows. `trial` finds the unwritable rows, or is None if no trial can."""

    def __init__(self, table: str, cause: str, trial: Trial | None) -> None:
        self.trial = trial
        super().__init__(f"{table}: rows can't be written: {cause}")


# Kafka knows no time before 1970: a negative timestamp means "none", or is a mistake of the producer.
BEGINNING_MS = 0


@dataclass(frozen=True, slots=True)
class TimeBoundary:
    """Boundary of a time in a partition: the first offset with a timestamp at or after the time.

    Without such a record the boundary is open, and at the partition's end. A time at or before BEGINNING_MS is at the
    log's start and never open: no record can come before it.
    """

    offset: int
    is_open: bool = False


class TopicSource(Protocol):
    """A topic of a cluster, seen from outside the log."""

    def look(self) -> TopicState:
        """Return the topic's present identity and watermarks."""

    def identity(self) -> TopicIdentity:
        """Return the topic's present identity."""

    def starts(self, state: TopicState) -> Mapping[int, int]:
        """Return the beginnings of a group without an origin, by partition.

        A partition left out begins at the log's start, or at the group's first landed offset below: see
        `core.landing.plan.first_origin`.
        """

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, TimeBoundary]:
        """Return the boundary of a time by partition; records at or past the ends in `state` do not count."""

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        """Write the group's committed offsets in Kafka, for lag tools; a failure is logged, never raised."""


class RecordReader(Protocol):
    """Reader of exactly a plan's ranges."""

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        """Yield chunks to cover the plan's ranges; a partition's chunks come in offset order.

        Returns early once `cancelled` is set. Closing the generator ends the reading. Raises OffsetsGone if the log
        lost offsets that were still to be read.
        """


class RecordDecoder(Protocol):
    """Decoder of raw records into rows, called by several threads at once."""

    def decode(self, batch: RawBatch) -> DecodedBatch:
        """Return the outcome of each record, rows in record order. Raises BadRecord if bad records are to fail."""


class DecoderFactory(Protocol):
    """Maker of the decoder for a table's payload schema, or for a schema inferred from the first batch."""

    def __call__(self, schema: RowSchema | None, first: RawBatch | None) -> RecordDecoder | None:
        """Return a decoder for `schema`, or without a schema for the columns that the records of `first` show.

        None without both. None, too, for first records that can't be rows with any columns: they are skipped, or
        decoded later if `keeps_for_later`.
        """

    def keeps_for_later(self, first: RawBatch) -> bool:
        """Return whether first records without columns are decoded later, once further records show the columns.

        If False, such records are skipped.
        """

    def with_trial(self, trial: Trial) -> DecoderFactory:
        """Return the factory with a trial: rows found by the trial become bad records."""


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a table at a moment: the group's ledger, further groups' ledgers, and this run's earlier landings.

    `schema` is of the rows to decode; None if neither a table nor a given schema specifies it. `part` is a sentence
    about the table's part in a fan-out, if any. `look_for_rows` finds rows that no ledger accounts for, in the table as
    it was at that moment. `type_remedy` is the remedy if a column of the source gets another type. `keeps_removed`: a
    replace leaves out offsets whose rows were removed on purpose, since the table's retention removed some.
    """

    ledger: Ledger
    other_ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    landed_by_run: Sequence[tuple[int, Landing]] = ()
    schema: RowSchema | None = None
    exists: bool = True
    part: str | None = None
    look_for_rows: LookForRows = no_rows
    type_remedy: str = NEW_TABLE
    keeps_removed: bool = False

    @property
    def types(self) -> LedgerTypes:
        """The types of the source's columns in the ledger."""
        return LedgerTypes(self.ledger.types, self.type_remedy)


class RejectStore(Protocol):
    """Store of rejected records: written before the sink's next commit, and valid with the commit."""

    def reject(self, records: Rows) -> None:
        """Store raw records with the reasons; columns as in `decode.rejected`."""


class Sink(Protocol):
    """Writer of a table for a consumer group."""

    def load(self, run_id: str) -> TableState:
        """Load the table's present state; `run_id`: the run whose earlier landings the state has in `landed_by_run`."""

    def write(self, rows: Rows, identity: TopicIdentity) -> None:
        """Take rows for the next commit; enough rows together become a file."""

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: Any) -> None:
        """Note records read without a row: a replace may take out the rows of an earlier decoding.

        Sinks that never replace ignore the note.

        :param offsets: an Arrow array of the records' offsets.
        """

    def commit(self, landing: Landing) -> int:
        """Commit the rows taken since the last commit, with the ledger, and return the snapshot's id.

        Raises Conflict if another run landed one of the landing's offsets, or the table's schema or layout was changed:
        nothing was committed then, and the rows taken are to be discarded.
        """

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Replace the rows of the `replaced` ranges by the rows taken since the last commit, in a single snapshot.

        Returns the snapshot's id and the landing as committed: `removed` has the counts of the rows taken out.

        Raises Conflict if the ranges are not in the ledger any more, or the table's schema or layout was changed: then
        plan again. Raises ReplacedMeanwhile if another replace touched the ranges since `load`: no new plan helps.
        Raises CannotReplace if rows can't be distinguished, or a row to take out was not read again. After any error no
        row was changed, and the rows taken are to be discarded.

        :param landing: with the counts of the records read again, and without `removed`.
        """

    def discard(self) -> None:
        """Delete the files of rows taken since the last commit, and forget adopted files; never raises."""

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        """Return the changes of the table's schema by a snapshot of the run, in words.

        As of the last `load` or commit; empty for an expired snapshot.
        """

    def check_shared(self) -> None:
        """Raise NotShared if a single worker writes the table, as `write_below` and the methods after it do then."""

    def outline(self) -> Any:
        """Return the table's present or future outline, for a sink in another process.

        Can be pickled.
        """

    def take_over(self, files: Files) -> None:
        """Take files handed over by a process of this run, like files written here."""

    def sweep(self, folder: str) -> None:
        """Delete the uncommitted files below this folder of the table's data; never raises."""

    def write_below(self, folder: str) -> None:
        """Write files below this folder of the table's data from now on, for a commit by another worker."""

    def hand_over(self) -> Files:
        """Write out the rows taken, and return the metadata of the files since the last call, for `adopt`.

        The files stay this worker's own until it has ended well: `discard` deletes them.
        """

    def misfit(self, files: Files) -> str | None:
        """Return the reason why handed files don't fit the table of the last `load`, or None."""

    def let_go(self) -> None:
        """Leave handed-over files to the new owner: from now on `discard` does not delete the files."""

    def adopt(self, files: Files) -> None:
        """Take files of another worker for the next commit; `discard` never deletes these files."""


class UncommittedRows(Protocol):
    """The rows that a sink has taken since the last commit."""

    def discard(self) -> None:
        """Forget the rows, and delete their files; never raises."""


@contextmanager
def or_discard(rows: UncommittedRows) -> Iterator[None]:
    """Discard a sink's uncommitted rows if the block raises."""
    try:
        yield
    except BaseException:
        rows.discard()
        raise
