"""Entries of deleted rows: their files are searched one by one for a batch's keys, and compacted in parts of keys.

See `cdc.merge.memory`. There may be many millions of entries; this process never holds all of them at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import OFFSET, PARTITION, VERSION
from airflow_lakestream.cdc.keys.identity import KeySearch, by_place
from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.cdc.merge.lookup import may_hold
from airflow_lakestream.cdc.merge.memory import last_of_each, row_column
from airflow_lakestream.cdc.merge.pool import MergeWork
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.tables.row_buffer import no_rows

# At this number of small files, which have fewer entries than half a part, all files are compacted.
MOST_FILES = 32
# Number of entries that are sorted at once, and become a file.
PART_ENTRIES = 250_000
# Bytes of an entry in memory. Files of entries are far smaller: they are sorted.
ENTRY_BYTES = 40
# Number of sampled keys per part, to find the ends of parts.
_SAMPLES = 1_000


@dataclass(frozen=True)
class EntryFile:
    """A file of `rows` entries, fit for pickling.

    :param bounds: the least and the greatest value of the key's first column; None if unknown.
    :param is_always_read: whether the file may have entries without a key, or with a row, which every batch needs.
    :param read: yields the entries with the given columns; with all columns if none is given.
    """

    rows: int
    bounds: tuple[Any, Any] | None
    is_always_read: bool
    read: Callable[[Sequence[str]], Iterable[pa.Table]]


def entry_files(head: MirrorHead, key: Sequence[str]) -> list[EntryFile]:
    """Return the files of a table of entries.

    :param key: the columns of the mirror's key.
    """

    def entry_file(file: File) -> EntryFile:
        rows = head.rows_in(file)
        all_have_keys, has_rows = head.nulls_in(file, key[0]) == 0, head.nulls_in(file, row_column(key)) != rows
        return EntryFile(rows, head.bounds(file, key[0]), has_rows or not all_have_keys, partial(head.read, file))

    return [entry_file(file) for file in head.files()]


@dataclass(frozen=True)
class EntryFiles:
    """The files of a mirror's entries, and the columns of the entries."""

    files: Sequence[EntryFile]
    columns: pa.Schema

    def wanted(self, key: tuple[str, ...], search: KeySearch) -> MergeWork:
        """Return the work that finds the entries of a batch's keys, and the entries that every batch needs.

        Every batch needs the entries without a key, and the entries with a row.

        :param key: the columns of the mirror's key.
        :param search: the search for the batch's keys.
        """
        # Values of the key's first column are only sorted if a file has bounds to compare with.
        first_values = search.rising if any(file.bounds is not None for file in self.files) else []
        files = [file for file in self.files if file.is_always_read or may_hold(file.bounds, first_values)]
        return MergeWork(EntrySearch(key, search), files, sum(file.rows for file in files) * ENTRY_BYTES)

    def joined(self, parts: Iterable[pa.Table]) -> pa.Table:
        """Return parts of the entries as a single table."""
        return pa.concat_tables([no_rows(self.columns), *parts], promote_options="permissive")

    def read(self) -> pa.Table:
        """Return all entries."""
        return self.joined(part for file in self.files for part in file.read(()))


@dataclass(frozen=True)
class MirrorEntries:
    """Storage of a mirror's entries: rows of the key's columns, `VERSION` and `ROW`.

    :param open: returns the files of the entries, or None without a table, or with only the table of a dropped mirror.
    :param add: adds entries in a separate commit, which also compacts many files into few. Raises the errors of a
        commit.
    """

    open: Callable[[], EntryFiles | None]
    add: Callable[[pa.Table], None]


@dataclass(frozen=True)
class EntrySearch:
    """Search in a file for a batch's entries: with these keys, without a key, or with a row."""

    key: tuple[str, ...]
    search: KeySearch

    def __call__(self, file: EntryFile) -> list[pa.Table]:
        """Return the needed entries of a file, in parts."""
        parts = (part.filter(pa.array(self._mask_of_needed(part))) for part in file.read(()))
        return [part for part in parts if len(part)]

    def _mask_of_needed(self, entries: pa.Table) -> Mask:
        # A merge needs the entries of its own keys, the entries of truncations, which have no key, and all entries that
        # contain the deleted row. A change of a row's key is a deletion under the old key and an insert under the new
        # key; if the insert leaves values out, these come from the row under the old key.
        is_for_all_keys = entries[self.key[0]].is_null().to_numpy()
        holds_row = entries[row_column(self.key)].is_valid().to_numpy()
        needed: Mask = is_for_all_keys | holds_row
        numbers, _ = self.search(entries)
        needed[numbers] = True
        return needed


def compacted(
    head: MirrorHead, key: Sequence[str], lows: Mapping[int, int], *, keeps_all: bool = False
) -> list[File] | None:
    """Compact all files of a table of entries; return the new files, or None if few files are small.

    All old files are then to be removed. See `condensed`.

    :param key: the columns of the mirror's key.
    :param lows: by partition, the first offset that the topic still has.
    :param keeps_all: whether all entries of a key are needed.
    """
    files = entry_files(head, key)
    if sum(file.rows < PART_ENTRIES // 2 for file in files) < MOST_FILES:
        return None
    return [file for part in condensed(files, key, lows, keeps_all=keeps_all) for file in head.write(part)]


def condensed(
    files: Sequence[EntryFile], key: Sequence[str], lows: Mapping[int, int], *, keeps_all: bool = False
) -> Iterator[pa.Table]:
    """Yield all entries still needed, sorted by key, in parts for files.

    Of each key, the last entry is enough, unless `keeps_all`. The deleted rows in entries are left
    out: they were for the next event, which has come. Entries of events that the topic no longer has are left out, too:
    an entry is kept for older events of the same row, which the topic no longer has either.

    :param key: the columns of the mirror's key.
    :param lows: by partition, the first offset that the topic still has.
    """
    # Part by part of the keys: each part needs only its entries in memory.
    for low, high in itertools.pairwise([None, *_ends(files, key), None]):
        parts = [part for file in files if _may_reach(file, low, high) for part in _between(file, key, low, high)]
        if not parts:
            continue
        entries = pa.concat_tables(parts, promote_options="permissive")
        of_keys = entries.filter(entries[key[0]].is_valid())
        unkeyed = entries.filter(entries[key[0]].is_null())
        kept = last_of_each(of_keys, [*key, *VERSION] if keeps_all else key)
        kept = kept.filter(pa.array(~_is_below(kept, lows)))
        order = by_place(kept, key)
        kept = kept.take(pc.sort_indices(order, sort_keys=[(name, "ascending") for name in order.column_names]))
        compact = pa.concat_tables([kept, unkeyed])
        row = row_column(key)
        if len(compact):
            yield compact.set_column(compact.column_names.index(row), row, pa.nulls(len(compact), pa.binary()))


def _ends(files: Sequence[EntryFile], key: Sequence[str]) -> list[pa.Scalar]:
    """Return the first keys of all parts except the first part, by samples of the key's first column."""
    count = sum(file.rows for file in files)
    parts = -(-count // PART_ENTRIES)
    if parts < 2:
        return []
    step, samples = max(1, count // (parts * _SAMPLES)), list[pa.ChunkedArray]()
    for file in files:
        for rows in file.read(key[:1]):
            samples.append(by_place(rows, key[:1])[0].take(pa.array(np.arange(0, len(rows), step))))
    values = pa.chunked_array([chunk for column in samples for chunk in column.chunks]).drop_null()
    ordered = values.take(pc.sort_indices(values))
    ends = [ordered[len(ordered) * part // parts] for part in range(1, parts)] if len(ordered) else []
    return [end for number, end in enumerate(ends) if number == 0 or end != ends[number - 1]]


def _may_reach(file: EntryFile, low: pa.Scalar | None, high: pa.Scalar | None) -> bool:
    """Return whether a file may have entries with a key from `low` on and below `high`; None is no bound."""
    # Entries without a key are in the first part, so the first part needs all files.
    if file.bounds is None or low is None:
        return True
    return bool(file.bounds[1] >= low.as_py() and (high is None or file.bounds[0] < high.as_py()))


def _between(file: EntryFile, key: Sequence[str], low: pa.Scalar | None, high: pa.Scalar | None) -> Iterator[pa.Table]:
    """Yield the entries of a file with a key from `low` on and below `high`; None is no bound."""
    for rows in file.read(()):
        keys = by_place(rows, key[:1])[0]
        inside = pa.chunked_array([pa.repeat(True, len(rows))])
        if low is not None:
            inside = pc.and_(inside, pc.greater_equal(keys, low.cast(keys.type)))
        if high is not None:
            inside = pc.and_(inside, pc.less(keys, high.cast(keys.type)))
        # Entries without a key are in the first part.
        yield rows.filter(inside.fill_null(low is None))


def _is_below(entries: pa.Table, lows: Mapping[int, int]) -> Mask:
    """Return a mask of the entries whose offset is below the low of their partition."""
    below = np.zeros(len(entries), np.bool_)
    partitions, offsets = entries[PARTITION].to_numpy(), entries[OFFSET].to_numpy()
    for partition, low in lows.items():
        below |= (partitions == partition) & (offsets < low)
    return below
