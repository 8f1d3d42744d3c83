"""Merge of a batch into a table with the history of rows: a row for each version, with the time in which it was valid.

A version begins at the time of its record, and ends at the time of the key's next record, which may be a deletion, or
of a truncation. So the known rows and deletions of a key, and those of the batch, are put in order. If a version may
cover several records, or if records leave values out, `cdc.merge.spans` makes the versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import (
    BEGIN,
    GIVEN,
    IS_CURRENT,
    OF_EVENTS,
    OP,
    TIME,
    VALID_FROM,
    VALID_TO,
    VERSION,
    version_schema,
)
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.presence import given_mask
from airflow_lakestream.cdc.keys.guards import GuardCheck, GuardKind
from airflow_lakestream.cdc.merge.audited import Conform, check_of
from airflow_lakestream.cdc.merge.entries import MirrorEntries
from airflow_lakestream.cdc.merge.files import RowReadTask
from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.cdc.merge.judged import GuardedRowCheck
from airflow_lakestream.cdc.merge.left_out import may_lack
from airflow_lakestream.cdc.merge.lookup import FileChange, LookupResult, joined
from airflow_lakestream.cdc.merge.memory import MirrorMemory, row_column
from airflow_lakestream.cdc.merge.merge import BatchMerger, IncomingRows, MergeResult
from airflow_lakestream.cdc.merge.newest import NewestEvents
from airflow_lakestream.cdc.merge.pool import MergePool, MergeWork
from airflow_lakestream.cdc.merge.snapshots import behind, is_mark, versions
from airflow_lakestream.cdc.merge.spans import SpanFold, column_of
from airflow_lakestream.cdc.merge.values import Borrowed, ValueMissing, as_bytes
from airflow_lakestream.cdc.merge.versions import KnownRecords, RowVersions
from airflow_lakestream.cdc.rows import HistoryRules, RowStrategy
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.decode.connect.unavailable import Mask, left_out
from airflow_lakestream.tables.rising import Numbers
from airflow_lakestream.tables.row_buffer import one_array

_TIME = pa.timestamp("us", "UTC")


@dataclass
class HistoryMerger(BatchMerger):
    """Merge of a batch whose records begin, continue or end versions of their key."""

    def merge(self, head: MirrorHead | None, read_landed: Callable[[], RangeSet] = RangeSet) -> MergeResult:
        """Decide about a batch's rows for a head, and write the files; see `BatchMerger.merge`.

        Raises MirrorStopped for records in unknown order, ValueMissing, and the errors of `check_rows`.
        """
        files = head.files() if head is not None else []
        memory, reached, results = self._looked_up(head, files, read_landed)
        self.batch = replace(self.batch, rows=behind(self.batch.rows, memory.snapshots))
        known = KnownRecords.of(self.batch, results, memory, self.key)
        order, repeated = known.in_order(of_log=self._rules.of_log)
        self._check_order(known, order, repeated)
        self._check_guards(head, reached, results, known, order, memory)
        absent, moved = self._absent(repeated), self._moved_before(memory, len(known.keys))
        cuts = memory.cuts(self._rules.cuts)
        if absent or self._rules.columns:
            hit_rows = [result.rows for result in results if result.rows is not None]
            fold = SpanFold(
                known, repeated, self.batch.rows, joined(hit_rows) if hit_rows else None, self._rules, absent, *moved
            )
            row_versions, bases = fold.versions([(*cut.version[:2], 0, *cut.version[2:]) for cut in cuts]), fold.bases
        else:
            kept = np.flatnonzero(~repeated)
            hits = np.where((kept >= known.batch) & (kept < known.batch + known.hits), kept, -1)
            row_versions, bases = RowVersions(known.take(kept), kept, hits), np.zeros(0, np.int64)
        row_versions.end(cuts, of_log=self._rules.of_log)
        return self._changed(
            head,
            files,
            reached,
            results,
            _ChangedRows.of(known, row_versions),
            _AbsentValues(known, bases, absent, moved[1]),
        )

    @property
    def _rules(self) -> HistoryRules:
        assert self.batch.history is not None, "a batch for a history has rules"
        return self.batch.history

    def _check_order(self, known: KnownRecords, order: Numbers, repeated: Mask) -> None:
        """Refuse plain records of two partitions at the same place. Raises MirrorStopped."""
        if self.batch.ties is None:
            return
        firsts, keys = known.firsts[order], known.keys[order]
        same = (keys[1:] == keys[:-1]) & (firsts[1:, :2] == firsts[:-1, :2]).all(axis=1)
        same &= np.minimum(order[1:], order[:-1]) < known.batch
        for number in np.flatnonzero(same & (firsts[1:, 2] != firsts[:-1, 2]))[:1]:
            row = self.batch.rows.select(list(self.key)).slice(int(min(order[number : number + 2])), 1)
            pair = pa.concat_tables([row, row])
            for values, column in zip(firsts[number : number + 2].T, version_schema(), strict=True):
                pair = pair.append_column(column, pa.array(values, column.type))
            self.batch.ties.check(pair.slice(0, 1), pair.slice(1))

    def _check_guards(
        self,
        head: MirrorHead | None,
        files: Sequence[File],
        results: Sequence[LookupResult],
        known: KnownRecords,
        order: Numbers,
        memory: MirrorMemory,
    ) -> None:
        """Refuse events with guards, if the row before the event is not the row that the event means.

        Raises MirrorStopped. For a current row a guard may decide, but not for all versions of the row.
        """
        judge = GuardCheck(self.table, self.batch.topic, self.key)
        judge.check_before((guard for guards in self.batch.guards.values() for guard in guards), memory.truncated)
        check = GuardedRowCheck(self.batch, judge)
        position_of = {int(record): number for number, record in enumerate(order)} if self.batch.guards else {}
        ends = np.cumsum([0, *(len(result.hits) for result in results)])
        for event, guards in self.batch.guards.items():
            before = position_of[event] - 1
            hit = int(order[before]) - known.batch if before >= 0 else -1
            is_row = 0 <= hit < known.hits and known.keys[order[before]] == known.keys[event]
            if any(guard.kind is GuardKind.UNKNOWN for guard in guards) or (
                is_row and any(guard.kind is not GuardKind.SENT for guard in guards)
            ):
                raise judge.unknown(guards[0])
            if is_row and head is not None:
                number = int(np.searchsorted(ends, hit, side="right")) - 1
                names = {name for guard in guards for name in guard.image}
                row = int(results[number].hits[hit - ends[number]])
                place = tuple(known.lasts[order[before], :2].tolist())
                judge.keeps(guards, place, check.values_of(head, files[number], row, names))
        check.check_unanswered(memory)

    def _absent(self, repeated: Mask) -> dict[str, Mask]:
        """Return, for each column with absent values, a mask of the records without a value.

        A deletion that moves its row to another key has no values at all.
        """
        rows = self.batch.rows
        columns = [name for name in rows.column_names if name not in (*self.key, *VERSION, *OF_EVENTS)]
        if GIVEN in rows.column_names:
            is_row = pc.not_equal(rows[OP], "d").to_numpy(zero_copy_only=False)
            masks = {name: ~given_mask(rows[GIVEN], name) & is_row for name in columns}
        elif self.batch.ties is None:
            masks = {name: left_out(rows[name]) for name in columns if may_lack(rows.schema.field(name), self.key)}
            for mask in masks.values():
                mask[list(self._rules.moved)] = True
        else:
            masks = {}
        masks = {name: mask & ~repeated[: len(rows)] for name, mask in masks.items()}
        return {name: mask for name, mask in masks.items() if mask.any()}

    def _moved_before(self, memory: MirrorMemory, start: int) -> tuple[dict[tuple[int, ...], int], list[pa.Table]]:
        """Return the earlier rows, kept in the memory, of rows that have got another key in this batch.

        The numbers are by the rows' places in the log.

        :param start: the number of the first row.
        """
        rows, numbers, tables = self.batch.rows, dict[tuple[int, ...], int](), list[pa.Table]()
        if self.batch.ties is not None or not memory.has_moved:
            return numbers, tables
        for place in sorted({version[:2] for version in versions(rows.filter(pc.equal(rows[OP], "c")))}):
            row = memory.moved(place)
            if row is not None:
                numbers[place] = start + len(tables)
                tables.append(row)
        return numbers, tables

    def _changed(
        self,
        head: MirrorHead | None,
        files: Sequence[File],
        reached: Sequence[File],
        results: Sequence[LookupResult],
        changed: _ChangedRows,
        absent: _AbsentValues,
    ) -> MergeResult:
        """Write the versions that are new or changed, and return the result for the commit."""
        rows, start = self.batch.rows, 0
        needed = np.unique(np.concatenate([changed.sources, *map(absent.sources, absent.masks)])) - len(rows)
        wanted, changes, no_numbers = list[tuple[File, Numbers]](), list[FileChange](), np.zeros(0, np.int64)
        looked_up = list[pa.Table]()
        for file, result in zip(reached, results, strict=True):
            numbers_of_file = slice(start, start + len(result.hits))
            needed_hits = needed[(needed >= numbers_of_file.start) & (needed < numbers_of_file.stop)] - start
            if len(needed_hits) and result.rows is not None:
                wanted.append((file, result.hits[needed_hits]))
                looked_up.append(result.rows.take(pa.array(needed_hits)))
            out = changed.out[numbers_of_file]
            changes += [FileChange(file, result.live, result.hits[out], no_numbers, None)] if out.any() else []
            start = numbers_of_file.stop
        old = self._read(head, wanted, joined(looked_up)) if head is not None and wanted else rows.slice(0, 0)
        needed = needed[(needed >= 0) & (needed < start)]
        rows = absent.filled(rows, old, needed)
        if self.borrowed is not None:
            absent.note(rows, self.borrowed)
        elif self.batch.ties is None:
            absent.check(rows, self.table)
        incoming = changed.rows(rows, old, needed)
        if self.strategy is not RowStrategy.CHANGES:
            incoming = incoming.drop_columns([*BEGIN, TIME])
        if self.check_rows is not None:
            self.check_rows(incoming)
        entries = self._entries_of(rows)
        return self._written(head, files, changes, IncomingRows(incoming, np.arange(len(incoming))), entries)

    def _read(self, head: MirrorHead, wanted: Sequence[tuple[File, Numbers]], looked_up: pa.Table) -> pa.Table:
        """Return whole rows of files, in the order of the files and of the numbers.

        :param looked_up: the columns that the lookup has read, which are not read again.
        """
        all_columns = head.conform(looked_up.slice(0, 0)).column_names
        lacking = {*all_columns} - {*looked_up.column_names, IS_CURRENT}
        # Without any column all would be read.
        columns = [name for name in all_columns if name in self.key or name in lacking]
        size = sum(head.bytes_in(file) for file, _ in wanted)
        (parts,) = self.pool.do(MergeWork(RowReadTask(head, columns), wanted, size))
        rows = joined([rows for part in parts for rows in part])
        for name, column in zip(looked_up.column_names, looked_up.columns, strict=True):
            if name not in columns:
                rows = rows.append_column(looked_up.schema.field(name), column)
        return rows

    def _entries_of(self, rows: pa.Table) -> pa.Table:
        """Return the new entries: deletions, truncations, and marks of snapshots, with times if records have these."""
        deletions = np.flatnonzero(pc.equal(rows[OP], "d").to_numpy(zero_copy_only=False))
        times = [TIME] if TIME in rows.column_names else []
        entries = rows.select([*self.key, *VERSION, *times]).take(pa.array(deletions))
        old_rows = [
            _row_before(rows, self.key, int(number)) if number in self._rules.moved else None for number in deletions
        ]
        entries = entries.append_column(row_column(self.key), pa.array(old_rows, pa.binary()))
        time_of = {cut.version[:2]: cut.time for cut in self._rules.cuts}
        cuts = [cut.version for cut in self._rules.cuts if not is_mark(cut.version)] + list(self.batch.snapshots)
        of_cuts = [dict(zip((*VERSION, TIME), (*version, time_of[version[:2]]), strict=True)) for version in cuts]
        columns = [
            pa.array([cut[column.name] for cut in of_cuts], column.type)
            if column.name in (*VERSION, TIME)
            else pa.nulls(len(cuts), column.type)
            for column in entries.schema
        ]
        unkeyed = pa.Table.from_arrays(columns, entries.schema.names)
        return pa.concat_tables([entries, unkeyed], promote_options="permissive")


def _row_before(rows: pa.Table, key: Sequence[str], index: int) -> bytes | None:
    """Return the values of a deleted row that a later event may leave out, as an Arrow stream, or None."""
    row = rows.slice(index, 1)
    with_values = [column.name for column in rows.schema if may_lack(column, key) and row[column.name].null_count == 0]
    return as_bytes(row.select(with_values).combine_chunks()) if with_values else None


@dataclass
class _ChangedRows:
    """New and changed versions.

    :param records: the first and last record of each version.
    :param sources: the number of the record that has each version's values.
    :param out: a mask of the hits that the versions replace.
    """

    records: KnownRecords
    sources: Numbers
    out: Mask

    @classmethod
    def of(cls, known: KnownRecords, versions: RowVersions) -> _ChangedRows:
        """Return the new and changed versions among all versions."""
        records, hits = versions.known, np.maximum(versions.hits, 0)
        # A version is unchanged if it has a row in a file with the same values, records and end.
        is_unchanged = (versions.hits >= 0) & (versions.sources == versions.hits)
        # Without known records no version has a hit, as after a truncation alone.
        for name in ("firsts", "lasts", "ends", "is_open") if len(known.keys) else ():
            equals_hit = getattr(records, name) == getattr(known, name)[hits]
            is_unchanged &= equals_hit.reshape(len(hits), -1).all(axis=1)
        changed = np.flatnonzero(~records.gone & ~is_unchanged)
        is_replaced, replaced_hits = np.zeros(known.hits, np.bool_), versions.hits[changed]
        is_replaced[replaced_hits[replaced_hits >= 0] - known.batch] = True
        return cls(records.take(changed), versions.sources[changed], is_replaced)

    def rows(self, batch: pa.Table, old: pa.Table, needed: Numbers) -> pa.Table:
        """Return the rows of these versions.

        :param old: rows of files, and `needed` the number of each row's hit.
        """
        count, records = len(batch), self.records
        batch = batch.drop_columns([name for name in OF_EVENTS if name in batch.column_names])
        indices = np.where(self.sources < count, self.sources, count + np.searchsorted(needed, self.sources - count))
        rows = joined([batch, old.drop_columns([name for name in OF_EVENTS if name in old.column_names])])
        rows = rows.take(pa.array(indices)).combine_chunks()
        columns = dict(zip(VERSION, records.lasts.T, strict=True)) | dict(zip(BEGIN, records.firsts.T, strict=True))
        kinds = dict(zip((*VERSION, *BEGIN), [*version_schema().types] * 2, strict=True))
        new_columns = {name: pa.array(values, kinds[name]) for name, values in columns.items()}
        new_columns |= {TIME: pa.array(records.last_times), VALID_FROM: pa.array(records.times).cast(_TIME)}
        new_columns |= {
            VALID_TO: pa.array(records.ends, mask=records.is_open).cast(_TIME),
            IS_CURRENT: pa.array(records.is_open),
        }
        rows = rows.drop_columns([name for name in new_columns if name in rows.column_names])
        for name, column in new_columns.items():
            rows = rows.append_column(name, column)
        return rows


@dataclass
class _AbsentValues:
    """Values that records leave out, and the records that have these values.

    :param bases: for each record of the batch the number of the record whose values it gets, or -1.
    :param masks: for columns with absent values, the records without a value.
    :param moved: rows that have got another key, whose numbers come after those of all records.
    """

    known: KnownRecords
    bases: Numbers
    masks: Mapping[str, Mask]
    moved: Sequence[pa.Table]

    def sources(self, name: str) -> Numbers:
        """Return for each record of the batch the number of the record with its value in a column, or -1."""
        count = self.known.batch
        numbers = np.where(self.masks[name], self.bases, np.arange(count))
        while True:
            inside = np.flatnonzero((numbers >= 0) & (numbers < count))
            following = numbers.copy()
            following[inside] = numbers[numbers[inside]]
            if (following == numbers).all():
                return following
            numbers = following

    def filled(self, rows: pa.Table, old: pa.Table, needed: Numbers) -> pa.Table:
        """Return the batch with the values of the records that have them.

        :param old: rows of files, and `needed` the number of each row's hit.
        """
        count, total = self.known.batch, len(self.known.keys)
        for name in self.masks:
            parts = [column_of(part, name) for part in (rows, old, *self.moved)]
            values, source_of = one_array(joined(parts)[name]), self.sources(name)
            in_file = count + np.searchsorted(needed, source_of - count)
            source_of = np.where(
                source_of >= total,
                source_of - total + count + len(old),
                np.where(source_of >= count, in_file, source_of),
            )
            column = values.take(pa.array(source_of, mask=source_of < 0))
            rows = rows.set_column(rows.column_names.index(name), name, column)
        return rows

    def note(self, rows: pa.Table, borrowed: Borrowed) -> None:
        """Note the records that leave values out, by column, partition and offset."""
        for name, mask in self.masks.items():
            records = rows.select(VERSION[2:]).filter(pa.array(mask))
            for partition, offset in zip(*(column.to_pylist() for column in records.columns), strict=True):
                borrowed(name, partition, offset)

    def check(self, rows: pa.Table, table: str) -> None:
        """Refuse an event whose left-out value is unknown. Raises ValueMissing."""
        for name, mask in self.masks.items():
            lacking = mask & ~self.known.gone[: len(mask)] & rows[name].is_null().to_numpy(zero_copy_only=False)
            for index in np.flatnonzero(lacking)[:1].tolist():
                raise ValueMissing(table, name, *(rows[column][index].as_py() for column in VERSION[2:]))


def merger_of(
    batch: NewestEvents,
    table: str,
    mirror: MirrorDesign,
    landing: Landing,
    entries: MirrorEntries,
    pool: MergePool,
    written: list[File],
    conform: Conform,
) -> BatchMerger:
    """Return the merge of a batch by a mirror's design; see `BatchMerger`.

    :param landing: the landing that will commit the rows, for errors of checks.
    :param conform: returns rows with the mirror's columns, for the checks.
    """
    make = HistoryMerger if mirror.rows.keeps_versions else BatchMerger
    check, mode = check_of(mirror.auditor, table, landing, conform), mirror.merge_mode
    return make(batch, table, mirror.key or (), mirror.rows, entries, mode, pool, written, check)
