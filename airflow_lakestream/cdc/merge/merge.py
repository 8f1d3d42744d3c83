"""Merge of a batch's newest events into a table's head: decides about replaced files and new rows.

Only files that hold a changed key change: they are rewritten, or their rows are deleted in place and the new ones go
into other files. The decision is for one head; another head needs a new one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, DELETED, MARK, OP, SEQUENCE, VERSION, order_columns
from airflow_lakestream.cdc.events.sequence import with_commits, with_ranks
from airflow_lakestream.cdc.keys.guards import GuardCheck
from airflow_lakestream.cdc.keys.identity import KeySearch, by_place, find_keys, in_order
from airflow_lakestream.cdc.merge.audited import RowsCheck
from airflow_lakestream.cdc.merge.entries import MirrorEntries
from airflow_lakestream.cdc.merge.files import (
    PART_BYTES,
    FileRewriteTask,
    PackedRows,
    RowDeleteTask,
    RowReadTask,
    RowsOf,
    RowWriteTask,
    in_parts,
    rows_of,
)
from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.cdc.merge.judged import GuardedRowCheck
from airflow_lakestream.cdc.merge.lookup import FileChange, KeyLookup, LookupResult, change_of, joined
from airflow_lakestream.cdc.merge.memory import MirrorMemory, row_column
from airflow_lakestream.cdc.merge.newest import NewestEvents
from airflow_lakestream.cdc.merge.pool import MergePool, MergeWork
from airflow_lakestream.cdc.merge.snapshots import behind, is_before, is_gone, is_later, is_mark
from airflow_lakestream.cdc.merge.values import Borrowed, OldRows, RowValues
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.tables.rising import Numbers, distinct
from airflow_lakestream.tables.row_buffer import no_rows

# By default, a file is rewritten if it has lost this share of its rows, or if it has fewer bytes than `SMALL_BYTES`: to
# read many small files takes longer than to write a single one.
MOST_DELETED = 0.1
SMALL_BYTES = 2**20
# This number of small files of a partition are joined, even if no event changes them.
MOST_SMALL = 32


@dataclass
class MergeResult:
    """Result of a merge for a commit: removed files, new files, and new entries.

    :param out: the removed files.
    :param new: the new files.
    :param deleted: the files that stay without some of their rows, each with its new delete file.
    :param rows: the rows of a table that does not exist yet; they are not in a file.
    :param entries: the new entries for the memory of deleted rows.
    """

    out: Sequence[File]
    new: Sequence[File]
    deleted: Sequence[tuple[File, File]]
    rows: pa.Table
    entries: pa.Table


@dataclass
class IncomingRows:
    """Incoming rows of a merge: each rewritten file takes the rows of its keys, and `rest` are the rows for new files.

    :param place_of: for each event the index of its row; -1 without a row, or after a file has taken the row.
    """

    rows: pa.Table
    place_of: Numbers

    def take(self, change: FileChange) -> pa.Table:
        """Return the new rows of a changed file, and mark these rows as taken."""
        events = distinct(change.at[change.at >= 0])
        indices = self.place_of[events]
        self.place_of[events] = -1
        return self.rows.take(pa.array(indices[indices >= 0]))

    def rest(self, key: Sequence[str]) -> pa.Table:
        """Return the rows not taken by a file, sorted by key: later changes of near keys then touch fewer files."""
        indices = self.place_of[self.place_of >= 0]
        keys = by_place(self.rows, key).take(pa.array(indices))
        return self.rows.take(pa.array(indices[in_order(keys)]))


@dataclass
class BatchMerger:
    """Merge of a batch.

    :param batch: the newest events. `merge` replaces them by events with later places, see `snapshots.behind`.
    :param key: the columns of the key.
    :param strategy: the rows of a key.
    :param entries: the memory of deleted rows.
    :param mode: whether files with changed rows are rewritten, or their rows deleted in place.
    :param written: gets all files that were written, for any head.
    :param check_rows: checks the incoming rows before anything is written, and raises ChecksFailed.
    :param borrowed: see `cdc.merge.values.RowValues`.
    """

    batch: NewestEvents
    table: str
    key: tuple[str, ...]
    strategy: RowStrategy
    entries: MirrorEntries
    mode: MergeMode
    pool: MergePool
    written: list[File]
    check_rows: RowsCheck | None = None
    borrowed: Borrowed | None = None
    _judged: GuardedRowCheck = field(init=False)

    def merge(self, head: MirrorHead | None, read_landed: Callable[[], RangeSet] = RangeSet) -> MergeResult:
        """Decide about a batch's rows for a head, and write the files; return the result for the commit.

        If the table does not exist yet, no file is written, and the result has the rows. Raises ValueMissing,
        MirrorStopped, and the errors of `check_rows`.

        :param head: the head of this commit attempt, or None if the table does not exist yet.
        :param read_landed: returns the offsets that the head's ledgers hold: entries of other events do not count.
        """
        # 1. Look up the keys in the table's files and in the memory. Events behind a known snapshot get later places.
        files = head.files() if head is not None else []
        memory, reached, results = self._ranked(*self._looked_up(head, files, read_landed))
        rows = behind(self.batch.rows, memory.snapshots)
        self.batch = replace(self.batch, rows=rows, contents=behind(self.batch.contents, memory.snapshots))
        # 2. Decide which events are late, and which rows of the table are replaced or deleted.
        judge = GuardCheck(self.table, self.batch.topic, self.key)
        judge.check_before(chain.from_iterable(self.batch.guards.values()), memory.truncated)
        self._judged = GuardedRowCheck(self.batch, judge)
        late = is_before(rows, memory.truncated) if memory.truncated is not None else np.zeros(len(rows), np.bool_)
        matched = np.zeros(len(rows), np.bool_)
        changes: list[FileChange] = []
        if self.batch.repeats is not None:
            late |= self.batch.repeats.mask(rows, results)
        elif head is not None:
            changes = self._changes(head, reached, results, late, matched)
        self._judged.check_unanswered(memory)
        is_delete = is_gone(rows)
        # An event without a row in the table is late if the memory has a later deletion of the key.
        new = np.flatnonzero(~matched & ~late & ~is_delete)
        new_rows = rows.select([*self.key, *VERSION]).take(pa.array(new))
        late[new[memory.is_dead(new_rows, self.batch.ties)]] = True
        # 3. Complete the incoming rows with left-out values, and check them.
        old = self._old_rows(head, changes, self._needed(is_delete, late))
        values = RowValues(self.batch, self.table, self.key, memory, old, self.borrowed)
        deletes = np.flatnonzero(~late & is_delete)
        incoming = self._incoming(values, np.flatnonzero(~late & ~is_delete), deletes)
        incoming.rows = _without_ranks(incoming.rows)
        if self.check_rows is not None:
            self.check_rows(incoming.rows)
        entries = _without_ranks(self._entries(values, deletes))
        # For executors the rows are pickled, which is one more copy of them.
        del values, old
        return self._written(head, files, changes, incoming, entries)

    def _written(
        self,
        head: MirrorHead | None,
        files: Sequence[File],
        changes: Sequence[FileChange],
        incoming: IncomingRows,
        entries: pa.Table,
    ) -> MergeResult:
        """Rewrite files of the head, delete rows in place, and write all other incoming rows into new files."""
        rewrites, in_place = self._ways(head, changes)
        rewrites += self._small(head, files, changes) if head is not None else []
        if head is None:
            return MergeResult([], [], [], self._rows_of(self._packed(incoming.rest(self.key))), entries)
        works = [self._rewriting(head, rewrites, incoming), self._deleting(head, in_place)]
        rest = incoming.rest(self.key)
        del incoming
        pa.default_memory_pool().release_unused()
        size = self._size(rest)
        works.append(MergeWork(RowWriteTask(head, self._rows_of), [*map(self._packed, in_parts(rest, size))], size))
        rewritten, deleted, added = self._write(works)
        with_deletes = list(zip((change.file for change in in_place), deleted, strict=True))
        removed, new = [change.file for change in rewrites], [*rewritten, *added]
        return MergeResult(removed, new, with_deletes, no_rows(rest.schema), entries)

    def remember(self, merged: MergeResult) -> None:
        """Add the new entries to the memory; call this before the commit, see `cdc.merge.memory`."""
        if len(merged.entries):
            self.entries.add(merged.entries)

    def _looked_up(
        self, head: MirrorHead | None, files: Sequence[File], read_landed: Callable[[], RangeSet]
    ) -> tuple[MirrorMemory, list[File], list[LookupResult]]:
        """Return the memory of the batch's keys, the files with possible rows, and the lookup result of each file."""
        batch, search = self.batch, KeySearch(self.batch.rows, self.key)
        opened = self.entries.open()
        works, reached = list[MergeWork](), list[File]()
        if head is not None:
            further_order = order_columns(batch.rows.column_names)[len(VERSION) :]
            lookup = KeyLookup(
                head, search, self.key, self.strategy, batch.truncated, self._since(), batch.history, further_order
            )
            reached = lookup.reached(files if batch.repeats is None else batch.repeats.reached(head, files, batch.rows))
            works.append(MergeWork(lookup, reached, sum(map(head.bytes_in, reached))))
        if opened is not None:
            works.append(opened.wanted(self.key, search))
        results = self.pool.do(*works)
        entries = opened.joined(chain.from_iterable(results[-1])) if opened is not None else None
        return MirrorMemory.of(self.key, entries, read_landed), reached, results[0] if head is not None else []

    def _ranked(
        self, memory: MirrorMemory, reached: list[File], results: list[LookupResult]
    ) -> tuple[MirrorMemory, list[File], list[LookupResult]]:
        """Return the results of `_looked_up` with ranks, instead of bytes that order records, rows and entries."""
        batch = self.batch
        if SEQUENCE not in batch.rows.column_names:
            return memory, reached, results
        partial = [] if batch.partial is None else [batch.partial.records]
        entries = [] if memory.entries is None else [memory.entries]
        hits = {number: result.rows for number, result in enumerate(results) if result.rows is not None}
        hits = {number: rows for number, rows in hits.items() if SEQUENCE in rows.column_names}
        tables = [batch.rows, batch.contents, *partial, *entries, *hits.values()]
        ranked = iter(with_ranks(tables))
        self.batch = batch = replace(batch, rows=next(ranked), contents=next(ranked))
        if batch.partial is not None:
            self.batch = replace(batch, partial=replace(batch.partial, records=next(ranked)))
        memory = MirrorMemory(memory.key, next(ranked) if entries else None)
        results = list(results)
        for number in hits:
            results[number] = replace(results[number], rows=next(ranked))
        return memory, reached, results

    def _changes(
        self, head: MirrorHead, files: Sequence[File], results: Sequence[LookupResult], late: Mask, matched: Mask
    ) -> list[FileChange]:
        """Return the changes of the head's files. Raises MirrorStopped.

        :param results: the lookup result of each file.
        :param late: a mask of the late events; events that change no row of their key are added.
        :param matched: a mask of the events whose key has a row in a file, which is filled here.
        """
        changes, late_parts = [], []
        for file, result, is_newer in zip(files, results, self._later(results), strict=True):
            # A row that is marked as deleted may be older than a truncation, and its event is late, too: the row stays.
            out = is_newer & ~late[result.at] & ~self._judged.stay(head, file, result)
            matched[result.at] = True
            late_parts.append(result.at[~out])
            changes.append(change_of(file, result, out, self.strategy))
        for events in late_parts:
            late[events] = True
        return [change for change in changes if change.is_touched]

    def _since(self) -> int | None:
        """Return the first commit of the events, or None if versions of older rows are needed, too; see `KeyLookup`."""
        batch = self.batch
        needs_all = self.strategy is not RowStrategy.CURRENT or batch.guards or not len(batch.rows)
        needs_all = needs_all or SEQUENCE in batch.rows.column_names
        if needs_all:
            return None
        within = 0 if self.batch.repeats is None else self.batch.repeats.within or 0
        return int(pc.min(self.batch.rows[COMMIT]).as_py()) - within

    def _later(self, results: Sequence[LookupResult]) -> Sequence[Mask]:
        """Return for each file's hits a mask of the events later than the row. Raises MirrorStopped for a tie."""
        later = [np.ones(len(result.at), np.bool_) for result in results]
        numbers = [number for number, result in enumerate(results) if result.rows is not None]
        if numbers:
            # For all files at once: a call of Arrow for each file would take longer to begin than to be done.
            hits, ties = [results[number] for number in numbers], self.batch.ties
            old_rows = joined([hit.rows.select(VERSION) for hit in hits if hit.rows is not None])
            columns = [*(() if ties is None else self.key), *VERSION]
            events = self.batch.rows.select(columns).take(pa.array(np.concatenate([hit.at for hit in hits])))
            if ties is not None:
                ties.check(events, old_rows)
            masks = np.split(is_later(events, old_rows), np.cumsum([len(hit.at) for hit in hits])[:-1])
            for number, mask in zip(numbers, masks, strict=True):
                later[number] = mask
        return later

    def _needed(self, is_delete: Mask, late: Mask) -> set[int]:
        """Return the events with needed old rows: for left-out values, for deleted rows that stay, or for a new key."""
        rows, needed = self.batch.rows, set[int]()
        of_moved = (source for before in self.batch.befores.values() for source in before.values())
        sources = chain(self.batch.sources.values(), of_moved)
        wanted = {origin.key for source in sources for origin in source.origins if origin.moved is None}
        needed |= {event for event, _ in self.batch.sources}
        needed |= {event for event, _ in find_keys(rows, self.key, wanted)}
        if self.batch.partial is not None:
            needed |= set(np.flatnonzero(~is_delete & ~late).tolist())
        deletes = np.flatnonzero(is_delete & ~late).tolist()
        return needed | set(deletes if self.strategy.keeps_deleted else self.batch.befores)

    def _old_rows(self, head: MirrorHead | None, changes: Sequence[FileChange], needed: set[int]) -> OldRows:
        """Return those of the table's replaced or deleted rows whose events are in `needed`."""
        old, wanted = OldRows(), np.array(sorted(needed), np.int64)
        hits = [(change.file, change.out[np.isin(change.at, wanted)]) for change in changes]
        to_read = [(file, numbers) for file, numbers in hits if len(numbers)]
        if head is not None and to_read:
            size = sum(head.bytes_in(file) for file, _ in to_read)
            (parts,) = self.pool.do(MergeWork(RowReadTask(head), to_read, size))
            for rows in chain.from_iterable(parts):
                old.add(rows)
        return old

    def _incoming(self, values: RowValues, upserts: Numbers, deletes: Numbers) -> IncomingRows:
        """Return the events' complete rows, and the deleted rows to keep. Raises ValueMissing.

        :param upserts: the indices of the events that create or change a row.
        :param deletes: the indices of the deletions.
        """
        place_of = np.full(len(self.batch.rows), -1, np.int64)
        is_whole = not self.batch.sources and self.batch.partial is None
        if not self.strategy.keeps_deleted and is_whole and self.check_rows is None:
            # The rows are complete, so they are copied once only: for the file that they go into.
            place_of[upserts] = upserts
            rows, staged = self.batch.rows, self.batch.staged
            return IncomingRows(rows.drop_columns([OP]) if staged is None else staged.needed(rows, self.key), place_of)
        rows = values.complete(upserts)
        parts, events = [rows], [upserts]
        if self.strategy.keeps_deleted:
            is_marked = pc.fill_null(pc.equal(self.batch.rows[OP], MARK), False).take(pa.array(upserts))
            parts[0] = rows.append_column(DELETED, is_marked)
            for indices, marked in values.marked(deletes):
                parts.append(marked)
                events.append(indices)
        event_of = np.concatenate(events)
        place_of[event_of] = np.arange(len(event_of))
        return IncomingRows(pa.concat_tables(parts, promote_options="permissive").combine_chunks(), place_of)

    def _ways(
        self, head: MirrorHead | None, changes: Sequence[FileChange]
    ) -> tuple[list[FileChange], list[FileChange]]:
        """Return the files to rewrite, and the files with rows to delete in place."""
        rewrites, in_place = list[FileChange](), list[FileChange]()
        for change in changes:
            assert head is not None, "changes are of a head's files"
            (rewrites if is_rewritten(head, change, self.mode) else in_place).append(change)
        return rewrites, in_place

    def _small(self, head: MirrorHead, files: Sequence[File], changes: Sequence[FileChange]) -> list[FileChange]:
        """Return unchanged small files to rewrite, of partitions with at least `MOST_SMALL` such files.

        So a mirror that only gets new rows stays quick to read without any maintenance.
        """
        if self.mode is MergeMode.MERGE_ON_READ:
            return []
        touched = {id(change.file) for change in changes}
        small = defaultdict[Any, list[File]](list)
        for file in files:
            if id(file) not in touched and head.bytes_in(file) < SMALL_BYTES and head.rows_in(file):
                small[head.partition(file)].append(file)
        many = [file for group in small.values() if len(group) >= MOST_SMALL for file in group]
        no_numbers = np.zeros(0, np.int64)
        return [FileChange(file, head.live_rows_in(file), no_numbers, no_numbers, None) for file in many]

    def _write(self, works: Sequence[MergeWork]) -> list[list[File]]:
        """Do the works; return the files written by each work, and note all files in `written`."""
        written = [list(chain.from_iterable(files)) for files in self.pool.do(*works)]
        # Also the files that other processes have written.
        self.written += chain.from_iterable(written)
        return written

    def _packed(self, rows: pa.Table) -> Any:
        """Return incoming rows in the form for the writing process; see `_rows_of`."""
        return PackedRows(rows) if self.batch.staged is None else self.batch.staged.numbered(rows)

    @property
    def _rows_of(self) -> RowsOf:
        """Function for the writing process, which returns the rows in the form of `_packed`."""
        return rows_of if self.batch.staged is None else self.batch.staged.files

    def _size(self, rows: pa.Table) -> int:
        """Return the size of incoming rows in bytes, as written."""
        return rows.nbytes if self.batch.staged is None else len(rows) * self.batch.staged.row_bytes

    def _rewriting(self, head: MirrorHead, changes: Sequence[FileChange], incoming: IncomingRows) -> MergeWork:
        """Return the work for rewriting files with the remaining rows and the new versions of changed rows."""
        bundles = self._bundles(head, changes)
        items = [[(change, self._packed(incoming.take(change))) for change in bundle] for bundle in bundles]
        rewriting = FileRewriteTask(head, self.batch.truncated, self._rows_of)
        return MergeWork(rewriting, items, sum(head.bytes_in(change.file) for change in changes))

    def _deleting(self, head: MirrorHead, changes: Sequence[FileChange]) -> MergeWork:
        """Return the work for deleting rows of files in place."""
        return MergeWork(RowDeleteTask(head), changes, sum(head.bytes_in(change.file) for change in changes))

    def _bundles(self, head: MirrorHead, changes: Sequence[FileChange]) -> Iterator[list[FileChange]]:
        """Yield the files to rewrite together: small files with neighbouring keys."""
        rows = self.batch.rows
        most_rows = PART_BYTES * max(1, len(rows)) // max(1, self._size(rows))
        bounds = [head.bounds(change.file, self.key[0]) for change in changes]
        by_low = sorted((low_high[0], number) for number, low_high in enumerate(bounds) if low_high is not None)
        unbounded = [number for number, low_high in enumerate(bounds) if low_high is None]
        bundle: list[FileChange] = []
        for change in (changes[number] for number in [*(number for _, number in by_low), *unbounded]):
            if bundle and sum(bundled.live for bundled in (*bundle, change)) > most_rows:
                yield bundle
                bundle = []
            bundle.append(change)
        if bundle:
            yield bundle

    def _entries(self, values: RowValues, deletes: Numbers) -> pa.Table:
        """Return the new entries: a truncation, marks of snapshots, and deleted rows.

        If deleted rows stay in the table, only rows whose values the next event may need get an entry.
        """
        wanted = [event for event in deletes.tolist() if not self.strategy.keeps_deleted or event in self.batch.befores]
        rows = self.batch.rows
        rows = rows.select([*self.key, *order_columns(rows.column_names)]).take(pa.array(wanted, pa.int64()))
        old_rows = [values.row_before(event) for event in wanted]
        rows = rows.append_column(row_column(self.key), pa.array(old_rows, pa.binary()))
        truncated = [] if self.batch.truncated is None or is_mark(self.batch.truncated) else [self.batch.truncated]
        cuts = [dict(zip(VERSION, version, strict=True)) for version in (*truncated, *self.batch.snapshots)]
        columns = [
            pa.array([cut[column.name] for cut in cuts], column.type)
            if column.name in VERSION
            else pa.nulls(len(cuts), column.type)
            for column in rows.schema
        ]
        return pa.concat_tables([rows, pa.Table.from_arrays(columns, rows.schema.names)], promote_options="permissive")


def is_rewritten(head: MirrorHead, change: FileChange, mode: MergeMode) -> bool:
    """Return whether a changed file is rewritten; otherwise rows are deleted in place."""
    rows = head.rows_in(change.file)
    gone = rows - change.live + len(change.out)
    # Marks change values of rows that stay; a file that loses all its rows is removed without reading it.
    if head.delete is None or mode is MergeMode.COPY_ON_WRITE or change.marked is not None or gone == rows:
        return True
    if mode is MergeMode.MERGE_ON_READ:
        return False
    return gone >= MOST_DELETED * rows or head.bytes_in(change.file) < SMALL_BYTES


def _without_ranks(rows: pa.Table) -> pa.Table:
    """Return rows with 0 in place of ranks: a rank is valid within one merge only."""
    return with_commits(rows, pa.repeat(pa.scalar(0, pa.int64()), len(rows))) if SEQUENCE in rows.column_names else rows
