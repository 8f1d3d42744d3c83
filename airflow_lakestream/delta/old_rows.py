"""Removal of old rows from a Delta table: whole files by the statistics in the log, in a version with the ledger."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.ledger import RETENTION_RUN, Landing
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.committing import (
    DeltaCommit,
    DeltaCommitter,
    DeltaFileChange,
    DeltaTarget,
    files_fit,
    look_after,
)
from airflow_lakestream.delta.files import Add, delete_files, read_parts, without_committed, write_files
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import check_removable
from airflow_lakestream.delta.storage import DeltaTableAccess
from airflow_lakestream.delta.takeout import bounds_of, live_files
from airflow_lakestream.exceptions import LakestreamError
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
    groups_of,
    within_bound,
)
from airflow_lakestream.tables.takeout import REMAINDER_BYTES

# The remedy for old rows with too many ranges of offsets. Receipts by hand are only for Iceberg tables.
MANY_RANGES = (
    "Land the topic in a new table that is partitioned by a column of the time, such as a date: files of old rows are "
    "then removed whole. Partition columns of a Delta table can't be changed."
)
_OldAddedFile = OldRowFile[Add, list[Add]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The most microseconds that the statistics may lack: some writers cut times to milliseconds.
_CUT_OFF = 999


def age_of(file: Add, cutoff: RowCutoff) -> FileAge:
    """Return the age of a file's rows by its partition and its statistics."""
    name, limit, stats = cutoff.column, cutoff.number, file["stats"]
    if name in file["partitionValues"]:
        value = _number(file["partitionValues"][name], cutoff.kind)
        return FileAge.OLD if value is not None and value < limit else FileAge.NEW
    nulls = stats["nullCount"].get(name)
    if nulls is not None and nulls == stats["numRecords"]:
        return FileAge.NEW
    low, high = (_number(stats[bound].get(name), cutoff.kind) for bound in ("minValues", "maxValues"))
    if low is not None and low >= limit:
        return FileAge.NEW
    slack = _CUT_OFF if pa.types.is_timestamp(cutoff.kind) else 0
    return FileAge.OLD if high is not None and high + slack < limit and nulls == 0 else FileAge.MIXED


def _number(value: Any, kind: pa.DataType) -> int | None:
    """Return a time as days or microseconds since 1970, by its type; partition values are texts."""
    if value is None:
        return None
    if pa.types.is_date(kind):
        day = date.fromisoformat(value) if isinstance(value, str) else value
        return int((day - _EPOCH.date()).days)
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    age = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return (age.days * 86_400 + age.seconds) * 10**6 + age.microseconds


class _NoOldRowsOfGroup(LakestreamError):
    """Signal that no file has old rows of the group."""


@dataclass
class _DeltaOldRowRemoval:
    """Removal of a group's old rows; the old rows found in a file are cached for the next head.

    :param is_over: whether the caller asked to end.
    :param now: the time, or None for the present.
    :ivar report: the report of the last attempt.
    :ivar written: the new files of all attempts.
    """

    tables: DeltaTableAccess
    name: str
    rule: RowRetention
    group: str
    is_over: Callable[[], bool]
    now: datetime | None
    report: RemovalReport = RemovalReport()
    written: list[Add] = field(default_factory=list)
    _known: dict[str, _OldAddedFile] = field(default_factory=dict)

    def run(self, head: DeltaTableHead) -> RemovalReport:
        """Commit the removal. Raises RetentionRefused, UnfitTable, CannotReplace, and the errors of commits."""
        run_id = f"{RETENTION_RUN}{uuid.uuid4().hex}"
        target = DeltaTarget(head, head.fields, head.partitions)
        landing, store = Landing(run_id, run_id, {}), self.tables.store(self.name)
        stage, notes = partial(self._stage, landing), self.rule.cutoff(self.name, head.schema, self.now).note()
        checks = (files_fit, _removable)
        commit = DeltaCommit(self.name, self.group, landing, target, stage, checks, notes, written=self.written)
        committer = DeltaCommitter(self.tables, commit)
        try:
            version = committer.commit()
        except BaseException as e:
            # A commit that was sent may still be applied: the files stay, as orphans if it is not.
            if not committer.may_be_applied():
                delete_files(store, self.written)
            if isinstance(e, _NoOldRowsOfGroup):
                return self.report
            raise
        delete_files(store, without_committed(self.written, committer.committed))
        look_after(self.tables, self.name, version)
        return self.report

    def _stage(self, landing: Landing, head: DeltaTableHead | None) -> DeltaFileChange:
        """Return the files to remove and to add at a head. Raises _NoOldRowsOfGroup if there are none."""
        assert head is not None, "the files fit no missing table"
        cutoff = self.rule.cutoff(self.name, head.schema, self.now)
        ledgers = ledger_store.ledgers(head, self.group)
        files, left = _candidates(head, cutoff, self.rule.exact)
        with_old_rows, is_whole = self._look(_DeltaOldRowReader(self.tables.store(self.name), head, cutoff), files)
        own = [file for file in with_old_rows if self._is_own(groups_of(self.name, file.positions, ledgers), ledgers)]
        chosen, changes = within_bound(self.name, own, lambda file: file.positions, ledgers, MANY_RANGES)
        self.report = RemovalReport.of(chosen, left, is_whole=is_whole and len(chosen) == len(own))
        if not chosen:
            raise _NoOldRowsOfGroup(self.name)
        new = [add for file in chosen if not file.is_whole for add in self._remainder(head, cutoff, file)]
        change = Landing(landing.landing_id, landing.run_id, changes.get(self.group, {}))
        return DeltaFileChange([file.file for file in chosen], new, change)

    def _is_own(self, groups: frozenset[str], ledgers: Collection[str]) -> bool:
        """Return whether a file's old rows are the group's; rows that no ledger has count as the first group's."""
        if len(groups) > 1:
            problem = f"a file has rows of several consumer groups: {', '.join(sorted(groups))}."
            raise RetentionRefused(self.name, problem, "Give each group a Delta table of its own; or use Iceberg.")
        return self.group in groups or (not groups and self.group == min(ledgers))

    def _look(self, reader: _DeltaOldRowReader, files: Sequence[Add]) -> tuple[list[_OldAddedFile], bool]:
        """Return the files with old rows, and whether all files were searched: the search ends if `is_over`."""
        with_old_rows = list[_OldAddedFile]()
        for file in files:
            path: str = file["path"]
            if path not in self._known:
                if self.is_over():
                    return with_old_rows, False
                self._known[path] = reader.look(file)
            if self._known[path].rows:
                with_old_rows.append(self._known[path])
        return with_old_rows, True

    def _remainder(self, head: DeltaTableHead, cutoff: RowCutoff, file: _OldAddedFile) -> list[Add]:
        """Return new files with a file's rows that are not old, written by this or an earlier attempt."""
        if file.remainder is None:
            file.remainder = list(_DeltaOldRowReader(self.tables.store(self.name), head, cutoff).remainder(file.file))
            self.written += file.remainder
        return file.remainder


@dataclass(frozen=True)
class _DeltaOldRowReader:
    """Reader of the old rows of a table's files at a head."""

    store: Any
    head: DeltaTableHead
    cutoff: RowCutoff

    def look(self, file: Add) -> _OldAddedFile:
        """Return a file's old rows."""
        positions = PositionReader.of(self.head.schema, self.head.properties)
        is_old, rows = age_of(file, self.cutoff) is FileAge.OLD, file["stats"]["numRecords"]
        if is_old and rows is not None and (proven := _proven(file, positions)) is not None:
            return _OldAddedFile(file, rows, RemovedPositions(own=proven))
        columns = tuple(dict.fromkeys((*positions.roots, self.cutoff.column)))
        parts = read_parts(self.store, file, self.head.schema, columns)
        return _OldAddedFile.read(file, parts, self.cutoff, positions, is_old=False)

    def remainder(self, file: Add) -> Iterator[Add]:
        """Write the rows of a file that are not old, and yield the new files."""
        prefix, numbers, collected = uuid.uuid4().hex, itertools.count(), list[pa.Table]()
        for part in itertools.chain(read_parts(self.store, file, self.head.schema), [None]):
            if part is not None:
                collected.append(part.filter(pc.invert(self.cutoff.old(part))))
            if collected and (part is None or sum(kept.nbytes for kept in collected) >= REMAINDER_BYTES):
                rows, collected = pa.concat_tables(collected), []
                if rows.num_rows:
                    yield from write_files(
                        self.store, self.head.schema, self.head.partitions, (), rows, prefix, numbers
                    )


def _proven(file: Add, positions: PositionReader) -> RangeSet | None:
    """Return the offsets of a file's rows if the log proves them; None if the file has to be read."""
    values, nulls = file["partitionValues"], file["stats"]["nullCount"]
    has_nulls = any(nulls.get(name) != 0 for name in COORDINATES if name not in values)
    bounds = [bounds_of(file, name) for name in COORDINATES]
    return positions.proven(bounds, file["stats"]["numRecords"], has_nulls=has_nulls)


def _candidates(head: DeltaTableHead, cutoff: RowCutoff, exact: bool) -> tuple[list[Add], int]:
    """Return the files with rows to remove, oldest first, and the number of files that stay though rows may be old.

    :param exact: whether files with old and new rows are rewritten; otherwise they stay.
    """
    ages = ((file, age_of(file, cutoff)) for file in live_files(head))

    def newest(file: Add) -> int:
        value = file["partitionValues"].get(cutoff.column) or file["stats"]["maxValues"].get(cutoff.column)
        number = _number(value, cutoff.kind)
        return cutoff.number if number is None else number

    return files_to_remove(ages, newest, exact=exact)


def _removable(commit: DeltaCommit, head: DeltaTableHead | None) -> None:
    """Refuse a head whose rows must not be removed; see `check_removable`."""
    if head is not None:
        check_removable(head)


def find_old_rows(head: DeltaTableHead, rule: RowRetention, now: datetime | None = None) -> RemovalReport:
    """Return the number of files with only old rows, and of their rows; no data file is opened.

    Raises RetentionRefused, UnfitTable, and CannotReplace for deletion vectors.
    """
    check_removable(head)
    files, left = _candidates(head, rule.cutoff(head.table, head.schema, now), exact=False)
    return RemovalReport(sum(file["stats"]["numRecords"] or 0 for file in files), len(files), left=left)


def remove_old_rows(
    tables: DeltaTableAccess,
    head: DeltaTableHead,
    rule: RowRetention,
    is_over: Callable[[], bool] = lambda: False,
    now: datetime | None = None,
) -> RemovalReport:
    """Remove a table's old rows in one version for each consumer group, with receipts in the ledgers.

    Without old files nothing is committed. Raises the errors of `find_old_rows`, RetentionRefused for a table without a
    ledger, and the errors of commits.

    :param is_over: whether the caller asked to end: then only the files searched until then are removed, oldest first.
    :param now: the time; default: the present.
    """
    find_old_rows(head, rule, now)
    groups = ledger_store.groups(head)
    if not groups:
        problem = "it has no ledger, since no run of this package landed into it."
        raise RetentionRefused(head.table, problem, "Use `DeltaTable(...).delete(...)`.")
    total = RemovalReport()
    for group in groups:
        report = _DeltaOldRowRemoval(tables, head.table, rule, group, is_over, now).run(head)
        rows, files, rewritten = (
            total.rows + report.rows,
            total.files + report.files,
            total.rewritten + report.rewritten,
        )
        total = RemovalReport(rows, files, rewritten, report.left, total.is_whole and report.is_whole)
    return total
