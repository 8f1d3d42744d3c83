"""Reject table of an Iceberg table, and the sink of both tables; see `tables.rejects.sink`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.update import RemovePropertiesUpdate, TableUpdate

from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.core.ports import Sink
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.attempt import FileRewrite
from airflow_lakestream.iceberg.commit.commit import RequestPart, TableCommit, property_part
from airflow_lakestream.iceberg.replace.takeout import live_files, may_hold, read_rows
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write.files import data_folder, delete_files, write_data_files
from airflow_lakestream.tables.rejects.settlement import (
    REJECTED_AT,
    PendingLanding,
    RejectSettlement,
    design_of,
    pending_of,
    rejects_of,
    with_place,
)
from airflow_lakestream.tables.rejects.sink import RejectingSink


def pending_in(table: Table | None) -> list[PendingLanding]:
    """Return the pending landings noted in a reject table."""
    return [] if table is None else pending_of(table.metadata.properties)


def settlement_of(pending: Iterable[PendingLanding], main: Table | None) -> RejectSettlement:
    """Return the decision of the main table on pending landings; if `main` is None (no table), all are open."""
    return RejectSettlement.by(pending, None if main is None else _IcebergMainLedgers(main))


class _IcebergMainLedgers:
    """`tables.rejects.settlement.MainTableLedgers` of an Iceberg table."""

    def __init__(self, main: Table) -> None:
        self._main = main
        self._sequence = {snapshot.snapshot_id: snapshot.sequence_number or 0 for snapshot in main.metadata.snapshots}
        self.properties: Mapping[str, str] = main.metadata.properties
        self.rolled_back: Sequence[str] = ledger_store.rolled_back(main.metadata)

    def place(self, consumer_group: str, landing_id: str) -> int | None:
        """Return the landing's sequence number, or None if the landing is not in the ledger.

        The number is 0 if the snapshot has expired, and below 0 if the ledger has only the landing's id.
        """
        snapshot_id = ledger_store.snapshot_of_landing(self._main, consumer_group, landing_id)
        if snapshot_id is None:
            ledgers = (self.ledger(group) for group in {consumer_group, *ledger_store.groups(self._main)})
            return next(filter(None, (ledger.noted.place(landing_id) for ledger in ledgers)), None)
        # Expired landings are older than all live landings.
        return self._sequence.get(snapshot_id, 0)

    def ledger(self, consumer_group: str) -> Ledger:
        """Return a group's ledger."""
        return ledger_store.read_ledger(self._main, consumer_group)


def files_in(table: Table, ranges: RangeSet | None) -> Iterator[FileScanTask]:
    """Yield the files of a reject table with possible rows of these offsets; default: all."""
    return (task for task in live_files(table) if ranges is None or may_hold(table.metadata, task.file, ranges))


def rows_in(table: Table, ranges: RangeSet | None, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
    """Yield all rows of the files from `files_in`."""
    for task in files_in(table, ranges):
        yield from read_rows(table.metadata, table.io, task, columns=columns)


def counting_rows(
    rejects: Table,
    main: Table,
    consumer_group: str,
    *,
    topic: str | None = None,
    ranges: RangeSet | None = None,
    columns: Sequence[str] = (),
) -> Iterator[pa.Table]:
    """Yield a group's rows that count: of landings in the main table's ledger, at landed offsets.

    :param topic: only of this topic.
    :param ranges: only at these offsets.
    :param columns: the columns to read in addition to `PLACE`; default: all.
    """
    settlement = settlement_of(pending_in(rejects), main)
    ledger = ledger_store.read_ledger(main, consumer_group)
    for identity, entry in ledger.topics.items():
        if topic in (None, identity.topic):
            wanted = entry.landed if ranges is None else entry.landed & ranges
            for rows in rows_in(rejects, wanted, with_place(columns)):
                yield rows.filter(settlement.counts(rows, consumer_group, identity, wanted))


def newest_counting_rows(
    rejects: Table, main: Table, consumer_group: str, *, columns: Sequence[str], most_bytes: int
) -> Iterator[pa.Table]:
    """Yield the rows of `counting_rows`, from the newest file to the oldest.

    :param columns: the columns to read in addition to `PLACE`.
    :param most_bytes: limit of the bytes of all files; a file that would exceed the limit is left out.
    """
    settlement = settlement_of(pending_in(rejects), main)
    topics = ledger_store.read_ledger(main, consumer_group).topics
    rejected_at = rejects.metadata.schema().find_field(REJECTED_AT).field_id
    bytes_left = most_bytes
    for task in sorted(live_files(rejects), key=lambda task: newest_of(task.file, rejected_at), reverse=True):
        if task.file.file_size_in_bytes > bytes_left:
            continue
        bytes_left -= task.file.file_size_in_bytes
        for rows in read_rows(rejects.metadata, rejects.io, task, columns=with_place(columns)):
            for identity, entry in topics.items():
                yield rows.filter(settlement.counts(rows, consumer_group, identity, entry.landed))


def newest_of(file: DataFile, column: int) -> int:
    """Return the greatest value of a time column by a file's bounds, or 0 (old) without bounds."""
    bound = (file.upper_bounds or {}).get(column)
    return 0 if bound is None else int.from_bytes(bound, "little", signed=True)


class IcebergRejects:
    """`tables.rejects.sink.RejectAccess` to Iceberg tables.

    :param table: the main table's name.
    :param records: the columns of rejected records.
    """

    def __init__(self, catalog: Catalog, table: str, consumer_group: str, records: pa.Schema) -> None:
        self._catalog, self._name = catalog, table
        design = design_of(records)
        self.sink = IcebergSink(catalog, rejects_of(table), consumer_group, design, allow_group_overlap=True)
        self.sink.takes_records = False

    def rows_at(self, ranges: RangeSet | None, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield all rows of each file of the reject table with possible rows of `ranges`."""
        assert self.sink.loaded is not None, "the caller has checked that the table exists"
        return rows_in(self.sink.loaded, ranges, columns)

    def note(self, landing: Landing, pending: Sequence[PendingLanding], settlement: RejectSettlement) -> None:
        """Commit rejected records with the note of their landing, and remove stale rows and settled notes."""
        notes = partial(with_notes, added=pending, settled=settlement.settled)
        if self.sink.loaded is None:
            self.sink.commit(landing, notes)
            return
        written: list[DataFile] = []

        def without_stale_rows(table: Table) -> FileRewrite:
            """Write the remaining rows of files with stale rows as new files; return the old and the new files."""
            files = files_in(table, settlement.ranges) if settlement.is_due else ()
            rows = ((task.file, pa.concat_tables(read_rows(table.metadata, table.io, task))) for task in files)
            old, new = list[DataFile](), list[DataFile]()
            for file, remaining in settlement.remainders(rows):
                old.append(file)
                new_files = write_data_files(table.metadata, table.io, remaining, uuid.uuid4().hex)
                written.extend(new_files)
                new += new_files
            return FileRewrite(old, new)

        self.sink.rewrite(landing, without_stale_rows, written, notes)

    def main_ledgers(self) -> _IcebergMainLedgers | None:
        """Return the ledgers of the main table, or None if the table does not exist."""
        try:
            return _IcebergMainLedgers(self._main())
        except NoSuchTableError:
            return None

    def _main(self) -> Table:
        return self._catalog.load_table(self._name)

    def new_path(self, folder: str) -> str:
        """Return a new path for records, below a folder of the main table's data."""
        return f"{data_folder(self._main().metadata, folder)}/{uuid.uuid4().hex}-rejected.arrows"

    def store(self, path: str, records: bytes) -> None:
        """Store records for the committing process."""
        with self._main().io.new_output(path).create() as stream:
            stream.write(records)

    def read(self, path: str) -> bytes:
        """Return records stored by another worker."""
        return _read(self._main().io, path)

    def take(self, path: str, inner: Sink) -> tuple[bytes, Sequence[str]]:
        """Read and delete records stored by a process of this run; return them, and the paths possibly left."""
        # The commit may have to create the table first: until then only the inner sink knows it.
        io = inner.outline().io
        return _read(io, path), delete_files(io, [path])

    def is_there(self, path: str) -> bool:
        """Return whether stored records exist."""
        return self._main().io.new_input(path).exists()

    def delete(self, paths: Sequence[str]) -> Sequence[str]:
        """Delete stored records; return the paths possibly left. Never raises."""
        try:
            return delete_files(self._main().io, paths)
        except NoSuchTableError:
            return paths


def _read(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as stream:
        return stream.read()


def with_notes(commit: TableCommit, added: Sequence[PendingLanding], settled: Sequence[PendingLanding]) -> TableCommit:
    """Return the commit with notes of the added landings, and without notes of the settled landings."""

    def notes(head: Table | None, _: int) -> RequestPart:
        updates: tuple[TableUpdate, ...] = property_part({landing.key: landing.encode() for landing in added}).updates
        if settled and head is not None:
            # Another landing may have settled them too; the removal of a missing property fails.
            removals = [landing.key for landing in settled if landing.key in head.metadata.properties]
            updates = (*updates, RemovePropertiesUpdate(removals=removals))
        return RequestPart(updates=updates)

    return replace(commit, additions=(*commit.additions, notes))


def rejecting_sink(inner: Sink, catalog: Catalog, table: str, consumer_group: str, records: pa.Schema) -> RejectingSink:
    """Return the sink of an Iceberg table with its reject table.

    :param inner: the sink of the table whose ledger decides.
    :param table: that table's name.
    :param records: the columns of rejected records.
    """
    access = IcebergRejects(catalog, table, consumer_group, records)
    return RejectingSink(inner, access, table, consumer_group)
