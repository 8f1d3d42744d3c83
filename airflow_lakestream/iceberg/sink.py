"""One Iceberg table as a sink: rows become data files, and a landing commits them together with the ledger.

The one transaction is PyIceberg's; what makes it exactly once is the guard inside its retry. Read `committing` and
`guard` with this.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from airflow_lakestream.core import codec
from airflow_lakestream.core.landing.unaccounted import no_rows
from airflow_lakestream.core.ledger import Landing, Ledger, TopicIdentity
from airflow_lakestream.core.mirrors import MIRROR, refuse_mirror
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import RangesNotLanded, RowsNotWritable, TableState
from airflow_lakestream.core.ranges import PartitionKey, RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.commit.attempt import AppendAttempt, Attempt, CreateAttempt
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown as CommitOutcomeUnknown
from airflow_lakestream.iceberg.commit.committing import CommitRefused as CommitRefused
from airflow_lakestream.iceberg.commit.committing import Committer
from airflow_lakestream.iceberg.commit.guard import CommitGuard, StaleFiles
from airflow_lakestream.iceberg.commit.new_table import NewTable
from airflow_lakestream.iceberg.fan_out.books import BOOKS, LandedByFanOut, note_on
from airflow_lakestream.iceberg.fan_out.strangers import NamingTopic, landed_by_fan_out
from airflow_lakestream.iceberg.replace.replace import ReplaceAttempt, ReplaceGuard
from airflow_lakestream.iceberg.replace.since import FirstLook
from airflow_lakestream.iceberg.replace.takeout import Finder, check_columns
from airflow_lakestream.iceberg.unaccounted import look_for_rows
from airflow_lakestream.iceberg.write import handover, layout
from airflow_lakestream.iceberg.write.files import data_folder, delete_files, unwritable, write_data_files
from airflow_lakestream.iceberg.write.orphans import delete_unreferenced, list_files
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.replacing import what_it_replaces
from airflow_lakestream.tables.schema.arrow_types import fields_from_arrow
from airflow_lakestream.tables.schema.change import SchemaChange, change_for, changes_in
from airflow_lakestream.tables.schema.columns import (
    check_compatible,
    check_metadata,
    payload_schema,
    to_schema,
    with_metadata,
)
from airflow_lakestream.tables.trial import is_of_rows

log = logging.getLogger(__name__)

# Rows are held until so many bytes of Arrow have come together, then written as files while reading goes on.
FILE_BYTES = 64 * 2**20
# One piece is written while the next comes together; a third would only cost memory.
WRITES_AHEAD = 1

Kind = TypeVar("Kind", bound=CommitGuard)


class NotIceberg(InvalidArgument):
    """The catalog has a table of that name, and it is none of Iceberg's."""

    def __init__(self, table: str) -> None:
        super().__init__("table", f"{table} is there, and is no Iceberg table.", "Name another one.")


class IcebergSink:
    """`core.ports.Sink` on an Iceberg table, through any PyIceberg catalog that compares and sets."""

    # The rows that it writes are those that it is given.
    takes_records = True

    def __init__(
        self,
        catalog: Catalog,
        table: str,
        consumer_group: str,
        design: TableDesign,
        *,
        allow_group_overlap: bool = False,
    ) -> None:
        self._catalog = catalog
        self._name = table
        self._group = consumer_group
        self._design = design
        self._allow_group_overlap = allow_group_overlap
        self._table: Table | None = None
        self._staged: NewTable | None = None
        # Of the table's schema, with the next commit; None while there is neither a table nor a staged one.
        self._change: SchemaChange | None = None
        self._rows: list[pa.Table] = []
        self._rows_bytes = 0
        self._passed_over: list[tuple[PartitionKey, pa.Array]] = []
        self._writes: list[Future[list[DataFile]]] = []
        self._files: list[DataFile] = []
        self._handed_over = 0
        self._adopted: list[DataFile] = []
        self._folder = ""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lakestream-write")
        self._prefix = uuid.uuid4().hex
        self._numbers = itertools.count()
        # For the whole life of the run, however often it plans anew: a replace must see those that came after it.
        self._first: FirstLook | None = None
        self._landed: set[str] = set()
        # The topic whose name has chosen the table; None where people did.
        self.named_by: NamingTopic | None = None

    def load(self, run_id: str) -> TableState:
        """Look at the table anew, and check it against the design. Raises InvalidArgument where they contradict.

        Raises what `fitness` raises for a catalog or a table that nothing can be landed in.
        """
        fitness.check_catalog(self._catalog, self._name)
        try:
            self._table = self._catalog.load_table(self._name)
        except NoSuchIcebergTableError as e:
            raise NotIceberg(self._name) from e
        except NoSuchTableError:
            self._table = self._change = None
            self._check_name()
            self._first = self._first or FirstLook()
            return self._missing_table()
        self._check_name()
        self._change = self._check_design(self._table)
        reading = ledger_store.read(self._table, self._group)
        self._first = self._first or FirstLook(self._table, reading)
        others = {
            g: ledger_store.read_ledger(self._table, g) for g in ledger_store.groups(self._table) if g != self._group
        }
        return TableState(
            ledger=reading.ledger,
            others=others,
            landed_by_run=ledger_store.landings_of_run(self._table, reading, self._group, run_id),
            schema=payload_schema(
                self._change.schema, self._design.metadata.names, self._design.schema, with_others=self._design.grows
            ),
            part=note_on(self._table.metadata.properties),
            # A mirror takes events as often as they come: the newest of a key wins.
            look_for_rows=no_rows if MIRROR in self._design.notes else partial(look_for_rows, self._table),
        )

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Take rows for the next commit; they are written as files in the background."""
        if self._design.grows:
            self._make_room(rows)
        self._rows.append(rows)
        self._rows_bytes += rows.nbytes
        if self._rows_bytes >= FILE_BYTES:
            self._write_out()
        elif self._rows_bytes >= FILE_BYTES // 2:
            # Else there would be two files' rows in memory, which large records come to faster than they are written.
            self._collect(0)

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: pa.Array) -> None:
        """Be told of records that were read and became no row."""
        self._passed_over.append(((identity.topic, partition), offsets))

    def commit(self, landing: Landing) -> int:
        """Commit the rows taken and the landing in one snapshot; see `core.ports.Sink`."""
        self._write_out()
        self._collect(0)
        return self._drive(self._attempt(landing), landing)

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Replace the rows of ranges by the rows taken, in one snapshot; see `core.ports.Sink`."""
        _, ranges = what_it_replaces(landing)
        if self._table is None:
            raise RangesNotLanded(self._name, ranges)
        check_columns(self._design.metadata.names, self._name)
        self._write_out()
        self._collect(0)
        attempt = self._replace_attempt(self._table, landing, ranges)
        snapshot_id = self._drive(attempt, landing)
        return snapshot_id, attempt.landing_of(snapshot_id)

    def write_below(self, folder: str) -> None:
        """Write files below this folder of the table's data from now on."""
        self._folder = folder

    def hand_over(self) -> Mapping[str, Any]:
        """Write out the rows taken; return the files since the last call, for `adopt`. See `core.ports.Sink`."""
        self._write_out()
        self._collect(0)
        new, self._handed_over = self._files[self._handed_over :], len(self._files)
        passed_over, self._passed_over = self._passed_over, []
        return handover.encode_files(self._target(None).metadata, new, passed_over)

    def let_go(self) -> None:
        """Leave the files that were handed over to who took them."""
        del self._files[: self._handed_over]
        self._handed_over = 0

    def outline(self) -> handover.Outline:
        """Return what a sink in another process needs to write for the table, be it only staged; it can be pickled."""
        self._write_out()
        target = self._target(None)
        # What it took to read the first records is better had by those who read on.
        pa.default_memory_pool().release_unused()
        return handover.Outline(self._name, target.metadata, target.io)

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Take files that a process of this run wrote; see `core.ports.Sink`."""
        self._files += handover.decode_files(files)
        self._passed_over += handover.decode_passed_over(files)

    def misfit(self, files: Mapping[str, Any]) -> str | None:
        """Say why handed files can't go into the table as it was at the last `load`; None if they can."""
        if self._table is None or self._change is None:
            return "the table is not there (any more)"
        return handover.misfit(self._change.metadata, self._table.io, files)

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        """Say what a landing changed in the table's schema; nothing once its snapshot has expired."""
        return changes_in(None if self._table is None else self._table.metadata.snapshot_by_id(snapshot_id))

    def adopt(self, files: Mapping[str, Any]) -> None:
        """Take files that another worker handed over for the next commit."""
        self._adopted += handover.decode_files(files)
        self._passed_over += handover.decode_passed_over(files)

    def sweep(self, folder: str) -> None:
        """Delete the files below this folder of the table's data that no snapshot of the table has; never raises."""
        try:
            # What is written for a table that is still to be created lies where that is going to be.
            staged = self._staged and self._staged.table
            known = staged or self._table or self._catalog.load_table(self._name)
            # Most often nothing is left, and neither table nor manifests are to be read for that.
            if next(list_files(known.io, data_folder(known.metadata, folder)), None) is None:
                return
            table = staged or self._catalog.load_table(self._name)
            deleted, left = delete_unreferenced(table, data_folder(table.metadata, folder))
        except NoSuchTableError:
            return
        except Exception as e:  # noqa: BLE001  # the landing is done; files left over harm nobody
            log.warning("%s: files of this run that are in no snapshot were left in %s: %r", self._name, folder, e)
            return
        if deleted or left:
            log.info("%s: deleted %s files of this run that are in no snapshot, left %s", self._name, deleted, left)

    def discard(self) -> None:
        """Delete the files of rows taken since the last commit, and a namespace made for them; never raises."""
        self._rows, self._rows_bytes, self._adopted, self._handed_over = [], 0, [], 0
        self._passed_over = []
        for write in self._writes:
            if write.exception() is None:
                self._files += write.result()
        self._writes = []
        for path in delete_files(self._io(), [f.file_path for f in self._files]) if self._files else ():
            log.warning("An uncommitted data file could not be deleted: %s", path)
        self._files = []
        if self._staged is not None:
            self._staged.drop_namespace_if_made()
            self._staged = self._change = None

    def _check_name(self) -> None:
        """Refuse a table that a topic's name has chosen and may not have. Raises InvalidArgument."""
        if self.named_by is not None:
            self.named_by.check(self._name, self._table, self._group)

    def _missing_table(self) -> TableState:
        schema = None
        if self._design.schema is not None:
            whole = with_metadata(self._design.schema, self._design.metadata)
            layout.partition_spec(whole, self._design.partition_by)
            layout.sort_order(whole, self._design.sort_order)
            schema = payload_schema(whole, self._design.metadata.names)
        return TableState(Ledger(self._group), schema=schema, exists=False)

    def _check_design(self, table: Table) -> SchemaChange:
        fitness.check_table(table)
        design = self._design
        self._check_part(table)
        if MIRROR not in design.notes:
            refuse_mirror(self._name, table.metadata.properties, "landed into, or replaced, by records")
        change = change_for(design, table.metadata, self._name)
        if design.schema is not None:
            check_compatible(design.schema, change.schema, self._name, design.metadata, design.argument)
        else:
            check_metadata(change.schema, self._name, design.metadata)
        layout.check_layout(table, design.partition_by, design.sort_order)
        if change:
            log.info("The schema of %s will be changed with the next commit: %s", self._name, "; ".join(change.texts))
        return change

    def _check_part(self, table: Table) -> None:
        """Refuse a fan-out's home, and a table that this group landed in as one of several. Raises LandedByFanOut."""
        note = note_on(table.metadata.properties)
        if note and (BOOKS in table.metadata.properties or landed_by_fan_out(table, self._group)):
            raise LandedByFanOut(self._name, self._group, note)

    def _target(self, rows: pa.Table | None) -> Table:
        """Return the table to write for: the real one, or the staged one that the first commit creates."""
        table = self._table
        if table is None:
            if self._staged is None:
                self._staged = NewTable.stage(self._catalog, self._name, self._whole_schema(rows), self._design)
            table = self._staged.table
        if self._change is None:
            self._change = SchemaChange.none(table.metadata)
        return self._change.target(table)

    def _make_room(self, rows: pa.Table) -> None:
        """Add the columns of the rows to those that the next commit changes. Raises StaleFiles where that can't be."""
        if self._rows and rows.schema.equals(self._rows[-1].schema):
            return
        names = self._design.metadata.names
        payload = fields_from_arrow(pa.schema([f for f in rows.schema if f.name not in names]), "rows")
        self._target(rows)
        assert self._change is not None
        # Wider types come only where the decoder was told to follow the records: in a mirror's events.
        policy = max(self._design.evolution, SchemaEvolution.ADD, key=list(SchemaEvolution).index)
        change, problems = self._change.and_then(payload, policy)
        if problems:
            # The decoder knew the table as it was: another run has changed it meanwhile.
            raise StaleFiles(self._name, f"the schema was changed ({'; '.join(problems)})")
        if new := change.texts[len(self._change.texts) :]:
            log.info("The schema of %s will be changed with the next commit: %s", self._name, "; ".join(new))
        self._change = change

    def _whole_schema(self, rows: pa.Table | None) -> Schema:
        payload = self._design.schema
        if payload is None:
            assert rows is not None, "the decoder was made from a schema or from a first batch"
            columns = [f for f in rows.schema if f.name not in self._design.metadata.names]
            payload = to_schema(pa.schema(columns))
        return with_metadata(payload, self._design.metadata)

    def _write_out(self) -> None:
        if not self._rows:
            return
        # Columns that came up later are null before.
        rows = pa.concat_tables(self._rows, promote_options="permissive" if self._design.grows else "none")
        self._rows, self._rows_bytes = [], 0
        # No rows at all still say what a new table's columns are.
        target = self._target(rows)
        if not rows.num_rows:
            return
        self._collect(WRITES_AHEAD)
        write = partial(write_data_files, folder=self._folder)
        self._writes.append(self._pool.submit(write, target.metadata, target.io, rows, self._prefix, self._numbers))

    def _collect(self, leave: int) -> None:
        """Wait until no more than `leave` writes are under way."""
        while len(self._writes) > leave:
            try:
                self._files += self._writes.pop(0).result()
            except BaseException as error:
                if not is_of_rows(error):
                    raise
                trial = partial(unwritable, self._target(None).metadata) if self.takes_records else None
                raise RowsNotWritable(self._name, f"{type(error).__name__}: {error}", trial) from error

    def _attempt(self, landing: Landing) -> Attempt:
        guard = self._guard(landing, CommitGuard, allow_group_overlap=self._allow_group_overlap)
        summary = codec.encode_summary(self._group, landing)
        if self._table is None:
            assert self._staged is not None
            return CreateAttempt(self._staged, guard, summary, self._change)
        return AppendAttempt(self._catalog, self._name, guard, summary)

    def _replace_attempt(self, table: Table, landing: Landing, ranges: RangeSet) -> ReplaceAttempt:
        guard = self._guard(landing, ReplaceGuard, first=self._first or FirstLook(), own=self._landed)
        metadata = self._target(None).metadata
        write = partial(write_data_files, metadata, table.io, prefix=self._prefix, counter=self._numbers)
        finder = Finder(ranges, [*self._files, *self._adopted], write, self._passed_over)
        return ReplaceAttempt(self._catalog, self._name, guard, self._group, landing, finder)

    def _guard(self, landing: Landing, kind: Callable[..., Kind], **facts: Any) -> Kind:
        """Return a landing's guard, for the table that files are written for; `facts` are what the kind takes more."""
        self._target(None)
        assert self._change is not None, "there is one for each target"
        guard = kind(self._catalog, self._group, landing, self._change.base, change=self._change, **facts)
        guard.notes = self._design.notes
        return guard

    def _drive(self, attempt: Attempt, landing: Landing) -> int:
        committer = Committer(self._catalog, self._name, self._group, landing, attempt)
        try:
            snapshot_id = committer.commit([*self._files, *self._adopted])
        except BaseException:
            # Refused, or interrupted in the middle of it: what may have been applied must not lose its files.
            if committer.may_be_applied:
                self._leave_in_place()
            raise
        self._landed.add(landing.landing_id)
        self._leave_in_place()
        # The next rows are written for what the table is now: it may only just have been created.
        self._table = self._catalog.load_table(self._name)
        self._change = SchemaChange.none(self._table.metadata)
        return snapshot_id

    def _leave_in_place(self) -> None:
        """Keep files and namespace from being discarded."""
        self._files, self._adopted, self._handed_over, self._staged = [], [], 0, None
        self._passed_over = []

    def _io(self) -> FileIO:
        return self._target(None).io
