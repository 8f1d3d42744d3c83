"""Merge of a batch into a table with the history of rows: a row for each version, with the time in which it was valid.

A version begins at the time of its record, and ends at the time of the key's next record, which may be a deletion. So
the rows and deletions of a key that are known, and those of the batch, are put in order, and each row ends at the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_lakestream.cdc.columns import COMMIT, IS_CURRENT, OP, VALID_FROM, VALID_TO, VERSION
from airflow_lakestream.cdc.keys.identity import by_place, greatest_of_each, places
from airflow_lakestream.cdc.merge.files import RowReadTask
from airflow_lakestream.cdc.merge.hands import MergeWork
from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.cdc.merge.lookup import FileChange, LookupResult
from airflow_lakestream.cdc.merge.memory import MirrorMemory
from airflow_lakestream.cdc.merge.merge import BatchMerger, IncomingRows, MergeResult
from airflow_lakestream.cdc.merge.newest import is_gone
from airflow_lakestream.cdc.merge.values import OldRows, RowValues
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.tables.rising import Numbers
from airflow_lakestream.tables.row_buffer import one_array

_TIME = pa.timestamp("us", "UTC")


@dataclass
class HistoryMerger(BatchMerger):
    """Merge of a batch whose records each begin or end a version of their key."""

    def merge(self, head: MirrorHead | None) -> MergeResult:
        """Decide about a batch's rows for a head, and write the files; see `BatchMerger.merge`.

        Raises MirrorStopped for records in unknown order, and the errors of `look`.
        """
        held = head.files() if head is not None else []
        memory, reached, results = self._looked_up(head, held)
        rows, gone = self.batch.rows, is_gone(self.batch.rows)
        ends = self._ends(results, memory, gone)
        # The table's rows that end now, or at another time than before.
        changes, changed_ends, start = [], list[_VersionEnds](), len(rows)
        for file, found in zip(reached, results, strict=True):
            own = ends.part(start, start + len(found.hits))
            start += len(found.hits)
            is_out = own.differ_from(found)
            if is_out.any():
                none = np.full(int(is_out.sum()), -1, np.int64)
                changes.append(FileChange(file, found.live, found.hits[is_out], none, None))
                changed_ends.append(own.of(is_out))
        begun = np.flatnonzero(~gone & ~ends.repeated[: len(rows)])
        new = ends.part(0, len(rows)).of(begun).on(rows.take(pa.array(begun)).drop_columns([OP]))
        parts = [new.append_column(VALID_FROM, new[COMMIT].cast(pa.int64()).cast(_TIME))]
        if head is not None and changes:
            old = self._read(head, [(one.file, one.out) for one in changes])
            parts.append(_joined(changed_ends).on(old))
        incoming = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
        if self.look is not None:
            self.look(incoming)
        entries = self._entries(RowValues(self.batch, self.table, self.key, memory, OldRows()), np.flatnonzero(gone))
        return self._written(head, held, changes, IncomingRows(incoming, np.arange(len(incoming))), entries)

    def _ends(self, results: Sequence[LookupResult], memory: MirrorMemory, gone: Mask) -> _VersionEnds:
        """Return the end of each record of the batch, then of each hit in the files, then of each deletion known.

        :param gone: a mask of the batch's deletions.
        """
        rows, key = self.batch.rows, self.key
        # 1. Number the keys, and collect all records of each.
        (first,) = greatest_of_each(by_place(rows, key), -np.arange(len(rows)))
        distinct = rows.take(pa.array(-first))
        numbers = places(rows, distinct, key)
        deletions = memory.deletions(distinct)
        every = [rows.select(VERSION), *(one.rows.select(VERSION) for one in results if one.rows is not None)]
        every.append(deletions.select(VERSION))
        of_keys = np.concatenate(
            [numbers, *(numbers[one.at] for one in results), places(deletions, distinct, key)]
        ).astype(np.int64)
        versions = [np.concatenate([one[name].to_numpy().astype(np.int64) for one in every]) for name in VERSION]
        # 2. Put them in order. A record that the table or the memory has comes behind that one.
        is_new = np.arange(len(of_keys)) < len(rows)
        order = np.lexsort((is_new, *reversed(versions), of_keys))
        sorted_keys, ordered = of_keys[order], [one[order] for one in versions]
        same_key = sorted_keys[1:] == sorted_keys[:-1]
        same_place = same_key & np.logical_and.reduce([one[1:] == one[:-1] for one in ordered[:2]])
        same_partition = ordered[2][1:] == ordered[2][:-1]
        repeated = np.zeros(len(order), np.bool_)
        repeated[1:] = same_place & same_partition & (ordered[3][1:] == ordered[3][:-1])
        if self.batch.ties is not None and (tied := np.flatnonzero(same_place & ~same_partition)).size:
            one, other = (distinct.select(list(key)).slice(int(sorted_keys[tied[0]]), 1) for _ in range(2))
            for name, column in zip(VERSION, ordered, strict=True):
                kind = rows.schema.field(name).type
                one = one.append_column(name, pa.array([column[tied[0]]], kind))
                other = other.append_column(name, pa.array([column[tied[0] + 1]], kind))
            self.batch.ties.check(one, other)
        # 3. Each ends at the next record of its key.
        kept = np.flatnonzero(~repeated)
        has_next = np.zeros(len(kept), np.bool_)
        has_next[:-1] = sorted_keys[kept[1:]] == sorted_keys[kept[:-1]]
        found = _VersionEnds(
            np.zeros(len(order), np.int64), np.ones(len(order), np.bool_), np.zeros(len(order), np.bool_)
        )
        following = order[kept[has_next]]
        found.times[following] = ordered[0][kept[np.flatnonzero(has_next) + 1]]
        found.is_open[following] = False
        found.repeated[order[repeated]] = True
        return found

    def _read(self, head: MirrorHead, wanted: Sequence[tuple[File, Numbers]]) -> pa.Table:
        """Return whole rows of files, in the order of the files and of the numbers."""
        size = sum(head.bytes_in(file) for file, _ in wanted)
        (parts,) = self.hands.do(MergeWork(RowReadTask(head), wanted, size))
        return pa.concat_tables([rows for part in parts for rows in part], promote_options="permissive")


@dataclass
class _VersionEnds:
    """Ends of versions: the time in microseconds, except for those that are open; and those that were known before."""

    times: npt.NDArray[np.int64]
    is_open: Mask
    repeated: Mask

    def part(self, start: int, end: int) -> _VersionEnds:
        return self.of(np.arange(start, end))

    def of(self, chosen: Numbers | Mask) -> _VersionEnds:
        return _VersionEnds(self.times[chosen], self.is_open[chosen], self.repeated[chosen])

    def differ_from(self, found: LookupResult) -> Mask:
        """Return a mask of the hits in a file that have another end."""
        assert found.rows is not None, "all rows of the keys are wanted"
        held = one_array(found.rows[VALID_TO]).cast(pa.int64())
        was_open = held.is_null().to_numpy(zero_copy_only=False)
        mask: Mask = (was_open != self.is_open) | (~self.is_open & (held.fill_null(0).to_numpy() != self.times))
        return mask

    def on(self, rows: pa.Table) -> pa.Table:
        """Return rows with these ends."""
        ends = pa.array(self.times, mask=self.is_open).cast(_TIME)
        for name, column in ((VALID_TO, ends), (IS_CURRENT, pa.array(self.is_open))):
            rows = rows.drop_columns([name] if name in rows.column_names else []).append_column(name, column)
        return rows


def _joined(parts: Sequence[_VersionEnds]) -> _VersionEnds:
    return _VersionEnds(
        *(np.concatenate([getattr(one, name) for one in parts]) for name in ("times", "is_open", "repeated"))
    )
