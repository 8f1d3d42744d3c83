"""Lookup of a batch's keys in the files of a head; reads only keys, versions and marks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, DELETED, IS_CURRENT, VALID_TO, VERSION
from airflow_lakestream.cdc.keys.identity import KeySearch
from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.cdc.merge.snapshots import Version, is_before
from airflow_lakestream.cdc.rows import HistoryRules, RowStrategy, VersionCut
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.tables.rising import Numbers
from airflow_lakestream.tables.row_buffer import no_rows, one_array

_ROWS_AT_ONCE = 500_000

Narrow = npt.NDArray[np.int32]


@dataclass(frozen=True)
class LookupResult:
    """Result of a lookup in a file with `live` rows.

    :param live: the number of rows that are not deleted yet.
    :param hits: the numbers of the rows whose key has an event, rising.
    :param at: for each hit the index of the event in the batch, or -1 for a version that only a truncation ends.
    :param rows: version and mark of the hits; None if all of these rows are older than any event.
    :param gone: a mask of the rows that a truncation removes, or marks; None without a truncation.
    """

    live: int
    hits: Numbers
    at: Numbers
    rows: pa.Table | None
    gone: Mask | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle row numbers with half the width: a file or a batch never has more rows."""
        return _found, (self.live, self.hits.astype(np.int32), self.at.astype(np.int32), self.rows, self.gone)


def _found(live: int, hits: Narrow, at: Narrow, rows: pa.Table | None, gone: Mask | None) -> LookupResult:
    return LookupResult(live, hits.astype(np.int64), at.astype(np.int64), rows, gone)


@dataclass(frozen=True)
class KeyLookup:
    """Lookup of a batch's keys in a file.

    :param search: the keys of the batch's events.
    :param strategy: the rows of a key.
    :param truncated: the batch's last truncation.
    :param since: first commit of the batch's events: `LookupResult.rows` is None if all rows are older; None keeps all.
    :param history: the rules of a history of rows; then hits are also the rows that a truncation ends.
    :param beside: further columns that order records.
    """

    head: MirrorHead
    search: KeySearch
    key: tuple[str, ...]
    strategy: RowStrategy
    truncated: Version | None
    since: int | None
    history: HistoryRules | None = None
    beside: tuple[str, ...] = ()

    def reached(self, files: Sequence[File]) -> list[File]:
        """Return the files with possible rows of these keys; for a truncation all files."""
        if self.truncated is not None:
            return list(files)
        known = [(file, self.head.bounds(file, self.key[0])) for file in files]
        ordered = self.search.rising if any(bounds for _, bounds in known) else []
        return [file for file, bounds in known if may_hold(bounds, ordered)]

    def __call__(self, file: File) -> LookupResult:
        """Look up the keys in a file; only the columns of key, version and deletion mark are read."""
        columns = list(dict.fromkeys([*self.key, *self._columns_needed]))
        parts = [self._in(rows) for rows in _gathered(self.head.read(file, columns))]
        starts = np.cumsum([0, *(part.live for part in parts)])
        hits = [part.hits + start for part, start in zip(parts, starts[:-1], strict=True)]
        cut = [part.gone for part in parts if part.gone is not None]
        return LookupResult(
            int(starts[-1]),
            np.concatenate([np.zeros(0, np.int64), *hits]),
            np.concatenate([np.zeros(0, np.int64), *(part.at for part in parts)]),
            self._newer_rows([part.rows for part in parts if part.rows is not None]),
            np.concatenate(cut) if cut else None,
        )

    def _newer_rows(self, parts: Sequence[pa.Table]) -> pa.Table | None:
        # Without any row of the file, only the columns matter.
        rows = joined(parts) if parts else no_rows(self.strategy.columns)
        rows = rows.select([name for name in self._columns_needed if name in rows.column_names])
        is_older = self.since is not None and (rows[COMMIT].to_numpy() < self.since).all()
        return None if is_older else rows

    @property
    def _columns_needed(self) -> list[str]:
        if self.history is not None:
            further = [name for name in self.strategy.further.names if name != IS_CURRENT]
            return list(dict.fromkeys([*VERSION, *further, *self.history.columns]))
        return [*VERSION, *self.beside, *([DELETED] if self.strategy.keeps_deleted else [])]

    def _in(self, rows: pa.Table) -> LookupResult:
        """Look the batch's keys up in the rows of a file."""
        hits, at = self.search(rows)
        if self.history is not None and self.history.cuts:
            ended = np.setdiff1d(self._ended(rows, self.history.cuts), hits)
            order = np.argsort(np.concatenate([hits, ended]))
            hits = np.concatenate([hits, ended])[order]
            at = np.concatenate([at, np.full(len(ended), -1, np.int64)])[order]
        return LookupResult(
            len(rows), hits, at, rows.select(self._columns_needed).take(pa.array(hits)), self._gone(rows)
        )

    def _ended(self, rows: pa.Table, cuts: Sequence[VersionCut]) -> Numbers:
        """Return the numbers of the rows that may end by a truncation: earlier ones without an end before it."""
        ends = pc.fill_null(one_array(rows[VALID_TO]).cast(pa.int64()), np.iinfo(np.int64).max).to_numpy()
        found: Numbers = np.flatnonzero(is_before(rows, cuts[-1].version) & (ends > min(cut.time for cut in cuts)))
        return found

    def _gone(self, rows: pa.Table) -> Mask | None:
        if self.truncated is None or self.history is not None:
            return None
        gone = is_before(rows, self.truncated)
        return gone & ~pc.fill_null(rows[DELETED], False).to_numpy() if self.strategy.keeps_deleted else gone


def may_hold(bounds: tuple[Any, Any] | None, ordered: Sequence[Any]) -> bool:
    """Return whether a file with these bounds, if known, may have any of these rising values."""
    if bounds is None:
        return True
    at = bisect_left(ordered, bounds[0])
    return at < len(ordered) and bool(ordered[at] <= bounds[1])


@dataclass
class FileChange:
    """Change of a file: the numbers of the rows to delete, rising, and the rows to mark as deleted.

    :param live: the number of rows that are not deleted yet.
    :param out: the numbers of the rows to delete.
    :param at: the index of the event of each row to delete; -1 if a truncation removes the row.
    :param marked: a mask over all live rows; None if no row is marked.
    """

    file: File
    live: int
    out: Numbers
    at: Numbers
    marked: Mask | None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the indices of events, for work on the file in another process."""
        return _change, (self.file, self.live, self.out.astype(np.int32), self.marked)

    @property
    def is_touched(self) -> bool:
        """Whether the file changes."""
        return bool(len(self.out)) or self.marked is not None


def _change(file: File, live: int, out: Narrow, marked: Mask | None) -> FileChange:
    return FileChange(file, live, out.astype(np.int64), np.zeros(0, np.int64), marked)


def change_of(file: File, found: LookupResult, out: Mask, strategy: RowStrategy) -> FileChange:
    """Return the change of a file, by the events and by a truncation.

    :param found: the result of the lookup in the file.
    :param out: a mask of the hits that their events replace or delete.
    :param strategy: the rows of a key: those that a truncation removes may stay, marked.
    """
    cut = found.gone
    # Without a truncation, only the events change rows.
    if cut is None:
        return FileChange(file, found.live, found.hits[out], found.at[out], None)
    if strategy.keeps_deleted:
        # Rows from before the truncation stay, marked, except rows that an event replaces.
        marked = cut.copy()
        marked[found.hits[out]] = False
        return FileChange(file, found.live, found.hits[out], found.at[out], marked if marked.any() else None)
    # Rows from before the truncation are deleted, too.
    events = np.full(found.live, -1, np.int64)
    events[found.hits] = found.at
    is_out = cut.copy()
    is_out[found.hits[out]] = True
    numbers = np.flatnonzero(is_out)
    return FileChange(file, found.live, numbers, events[numbers], None)


def with_numbers(parts: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, slice]]:
    """Yield parts of a file's rows, each with the slice of row numbers."""
    start = 0
    for rows in parts:
        yield rows, slice(start, start + len(rows))
        start += len(rows)


def within_part(numbers: Numbers, here: slice) -> Numbers:
    """Return the rising numbers within a part, counted from the part's start."""
    low, high = np.searchsorted(numbers, (here.start, here.stop))
    within: Numbers = numbers[low:high] - here.start
    return within


def _gathered(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield parts of a file joined to half a million rows or more: each lookup of keys has a fixed cost."""
    held: list[pa.Table] = []
    for rows in parts:
        held.append(rows)
        if sum(map(len, held)) >= _ROWS_AT_ONCE:
            yield joined(held)
            held = []
    if held:
        yield joined(held)


def joined(parts: Sequence[pa.Table]) -> pa.Table:
    """Return a non-empty sequence of parts as a single table."""
    # Strings of a column may have 32-bit offsets in one part and 64-bit offsets in another.
    return pa.concat_tables(parts, promote_options="permissive")
