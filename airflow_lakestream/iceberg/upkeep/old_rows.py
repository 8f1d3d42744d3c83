"""Removal of old rows from an Iceberg table: whole files by their bounds, in a guarded commit that keeps the ledger.

Of a file that goes, only the columns with offsets are read, and not even these if its bounds prove the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform, TimeTransform
from pyiceberg.types import DateType

from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.attempt import CommitAttempt
from airflow_lakestream.iceberg.commit.row_delta import exchange_of_files
from airflow_lakestream.iceberg.fan_out import books
from airflow_lakestream.iceberg.replace.takeout import bounds_of, read_rows
from airflow_lakestream.iceberg.upkeep import ledger_edit
from airflow_lakestream.iceberg.upkeep.compaction import (
    FileRewriter,
    RewriteInterrupted,
    RewrittenGroup,
    TableHead,
    discard,
)
from airflow_lakestream.iceberg.upkeep.compaction_plan import FileGroup, LiveFile
from airflow_lakestream.tables.coordinates import COORDINATES
from airflow_lakestream.tables.retention import (
    FileAge,
    OldRowFile,
    PositionReader,
    RemovalReport,
    RemovedPositions,
    RetentionRefused,
    RowCutoff,
    RowRetention,
    files_to_remove,
    ledgers_after,
    within_bound,
)
from airflow_lakestream.tables.takeout import FILES_AT_ONCE

_OldDataFile = OldRowFile[LiveFile, RewrittenGroup]
# Key in the summary of a removal: the number of rows.
SUMMARY_OLD_ROWS = "lakestream.old-rows-removed"
# The remedy for old rows with too many ranges of offsets.
MANY_RANGES = (
    "Partition the table by the time; or delete the rows by an engine, and run `lakestream ledger forget` "
    "with whole ranges, such as --rows 'topic[0]:0-5000'."
)


def age_of(metadata: TableMetadata, file: DataFile, cutoff: RowCutoff) -> FileAge:
    """Return the age of a file's rows by its partition and its bounds."""
    column, limit = metadata.schema().find_field(cutoff.column), cutoff.number
    spec = metadata.specs()[file.spec_id]
    for position, term in enumerate(spec.fields):
        transform: Any = term.transform
        if term.source_id != column.field_id or not isinstance(transform, (IdentityTransform, TimeTransform)):
            continue
        if (value := file.partition[position]) is None:
            return FileAge.NEW
        # The value of the partition with the cutoff in it.
        edge = transform.transform(column.field_type)(limit) if transform.can_transform(column.field_type) else None
        if isinstance(value, int) and edge is not None and value != edge:
            # Rising transforms: a row of an earlier partition is before the cutoff.
            return FileAge.OLD if value < edge else FileAge.NEW
    nulls = (file.null_value_counts or {}).get(column.field_id)
    if nulls is not None and nulls >= file.record_count:
        return FileAge.NEW
    bounds = file.lower_bounds, file.upper_bounds
    low, high = (_bound(column.field_type, by_column, column.field_id) for by_column in bounds)
    if low is not None and low >= limit:
        return FileAge.NEW
    return FileAge.OLD if high is not None and high < limit and nulls == 0 else FileAge.MIXED


def _bound(kind: Any, bounds: dict[int, bytes] | None, field_id: int) -> int | None:
    """Return a bound as a number, or None if it is missing or of a former type of the column."""
    value = (bounds or {}).get(field_id)
    if value is None or len(value) != (4 if isinstance(kind, DateType) else 8):
        return None
    return int(from_bytes(kind, value))


@dataclass(frozen=True)
class _IcebergOldRowReader:
    """Reader of the old rows of a table's files at a head."""

    table: Table
    cutoff: RowCutoff
    positions: PositionReader
    is_over: Callable[[], bool]

    def look(self, live: LiveFile) -> _OldDataFile | None:
        """Return a file's old rows; None if the caller asked to end."""
        if self.is_over():
            return None
        is_old = age_of(self.table.metadata, live.file, self.cutoff) is FileAge.OLD
        if is_old and (proven := self._proven(live)) is not None:
            return _OldDataFile(live, live.file.record_count, RemovedPositions(own=proven))
        return _OldDataFile.read(live, self._read(live), self.cutoff, self.positions, is_old=is_old)

    def remainder(self, live: LiveFile) -> RewrittenGroup:
        """Write the rows of a file that are not old. Raises RewriteInterrupted."""
        metadata = self.table.metadata
        rewriter = FileRewriter(metadata, self.table.io, self.table.sort_order(), self.is_over, self._keep)
        return rewriter.rewrite(FileGroup(live.file.spec_id, live.file.partition, (live,), 1))

    def _keep(self, rows: pa.Table) -> pa.Table:
        return rows.filter(pc.invert(self.cutoff.old(rows)))

    def _read(self, live: LiveFile) -> Iterator[pa.Table]:
        """Yield the live rows of a file, with the columns of positions and of the age."""
        metadata, io = self.table.metadata, self.table.io
        if live.equalities:
            return FileRewriter(metadata, io, self.table.sort_order()).live_rows([live])
        columns = tuple(dict.fromkeys((*self.positions.roots, self.cutoff.column)))
        return read_rows(metadata, io, FileScanTask(live.file, set(live.positions)), columns=columns)

    def _proven(self, live: LiveFile) -> RangeSet | None:
        """Return the offsets of a file's rows if metadata prove them; None if the file has to be read."""
        if live.positions or live.equalities:
            return None
        nulls, schema = live.file.null_value_counts or {}, self.table.schema()
        bounds = [bounds_of(schema, live.file, name) for name in COORDINATES]
        ids = [schema.find_field(name).field_id for name in COORDINATES if name in schema.column_names]
        has_nulls = any(nulls.get(field_id) != 0 for field_id in ids)
        return self.positions.proven(bounds, live.file.record_count, has_nulls=has_nulls)


def _candidates(table: Table, cutoff: RowCutoff, exact: bool) -> tuple[list[LiveFile], int]:
    """Return the files with rows to remove, oldest first, and the number of files that stay with possibly old rows.

    :param exact: whether files with some old rows are written again; else they stay.
    """
    head, metadata = TableHead.of(table), table.metadata
    index = head.index(head.entries(ManifestContent.DELETES))
    entries = head.entries(ManifestContent.DATA)
    files = [index.live(entry.data_file, entry.sequence_number or 0) for entry in entries]
    ages = ((live, age_of(metadata, live.file, cutoff)) for live in files)
    column = metadata.schema().find_field(cutoff.column)

    def newest(live: LiveFile) -> tuple[int, int]:
        """Return the sort key of a file: the newest row's time, as far as known, and the sequence number."""
        bound = _bound(column.field_type, live.file.upper_bounds, column.field_id)
        return cutoff.number if bound is None else bound, live.sequence

    return files_to_remove(ages, newest, exact=exact)


def find_old_rows(table: Table, rule: RowRetention, now: datetime | None = None) -> RemovalReport:
    """Return the report of a removal that is not made: the files with old rows only, and their rows.

    No data file is opened: files with possibly old rows count as `left`. Raises RetentionRefused.
    """
    cutoff = _cutoff(table, rule, now)
    files, left_count = _candidates(table, cutoff, exact=False)
    return RemovalReport(sum(live.file.record_count for live in files), len(files), left=left_count)


def _cutoff(table: Table, rule: RowRetention, now: datetime | None) -> RowCutoff:
    """Return the time before which rows are old. Raises RetentionRefused, also for a table of a fan-out."""
    name = ledger_store.name_of(table)
    if note := books.note_on(table.metadata.properties):
        raise RetentionRefused(name, note, "Let an engine delete the rows of a fan-out.")
    return rule.cutoff(name, table.schema().as_arrow(), now)


@dataclass
class _IcebergOldRowRemoval:
    """Attempts of a removal, each for a head; what was read of a file is kept for the next one."""

    catalog: Catalog
    name: str
    rule: RowRetention
    is_over: Callable[[], bool]
    now: datetime | None
    report: RemovalReport = RemovalReport()
    chosen: Sequence[_OldDataFile] = ()
    # Whether the caller asked to end before all files of this attempt were done.
    is_cut: bool = False
    written: list[RewrittenGroup] = field(default_factory=list)
    _known: dict[Any, _OldDataFile] = field(default_factory=dict)

    def attempt(self) -> CommitAttempt | None:
        """Return the attempt for the current head, or None without old rows. Raises RetentionRefused."""
        table = ledger_edit.fit_table(self.catalog, self.name)
        cutoff = _cutoff(table, self.rule, self.now)
        positions = PositionReader.of(table.schema().as_arrow(), table.metadata.properties)
        reader = _IcebergOldRowReader(table, cutoff, positions, self.is_over)
        files, possibly_old = _candidates(table, cutoff, self.rule.exact)
        old_files = self._look(reader, files)
        ledgers = {group: ledger_store.read_ledger(table, group) for group in ledger_store.groups(table)}
        # The oldest files, as many as the ledgers have room for receipts.
        bounded, changes = within_bound(self.name, old_files, lambda old: old.positions, ledgers, MANY_RANGES)
        self.chosen = chosen = self._with_remainders(reader, bounded)
        if not chosen:
            self.report = RemovalReport(left=possibly_old, is_whole=not self.is_cut)
            return None
        if len(chosen) < len(bounded):
            # The caller asked to end before all remainders were written: the other files get no receipt.
            _, changes = within_bound(self.name, chosen, lambda old: old.positions, ledgers, MANY_RANGES)
        self.report = RemovalReport.of(chosen, possibly_old, is_whole=not self.is_cut and len(chosen) == len(old_files))
        new = [(file, old.file.sequence) for old in chosen if old.remainder for file in old.remainder.new]
        operation = Operation.OVERWRITE if new else Operation.DELETE
        arrange = partial(exchange_of_files, [old.file.file for old in chosen], new, operation=operation)
        summary, after = {SUMMARY_OLD_ROWS: str(self.report.rows)}, ledgers_after(ledgers, changes)
        return ledger_edit.attempt_at(self.catalog, table, summary, arrange, after, cutoff.note())

    def _look(self, reader: _IcebergOldRowReader, files: Sequence[LiveFile]) -> list[_OldDataFile]:
        """Return the files with old rows, up to the file at which the caller asked to end; see `is_cut`."""

        def look(live: LiveFile) -> _OldDataFile | None:
            key = live.key, frozenset(delete.file_path for delete in live.equalities)
            if key not in self._known and (old_file := reader.look(live)) is not None:
                self._known[key] = old_file
            return self._known.get(key)

        old_files, self.is_cut = list[_OldDataFile](), False
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lakestream-old") as pool:
            for file in pool.map(look, files):
                if file is None:
                    self.is_cut = True
                    break
                if file.rows or file.is_whole:
                    old_files.append(file)
        return old_files

    def _with_remainders(self, reader: _IcebergOldRowReader, chosen: Sequence[_OldDataFile]) -> list[_OldDataFile]:
        """Write the rows that stay; return the files up to the file at which the caller asked to end."""
        for number, old_file in enumerate(chosen):
            if not old_file.is_whole and old_file.remainder is None:
                try:
                    old_file.remainder = reader.remainder(old_file.file)
                except RewriteInterrupted:
                    self.is_cut = True
                    return list(chosen[:number])
                self.written.append(old_file.remainder)
        return list(chosen)

    def discard_unneeded(self, kept: Sequence[_OldDataFile]) -> None:
        """Delete the written files, except those of `kept`."""
        needed = {id(old_file.remainder) for old_file in kept}
        discard(self.catalog, self.name, [group for group in self.written if id(group) not in needed])


def remove_old_rows(
    catalog: Catalog,
    name: str,
    rule: RowRetention,
    is_over: Callable[[], bool] = lambda: False,
    now: datetime | None = None,
) -> RemovalReport:
    """Remove a table's old rows in one commit, with receipts in the ledgers; without old files nothing is committed.

    Raises RetentionRefused, EditNotDone, and the errors of `fitness` for a table unfit for commits.

    :param is_over: whether the caller asked to end: what was looked at is removed, oldest first.
    :param now: the time; default: the present.
    """
    removal = _IcebergOldRowRemoval(catalog, name, rule, is_over, now)
    ledger_edit.drive(name, removal.attempt, partial(removal.discard_unneeded, ()))
    removal.discard_unneeded(removal.chosen)
    return removal.report
