"""Base of the sinks of all table formats: rows are written as files, and workers hand over files."""

from __future__ import annotations

import itertools
import logging
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.core.ledger import Landing, TopicIdentity
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import Sink, StaleFiles, TableState, Trial
from airflow_lakestream.core.ranges import PartitionKey
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.row_buffer import File, RowBuffer, prove
from airflow_lakestream.tables.schema.change import SchemaChange
from airflow_lakestream.tables.schema.columns import payload_schema
from airflow_lakestream.tables.schema.types import fields_from_arrow
from airflow_lakestream.tables.transformed import TransformNote, transformed

# Offsets of records that were read and have no row, of a topic's partition.
PassedOver = tuple[PartitionKey, pa.Array]
# Shapes of the tables for which this process has made a file on trial. Kept across sinks: each batch of a stream has
# a sink of its own.
_PROVEN = deque[object](maxlen=32)
_PASSED_OVER = "passed_over"


def encode_passed_over(passed_over: Sequence[PassedOver]) -> dict[str, Any]:
    """Return offsets of records without a row as JSON, as intervals by partition; empty without offsets.

    The offsets of each entry must rise. Many records without a row are mostly neighbours, so intervals are short.
    """
    return {_PASSED_OVER: [[*key, *_intervals(offsets)] for key, offsets in passed_over]} if passed_over else {}


def decode_passed_over(handed: Mapping[str, Any]) -> list[PassedOver]:
    """Return the offsets of records without a row, by partition."""
    return [
        ((topic, partition), pa.array([offset for start, end in intervals for offset in range(start, end)], pa.int64()))
        for topic, partition, *intervals in handed.get(_PASSED_OVER, ())
    ]


def _intervals(offsets: pa.Array) -> list[list[int]]:
    """Return rising offsets as [from, until] of each run without a gap."""
    numbers = offsets.to_numpy()
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(numbers) else []
    return [[int(part[0]), int(part[-1]) + 1] for part in parts]


log = logging.getLogger(__name__)


Done = TypeVar("Done")


class CommitChecks(Protocol):
    """Checks of the rows of a sink's landings."""

    def check_columns(self, design: TableDesign, change: SchemaChange | None) -> None:
        """Refuse checks unfit for the table's columns; see `tables.examiner.LandingExaminer.check_columns`."""

    def commit(self, landing: Landing, publish: Callable[[], Done], *, is_replace: bool) -> Done:
        """Check a landing's rows, which replace rows if `is_replace`, and commit by `publish`. Raises ChecksFailed."""


class TableSink(ABC, Generic[File]):
    """Base of a `core.ports.Sink`. The subclass of a format loads the table, and writes and commits files.

    :param design: requirements on a new and on an existing table.
    :param parts: number of sinks that share the memory of one sink; see `RowBuffer`.
    :param allow_group_overlap: accept offsets that another group has landed in the table.
    """

    # True if each row is made of a single record: then the record of an unwritable row is rejected, and the run goes
    # on.
    takes_records = True
    # True if rows may have more columns than the rows before, even if the design does not grow.
    takes_any = False
    checks: CommitChecks | None = None

    def __init__(
        self, table: str, consumer_group: str, design: TableDesign, *, parts: int, allow_group_overlap: bool
    ) -> None:
        self._name = table
        self._group = consumer_group
        self._design = design
        # The change of the schema that the next commit makes; None while the table's columns are unknown.
        self._change: SchemaChange | None = None
        self._allow_group_overlap = allow_group_overlap
        self._buffer: RowBuffer[File] = RowBuffer(
            table, self._writing, self._blame, grows=self.takes_any or design.grows, parts=parts
        )
        self._passed_over: list[tuple[PartitionKey, pa.Array]] = []
        # The number of the buffer's files that were handed over, and are still owned.
        self._handed_over = 0
        self._adopted: list[File] = []
        self._folder = ""
        self._prefix = uuid.uuid4().hex
        self._numbers = itertools.count()
        # Ids of this run's landings, also after the run plans again: a replace must find later landings of other runs.
        self._landed: set[str] = set()

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Buffer rows for the next commit; files are written in the background.

        Raises RowsNotWritable for rows buffered before, and StaleFiles if the table refuses a new column.
        """
        if self._design.grows and not self._buffer.holds(rows.schema):
            self._make_room(rows)
        self._buffer.take(rows)

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: pa.Array) -> None:
        """Note the offsets of read records without a row."""
        self._passed_over.append(((identity.topic, partition), offsets))

    def discard(self) -> None:
        """Delete the files of all rows since the last commit; never raises.

        Files of another worker, taken by `adopt`, are forgotten without deletion.
        """
        self._adopted, self._passed_over, self._handed_over = [], [], 0
        files = self._buffer.drop()
        for path in self._delete(files) if files else ():
            log.warning("An uncommitted data file could not be deleted: %s", path)

    def check_shared(self) -> None:
        """Accept several workers."""

    def write_below(self, folder: str) -> None:
        """Write later files below this folder of the table's data."""
        self._folder = folder

    def hand_over(self) -> Mapping[str, Any]:
        """Write all buffered rows; return the files since the last call, for `adopt`. See `core.ports.Sink`."""
        files = self._buffer.flush()
        new, self._handed_over = files[self._handed_over :], len(files)
        passed_over, self._passed_over = self._passed_over, []
        return {**encode_passed_over(passed_over), **self._encode(new)}

    def let_go(self) -> None:
        """Give up ownership of the files handed over: `discard` no longer deletes the files."""
        del self._buffer.files[: self._handed_over]
        self._handed_over = 0

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Add files staged by a process of this run to the next commit, as own files: `discard` deletes the files."""
        self._buffer.files += self._decode(files)
        self._passed_over += decode_passed_over(files)

    def adopt(self, files: Mapping[str, Any]) -> None:
        """Add files handed over by another worker to the next commit; `discard` does not delete the files."""
        self._adopted += self._decode(files)
        self._passed_over += decode_passed_over(files)

    def sweep(self, folder: str) -> None:
        """Delete the uncommitted files below this folder of the table's data; never raises.

        No process may write below the folder any more. A failure is logged: the files are left then.
        """
        try:
            deleted, undeleted = self._delete_unreferenced(folder)
        except Exception as e:  # noqa: BLE001  # the landing is done; files left over harm nobody
            log.warning("%s: files of this run that no commit has were left in %s: %r", self._name, folder, e)
            return
        if deleted or undeleted:
            log.info("%s: deleted %s files of this run that no commit has, left %s", self._name, deleted, undeleted)

    def hold_to(self, payload: Schema, metadata: pa.Schema, made_by: TransformNote) -> None:
        """Set the design's columns to a function's result, and plan the change of the table's schema again.

        The next commit notes the function. Raises InvalidArgument if the table has no place for the columns.

        :param payload: the columns of the result, without the metadata columns.
        """
        before = transformed(self.properties, self._group)
        if before is not None and (before.function, before.fingerprint) != (made_by.function, made_by.fingerprint):
            log.info("%s: its rows are made by %s from now on, before by %s", self._name, made_by, before)
        # Spark knows nullability only roughly: the writer checks each value of a required column.
        fields = [field.model_copy(update={"required": field.name in self._required}) for field in payload.fields]
        notes = {**self._design.notes, **made_by.noted(self._group, before)}
        self._design = replace(self._design, schema=Schema(*fields), metadata=metadata, notes=notes)
        self._take_columns()

    @property
    def design(self) -> TableDesign:
        """The requirements on the table."""
        return self._design

    @property
    def schema(self) -> Schema:
        """All columns, including the columns added by the next commit."""
        return self._planned(None).schema

    def take_design(self, design: TableDesign, change: SchemaChange | None = None) -> None:
        """Use this design from now on; `change`: the next commit makes this change of the schema."""
        self._design, self._change = design, self._change if change is None else change

    @property
    def files(self) -> list[File]:
        """All files of the next commit, adopted files included.

        Buffered rows are written first. Raises RowsNotWritable.
        """
        return [*self._buffer.flush(), *self._adopted]

    def leave_in_place(self) -> None:
        """Forget the files of the next commit without deletion."""
        self._buffer.forget()
        self._adopted, self._passed_over, self._handed_over = [], [], 0

    def _decoded(self, change: SchemaChange) -> pa.Schema:
        """Return the columns filled by decoders, in the types of the table with this change."""
        design = self._design
        return payload_schema(change.schema, design.metadata.names, design.schema, all_fields=design.grows)

    def _make_room(self, rows: pa.Table) -> None:
        """Add the columns of the rows to the next commit's change. Raises StaleFiles if the table refuses a column."""
        planned, names = self._planned(rows), self._design.metadata.names
        change, problems = self._grown(planned, pa.schema([field for field in rows.schema if field.name not in names]))
        if problems:
            # The decoder knew the table as it was: another run has changed it meanwhile.
            raise StaleFiles(self._name, f"the schema was changed ({'; '.join(problems)})")
        # Earlier texts were logged before.
        self._announce(change.texts[len(planned.texts) :])
        self._change = change

    def _grown(self, planned: SchemaChange, columns: pa.Schema) -> tuple[SchemaChange, tuple[str, ...]]:
        """Return the change extended by these columns, and the problems of impossible columns."""
        # Wider types occur only if the decoder follows the records: in a mirror's events. The policies are ordered:
        # each allows the changes of the policy before, too.
        policy = max(self._design.evolution, SchemaEvolution.ADD, key=list(SchemaEvolution).index)
        return planned.and_then(fields_from_arrow(columns, "rows"), policy)

    def _announce(self, texts: Sequence[str]) -> None:
        if texts:
            log.info("The schema of %s will be changed with the next commit: %s", self._name, "; ".join(texts))

    @abstractmethod
    def staging_outline(self, columns: pa.Schema) -> Any:
        """Return the outline of a staging table, with files in this table's folders."""

    def load(self, run_id: str) -> TableState:
        """Load the table, and check the table against the design; see `core.ports.Sink`.

        Raises InvalidArgument also for checks unfit for the columns, if the columns are known before the records.
        """
        state = self._load(run_id)
        if self.checks is not None:
            self.checks.check_columns(self._design, self._change if state.exists else None)
        return state

    def checked(self, landing: Landing, publish: Callable[[], Done], *, is_replace: bool = False) -> Done:
        """Commit a landing by `publish`, within the checks if the sink has any."""
        return publish() if self.checks is None else self.checks.commit(landing, publish, is_replace=is_replace)

    @abstractmethod
    def _load(self, run_id: str) -> TableState:
        """Load the table, and check the table against the design."""

    @abstractmethod
    def commit(self, landing: Landing) -> int:
        """Commit the buffered rows with the landing; see `core.ports.Sink`."""

    @abstractmethod
    def _planned(self, rows: pa.Table | None) -> SchemaChange:
        """Return the schema change of the next commit.

        :param rows: the first rows, which give the columns of a new table without a schema; None if the columns are
            known.
        """

    @property
    @abstractmethod
    def is_there(self) -> bool:
        """Whether the table existed at the last look or commit."""

    @property
    @abstractmethod
    def properties(self) -> Mapping[str, str]:
        """The table's properties at the last look or commit; empty without a table."""

    @property
    @abstractmethod
    def _required(self) -> Collection[str]:
        """Names of required columns of the table at the last look; empty without a table."""

    @abstractmethod
    def _take_columns(self) -> None:
        """Plan the change of the table's schema again, for a design with changed columns. Raises InvalidArgument."""

    def _prove(self, shape: object, write: Callable[[], object]) -> None:
        """Try whether files can be made for the table, once for each shape. Raises the errors of `prove`.

        A shape that passed is remembered for all sinks of this process.

        :param shape: all facts about the table that decide whether files can be made.
        :param write: makes a file on trial, and keeps nothing.
        """
        # A copy is searched: a sink in another thread may add a shape meanwhile.
        if shape not in tuple(_PROVEN):
            prove(self._name, write)
            _PROVEN.append(shape)

    def _blame(self) -> Trial | None:
        """Return the trial that finds unwritable rows, or None if rows are not of single records."""
        return self._trial() if self.takes_records else None

    @abstractmethod
    def _writing(self, rows: pa.Table) -> Callable[[], list[File]]:
        """Return a function to write these rows as files, and to return the files, for the table after the commit."""

    @abstractmethod
    def _trial(self) -> Trial:
        """Return the trial for finding unwritable rows."""

    @abstractmethod
    def _encode(self, files: Sequence[File]) -> Mapping[str, Any]:
        """Return files as JSON, with the data for `misfit`."""

    @abstractmethod
    def _decode(self, handed: Mapping[str, Any]) -> Sequence[File]:
        """Return files encoded by another sink."""

    @abstractmethod
    def _delete(self, files: Sequence[File]) -> Sequence[str]:
        """Delete files; return the paths possibly left. Never raises."""

    @abstractmethod
    def _delete_unreferenced(self, folder: str) -> tuple[int, int]:
        """Delete the uncommitted files below a folder; return the numbers of deleted and of remaining files."""


def _passed_on(name: str) -> Any:
    """Return a method of `WrappedSink` that calls the method of the inner sink; see `core.ports.Sink`."""
    return lambda self, *arguments: getattr(self.inner, name)(*arguments)


class WrappedSink:
    """Base of a wrapping `core.ports.Sink`: passes on the calls that the subclass does not take."""

    def __init__(self, inner: Sink) -> None:
        self.inner = inner

    load, commit, replace = map(_passed_on, ("load", "commit", "replace"))
    write, pass_over, discard = map(_passed_on, ("write", "pass_over", "discard"))
    outline, take_over, sweep = map(_passed_on, ("outline", "take_over", "sweep"))
    check_shared, write_below, hand_over = map(_passed_on, ("check_shared", "write_below", "hand_over"))
    let_go, misfit, adopt = map(_passed_on, ("let_go", "misfit", "adopt"))
    schema_changes = _passed_on("schema_changes")
