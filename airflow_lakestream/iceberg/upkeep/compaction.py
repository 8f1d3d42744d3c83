"""Compaction in this process: files are read and written as streams of row groups, and exchanged in guarded commits.

A commit is made for one head. At a head that has moved, groups of which a file is gone, or has lost more rows, are left
for the next plan; the others are exchanged all the same. So a landing or a merge never waits, and never fails by a
compaction. New files have the sequence number of the planned head: an equality delete that came meanwhile applies.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.transforms import VoidTransform

from airflow_lakestream.iceberg.commit.attempt import CommitAttempt
from airflow_lakestream.iceberg.commit.row_delta import exchange_of_files
from airflow_lakestream.iceberg.manifests import live_entries
from airflow_lakestream.iceberg.replace.takeout import read_rows
from airflow_lakestream.iceberg.upkeep import ledger_edit
from airflow_lakestream.iceberg.upkeep.compaction_plan import (
    CompactionPlan,
    CompactionRule,
    DeleteIndex,
    FileGroup,
    LiveFile,
    plan,
)
from airflow_lakestream.iceberg.write.conform import conform
from airflow_lakestream.iceberg.write.files import (
    column_of,
    delete_files,
    described,
    locations,
    new_path,
    partition_key,
    target_size,
    value_codes,
)
from airflow_lakestream.iceberg.write.parquet import ParquetDataFile
from airflow_lakestream.iceberg.write.sorted_rows import sorted_rows

log = logging.getLogger(__name__)

# Key in the summary of a compaction: the number of data files that were rewritten.
SUMMARY_COMPACTED = "lakestream.compacted"
# Rows are collected up to this many bytes, then written as a row group.
ROW_GROUP_BYTES = 128 * 2**20


class RewriteInterrupted(Exception):
    """Signal that the caller asked to end."""


@dataclass(frozen=True)
class TableHead:
    """Manifests of a table's head, as far as a compaction needs them."""

    metadata: TableMetadata
    io: FileIO

    @classmethod
    def of(cls, table: Table) -> TableHead:
        """Return the head of a table."""
        return cls(table.metadata, table.io)

    @property
    def sequence(self) -> int:
        """The head's sequence number; 0 without snapshots, and for a snapshot of format version 1."""
        head = self.metadata.current_snapshot()
        return 0 if head is None else head.sequence_number or 0

    def entries(self, content: ManifestContent) -> Iterator[ManifestEntry]:
        """Yield the entries of live data files, or delete files."""
        head = self.metadata.current_snapshot()
        manifests = () if head is None else head.manifests(self.io)
        yield from itertools.chain.from_iterable(live_entries(self.io, [m for m in manifests if m.content == content]))

    def index(self, deletes: Iterable[ManifestEntry]) -> DeleteIndex:
        """Return the index of delete files."""
        specs = self.metadata.specs().items()
        plain = {number for number, spec in specs if all(isinstance(f.transform, VoidTransform) for f in spec.fields)}
        return DeleteIndex(deletes, plain)

    def plan(self, rule: CompactionRule) -> CompactionPlan:
        """Return the plan of a compaction; no data file is read."""
        deletes = self.index(self.entries(ManifestContent.DELETES))
        columns = frozenset(self.metadata.schema().field_ids)
        return plan(self.entries(ManifestContent.DATA), deletes, self.sequence, rule, columns)


@dataclass
class RewrittenGroup:
    """Group of files with the new files for the group's live rows."""

    group: FileGroup
    new: list[DataFile] = field(default_factory=list)


@dataclass(frozen=True)
class CompactionDone:
    """Result of a commit.

    :param lost: the number of groups that stay as they are, since other writers have changed their files.
    :param deletes: the number of removed delete files.
    """

    exchanged: tuple[RewrittenGroup, ...]
    lost: int
    deletes: int


@dataclass(frozen=True)
class FileRewriter:
    """Writer of a group's live rows into new files of the group's partition and spec.

    :param order: the order of rows in the new files; without fields, rows stay in the order of the files.
    :param is_over: whether the caller asked to end.
    :param keep: returns the rows to keep; default: all.
    """

    metadata: TableMetadata
    io: FileIO
    order: SortOrder
    is_over: Callable[[], bool] = lambda: False
    keep: Callable[[pa.Table], pa.Table] | None = None

    def paths(self, group: FileGroup) -> list[str]:
        """Return locations for the new files of a group."""
        places, key = locations(self.metadata, ""), partition_key(self.metadata, group.spec_id, group.partition)
        return [new_path(places, key, "compacted", number) for number in range(group.outputs)]

    def rewrite(self, group: FileGroup, paths: Sequence[str] = ()) -> RewrittenGroup:
        """Write the new files. Raises RewriteInterrupted; after an error the files of this call are deleted.

        :param paths: default: as `paths` returns.
        """
        rewritten, written = RewrittenGroup(group), [*paths] or self.paths(group)
        try:
            self._write(rewritten, written)
        except BaseException:
            delete_files(self.io, written)
            raise
        return rewritten

    def _write(self, rewritten: RewrittenGroup, paths: list[str]) -> None:
        """Write the new files at `paths`, and add them to `rewritten`; a path that is missing is added, too."""
        group = rewritten.group
        schema, rows = self.metadata.schema(), self.live_rows(group.files)
        if self.keep is not None:
            rows = filter(len, map(self.keep, rows))
        if self.order.fields:
            rows = sorted_rows(rows, schema, self.order)
        most_rows = -(-group.rows // group.outputs)
        for number, file_rows in enumerate(_cut(rows, most_rows)):
            if number == len(paths):
                # More rows than the manifests count.
                paths.append(self.paths(group)[0])
            output = self.io.new_output(paths[number])
            first = next(file_rows)
            with ParquetDataFile(output, schema, self.metadata.properties, first) as file:
                for row_group in _row_groups(itertools.chain([first], file_rows), file.most_rows):
                    if self.is_over():
                        raise RewriteInterrupted
                    file.write(row_group)
            statistics, order = file.statistics(), self.order.order_id
            partition, spec = group.partition, group.spec_id
            rewritten.new.append(described(output, statistics, partition, spec_id=spec, sort_order_id=order))

    def live_rows(self, files: Iterable[LiveFile]) -> Iterator[pa.Table]:
        """Yield the live rows of files, in the same types."""
        schema, deleted = self.metadata.schema(), EqualityDeletes(self.metadata, self.io)
        types: pa.Schema | None = None
        for live in files:
            for rows in read_rows(self.metadata, self.io, FileScanTask(live.file, set(live.positions))):
                if (staying := deleted.live(rows, live.equalities)).num_rows:
                    conforming = conform(staying, schema)
                    types = types or conforming.schema
                    yield conforming if conforming.schema == types else conforming.cast(types)


def _cut(parts: Iterator[pa.Table], most_rows: int) -> Iterator[Iterator[pa.Table]]:
    """Yield for each new file its rows, at most `most_rows`; each iterator is to be used up before the next."""
    leftover: list[pa.Table] = []

    def of_file() -> Iterator[pa.Table]:
        rows_left = most_rows
        while rows_left:
            rows = leftover.pop() if leftover else next(parts, None)
            if rows is None:
                return
            if rows.num_rows > rows_left:
                leftover.append(rows.slice(rows_left))
                rows = rows.slice(0, rows_left)
            rows_left -= rows.num_rows
            yield rows

    while leftover or (first := next(parts, None)) is not None:
        if not leftover:
            leftover.append(first)
        yield of_file()


def _row_groups(parts: Iterable[pa.Table], most_rows: int) -> Iterator[pa.Table]:
    """Yield the rows as row groups of at most `most_rows` rows and about ROW_GROUP_BYTES bytes."""
    collected, rows, size = list[pa.Table](), 0, 0
    for part in parts:
        if collected and (rows + part.num_rows > most_rows or size + part.nbytes > ROW_GROUP_BYTES):
            yield pa.concat_tables(collected)
            collected, rows, size = [], 0, 0
        collected.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
    if collected:
        yield pa.concat_tables(collected)


def exchange(catalog: Catalog, name: str, sequence: int, part: Sequence[RewrittenGroup]) -> CompactionDone:
    """Commit new files in place of the old ones, and remove delete files that then apply to nothing.

    Groups changed since the plan stay as they are, and their new files are deleted. Raises EditNotDone if other writers
    were faster at each try.

    :param sequence: the sequence number of the plan.
    """
    done = nothing = CompactionDone((), len(part), 0)

    def attempt() -> CommitAttempt | None:
        nonlocal done
        table = ledger_edit.fit_table(catalog, name)
        exchanged, dangling = _still_planned(TableHead.of(table), sequence, part)
        if not exchanged and not dangling:
            return None
        done = CompactionDone(tuple(exchanged), len(part) - len(exchanged), len(dangling))
        summary = {SUMMARY_COMPACTED: str(sum(len(rewritten.group.files) for rewritten in exchanged))}
        out = (*(live.file for rewritten in exchanged for live in rewritten.group.files), *dangling)
        new = [(file, sequence) for rewritten in exchanged for file in rewritten.new]
        return ledger_edit.attempt_at(catalog, table, summary, partial(exchange_of_files, out, new))

    if ledger_edit.drive(name, attempt, partial(discard, catalog, name, part)) is None:
        done = nothing
    kept = {id(rewritten) for rewritten in done.exchanged}
    discard(catalog, name, [rewritten for rewritten in part if id(rewritten) not in kept])
    return done


def _still_planned(
    head: TableHead, sequence: int, part: Sequence[RewrittenGroup]
) -> tuple[list[RewrittenGroup], tuple[DataFile, ...]]:
    """Return the groups with the same rows at this head, and the delete files that apply to nothing without them."""
    deletes = list(head.entries(ManifestContent.DELETES))
    index = head.index(deletes)
    planned = {live.file.file_path: live.key for rewritten in part for live in rewritten.group.files}
    same = {
        path
        for entry in head.entries(ManifestContent.DATA)
        if (path := entry.data_file.file_path) in planned
        and index.live(entry.data_file, entry.sequence_number or 0).key == planned[path]
    }
    exchanged = [rewritten for rewritten in part if all(live.file.file_path in same for live in rewritten.group.files)]
    if not deletes:
        return exchanged, ()
    index, out = head.index(deletes), {live.file.file_path for rewritten in exchanged for live in rewritten.group.files}
    for entry in head.entries(ManifestContent.DATA):
        if entry.data_file.file_path not in out:
            index.live(entry.data_file, entry.sequence_number or 0)
    for new in (file for rewritten in exchanged for file in rewritten.new):
        index.live(new, sequence, is_new=True)
    return exchanged, index.dangling


def discard(catalog: Catalog, name: str, part: Collection[RewrittenGroup]) -> None:
    """Delete the new files of groups that were not committed; files that can't be deleted are logged."""
    if paths := [file.file_path for rewritten in part for file in rewritten.new]:
        for path in delete_files(catalog.load_table(name).io, paths):
            log.warning("An uncommitted data file could not be deleted: %s", path)


@dataclass
class CompactionReport:
    """Result of a compaction.

    :param files: the number of rewritten data files.
    :param new: the number of new data files.
    :param bytes: the bytes of the rewritten data files.
    :param deletes: the number of removed delete files.
    :param lost: the number of groups of the plan that were not committed.
    :param is_whole: whether the plan was done before the caller asked to end.
    """

    plan: CompactionPlan
    files: int = 0
    new: int = 0
    bytes: int = 0
    deletes: int = 0
    lost: int = 0
    is_whole: bool = True

    def add(self, done: CompactionDone) -> None:
        """Add the result of a part."""
        self.files += sum(len(rewritten.group.files) for rewritten in done.exchanged)
        self.bytes += sum(rewritten.group.bytes for rewritten in done.exchanged)
        self.new += sum(len(rewritten.new) for rewritten in done.exchanged)
        self.deletes += done.deletes
        self.lost += done.lost


# Yields groups as they are written.
Written = Generator[RewrittenGroup, None, None]
Rewriting = Callable[[FileRewriter, Sequence[FileGroup]], Written]


def rewrite_in_turn(rewriter: FileRewriter, groups: Sequence[FileGroup]) -> Written:
    """Yield the groups, each as soon as its files are written by this process. Raises RewriteInterrupted."""
    yield from map(rewriter.rewrite, groups)


def compact(
    catalog: Catalog,
    name: str,
    rule: CompactionRule | None = None,
    order: SortOrder | None = None,
    is_over: Callable[[], bool] = lambda: False,
    report: Callable[[CompactionReport], object] = lambda _: None,
    rewrite: Rewriting = rewrite_in_turn,
) -> CompactionReport:
    """Compact a table in commits of bounded size; on a request to end, commit the groups that are written.

    Raises the errors of `fitness` for a table unfit for commits, and those of `rewrite`.

    :param rule: default: the table's target size of files, and the rule's own defaults.
    :param order: the order of rows in new files; default: the table's.
    :param is_over: whether the caller asked to end.
    :param report: is called after each commit.
    :param rewrite: writes the new files.
    """
    table = ledger_edit.fit_table(catalog, name)
    rule = rule or CompactionRule(target_bytes=target_size(table.metadata))
    plan = TableHead.of(table).plan(rule)
    done, written = CompactionReport(plan), list[RewrittenGroup]()
    rewriter = FileRewriter(table.metadata, table.io, order or table.sort_order(), is_over)

    def commit() -> None:
        part = [*written]
        written.clear()
        try:
            done.add(exchange(catalog, name, plan.sequence, part))
        except ledger_edit.EditNotDone as e:
            log.warning("%s", e)
            done.lost += len(part)
        report(done)

    try:
        with closing(rewrite(rewriter, plan.groups)) as groups:
            for rewritten in groups:
                written.append(rewritten)
                if sum(waiting.group.bytes for waiting in written) + plan.largest > rule.part_bytes:
                    commit()
    except RewriteInterrupted:
        done.is_whole = False
    except BaseException:
        discard(catalog, name, written)
        raise
    if written or (plan.dangling and not plan.groups):
        commit()
    return done


class EqualityDeletes:
    """Reader of equality deletes, each delete file once.

    The deleted values of all files that were asked for stay in memory.
    """

    def __init__(self, metadata: TableMetadata, io: FileIO) -> None:
        self._metadata, self._io = metadata, io
        self._read = dict[str, list[pa.Array]]()

    def live(self, rows: pa.Table, deletes: Sequence[DataFile]) -> pa.Table:
        """Return the rows that equal no deleted row; NULL equals NULL, and NaN equals NaN.

        :param rows: rows in the table's schema.
        :param deletes: the equality delete files that apply.
        """
        by_columns = defaultdict[tuple[int, ...], list[DataFile]](list)
        for file in deletes:
            by_columns[tuple(file.equality_ids or ())].append(file)
        for ids, files in by_columns.items():
            deleted = [self._values(file, ids) for file in files]
            count = sum(len(columns[0]) for columns in deleted)
            # By column, the deleted values and then the values of the rows; equal rows have equal codes.
            values = []
            for number, column in enumerate(ids):
                row_values = column_of(rows, self._metadata.schema(), column)
                deleted_values = [columns[number].cast(row_values.type) for columns in deleted]
                values.append(pa.concat_arrays([*deleted_values, row_values]))
            codes = value_codes(values, count + rows.num_rows).to_numpy(zero_copy_only=False)
            rows = rows.filter(pa.array(~np.isin(codes[count:], codes[:count])))
        return rows

    def _values(self, file: DataFile, ids: tuple[int, ...]) -> list[pa.Array]:
        """Return the deleted values of each column."""
        if file.file_path not in self._read:
            schema = self._metadata.schema()
            names = [str(schema.find_column_name(column_id)) for column_id in ids]
            rows = pa.concat_tables(read_rows(self._metadata, self._io, FileScanTask(file), columns=names))
            self._read[file.file_path] = [column_of(rows, schema, column_id) for column_id in ids]
        return self._read[file.file_path]
