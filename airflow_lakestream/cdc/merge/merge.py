"""Merges a batch's newest events into a table's head: decides which files are replaced, and by which rows.

Copy on write: only files that hold a changed key are rewritten. The decision is for one head; another head needs a new
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import DELETED, VERSION
from airflow_lakestream.cdc.events.unavailable import Mask
from airflow_lakestream.cdc.keys.guards import Judge
from airflow_lakestream.cdc.keys.identity import Numbers, by_place, keys_of, places
from airflow_lakestream.cdc.merge.head import File, Head
from airflow_lakestream.cdc.merge.judged import Judged
from airflow_lakestream.cdc.merge.memory import Entries, Memory, row_column
from airflow_lakestream.cdc.merge.newest import Newest, Origin, is_before, is_gone, is_later
from airflow_lakestream.cdc.merge.snapshots import behind, is_mark
from airflow_lakestream.cdc.merge.values import OldRows, Values, marked_where

# Rows are collected up to this many bytes, then written.
PART_BYTES = 64 * 2**20
FILES_AT_ONCE = 2

WriteFiles = Callable[[pa.Table], Sequence[File]]


@dataclass
class Merged:
    """The result for one commit: removed files, new files, rows that are in no file yet, and new entries."""

    out: Sequence[File]
    new: Sequence[File]
    rows: pa.Table
    entries: pa.Table


@dataclass
class _Found:
    """What one file has of the changed keys: which event removes or marks which of its rows."""

    file: File
    at: Numbers
    out: Mask
    marked: Mask

    @property
    def is_touched(self) -> bool:
        """Whether anything of the file changes."""
        return bool(self.out.any() or self.marked.any())


@dataclass
class _Incoming:
    """Incoming rows; by event the place of its row, -1 if it has none or a file has taken it."""

    rows: pa.Table
    place_of: Numbers

    def take(self, found: _Found) -> pa.Table:
        """Return the rows that replace a file's rows, and mark them as taken."""
        events = np.unique(found.at[found.out & (found.at >= 0)])
        wanted = self.place_of[events]
        self.place_of[events] = -1
        return self.rows.take(pa.array(wanted[wanted >= 0]))

    def rest(self, key: Sequence[str]) -> pa.Table:
        """Return the rows that no file has taken, sorted by key: so later changes of near keys touch fewer files."""
        places_ = pa.array(self.place_of[self.place_of >= 0])
        keys = by_place(self.rows, key).take(places_)
        order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
        return self.rows.take(places_.take(order))


@dataclass
class Merger:
    """Merges one batch.

    :param table: the mirror's name.
    :param key: the columns of the key.
    :param soft_delete: whether deleted rows stay, marked.
    :param entries: the memory of deleted rows.
    :param write: writes rows as files of the mirror.
    """

    batch: Newest
    table: str
    key: tuple[str, ...]
    soft_delete: bool
    entries: Entries
    write: WriteFiles
    # All files written, for any head.
    written: list[File] = field(default_factory=list)
    _judged: Judged = field(init=False)

    def merge(self, head: Head | None) -> Merged:
        """Merge into a head, or into an empty table. Raises ValueMissing; `written` also has failed tries' files."""
        memory = Memory(self.key, self.entries.read())
        rows = behind(self.batch.rows, memory.snapshots)
        self.batch = replace(self.batch, rows=rows, contents=behind(self.batch.contents, memory.snapshots))
        self._judged = Judged(self.batch, Judge(self.table, self.batch.topic, self.key))
        late = is_before(rows, memory.truncated) if memory.truncated is not None else np.zeros(len(rows), np.bool_)
        matched = np.zeros(len(rows), np.bool_)
        found = self._look(head, late, matched) if head is not None else []
        self._judged.check_others(memory)
        is_delete = is_gone(rows)
        new = np.flatnonzero(~matched & ~late & ~is_delete)
        late[new[memory.is_dead(rows.take(pa.array(new)))]] = True
        old = self._old_rows(head, found, self._needed(is_delete, late))
        values = Values(self.batch, self.table, self.key, memory, old)
        deletes = np.flatnonzero(~late & is_delete)
        incoming = self._incoming(values, np.flatnonzero(~late & ~is_delete), deletes)
        files = self._rewrite(head, found, incoming) if head is not None else []
        entries = self._entries(values, deletes)
        return Merged([one.file for one in found], files, incoming.rest(self.key), entries)

    def remember(self, merged: Merged) -> None:
        """Write down the new entries; call it before the commit, see `Memory`."""
        if len(merged.entries):
            self.entries.add(merged.entries)

    def remember_again(self, merged: Merged) -> None:
        """Write down the entries that another first run has taken for those of a dropped mirror.

        Call it after a mirror's first commit: until then nothing tells whose entries count.
        """
        if len(merged.entries) and self.entries.read() is None:
            self.entries.add(merged.entries)

    def write_out(self, rows: pa.Table) -> Sequence[File]:
        """Write rows as files."""
        files = self.write(rows) if len(rows) else []
        self.written += files
        return files

    def _look(self, head: Head, late: Mask, matched: Mask) -> list[_Found]:
        """Return the files that change; note which events have a row, and which are late."""

        def look(file: File) -> _Found:
            return self._look_into(head, file, late)

        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lakestream-look") as pool:
            found = list(pool.map(look, [file for file in head.files() if self._may_hold(head, file)]))
        for one in found:
            hit = one.at >= 0
            matched[one.at[hit]] = True
            late[one.at[hit & ~one.out]] = True
        return [one for one in found if one.is_touched]

    def _may_hold(self, head: Head, file: File) -> bool:
        bounds = head.bounds(file, self.key[0])
        if self.batch.truncated is not None or bounds is None:
            return True
        keys = self.batch.rows[self.key[0]]
        low, high = (pa.scalar(bound) for bound in bounds)
        return bool(pc.any(pc.and_(pc.greater_equal(keys, low), pc.less_equal(keys, high))).as_py())

    def _look_into(self, head: Head, file: File, late: Mask) -> _Found:
        columns = [*self.key, *VERSION, *([DELETED] if self.soft_delete else [])]
        parts = list(head.read(file, columns))
        if not parts:
            return _Found(file, np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros(0, np.bool_))
        rows = _joined(parts)
        at = places(rows, self.batch.rows, self.key)
        out = np.zeros(len(rows), np.bool_)
        hit = np.flatnonzero(at >= 0)
        # A marked row may be older than a truncation, like a late event: it stays.
        out[hit] = is_later(self.batch.rows.take(pa.array(at[hit])), rows.take(pa.array(hit))) & ~late[at[hit]]
        out &= ~self._judged.stay(head, file, rows, at)
        marked = np.zeros(len(rows), np.bool_)
        if self.batch.truncated is not None:
            gone = is_before(rows, self.batch.truncated) & ~out
            if self.soft_delete:
                marked = gone & ~pc.fill_null(rows[DELETED], False).to_numpy()
            else:
                out |= gone
        return _Found(file, at, out, marked)

    def _needed(self, is_delete: Mask, late: Mask) -> set[int]:
        """Return the events whose old rows are needed: for values, because they stay, or because they may be moved."""
        rows, needed = self.batch.rows, set()
        moved = (one for before in self.batch.befores.values() for one in before.values() if isinstance(one, Origin))
        wanted = {one.key for one in (*self.batch.origins.values(), *moved) if one.moved is None}
        needed |= {place for place, _ in self.batch.origins}
        if wanted:
            needed |= {at for at, one in enumerate(keys_of(rows, self.key)) if one in wanted}
        deletes = np.flatnonzero(is_delete & ~late).tolist()
        return needed | set(deletes if self.soft_delete else self.batch.befores)

    def _old_rows(self, head: Head | None, found: Sequence[_Found], needed: set[int]) -> OldRows:
        """Return the table's rows that are replaced or deleted and still needed."""
        old, wanted = OldRows(), np.array(sorted(needed), np.int64)
        for one in found:
            take = np.isin(one.at, wanted) & one.out
            if head is None or not take.any():
                continue
            for rows, here in _with_places(head.read(one.file)):
                if take[here].any():
                    old.add(rows.filter(pa.array(take[here])))
        return old

    def _incoming(self, values: Values, upserts: Numbers, deletes: Numbers) -> _Incoming:
        """Return the events' complete rows, and deleted ones that stay. Raises ValueMissing."""
        rows = values.complete(upserts)
        parts, events = [rows], [upserts]
        if self.soft_delete:
            parts[0] = rows.append_column(DELETED, pa.repeat(pa.scalar(False), len(rows)))
            for places_, marked in values.marked(deletes):
                parts.append(marked)
                events.append(places_)
        place_of = np.full(len(self.batch.rows), -1, np.int64)
        of_rows = np.concatenate(events)
        place_of[of_rows] = np.arange(len(of_rows))
        return _Incoming(pa.concat_tables(parts, promote_options="permissive").combine_chunks(), place_of)

    def _rewrite(self, head: Head, found: Sequence[_Found], incoming: _Incoming) -> list[File]:
        """Rewrite files with the rows that stay and the new versions of those that change."""
        work = [[(one, incoming.take(one)) for one in bundle] for bundle in self._bundles(head, found)]

        def rewrite(bundle: Sequence[tuple[_Found, pa.Table]]) -> list[File]:
            return self._rewrite_as_one(head, bundle)

        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lakestream-rewrite") as pool:
            return [file for files in pool.map(rewrite, work) for file in files]

    def _bundles(self, head: Head, found: Sequence[_Found]) -> Iterator[list[_Found]]:
        """Yield the files to rewrite together: small ones with neighbouring keys."""
        rows = self.batch.rows
        most = PART_BYTES * max(1, len(rows)) // max(1, rows.nbytes)
        bounds = [head.bounds(one.file, self.key[0]) for one in found]
        order = sorted((known[0], at) for at, known in enumerate(bounds) if known is not None)
        bundle: list[_Found] = []
        for at in [*(at for _, at in order), *(at for at, known in enumerate(bounds) if known is None)]:
            if bundle and sum(head.rows_in(one.file) for one in (*bundle, found[at])) > most:
                yield bundle
                bundle = []
            bundle.append(found[at])
        if bundle:
            yield bundle

    def _rewrite_as_one(self, head: Head, bundle: Sequence[tuple[_Found, pa.Table]]) -> list[File]:
        files: list[File] = []
        held: list[pa.Table] = []
        for one, new in bundle:
            held.append(head.conform(new))
            for rows, here in _with_places(head.read(one.file)):
                if one.marked[here].any():
                    rows = marked_where(rows, one.marked[here], self.batch.truncated)
                held.append(head.conform(rows.filter(pa.array(~one.out[here]))))
                if sum(part.nbytes for part in held) >= PART_BYTES:
                    files += self.write_out(_joined(held))
                    held = []
        return [*files, *self.write_out(_joined(held))] if held else files

    def _entries(self, values: Values, deletes: Numbers) -> pa.Table:
        """Return the new entries: a truncation, and deleted rows that do not stay."""
        wanted = [at for at in deletes.tolist() if not self.soft_delete or at in self.batch.befores]
        rows = self.batch.rows.select([*self.key, *VERSION]).take(pa.array(wanted, pa.int64()))
        kept = [values.row_before(at) for at in wanted]
        rows = rows.append_column(row_column(self.key), pa.array(kept, pa.binary()))
        truncated = [] if self.batch.truncated is None or is_mark(self.batch.truncated) else [self.batch.truncated]
        cuts = [dict(zip(VERSION, one, strict=True)) for one in (*truncated, *self.batch.snapshots)]
        columns = [
            pa.array([cut[one.name] for cut in cuts], one.type)
            if one.name in VERSION
            else pa.nulls(len(cuts), one.type)
            for one in rows.schema
        ]
        return pa.concat_tables(
            [rows, pa.Table.from_arrays(columns, [one.name for one in rows.schema])], promote_options="permissive"
        )


def _with_places(parts: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, slice]]:
    """Yield parts of a file's rows, each with its position in the file."""
    start = 0
    for rows in parts:
        yield rows, slice(start, start + len(rows))
        start += len(rows)


def _joined(parts: Sequence[pa.Table]) -> pa.Table:
    # Strings of a column may have 32-bit offsets in one part and 64-bit offsets in another.
    return pa.concat_tables(parts, promote_options="permissive")
