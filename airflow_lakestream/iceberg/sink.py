"""Sink of an Iceberg table: rows become data files, and a landing commits files and ledger together.

The transaction is PyIceberg's; the guard inside its retry makes it exactly once: see `committing` and `guard`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import WAREHOUSE_LOCATION, Catalog
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from airflow_lakestream.core.landing.unaccounted import no_rows
from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.core.ports import RangesNotLanded, StaleFiles, TableState, Trial
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import MIRROR, refuse_mirror
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.commit.attempt import CommitAttempt, FileRewrite, RewriteStage
from airflow_lakestream.iceberg.commit.commit import (
    Check,
    CommitBuilder,
    TableCommit,
    ledger_allows,
    ledger_allows_overlap,
)
from airflow_lakestream.iceberg.commit.committing import commit_files
from airflow_lakestream.iceberg.commit.new_table import NewTable, planned
from airflow_lakestream.iceberg.fan_out.books import BOOKS, LandedByFanOut, NamingTopic, landed_by_fan_out, note_on
from airflow_lakestream.iceberg.replace.replace import CountCompletion, FirstLook, replaced_files, replacing
from airflow_lakestream.iceberg.replace.takeout import Finder, look_for_rows
from airflow_lakestream.iceberg.write import handover, layout
from airflow_lakestream.iceberg.write.files import (
    data_folder,
    delete_files,
    delete_unreferenced,
    list_files,
    write_data_files,
)
from airflow_lakestream.iceberg.write.trial import proof_of, unwritable
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.guards import check_columns, completed, replaced_ranges
from airflow_lakestream.tables.retention import REMOVED
from airflow_lakestream.tables.schema.change import SchemaChange, change_for, changes_in, whole_schema
from airflow_lakestream.tables.schema.columns import payload_schema, to_schema
from airflow_lakestream.tables.sink import TableSink
from airflow_lakestream.tables.transformed import refuse_replacing


def table_state(catalog: Catalog, table: str, group: str) -> TableState:
    """Return the state of an Iceberg table as a run would see it; `exists` is False for a missing table."""
    try:
        loaded = fitness.load_table(catalog, table)
    except NoSuchTableError:
        return TableState(Ledger(group), exists=False)
    others = {g: ledger_store.read_ledger(loaded, g) for g in ledger_store.groups(loaded) if g != group}
    return TableState(ledger_store.read_ledger(loaded, group), others, look_for_rows=partial(look_for_rows, loaded))


log = logging.getLogger(__name__)


class IcebergSink(TableSink[DataFile]):
    """`core.ports.Sink` on an Iceberg table, through any PyIceberg catalog with compare-and-set."""

    # Builders of every commit of this sink.
    builders: Sequence[CommitBuilder] = ()

    def __init__(
        self,
        catalog: Catalog,
        table: str,
        consumer_group: str,
        design: TableDesign,
        *,
        allow_group_overlap: bool = False,
        parts: int = 1,
        check_part: Callable[[Table], None] | None = None,
    ) -> None:
        super().__init__(table, consumer_group, design, parts=parts, allow_group_overlap=allow_group_overlap)
        self._catalog = catalog
        # Refuses a table by its part in a fan-out.
        self._check_part = check_part or self._refuse_part
        self._table: Table | None = None
        # Returns the change of columns if the next commit takes the place of all rows and columns of a table, or None.
        self.starts_over: Callable[[Table], SchemaChange | None] = lambda _: None
        # The table of an earlier `look`, or (None,) if it was missing, for the next `load`; None: `load` looks again.
        self._look: tuple[Table | None] | None = None
        self._staged: NewTable | None = None
        # The run's first look, kept when the run plans again: a replace must find later landings of other runs.
        self._first: FirstLook | None = None
        # The files that the last rewriting commit brought into the table.
        self._committed_paths = set[str]()
        # The topic whose name selected the table; None if the user named the table.
        self.named_by: NamingTopic | None = None

    def _load(self, run_id: str) -> TableState:
        """Load the table again, and check the table against the design. Raises InvalidArgument for a contradiction.

        A catalog or a table that can't be landed in is refused: raises the errors of `fitness`, NotIceberg,
        LandedByFanOut and TableNotWritable.
        """
        fitness.check_catalog(self._catalog, self._name)
        look, self._look = self._look, None
        (self._table,) = look or self._looked()
        if self._table is None:
            self._change = None
            self._check_name()
            self._first = self._first or FirstLook()
            return self._missing_table()
        self._check_name()
        fitness.check_store(self._table)
        self._change = self._check_design(self._table)
        if not isinstance(self._catalog, handover.IcebergOutline):
            self._prove(*proof_of(self._change.metadata))
        reading = ledger_store.read(self._table, self._group)
        self._first = self._first or FirstLook(self._table, reading)
        return TableState(
            ledger=reading.ledger,
            other_ledgers=ledger_store.other_ledgers(self._table, self._group),
            landed_by_run=ledger_store.landings_of_run(self._table, reading, self._group, run_id),
            schema=self._decoded(self._change),
            part=note_on(self._table.metadata.properties),
            keeps_removed=REMOVED in self._table.metadata.properties,
            # A mirror accepts repeated events: the newest event of a key wins.
            look_for_rows=no_rows if MIRROR in self._design.notes else partial(look_for_rows, self._table),
        )

    def look(self, *, keeps_missing: bool = False) -> Table | None:
        """Load the table, which the next `load` takes; return it, or None if it is missing. Raises NotIceberg.

        :param keeps_missing: whether the next `load` also takes a missing table, and does not look again.
        """
        (table,) = look = self._looked()
        self._look = look if table is not None or keeps_missing else None
        return table

    def _looked(self) -> tuple[Table | None]:
        """Return the table in a tuple, (None,) if it is missing. Raises NotIceberg."""
        try:
            return (fitness.load_table(self._catalog, self._name),)
        except NoSuchIcebergTableError as e:
            raise fitness.NotIceberg(self._name) from e
        except NoSuchTableError:
            return (None,)

    @property
    def has_adopted_files(self) -> bool:
        """Whether the next commit has files of another worker."""
        return bool(self._adopted)

    @property
    def loaded(self) -> Table | None:
        """The table at the last `load`, or None if it was missing."""
        return self._table

    @property
    def is_there(self) -> bool:
        """Whether the table existed at the last look or commit."""
        return self._table is not None

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties at the last look or commit; empty without a table."""
        return {} if self._table is None else self._table.metadata.properties

    def commit(self, landing: Landing, *builders: CommitBuilder) -> int:
        """Commit the buffered rows and the landing as a snapshot; see `core.ports.Sink`.

        :param builders: builders of this commit, after those of the sink.
        """
        return self.checked(landing, partial(self._append, landing, *builders))

    def _append(self, landing: Landing, *builders: CommitBuilder) -> int:
        files = self.files
        commit = self.commit_of(landing, *builders)
        return self._drive(commit, files)

    def commit_alone(self, commit: TableCommit) -> None:
        """Commit without the buffered rows, which stay buffered; this creates a missing table."""
        commit_files(self._attempt(commit), ())
        if self._table is None:
            self._staged = None
            self._take_committed()

    def replace(self, landing: Landing, finder: Callable[..., Finder] = Finder) -> tuple[int, Landing]:
        """Replace the rows of ranges by the buffered rows; see `core.ports.Sink`, and for `finder` `exchange_rows`."""
        return self.checked(landing, partial(self._replace, landing, finder), is_replace=True)

    def _replace(self, landing: Landing, finder: Callable[..., Finder]) -> tuple[int, Landing]:
        _, ranges = replaced_ranges(landing)
        refuse_replacing(self._name, self.properties, self._group)
        snapshot_id, rewrite = self.exchange_rows(landing, ranges, replacing, finder)
        return snapshot_id, rewrite.landing or landing

    def exchange_rows(
        self,
        landing: Landing,
        ranges: RangeSet,
        build: Callable[..., TableCommit],
        finder: Callable[..., Finder] = Finder,
        complete: CountCompletion = completed,
    ) -> tuple[int, FileRewrite]:
        """Commit the buffered rows in place of rows of ranges, in a single snapshot; return its id, and its files.

        Raises RangesNotLanded without a table. After any error nothing is changed.

        :param build: builds the commit with `first` and `own`, as `replacing` does.
        :param finder: makes the search for the rows to remove.
        :param complete: returns the landing with the count of removed rows.
        """
        if self._table is None:
            raise RangesNotLanded(self._name, ranges)
        check_columns(self._design.metadata.names, self._name)
        files, written = self.files, list[DataFile]()

        def write(rows: pa.Table) -> list[DataFile]:
            new = self.write_files(rows)
            written.extend(new)
            return new

        search = finder(ranges, files, write, self._passed_over)
        commit = self.commit_of(landing, partial(build, first=self._first or FirstLook(), own=self._landed))
        stage = RewriteStage(partial(replaced_files, commit=commit, finder=search, complete=complete), written)
        snapshot_id = self._drive(commit, files, stage)
        return snapshot_id, stage.made[snapshot_id]

    def outline(self) -> handover.IcebergOutline:
        """Return the outline of the table, existing or staged, for writing in another process; can be pickled.

        Writing of the buffered rows begins before. Raises RowsNotWritable for rows of earlier writes.
        """
        self._buffer.write_out()
        target = self.target()
        # The memory for reading the first records is better left to the remote readers.
        pa.default_memory_pool().release_unused()
        return handover.IcebergOutline(self._name, target.metadata, target.io)

    def staging_outline(self, columns: pa.Schema) -> handover.IcebergOutline:
        """Return the outline of a staging table in this table's folder.

        A missing table is staged for the location of its files.
        """
        if self._table is None and self._staged is None:
            # The table is staged only for the location of its files: its own columns are not known yet.
            place = TableDesign(pa.schema([]), properties=self._design.properties)
            self._staged = NewTable.stage(self._catalog, self._name, to_schema(columns), place)
        return handover.staging_outline(self.target(), columns)

    def misfit(self, files: Mapping[str, Any]) -> str | None:
        """Return the reason why handed files do not fit the table at the last `load`, or None."""
        if self._table is None or self._change is None:
            return "the table is not there (any more)"
        return handover.misfit(self._change.metadata, self._table.io, files)

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        """Return a landing's changes of the table's schema, in words; empty once the snapshot has expired."""
        return changes_in(None if self._table is None else self._table.metadata.snapshot_by_id(snapshot_id))

    def discard(self) -> None:
        """Delete the files of all rows since the last commit, and a namespace made for the table; never raises."""
        super().discard()
        if self._staged is not None:
            self._staged.drop_namespace_if_made()
            self._staged = self._change = None

    def _check_name(self) -> None:
        """Refuse a table selected by a topic's name, if not free for the topic. Raises InvalidArgument."""
        if self.named_by is not None:
            self.named_by.check(self._name, self._table, self._group)

    def _missing_table(self) -> TableState:
        """Return the state of a missing table, and check the design as far as possible. Raises InvalidArgument."""
        # The catalog gives the location only once records have given the columns; an outline has no properties.
        warehouse = getattr(self._catalog, "properties", {}).get(WAREHOUSE_LOCATION, "")
        fitness.check_place(self._name, f"{warehouse}/{self._name}")
        schema = None
        if self._design.schema is not None:
            planned_schema = whole_schema(self._design, None)
            # A mirror's schema may have only some of its columns.
            if self.takes_records:
                self._prove(*proof_of(planned(planned_schema, self._design)))
            schema = payload_schema(planned_schema, self._design.metadata.names)
        return TableState(Ledger(self._group), schema=schema, exists=False)

    def _check_design(self, table: Table) -> SchemaChange:
        """Check a table against the design, and return the change of its schema. Raises the errors of `load`."""
        fitness.check_table(table)
        if (change := self.starts_over(table)) is not None:
            return change
        design = self._design
        self._check_part(table)
        if MIRROR not in design.notes:
            refuse_mirror(self._name, table.metadata.properties, "landed into, or replaced, by records")
        change = change_for(design, table.metadata, self._name)
        layout.check_layout(table, design.partition_by, design.sort_order)
        self._announce(change.texts)
        return change

    def _refuse_part(self, table: Table) -> None:
        """Refuse a fan-out's home, and a table of a fan-out of this group. Raises LandedByFanOut."""
        note = note_on(table.metadata.properties)
        if note and (BOOKS in table.metadata.properties or landed_by_fan_out(table, self._group)):
            raise LandedByFanOut(self._name, self._group, note)

    @property
    def _required(self) -> Collection[str]:
        fields = () if self._table is None else self._table.schema().fields
        return {field.name for field in fields if field.required}

    def _take_columns(self) -> None:
        if self._table is not None:
            self._change = self._check_design(self._table)
            return
        if self._staged is not None:
            self._staged.drop_namespace_if_made()
        self._staged = self._change = None
        self.target()

    def target(self, rows: pa.Table | None = None) -> Table:
        """Return the table to write for: the existing table, or the staged table of the first commit.

        The first call for a missing table stages it, which makes its namespace if needed. Raises the errors of
        `NewTable.stage`, and TableNotWritable.

        :param rows: the first rows, which give the columns if the design has no schema.
        """
        table = self._table
        if table is None:
            if self._staged is None:
                schema = whole_schema(self._design, None if rows is None else rows.schema)
                self._staged = NewTable.stage(self._catalog, self._name, schema, self._design)
            table = self._staged.table
        if self._change is None:
            self._change = SchemaChange.none(table.metadata)
            self._prove(*proof_of(table.metadata))
        return self._change.target(table)

    def _planned(self, rows: pa.Table | None) -> SchemaChange:
        self.target(rows)
        assert self._change is not None, "`target` has set the change"
        return self._change

    def _writing(self, rows: pa.Table) -> Callable[[], list[DataFile]]:
        target = self.target(rows)
        write = partial(write_data_files, folder=self._folder)
        return partial(write, target.metadata, target.io, rows, self._prefix, self._numbers)

    def _trial(self) -> Trial:
        return partial(unwritable, self.target().metadata)

    def _encode(self, files: Sequence[DataFile]) -> Mapping[str, Any]:
        return handover.encode_files(self.target().metadata, files)

    def _decode(self, handed: Mapping[str, Any]) -> Sequence[DataFile]:
        return handover.decode_files(handed)

    def _delete(self, files: Sequence[DataFile]) -> Sequence[str]:
        return delete_files(self.io, [file.file_path for file in files])

    def _delete_unreferenced(self, folder: str) -> tuple[int, int]:
        try:
            # Files for a table that is still to be created are at the location of the staged table.
            staged = self._staged and self._staged.table
            table = staged or self._table or self._catalog.load_table(self._name)
            place = data_folder(table.metadata, folder)
            # Usually the folder has committed files only: then neither table nor manifests are read.
            if all(path in self._committed_paths for path in list_files(table.io, place)):
                return 0, 0
            return delete_unreferenced(staged or self._catalog.load_table(self._name), place)
        except NoSuchTableError:
            return 0, 0

    def rewrite(
        self,
        landing: Landing,
        rewrite: Callable[[Table], FileRewrite],
        written: Sequence[DataFile],
        *builders: CommitBuilder,
    ) -> int:
        """Commit a landing with removed files and return the snapshot's id; see `RewriteStage`."""
        files = self.files
        commit = self.commit_of(landing, partial(dataclasses.replace, for_one_head=True), *builders)
        stage = RewriteStage(rewrite, written)
        snapshot_id = self._drive(commit, files, stage)
        self._committed_paths = stage.new_in(snapshot_id)
        return snapshot_id

    def write_files(self, rows: pa.Table) -> list[DataFile]:
        """Write rows as files for the target table, and return the files, which only the caller owns."""
        target = self.target()
        return write_data_files(target.metadata, target.io, rows, self._prefix, self._numbers)

    def commit_of(self, landing: Landing, *builders: CommitBuilder) -> TableCommit:
        """Return a landing's commit for the target table; the builders of the sink come first."""
        commit = TableCommit(self._group, landing, self._planned(None), self._ledger_check, notes=self._design.notes)
        for build in (*self.builders, *builders):
            commit = build(commit)
        return commit

    @property
    def _ledger_check(self) -> Check:
        return ledger_allows_overlap if self._allow_group_overlap else ledger_allows

    def _attempt(self, commit: TableCommit, stage: RewriteStage | None = None) -> CommitAttempt:
        new = self._staged if self._table is None else None
        return CommitAttempt(self._catalog, self._name, commit, stage, new)

    def _drive(self, commit: TableCommit, files: Sequence[DataFile], stage: RewriteStage | None = None) -> int:
        """Commit files, and return the snapshot's id; files that may be in the table are never deleted."""
        attempt = self._attempt(commit, stage)
        try:
            snapshot_id = commit_files(attempt, files)
        except BaseException:
            # This may be a refusal or an interrupt: if the commit may have been applied, its files must stay.
            if attempt.may_be_applied:
                self.leave_in_place()
            raise
        self._landed.add(commit.landing.landing_id)
        self.leave_in_place()
        self._take_committed()
        return snapshot_id

    def _take_committed(self) -> None:
        """Load the table after a commit, which may have created it: the next rows are written for this table.

        Raises StaleFiles if the table was dropped since.
        """
        (self._table,) = self._looked()
        if self._table is None:
            raise StaleFiles(self._name, "the table was dropped")
        self._change = SchemaChange.none(self._table.metadata)

    def leave_in_place(self) -> None:
        """Keep files and namespace from being discarded."""
        super().leave_in_place()
        self._staged = None

    @property
    def io(self) -> FileIO:
        """The access to the table's files."""
        return self.target().io
