"""Sink of a Delta table: rows become Parquet files, and a landing commits files and ledger together.

The compare-and-set is Delta's own, one file for each version. Read `committing` with this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.landing.unaccounted import no_rows
from airflow_lakestream.core.ledger import Landing, Ledger, TopicIdentity
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import RangesNotLanded, TableState, Trial
from airflow_lakestream.core.routing import MIRROR, refuse_mirror
from airflow_lakestream.delta import handover, ledger_store
from airflow_lakestream.delta.columns import (
    check_layout,
    check_order,
    check_partitions,
    delta_fields,
    merged,
    narrow_integers,
)
from airflow_lakestream.delta.committing import (
    DeltaCheck,
    DeltaCommit,
    DeltaCommitter,
    DeltaFileChange,
    DeltaTarget,
    files_fit,
    ledger_allows,
    ledger_allows_overlap,
    look_after,
)
from airflow_lakestream.delta.files import (
    Add,
    delete_files,
    delete_unreferenced,
    proof_of,
    unwritable,
    without_committed,
    write_files,
)
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import check_writable
from airflow_lakestream.delta.storage import DeltaStorage, DeltaTableAccess, check_place
from airflow_lakestream.delta.takeout import Finder, look_for_rows, not_replaced_since, ranges_landed, replaced_files
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.guards import check_columns, replaced_ranges
from airflow_lakestream.tables.retention import REMOVED, RETENTION, RowRetention
from airflow_lakestream.tables.schema.change import SchemaChange, change_for, whole_schema
from airflow_lakestream.tables.schema.columns import to_schema
from airflow_lakestream.tables.schema.types import arrow_schema
from airflow_lakestream.tables.sink import TableSink
from airflow_lakestream.tables.transformed import refuse_replacing


def table_state(storage: DeltaStorage, table: str, group: str) -> TableState:
    """Return the state of a Delta table as a run would see it; `exists` is False for a missing table."""
    if (head := storage.open(table)) is None:
        return TableState(Ledger(group), exists=False)
    check_writable(head)
    ledger_store.check_not_taken_away(head, group, storage.store(table))
    others = ledger_store.other_ledgers(head, group)
    return TableState(ledger_store.read_ledger(head, group), others, look_for_rows=partial(look_for_rows, head))


_KNOWN_PROPERTIES = (
    *("delta.logRetentionDuration", "delta.deletedFileRetentionDuration", "delta.checkpointInterval"),
    *("delta.enableExpiredLogCleanup", "delta.appendOnly", "delta.targetFileSize", "delta.tuneFileSizesForRewrites"),
    *("delta.autoOptimize.autoCompact", "delta.autoOptimize.optimizeWrite", "delta.dataSkippingNumIndexedCols"),
)


def check_design(design: TableDesign, *, widens: bool = False) -> None:
    """Refuse a design impossible for a Delta table. Raises InvalidArgument.

    :param widens: whether wider types are allowed, as for staged files without a table.
    """
    if design.evolution is SchemaEvolution.WIDEN and not widens:
        raise InvalidArgument(
            "schema_evolution",
            '"widen": a wider type is a table feature of Delta (typeWidening) that is not written here.',
            'Set "add", or widen the column with ALTER TABLE first.',
        )
    for key in design.properties:
        if key == RETENTION:
            RowRetention.parse(design.properties[key])
        elif key.startswith("lakestream.") or (key.startswith("delta.") and key not in _KNOWN_PROPERTIES):
            raise InvalidArgument(
                "table_properties",
                f"{key!r} asks of all writers what is not done here, or is kept free.",
                f"Known ones: {', '.join(_KNOWN_PROPERTIES)}; and all without delta. before them.",
            )
    check_partitions(None, design.partition_by)
    check_order(None, design.sort_order)


def check_new(design: TableDesign) -> None:
    """Refuse partitions and an order that a new table of the design can't have. Raises InvalidArgument.

    The design must have a schema.
    """
    columns = arrow_schema(whole_schema(design, None))
    check_partitions(columns, design.partition_by)
    check_order(columns, design.sort_order)


log = logging.getLogger(__name__)


class DeltaSink(TableSink[Add]):
    """`core.ports.Sink` on a Delta table."""

    takes_any = True

    def __init__(
        self,
        tables: DeltaTableAccess,
        table: str,
        consumer_group: str,
        design: TableDesign,
        *,
        allow_group_overlap: bool = False,
        parts: int = 1,
    ) -> None:
        # Files that grow with the records and may widen types are a mirror's staged events; they have no table.
        check_design(design, widens=design.grows)
        super().__init__(table, consumer_group, design, parts=parts, allow_group_overlap=allow_group_overlap)
        self._tables = tables
        self._head: DeltaTableHead | None = None
        # The result of a look that the next `load` uses in place of its own: the table, or None if missing.
        self._look: tuple[DeltaTableHead | None] | None = None
        # The version at the run's first look, kept when the run plans again: a replace must find later landings.
        self._first_version: int | None = None
        # Whether the next commit takes the place of all rows and columns of the table at a head.
        self.starts_over: Callable[[DeltaTableHead], bool] = lambda _: False

    @cached_property
    def store(self) -> Any:
        """The store of the table's folder."""
        # Opened only if needed, since a missing folder is created.
        return self._tables.store(self._name)

    def _load(self, run_id: str) -> TableState:
        """Load the table again, and check the table against the design. Raises InvalidArgument for a contradiction.

        A table or a location that can't be landed in is refused: raises PlaceNotWritable, DamagedLog, UnfitTable,
        LedgerTakenAway and TableNotWritable.
        """
        look, self._look = self._look, None
        (head,) = look or (self._tables.open(self._name),)
        self._head = head
        check_place(self._tables, self._name)
        if self._first_version is None:
            self._first_version = -1 if head is None else head.version
        if head is None:
            self._change = None
            if self._design.schema is not None:
                self._start_columns(None)
            schema = None if self._change is None else self._decoded(self._change)
            return TableState(Ledger(self._group), schema=schema, exists=False)
        check_writable(head)
        if MIRROR not in self._design.notes:
            refuse_mirror(self._name, head.properties, "landed into, or replaced, by records")
        ledger_store.check_not_taken_away(head, self._group, self.store)
        self._change = change = self.change_of(head)
        check_layout(head.schema, head.partitions, self._name, self._design.partition_by)
        if not isinstance(self._tables, handover.DeltaOutline):
            self._prove(*proof_of(*self._layout()))
        return TableState(
            ledger=ledger_store.read_ledger(head, self._group),
            other_ledgers=ledger_store.other_ledgers(head, self._group),
            landed_by_run=ledger_store.landings_of_run(head, self.store, self._group, run_id),
            schema=self._decoded(change),
            keeps_removed=REMOVED in head.properties,
            # A mirror accepts repeated events: the newest event of a key wins.
            look_for_rows=no_rows if MIRROR in self._design.notes else partial(look_for_rows, head),
        )

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Buffer rows for the next commit; files are written in the background."""
        if self._change is None:
            self._start_columns(rows.schema)
        super().write(rows, identity)

    @property
    def is_there(self) -> bool:
        """Whether the table existed at the last look or commit."""
        return self._head is not None

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties at the last look or commit; empty without a table."""
        return {} if self._head is None else self._head.properties

    @property
    def head(self) -> DeltaTableHead | None:
        """The table at the last look or commit, or None if it was missing."""
        return self._head

    def commit(self, landing: Landing) -> int:
        """Commit the buffered rows and the landing as a version; see `core.ports.Sink`."""
        return self.checked(landing, partial(self._append, landing))

    def _append(self, landing: Landing) -> int:
        """Commit the buffered rows; return the version."""
        files = DeltaFileChange(new=self.files)
        return self.drive(self.commit_of(landing, lambda _: files))

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Replace the rows of ranges by the buffered rows, in a single version; see `core.ports.Sink`."""
        return self.checked(landing, partial(self._replace, landing), is_replace=True)

    def _replace(self, landing: Landing) -> tuple[int, Landing]:
        """Commit the buffered rows in place of those of their ranges; return version and completed landing."""
        _, ranges = replaced_ranges(landing)
        if self._head is None:
            raise RangesNotLanded(self._name, ranges)
        refuse_replacing(self._name, self._head.properties, self._group)
        check_columns(self._design.metadata.names, self._name)
        files, written, completed = self.files, list[Add](), landing
        finder = Finder(ranges, files, partial(self.write_noting, written), self._passed_over)

        def stage(head: DeltaTableHead | None) -> DeltaFileChange:
            nonlocal completed
            assert head is not None, "the files fit no missing table"
            takeout, completed = replaced_files(self.store, head, finder, landing, self._group)
            return DeltaFileChange(takeout.out, [*takeout.remainders, *files], completed)

        checks = (not_replaced_since(self.store, self._first_version or 0, self._landed), files_fit, ranges_landed)
        version = self.drive(self.commit_of(landing, stage, written, checks=checks))
        self._landed.add(landing.landing_id)
        return version, completed

    def outline(self) -> handover.DeltaOutline:
        """Return the outline of the table, existing or new, for writing files in another process.

        Buffered rows are written first. Raises RowsNotWritable.
        """
        self._buffer.flush()
        return handover.outline(self._tables, self._name, self.target(), self.columns)

    def staging_outline(self, columns: pa.Schema) -> handover.DeltaOutline:
        """Return the outline of a staging table in this table's folder."""
        return handover.staging_outline(self._tables, self._name, columns)

    def misfit(self, files: Mapping[str, Any]) -> str | None:
        """Return the reason why handed files do not fit the table at the last `load`, or None."""
        if self._change is None:
            return "the table is not there (any more)"
        return handover.misfit(self.target(), self.store, files)

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        """Return a landing's changes of the table's schema, in words; empty once the log has lost the version."""
        return ledger_store.schema_changes(self.store, snapshot_id)

    def commit_of(
        self,
        landing: Landing,
        stage: Callable[[DeltaTableHead | None], DeltaFileChange],
        written: Sequence[Add] = (),
        *,
        checks: tuple[DeltaCheck, ...] = (),
        target: DeltaTarget | None = None,
    ) -> DeltaCommit:
        """Return a commit of files.

        :param checks: checks instead of those of an append.
        :param target: a target other than that of the next commit.
        """
        ledger = ledger_allows_overlap if self._allow_group_overlap else ledger_allows
        checks = checks or (files_fit, ledger)
        target, notes = target or self.target(), self._design.notes
        return DeltaCommit(self._name, self._group, landing, target, stage, checks, notes, written=written)

    def drive(self, commit: DeltaCommit) -> int:
        """Commit; return the version. Then delete the unused files; after an error, only if nothing can be applied."""
        committer = DeltaCommitter(self._tables, commit)
        try:
            version = committer.commit()
        except BaseException:
            # This may be a refusal or an interrupt: if the commit may have been applied, its files must stay.
            if committer.may_be_applied():
                self.leave_in_place()
            elif commit.written:
                delete_files(self.store, without_committed(commit.written, ()))
            raise
        self.leave_in_place()
        look_after(self._tables, self._name, version)
        # The next rows are written for the table after this commit.
        self._head = self._tables.open(self._name)
        self._change = SchemaChange.none(self._planned(None).metadata)
        delete_files(self.store, without_committed(commit.written, committer.committed))
        return version

    @property
    def _required(self) -> Collection[str]:
        """The columns that must have a value."""
        return {} if self._head is None else {field.name for field in self._head.schema if not field.nullable}

    def _take_columns(self) -> None:
        """Set the columns of the next commit: of a new table, or of the existing table with a schema change."""
        if self._head is None:
            self._start_columns(None)
        else:
            self._change = self.change_of(self._head)

    def target(self) -> DeltaTarget:
        """Return the target of the next commit: the table at the last look, with the columns after the commit."""
        columns = self.columns
        wanted = delta_fields(columns)
        if self._head is None:
            partitions = check_partitions(columns, self._design.partition_by)
            return DeltaTarget(None, wanted, partitions, self._planned(None).texts, self._design.properties)
        if self.starts_over(self._head):
            return DeltaTarget(self._head, wanted, self._head.partitions)
        # The table's own JSON, since it has the metadata of columns, followed by the new columns.
        fields = merged(self._head.fields, wanted)
        return DeltaTarget(self._head, fields, self._head.partitions, self._planned(None).texts)

    @property
    def columns(self) -> pa.Schema:
        """All columns, including the columns added by the next commit."""
        return arrow_schema(self.schema)

    def _planned(self, rows: pa.Table | None) -> SchemaChange:
        """Return the change of columns by the next commit; `rows` is not used, since `write` has set the columns."""
        assert self._change is not None, "load or write has set the change"
        return self._change

    def _layout(self) -> tuple[pa.Schema, Sequence[str], Sequence[tuple[str, bool, bool]]]:
        """Return the columns of files, the partition columns, and the order of rows."""
        columns = self.columns
        return columns, self.target().partitions, check_order(columns, self._design.sort_order)

    def _writing(self, rows: pa.Table) -> Callable[[], list[Add]]:
        """Return a function that writes rows as files, for any thread."""
        write = partial(write_files, self.store, *self._layout(), folder=self._folder)
        return partial(write, rows, self._prefix, self._numbers)

    def write_files(self, rows: pa.Table) -> list[Add]:
        """Write rows as files for the target table, and return the files, which only the caller owns."""
        return self._writing(rows)()

    def write_noting(self, written: list[Add], rows: pa.Table) -> list[Add]:
        """Write rows as files of an attempt, noted in `written` for the clean-up."""
        files = self.write_files(rows)
        written += files
        return files

    def _trial(self) -> Trial:
        return partial(unwritable, *self._layout())

    def _encode(self, files: Sequence[Add]) -> Mapping[str, Any]:
        return handover.encode_files(self.target(), files)

    def _decode(self, handed: Mapping[str, Any]) -> Sequence[Add]:
        files: Sequence[Add] = handed["files"]
        return files

    def _delete(self, files: Sequence[Add]) -> Sequence[str]:
        return delete_files(self.store, files)

    def _delete_unreferenced(self, folder: str) -> tuple[int, int]:
        return delete_unreferenced(self.store, self._tables.open(self._name), folder)

    def _start_columns(self, rows: pa.Schema | None) -> None:
        """Set the columns of a new table; without a schema in the design, the columns of the first rows.

        Raises InvalidArgument for columns impossible in Delta, and TableNotWritable.
        """
        self._change = SchemaChange.without_catalog(whole_schema(self._design, rows))
        # Refuses names and types unknown to Delta.
        delta_fields(self.columns)
        # A mirror's schema may have only some of its columns.
        if self.takes_records:
            self._prove(*proof_of(*self._layout()))

    def change_of(self, head: DeltaTableHead) -> SchemaChange:
        """Return the table's schema change by the next commit. Raises InvalidArgument for a contradiction."""
        if self.starts_over(head):
            return SchemaChange.without_catalog(whole_schema(self._design, None))
        for name in narrow_integers(head.schema):
            problem = f"{self._name} has a column {name!r} of Delta's byte or short."
            raise InvalidArgument("table", problem, "Make it an int with ALTER TABLE.")
        try:
            current = SchemaChange.without_catalog(to_schema(head.schema, "table"))
        except InvalidArgument as e:
            # The new error begins with the name of the argument again.
            raise InvalidArgument("table", f"{self._name}: {str(e).removeprefix('table: ')}") from e
        change = change_for(self._design, current.metadata, self._name)
        self._announce(change.texts)
        return change
