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

# The least number of rows that are looked up at once, except at a file's end.
_ROWS_AT_ONCE = 500_000

Narrow = npt.NDArray[np.int32]


@dataclass(frozen=True)
class LookupResult:
    """Result of a lookup in a file.

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
        return _lookup_result, (self.live, self.hits.astype(np.int32), self.at.astype(np.int32), self.rows, self.gone)


def _lookup_result(live: int, hits: Narrow, events: Narrow, rows: pa.Table | None, gone: Mask | None) -> LookupResult:
    """Return a lookup's result from its pickle."""
    return LookupResult(live, hits.astype(np.int64), events.astype(np.int64), rows, gone)


@dataclass(frozen=True)
class KeyLookup:
    """Lookup of a batch's keys in a file.

    :param search: the keys of the batch's events.
    :param strategy: the rows of a key.
    :param truncated: the batch's last truncation.
    :param since: the first commit of the batch's events: if all rows are older, `LookupResult.rows` is None. None to
        keep the rows in any case.
    :param history: the rules of a history of rows; then the rows that a truncation ends are hits, too.
    :param further_order: the columns that order records, except those of the version.
    """

    head: MirrorHead
    search: KeySearch
    key: tuple[str, ...]
    strategy: RowStrategy
    truncated: Version | None
    since: int | None
    history: HistoryRules | None = None
    further_order: tuple[str, ...] = ()

    def reached(self, files: Sequence[File]) -> list[File]:
        """Return the files with possible rows of these keys; for a truncation all files."""
        if self.truncated is not None:
            return list(files)
        bounded = [(file, self.head.bounds(file, self.key[0])) for file in files]
        rising_keys = self.search.rising if any(bounds for _, bounds in bounded) else []
        return [file for file, bounds in bounded if may_hold(bounds, rising_keys)]

    def __call__(self, file: File) -> LookupResult:
        """Look up the keys in a file; only the columns of key, version and deletion mark are read."""
        columns = list(dict.fromkeys([*self.key, *self._columns_needed]))
        parts = [self._in(rows) for rows in _gathered(self.head.read(file, columns))]
        starts = np.cumsum([0, *(part.live for part in parts)])
        hits = [part.hits + start for part, start in zip(parts, starts[:-1], strict=True)]
        gone = [part.gone for part in parts if part.gone is not None]
        return LookupResult(
            int(starts[-1]),
            np.concatenate([np.zeros(0, np.int64), *hits]),
            np.concatenate([np.zeros(0, np.int64), *(part.at for part in parts)]),
            self._newer_rows([part.rows for part in parts if part.rows is not None]),
            np.concatenate(gone) if gone else None,
        )

    def _newer_rows(self, parts: Sequence[pa.Table]) -> pa.Table | None:
        """Return the needed columns of a file's hits, or None if all hits are older than `since`."""
        # Without any row of the file, only the columns matter.
        rows = joined(parts) if parts else no_rows(self.strategy.columns)
        rows = rows.select([name for name in self._columns_needed if name in rows.column_names])
        is_older = self.since is not None and (rows[COMMIT].to_numpy() < self.since).all()
        return None if is_older else rows

    @property
    def _columns_needed(self) -> list[str]:
        """The columns of hits that the merge needs for its decisions."""
        if self.history is not None:
            further = [name for name in self.strategy.further.names if name != IS_CURRENT]
            return list(dict.fromkeys([*VERSION, *further, *self.history.columns]))
        return [*VERSION, *self.further_order, *([DELETED] if self.strategy.keeps_deleted else [])]

    def _in(self, rows: pa.Table) -> LookupResult:
        """Return the result of a lookup in some rows of a file, numbered from 0."""
        hits, events = self.search(rows)
        if self.history is not None and self.history.cuts:
            ended = np.setdiff1d(self._ended(rows, self.history.cuts), hits)
            order = np.argsort(np.concatenate([hits, ended]))
            hits = np.concatenate([hits, ended])[order]
            events = np.concatenate([events, np.full(len(ended), -1, np.int64)])[order]
        return LookupResult(
            len(rows), hits, events, rows.select(self._columns_needed).take(pa.array(hits)), self._gone(rows)
        )

    def _ended(self, rows: pa.Table, cuts: Sequence[VersionCut]) -> Numbers:
        """Return the numbers of the rows that a truncation may end: older rows whose end, if any, is not before it."""
        ends = pc.fill_null(one_array(rows[VALID_TO]).cast(pa.int64()), np.iinfo(np.int64).max).to_numpy()
        numbers: Numbers = np.flatnonzero(is_before(rows, cuts[-1].version) & (ends > min(cut.time for cut in cuts)))
        return numbers

    def _gone(self, rows: pa.Table) -> Mask | None:
        """Return a mask of the rows that the batch's truncation removes or marks; None without a truncation."""
        if self.truncated is None or self.history is not None:
            return None
        gone = is_before(rows, self.truncated)
        return gone & ~pc.fill_null(rows[DELETED], False).to_numpy() if self.strategy.keeps_deleted else gone


def may_hold(bounds: tuple[Any, Any] | None, rising: Sequence[Any]) -> bool:
    """Return whether a file may have any of these rising values, by its bounds; true for unknown bounds (None)."""
    if bounds is None:
        return True
    index = bisect_left(rising, bounds[0])
    return index < len(rising) and bool(rising[index] <= bounds[1])


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
        return _file_change, (self.file, self.live, self.out.astype(np.int32), self.marked)

    @property
    def is_touched(self) -> bool:
        """Whether the file changes."""
        return bool(len(self.out)) or self.marked is not None


def _file_change(file: File, live: int, out: Narrow, marked: Mask | None) -> FileChange:
    """Return a file's change from its pickle."""
    return FileChange(file, live, out.astype(np.int64), np.zeros(0, np.int64), marked)


def change_of(file: File, result: LookupResult, out: Mask, strategy: RowStrategy) -> FileChange:
    """Return the change of a file, by the events and by a truncation.

    :param result: the result of the lookup in the file.
    :param out: a mask of the hits that their events replace or delete.
    :param strategy: the rows of a key: rows that a truncation deletes may stay, marked.
    """
    truncated = result.gone
    # Without a truncation, only the events change rows.
    if truncated is None:
        return FileChange(file, result.live, result.hits[out], result.at[out], None)
    if strategy.keeps_deleted:
        # Rows from before the truncation stay, marked, except rows that an event replaces.
        marked = truncated.copy()
        marked[result.hits[out]] = False
        return FileChange(file, result.live, result.hits[out], result.at[out], marked if marked.any() else None)
    # Rows from before the truncation are deleted, too.
    event_of = np.full(result.live, -1, np.int64)
    event_of[result.hits] = result.at
    is_out = truncated.copy()
    is_out[result.hits[out]] = True
    numbers = np.flatnonzero(is_out)
    return FileChange(file, result.live, numbers, event_of[numbers], None)


def with_numbers(parts: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, slice]]:
    """Yield parts of a file's rows, each with the slice of the file's row numbers that the part has."""
    start = 0
    for rows in parts:
        yield rows, slice(start, start + len(rows))
        start += len(rows)


def within_part(numbers: Numbers, part: slice) -> Numbers:
    """Return the rising numbers within a part, counted from the part's start."""
    low, high = np.searchsorted(numbers, (part.start, part.stop))
    within: Numbers = numbers[low:high] - part.start
    return within


def _gathered(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield parts of a file joined to half a million rows or more: each lookup of keys has a fixed cost."""
    collected: list[pa.Table] = []
    for rows in parts:
        collected.append(rows)
        if sum(map(len, collected)) >= _ROWS_AT_ONCE:
            yield joined(collected)
            collected = []
    if collected:
        yield joined(collected)


def joined(parts: Sequence[pa.Table]) -> pa.Table:
    """Return a non-empty sequence of parts as a single table."""
    # Strings of a column may have 32-bit offsets in one part and 64-bit offsets in another.
    return pa.concat_tables(parts, promote_options="permissive")
