"""What the sinks of all table formats do alike: rows become files, and files go from one worker to another."""

from __future__ import annotations

import itertools
import logging
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.core.ledger import Landing, TopicIdentity
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import StaleFiles, TableState, Trial
from airflow_lakestream.core.ranges import PartitionKey
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.row_buffer import File, RowBuffer, prove
from airflow_lakestream.tables.schema.change import SchemaChange
from airflow_lakestream.tables.schema.columns import payload_schema
from airflow_lakestream.tables.schema.types import fields_from_arrow
from airflow_lakestream.tables.transformed import Transformed, transformed

PassedOver = tuple[PartitionKey, pa.Array]
# What of a table decides whether a file can be made for it, of those of which this process made one on trial: each
# batch of a stream has a sink of its own.
_PROVEN = deque[object](maxlen=32)
_PASSED_OVER = "passed_over"


def encode_passed_over(passed_over: Sequence[PassedOver]) -> dict[str, Any]:
    """Return rising offsets by partition as JSON; nothing without any.

    Most of many records that become no row are neighbours.
    """
    return {_PASSED_OVER: [[*key, *_intervals(offsets)] for key, offsets in passed_over]} if passed_over else {}


def decode_passed_over(handed: Mapping[str, Any]) -> list[PassedOver]:
    """Return the offsets of records that became no row, by partition."""
    return [
        ((topic, partition), pa.array([at for start, end in intervals for at in range(start, end)], pa.int64()))
        for topic, partition, *intervals in handed.get(_PASSED_OVER, ())
    ]


def _intervals(offsets: pa.Array) -> list[list[int]]:
    numbers = offsets.to_numpy()
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(numbers) else []
    return [[int(part[0]), int(part[-1]) + 1] for part in parts]


log = logging.getLogger(__name__)


class TableSink(ABC, Generic[File]):
    """A part of `core.ports.SharedSink`. A format's own sink looks at its table, writes files, and commits them.

    :param design: how the table is created when missing, and what an existing one is held to.

    :param parts: how many sinks share the memory of one; see `RowBuffer`.
    """

    # The rows that it writes are those that it is given.
    takes_records = True
    # Rows may come with more columns than those before, whatever the design says.
    takes_any = False

    def __init__(
        self,
        table: str,
        consumer_group: str,
        design: TableDesign,
        *,
        parts: int,
        allow_group_overlap: bool,
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
        self._handed_over = 0
        self._adopted: list[File] = []
        self._folder = ""
        self._prefix = uuid.uuid4().hex
        self._numbers = itertools.count()
        # For the whole life of the run, however often it plans again: a replace must see those that came later.
        self._landed: set[str] = set()

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Take rows for the next commit; they are written as files in the background."""
        if self._design.grows and not self._buffer.holds(rows.schema):
            self._make_room(rows)
        self._buffer.take(rows)

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: pa.Array) -> None:
        """Take note of records that were read and became no row."""
        self._passed_over.append(((identity.topic, partition), offsets))

    def discard(self) -> None:
        """Delete the files of rows taken since the last commit; never raises."""
        self._adopted, self._passed_over, self._handed_over = [], [], 0
        files = self._buffer.drop()
        for path in self._delete(files) if files else ():
            log.warning("An uncommitted data file could not be deleted: %s", path)

    def write_below(self, folder: str) -> None:
        """Write files below this folder of the table's data from now on."""
        self._folder = folder

    def hand_over(self) -> Mapping[str, Any]:
        """Write out the rows taken; return the files since the last call, for `adopt`. See `core.ports.SharedSink`."""
        files = self._buffer.flush()
        new, self._handed_over = files[self._handed_over :], len(files)
        passed_over, self._passed_over = self._passed_over, []
        return {**encode_passed_over(passed_over), **self._encode(new)}

    def let_go(self) -> None:
        """Leave the files that were handed over to who took them."""
        del self._buffer.files[: self._handed_over]
        self._handed_over = 0

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Take files that a process of this run wrote; see `core.ports.SharedSink`."""
        self._buffer.files += self._decode(files)
        self._passed_over += decode_passed_over(files)

    def adopt(self, files: Mapping[str, Any]) -> None:
        """Take files that another worker handed over for the next commit."""
        self._adopted += self._decode(files)
        self._passed_over += decode_passed_over(files)

    def sweep(self, folder: str) -> None:
        """Delete the files below this folder of the table's data that no commit has; never raises."""
        try:
            deleted, left = self._delete_unreferenced(folder)
        except Exception as e:  # noqa: BLE001  # the landing is done; files left over harm nobody
            log.warning("%s: files of this run that no commit has were left in %s: %r", self._name, folder, e)
            return
        if deleted or left:
            log.info("%s: deleted %s files of this run that no commit has, left %s", self._name, deleted, left)

    def hold_to(self, payload: Schema, metadata: pa.Schema, made_by: Transformed) -> None:
        """Hold the table to the columns of a function's result; see `core.ports.FrameSink`."""
        properties, required = self._held
        before = transformed(properties, self._group)
        if before is not None and (before.function, before.fingerprint) != (made_by.function, made_by.fingerprint):
            log.info("%s: its rows are made by %s from now on, before by %s", self._name, made_by, before)
        # Spark knows too little of what may be NULL: the writer looks at each value of a required column.
        fields = [field.model_copy(update={"required": field.name in required}) for field in payload.fields]
        notes = {**self._design.notes, **made_by.noted(self._group, before)}
        self._design = replace(self._design, schema=Schema(*fields), metadata=metadata, notes=notes)
        self._take_columns()

    @contextmanager
    def or_discard(self) -> Iterator[None]:
        """Discard what was taken where anything is raised within."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    @property
    def _files(self) -> list[File]:
        """All files of the next commit, written by now."""
        return [*self._buffer.flush(), *self._adopted]

    def _leave_in_place(self) -> None:
        """Keep files from being discarded."""
        self._buffer.forget()
        self._adopted, self._passed_over, self._handed_over = [], [], 0

    def _decoded(self, change: SchemaChange) -> pa.Schema:
        """Return the columns that decoders fill."""
        design = self._design
        return payload_schema(change.schema, design.metadata.names, design.schema, with_others=design.grows)

    def _make_room(self, rows: pa.Table) -> None:
        """Add the columns of the rows to the next commit's change. Raises StaleFiles if the table can't have them."""
        held, names = self._planned(rows), self._design.metadata.names
        change, problems = self._grown(held, pa.schema([field for field in rows.schema if field.name not in names]))
        if problems:
            # The decoder knew the table as it was: another run has changed it meanwhile.
            raise StaleFiles(self._name, f"the schema was changed ({'; '.join(problems)})")
        self._announce(change.texts[len(held.texts) :])
        self._change = change

    def _grown(self, held: SchemaChange, columns: pa.Schema) -> tuple[SchemaChange, tuple[str, ...]]:
        """Return the change that makes room for these columns, too, and why some of them can't be had."""
        # Wider types come only where the decoder was told to follow the records: in a mirror's events.
        policy = max(self._design.evolution, SchemaEvolution.ADD, key=list(SchemaEvolution).index)
        return held.and_then(fields_from_arrow(columns, "rows"), policy)

    def _announce(self, texts: Sequence[str]) -> None:
        if texts:
            log.info("The schema of %s will be changed with the next commit: %s", self._name, "; ".join(texts))

    @abstractmethod
    def load(self, run_id: str) -> TableState:
        """Look at the table, and check it against the design; see `core.ports.Sink`."""

    @abstractmethod
    def commit(self, landing: Landing) -> int:
        """Commit the rows taken, with the landing; see `core.ports.Sink`."""

    @abstractmethod
    def _planned(self, rows: pa.Table | None) -> SchemaChange:
        """Return the next commit's change of the schema; the first rows tell the columns of a new table."""

    @property
    @abstractmethod
    def _held(self) -> tuple[Mapping[str, str], Collection[str]]:
        """The properties of the table as it was at the last look, and its required columns; none without a table."""

    @abstractmethod
    def _take_columns(self) -> None:
        """Look at the table again for a design whose columns have changed. Raises InvalidArgument."""

    def _prove(self, shape: object, write: Callable[[], object]) -> None:
        """Refuse a table for which no file can be made, which is no record's fault; each shape is tried once.

        :param shape: what of the table decides it.
        :param write: tries it.

        Raises what `prove` raises.
        """
        if shape not in tuple(_PROVEN):
            prove(self._name, write)
            _PROVEN.append(shape)

    def _blame(self) -> Trial | None:
        return self._trial() if self.takes_records else None

    @abstractmethod
    def _writing(self, rows: pa.Table) -> Callable[[], list[File]]:
        """Return what writes rows as files of the table as it is to be with the next commit."""

    @abstractmethod
    def _trial(self) -> Trial:
        """Return what finds the rows that can't be written."""

    @abstractmethod
    def _encode(self, files: Sequence[File]) -> Mapping[str, Any]:
        """Return files as JSON, with what tells whether they fit the table."""

    @abstractmethod
    def _decode(self, handed: Mapping[str, Any]) -> Sequence[File]:
        """Return files that another sink encoded."""

    @abstractmethod
    def _delete(self, files: Sequence[File]) -> Sequence[str]:
        """Delete files; return those that may be left. Never raises."""

    @abstractmethod
    def _delete_unreferenced(self, folder: str) -> tuple[int, int]:
        """Delete the files below a folder that no commit has; return how many are deleted, and are left."""
