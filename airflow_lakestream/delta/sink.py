"""One Delta table as a sink: rows become Parquet files, and a landing commits them together with the ledger.

The compare-and-set is Delta's own, one file for each version. Read `committing` and `guard` with this.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.landing.unaccounted import no_rows
from airflow_lakestream.core.ledger import Landing, Ledger, TopicIdentity
from airflow_lakestream.core.mirrors import MIRROR, refuse_mirror
from airflow_lakestream.core.ports import RangesNotLanded, RowsNotWritable, StaleFiles, TableState
from airflow_lakestream.core.ranges import PartitionKey
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.commit.committing import Committer, look_after
from airflow_lakestream.delta.commit.guard import Target, check_fit, check_ledger, landing_actions
from airflow_lakestream.delta.commit.log import Action
from airflow_lakestream.delta.commit.protocol import NTZ_FEATURE, check_writable
from airflow_lakestream.delta.design import DeltaDesign, Fit
from airflow_lakestream.delta.head import Head
from airflow_lakestream.delta.replace.replace import Replacement
from airflow_lakestream.delta.replace.takeout import Finder, check_columns
from airflow_lakestream.delta.storage import Tables
from airflow_lakestream.delta.unaccounted import look_for_rows
from airflow_lakestream.delta.write import handover
from airflow_lakestream.delta.write.buffer import RowBuffer
from airflow_lakestream.delta.write.columns import delta_fields, merged, uses_ntz
from airflow_lakestream.delta.write.files import Add, delete_files, unwritable, write_files
from airflow_lakestream.delta.write.layout import check_layout, check_order, check_partitions
from airflow_lakestream.delta.write.orphans import delete_unreferenced
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.replacing import what_it_replaces
from airflow_lakestream.tables.trial import is_of_rows

log = logging.getLogger(__name__)

APPEND = ("WRITE", {"mode": "Append"})
CREATE = ("CREATE TABLE AS SELECT", {"mode": "ErrorIfExists"})
OVERWRITE = ("WRITE", {"mode": "Overwrite"})


class DeltaSink:
    """`core.ports.Sink` on a Delta table."""

    # The rows that it writes are those that it is given.
    takes_records = True

    def __init__(
        self,
        tables: Tables,
        table: str,
        consumer_group: str,
        design: DeltaDesign,
        *,
        allow_group_overlap: bool = False,
    ) -> None:
        self._tables = tables
        self._name = table
        self._group = consumer_group
        self._design = design
        self._allow_group_overlap = allow_group_overlap
        self._head: Head | None = None
        # Of the table as it is to be with the next commit; None while nobody knows its columns.
        self._fit: Fit | None = None
        self._buffer = RowBuffer(self._write_files, shares=isinstance(tables, handover.Outline))
        self._adopted: list[Add] = []
        self._passed_over: list[tuple[PartitionKey, pa.Array]] = []
        self._handed_over = 0
        self._folder = ""
        self._prefix = uuid.uuid4().hex
        self._numbers = itertools.count()
        # For the whole life of the run, however often it plans anew: a replace must see those that came after it.
        self._first_version: int | None = None
        self._landed: set[str] = set()

    @cached_property
    def _store(self) -> Any:
        # Only when it is needed: of a folder that is not there yet it is made.
        return self._tables.store(self._name)

    def load(self, run_id: str) -> TableState:
        """Look at the table anew, and check it against the design. Raises InvalidArgument where they contradict."""
        self._head = head = self._tables.open(self._name)
        if self._first_version is None:
            self._first_version = -1 if head is None else head.version
        if head is None:
            self._fit = self._design.columns.asked_for()
            self._check_new(self._fit)
            return TableState(Ledger(self._group), schema=self._fit and self._fit.decoder, exists=False)
        check_writable(head)
        if MIRROR not in self._design.notes:
            refuse_mirror(self._name, head.properties, "landed into, or replaced, by records")
        ledger_store.check_not_taken_away(head, self._group, self._store)
        self._fit = fit = self._design.columns.fit(head.schema, self._name)
        check_layout(head.schema, head.partitions, self._name, self._design.partition_by)
        check_order(fit.schema, self._design.sort_order)
        self._check_change(head, fit)
        others = {g: ledger_store.read_ledger(head, g) for g in ledger_store.groups(head) if g != self._group}
        return TableState(
            ledger=ledger_store.read_ledger(head, self._group),
            others=others,
            landed_by_run=ledger_store.landings_of_run(head, self._store, self._group, run_id),
            schema=fit.decoder,
            # A mirror takes events as often as they come: the newest of a key wins.
            look_for_rows=no_rows if MIRROR in self._design.notes else partial(look_for_rows, head),
        )

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Take rows for the next commit; they are written as files in the background."""
        if self._fit is None:
            self._fit = self._design.columns.of_rows(rows.schema)
            self._check_new(self._fit)
        elif self._design.grows:
            self._make_room(rows.schema)
        self._buffer.take(rows)

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: pa.Array) -> None:
        """Be told of records that were read and became no row."""
        self._passed_over.append(((identity.topic, partition), offsets))

    def commit(self, landing: Landing) -> int:
        """Commit the rows taken and the landing in one version; see `core.ports.Sink`."""
        adds = [*self._buffer.flush(), *self._adopted]
        target = self._target()

        def make(head: Head | None) -> list[Action]:
            check_fit(head, target, self._name)
            check_ledger(head, self._group, landing, allow_group_overlap=self._allow_group_overlap)
            files = [{"add": dict(add)} for add in adds]
            return self._actions(head, target, landing, files, CREATE if head is None else APPEND)

        return self._drive(Committer(self._tables, self._name, landing.landing_id, make))

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Replace the rows of ranges by the rows taken, in one version; see `core.ports.Sink`."""
        _, ranges = what_it_replaces(landing)
        if self._head is None:
            raise RangesNotLanded(self._name, ranges)
        check_columns(self._design.metadata.names, self._name)
        files, target = [*self._buffer.flush(), *self._adopted], self._target()
        finder = Finder(self._store, ranges, files, self._write_files, self._passed_over)
        replacement = Replacement(
            store=self._store,
            table=self._name,
            consumer_group=self._group,
            landing=landing,
            target=target,
            files=files,
            finder=finder,
            since=self._first_version or 0,
            own=self._landed,
            notes=dict(self._design.notes),
        )
        committer = Committer(self._tables, self._name, landing.landing_id, replacement.make)
        try:
            version = self._drive(committer)
        except BaseException:
            if not committer.may_be_applied():
                delete_files(self._store, finder.written)
            raise
        assert replacement.made is not None
        delete_files(self._store, [add for add in finder.written if add not in replacement.kept])
        self._landed.add(landing.landing_id)
        return version, replacement.made

    def sweep(self, folder: str) -> None:
        """Delete the files below this folder of the table's that no version of the table has; never raises."""
        try:
            deleted, left = delete_unreferenced(self._store, self._tables.open(self._name), folder)
        except Exception as e:  # noqa: BLE001  # the landing is done; VACUUM takes what is left over
            log.warning("%s: files of this run that are in no version were left in %s: %r", self._name, folder, e)
            return
        if deleted or left:
            log.info("%s: deleted %s files of this run that are in no version, left %s", self._name, deleted, left)

    def discard(self) -> None:
        """Delete the files of rows taken since the last commit; never raises."""
        self._adopted, self._passed_over, self._handed_over = [], [], 0
        files = self._buffer.drop()
        for path in delete_files(self._store, files) if files else ():
            log.warning("An uncommitted data file could not be deleted: %s", path)

    def write_below(self, folder: str) -> None:
        """Write files below this folder of the table's from now on."""
        self._folder = folder

    def hand_over(self) -> Mapping[str, Any]:
        """Write out the rows taken; return the files since the last call, for `adopt`. See `core.ports.Sink`."""
        files = self._buffer.flush()
        new, self._handed_over = files[self._handed_over :], len(files)
        passed_over, self._passed_over = self._passed_over, []
        return handover.encode_files(self._target(), new, passed_over)

    def let_go(self) -> None:
        """Leave the files that were handed over to who took them."""
        del self._buffer.files[: self._handed_over]
        self._handed_over = 0

    def outline(self) -> handover.Outline:
        """Return what a sink in another process needs to write for the table, be it not there yet."""
        self._buffer.flush()
        assert self._fit is not None, "its columns are known by now"
        return handover.outline(self._tables, self._name, self._target(), self._fit.schema)

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Take files that a process of this run wrote; see `core.ports.Sink`."""
        self._buffer.files += files["files"]
        self._passed_over += handover.decode_passed_over(files)

    def misfit(self, files: Mapping[str, Any]) -> str | None:
        """Say why handed files can't go into the table as it was at the last `load`; None if they can."""
        if self._fit is None:
            return "the table is not there (any more)"
        return handover.misfit(self._target(), self._store, files)

    def adopt(self, files: Mapping[str, Any]) -> None:
        """Take files that another worker handed over for the next commit."""
        self._adopted += files["files"]
        self._passed_over += handover.decode_passed_over(files)

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        """Say what a landing changed in the table's schema; nothing once the log does not go back to it."""
        return ledger_store.schema_changes(self._store, snapshot_id)

    def _drive(self, committer: Committer) -> int:
        try:
            version = committer.commit()
        except BaseException:
            # Refused, or interrupted in the middle of it: what may have been applied must not lose its files.
            if committer.may_be_applied():
                self._leave_in_place()
            raise
        self._leave_in_place()
        look_after(self._tables, self._name, version)
        # The next rows are written for what the table is now.
        self._head = self._tables.open(self._name)
        self._fit = self._fit and self._fit.made()
        return version

    def _actions(
        self,
        head: Head | None,
        target: Target,
        landing: Landing,
        files: Sequence[Action],
        operation: tuple[str, dict[str, Any]],
        *,
        notes: Mapping[str, str] | None = None,
        gone: Sequence[str] = (),
    ) -> list[Action]:
        noted = self._design.notes if notes is None else notes
        return landing_actions(head, target, self._group, landing, files, operation, noted, gone)

    def _leave_in_place(self) -> None:
        """Keep files from being discarded."""
        self._buffer.forget()
        self._adopted, self._passed_over, self._handed_over = [], [], 0

    def _target(self) -> Target:
        assert self._fit is not None, "a commit follows a load, or the first rows"
        wanted = delta_fields(self._fit.schema)
        if self._head is None:
            partitions = check_partitions(self._fit.schema, self._design.partition_by)
            return Target(None, wanted, partitions, self._fit.changes, self._design.properties)
        fields = merged(self._head.fields, wanted)
        return Target(self._head, fields, self._head.partitions, self._fit.changes)

    def _write_files(self, rows: pa.Table) -> list[Add]:
        assert self._fit is not None
        schema, partitions = self._fit.schema, self._target().partitions
        order = check_order(schema, self._design.sort_order)
        try:
            return write_files(
                self._store, schema, partitions, order, rows, self._prefix, self._numbers, folder=self._folder
            )
        except BaseException as error:
            if not is_of_rows(error):
                raise
            trial = partial(unwritable, schema, partitions, order) if self.takes_records else None
            raise RowsNotWritable(self._name, f"{type(error).__name__}: {error}", trial) from error

    def _check_new(self, fit: Fit | None) -> None:
        schema = None if fit is None else fit.schema
        if schema is not None:
            delta_fields(schema)
        check_partitions(schema, self._design.partition_by)
        check_order(schema, self._design.sort_order)

    def _check_change(self, head: Head, fit: Fit) -> None:
        if not fit.changes:
            return
        new = merged(head.fields, delta_fields(fit.schema))
        if uses_ntz(new) and not uses_ntz(head.fields) and NTZ_FEATURE not in head.features:
            raise InvalidArgument(
                "schema",
                f"{self._name} has no table feature {NTZ_FEATURE}, which a timestamp_ntz needs.",
                "Make it a timestamp with zone, or add the feature to the table.",
            )
        log.info("The schema of %s will be changed with the next commit: %s", self._name, "; ".join(fit.changes))

    def _make_room(self, rows: pa.Schema) -> None:
        """Add the columns of the rows to those of the next commit. Raises StaleFiles where that can't be."""
        assert self._fit is not None
        names = self._design.metadata.names
        fit, problems = self._fit.grown(pa.schema([field for field in rows if field.name not in names]))
        if problems:
            # The decoder knew the table as it was: another run has changed it meanwhile.
            raise StaleFiles(self._name, f"the schema was changed ({'; '.join(problems)})")
        self._fit = fit
