"""Merge of a batch into a table with the history of rows: a row for each version, with the time in which it was valid.

A version begins at the time of its record, and ends at the time of the key's next record, which may be a deletion, or
of a truncation. So the rows and deletions of a key that are known, and those of the batch, are put in order. Only if a
version may have several records, or records leave values out, are records taken one after the other: `cdc.merge.spans`.
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
from airflow_lakestream.cdc.merge.audited import Conform, look_of
from airflow_lakestream.cdc.merge.entries import MirrorEntries
from airflow_lakestream.cdc.merge.files import RowReadTask
from airflow_lakestream.cdc.merge.hands import MergePool, MergeWork
from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.cdc.merge.judged import GuardedRowCheck
from airflow_lakestream.cdc.merge.left_out import may_lack
from airflow_lakestream.cdc.merge.lookup import FileChange, LookupResult, joined
from airflow_lakestream.cdc.merge.memory import MirrorMemory, row_column
from airflow_lakestream.cdc.merge.merge import BatchMerger, IncomingRows, MergeResult
from airflow_lakestream.cdc.merge.newest import NewestEvents
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
    """Merge of a batch whose records begin, go on with or end versions of their key."""

    def merge(self, head: MirrorHead | None, held: Callable[[], RangeSet] = RangeSet) -> MergeResult:
        """Decide about a batch's rows for a head, and write the files; see `BatchMerger.merge`.

        Raises MirrorStopped for records in unknown order, ValueMissing, and the errors of `look`.
        """
        files = head.files() if head is not None else []
        memory, reached, results = self._looked_up(head, files, held)
        self.batch = replace(self.batch, rows=behind(self.batch.rows, memory.snapshots))
        known = KnownRecords.of(self.batch, results, memory, self.key)
        order, repeated = known.in_order(of_log=self._rules.of_log)
        self._check_order(known, order, repeated)
        self._check_guards(head, reached, results, known, order, memory)
        absent, moved = self._absent(repeated), self._moved_before(memory, len(known.keys))
        cuts = memory.cuts(self._rules.cuts)
        if absent or self._rules.columns:
            of_hits = [one.rows for one in results if one.rows is not None]
            fold = SpanFold(
                known, repeated, self.batch.rows, joined(of_hits) if of_hits else None, self._rules, absent, *moved
            )
            found, bases = fold.versions([(*cut.version[:2], 0, *cut.version[2:]) for cut in cuts]), fold.bases
        else:
            kept = np.flatnonzero(~repeated)
            hits = np.where((kept >= known.batch) & (kept < known.batch + known.hits), kept, -1)
            found, bases = RowVersions(known.take(kept), kept, hits), np.zeros(0, np.int64)
        found.end(cuts, of_log=self._rules.of_log)
        return self._changed(
            head, files, reached, results, _ChangedRows.of(known, found), _AbsentValues(known, bases, absent, moved[1])
        )

    @property
    def _rules(self) -> HistoryRules:
        assert self.batch.history is not None, "the batch is one for a history"
        return self.batch.history

    def _check_order(self, known: KnownRecords, order: Numbers, repeated: Mask) -> None:
        """Refuse plain records of two partitions at the same place. Raises MirrorStopped."""
        if self.batch.ties is None:
            return
        firsts, keys = known.firsts[order], known.keys[order]
        same = (keys[1:] == keys[:-1]) & (firsts[1:, :2] == firsts[:-1, :2]).all(axis=1)
        same &= np.minimum(order[1:], order[:-1]) < known.batch
        for at in np.flatnonzero(same & (firsts[1:, 2] != firsts[:-1, 2]))[:1]:
            row = self.batch.rows.select(list(self.key)).slice(int(min(order[at : at + 2])), 1)
            pair = pa.concat_tables([row, row])
            for values, column in zip(firsts[at : at + 2].T, version_schema(), strict=True):
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
        """Refuse transactions and deletions of which the row before is not the one that they mean.

        Raises MirrorStopped. The current row could decide, but not about all versions.
        """
        judge = GuardCheck(self.table, self.batch.topic, self.key)
        judge.check_before((one for some in self.batch.guards.values() for one in some), memory.truncated)
        check = GuardedRowCheck(self.batch, judge)
        place_of = {int(at): number for number, at in enumerate(order)} if self.batch.guards else {}
        ends = np.cumsum([0, *(len(one.hits) for one in results)])
        for event, guards in self.batch.guards.items():
            at = place_of[event] - 1
            hit = int(order[at]) - known.batch if at >= 0 else -1
            is_row = 0 <= hit < known.hits and known.keys[order[at]] == known.keys[event]
            if any(one.kind is GuardKind.UNKNOWN for one in guards) or (
                is_row and any(one.kind is not GuardKind.SENT for one in guards)
            ):
                raise judge.unknown(guards[0])
            if is_row and head is not None:
                number = int(np.searchsorted(ends, hit, side="right")) - 1
                names = {name for guard in guards for name in guard.image}
                row = int(results[number].hits[hit - ends[number]])
                place = tuple(known.lasts[order[at], :2].tolist())
                judge.keeps(guards, place, check.values_of(head, files[number], row, names))
        check.check_unanswered(memory)

    def _absent(self, repeated: Mask) -> dict[str, Mask]:
        """Return for columns with absent values a mask of the records; of a row for another key, all values are."""
        rows = self.batch.rows
        own = [name for name in rows.column_names if name not in (*self.key, *VERSION, *OF_EVENTS)]
        if GIVEN in rows.column_names:
            there = pc.not_equal(rows[OP], "d").to_numpy(zero_copy_only=False)
            masks = {name: ~given_mask(rows[GIVEN], name) & there for name in own}
        elif self.batch.ties is None:
            masks = {name: left_out(rows[name]) for name in own if may_lack(rows.schema.field(name), self.key)}
            for mask in masks.values():
                mask[list(self._rules.moved)] = True
        else:
            masks = {}
        masks = {name: mask & ~repeated[: len(rows)] for name, mask in masks.items()}
        return {name: mask for name, mask in masks.items() if mask.any()}

    def _moved_before(self, memory: MirrorMemory, start: int) -> tuple[dict[tuple[int, ...], int], list[pa.Table]]:
        """Return the earlier rows, kept in the memory, of rows that have got another key in this batch.

        The first value has the number of each row by its place in the log.

        :param start: the number of the first row.
        """
        rows, found, tables = self.batch.rows, dict[tuple[int, ...], int](), list[pa.Table]()
        if self.batch.ties is not None or not memory.has_moved:
            return found, tables
        for place in sorted({one[:2] for one in versions(rows.filter(pc.equal(rows[OP], "c")))}):
            row = memory.moved(place)
            if row is not None:
                found[place] = start + len(tables)
                tables.append(row)
        return found, tables

    def _changed(
        self,
        head: MirrorHead | None,
        held: Sequence[File],
        reached: Sequence[File],
        results: Sequence[LookupResult],
        changed: _ChangedRows,
        absent: _AbsentValues,
    ) -> MergeResult:
        """Write the versions that are new or other than before, and return the result for the commit."""
        rows, start = self.batch.rows, 0
        needed = np.unique(np.concatenate([changed.sources, *map(absent.sources, absent.masks)])) - len(rows)
        wanted, changes, none = list[tuple[File, Numbers]](), list[FileChange](), np.zeros(0, np.int64)
        known = list[pa.Table]()
        for file, found in zip(reached, results, strict=True):
            here = slice(start, start + len(found.hits))
            own = needed[(needed >= here.start) & (needed < here.stop)] - start
            if len(own) and found.rows is not None:
                wanted.append((file, found.hits[own]))
                known.append(found.rows.take(pa.array(own)))
            out = changed.out[here]
            changes += [FileChange(file, found.live, found.hits[out], none, None)] if out.any() else []
            start = here.stop
        old = self._read(head, wanted, joined(known)) if head is not None and wanted else rows.slice(0, 0)
        needed = needed[(needed >= 0) & (needed < start)]
        rows = absent.filled(rows, old, needed)
        if self.borrowed is not None:
            absent.note(rows, self.borrowed)
        elif self.batch.ties is None:
            absent.check(rows, self.table)
        incoming = changed.rows(rows, old, needed)
        if self.strategy is not RowStrategy.CHANGES:
            incoming = incoming.drop_columns([*BEGIN, TIME])
        if self.look is not None:
            self.look(incoming)
        entries = self._entries_of(rows)
        return self._written(head, held, changes, IncomingRows(incoming, np.arange(len(incoming))), entries)

    def _read(self, head: MirrorHead, wanted: Sequence[tuple[File, Numbers]], known: pa.Table) -> pa.Table:
        """Return whole rows of files, in the order of the files and of the numbers.

        :param known: the columns that the lookup has read, which are not read again.
        """
        every = head.conform(known.slice(0, 0)).column_names
        lacking = {*every} - {*known.column_names, IS_CURRENT}
        # Without any column all would be read.
        columns = [name for name in every if name in self.key or name in lacking]
        size = sum(head.bytes_in(file) for file, _ in wanted)
        (parts,) = self.hands.do(MergeWork(RowReadTask(head, columns), wanted, size))
        found = joined([rows for part in parts for rows in part])
        for name, column in zip(known.column_names, known.columns, strict=True):
            if name not in columns:
                found = found.append_column(known.schema.field(name), column)
        return found

    def _entries_of(self, rows: pa.Table) -> pa.Table:
        """Return the new entries: deletions, truncations, and marks of snapshots, with times if records have these."""
        at = np.flatnonzero(pc.equal(rows[OP], "d").to_numpy(zero_copy_only=False))
        times = [TIME] if TIME in rows.column_names else []
        found = rows.select([*self.key, *VERSION, *times]).take(pa.array(at))
        kept = [_row_before(rows, self.key, int(one)) if one in self._rules.moved else None for one in at]
        found = found.append_column(row_column(self.key), pa.array(kept, pa.binary()))
        time_of = {cut.version[:2]: cut.time for cut in self._rules.cuts}
        cuts = [cut.version for cut in self._rules.cuts if not is_mark(cut.version)] + list(self.batch.snapshots)
        of_cuts = [dict(zip((*VERSION, TIME), (*one, time_of[one[:2]]), strict=True)) for one in cuts]
        columns = [
            pa.array([cut[one.name] for cut in of_cuts], one.type)
            if one.name in (*VERSION, TIME)
            else pa.nulls(len(cuts), one.type)
            for one in found.schema
        ]
        unkeyed = pa.Table.from_arrays(columns, [one.name for one in found.schema])
        return pa.concat_tables([found, unkeyed], promote_options="permissive")


def _row_before(rows: pa.Table, key: Sequence[str], at: int) -> bytes | None:
    """Return the values of a deleted row that a later event may leave out, as an Arrow stream, or None."""
    row = rows.slice(at, 1)
    known = [one.name for one in rows.schema if may_lack(one, key) and row[one.name].null_count == 0]
    return as_bytes(row.select(known).combine_chunks()) if known else None


@dataclass
class _ChangedRows:
    """Versions that are new or other than before: their records, the records with their values, and replaced hits."""

    records: KnownRecords
    sources: Numbers
    out: Mask

    @classmethod
    def of(cls, known: KnownRecords, found: RowVersions) -> _ChangedRows:
        """Return the changed ones of all versions."""
        own, hits = found.known, np.maximum(found.hits, 0)
        is_same = (found.hits >= 0) & (found.sources == found.hits)
        # Without a row there is none, as of a truncation alone.
        for name in ("firsts", "lasts", "ends", "is_open") if len(known.keys) else ():
            same = getattr(own, name) == getattr(known, name)[hits]
            is_same &= same.reshape(len(hits), -1).all(axis=1)
        changed = np.flatnonzero(~own.gone & ~is_same)
        out, replaced = np.zeros(known.hits, np.bool_), found.hits[changed]
        out[replaced[replaced >= 0] - known.batch] = True
        return cls(own.take(changed), found.sources[changed], out)

    def rows(self, batch: pa.Table, old: pa.Table, needed: Numbers) -> pa.Table:
        """Return the rows of these versions.

        :param old: rows of files, and `needed` the number of the hit of each.
        """
        count, own = len(batch), self.records
        batch = batch.drop_columns([one for one in OF_EVENTS if one in batch.column_names])
        at = np.where(self.sources < count, self.sources, count + np.searchsorted(needed, self.sources - count))
        rows = joined([batch, old.drop_columns([one for one in OF_EVENTS if one in old.column_names])])
        rows = rows.take(pa.array(at)).combine_chunks()
        columns = dict(zip(VERSION, own.lasts.T, strict=True)) | dict(zip(BEGIN, own.firsts.T, strict=True))
        kinds = dict(zip((*VERSION, *BEGIN), [*version_schema().types] * 2, strict=True))
        made = {name: pa.array(values, kinds[name]) for name, values in columns.items()}
        made |= {TIME: pa.array(own.last_times), VALID_FROM: pa.array(own.times).cast(_TIME)}
        made |= {VALID_TO: pa.array(own.ends, mask=own.is_open).cast(_TIME), IS_CURRENT: pa.array(own.is_open)}
        rows = rows.drop_columns([name for name in made if name in rows.column_names])
        for name, column in made.items():
            rows = rows.append_column(name, column)
        return rows


@dataclass
class _AbsentValues:
    """Values that records leave out, and the records that have them.

    :param bases: for each record of the batch the number of the one whose values it takes, or -1.
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
        found = np.where(self.masks[name], self.bases, np.arange(count))
        while True:
            inside = np.flatnonzero((found >= 0) & (found < count))
            following = found.copy()
            following[inside] = found[found[inside]]
            if (following == found).all():
                return following
            found = following

    def filled(self, rows: pa.Table, old: pa.Table, needed: Numbers) -> pa.Table:
        """Return the batch with the values of the records that have them.

        :param old: rows of files, and `needed` the number of the hit of each.
        """
        count, every = self.known.batch, len(self.known.keys)
        for name in self.masks:
            parts = [column_of(one, name) for one in (rows, old, *self.moved)]
            values, at = one_array(joined(parts)[name]), self.sources(name)
            in_file = count + np.searchsorted(needed, at - count)
            at = np.where(at >= every, at - every + count + len(old), np.where(at >= count, in_file, at))
            column = values.take(pa.array(at, mask=at < 0))
            rows = rows.set_column(rows.column_names.index(name), name, column)
        return rows

    def note(self, rows: pa.Table, borrowed: Borrowed) -> None:
        """Note the records that leave values out, by column, partition and offset."""
        for name, mask in self.masks.items():
            some = rows.select(VERSION[2:]).filter(pa.array(mask))
            for partition, offset in zip(*(column.to_pylist() for column in some.columns), strict=True):
                borrowed(name, partition, offset)

    def check(self, rows: pa.Table, table: str) -> None:
        """Refuse an event whose left-out value is unknown. Raises ValueMissing."""
        for name, mask in self.masks.items():
            lacking = mask & ~self.known.gone[: len(mask)] & rows[name].is_null().to_numpy(zero_copy_only=False)
            for at in np.flatnonzero(lacking)[:1].tolist():
                raise ValueMissing(table, name, *(rows[one][at].as_py() for one in VERSION[2:]))


def merger_of(
    batch: NewestEvents,
    table: str,
    mirror: MirrorDesign,
    landing: Landing,
    entries: MirrorEntries,
    hands: MergePool,
    written: list[File],
    conform: Conform,
) -> BatchMerger:
    """Return the merge of a batch by a mirror's design; see `BatchMerger`.

    :param landing: the landing that will commit the rows, for errors of checks.
    :param conform: returns rows with the mirror's columns, for the checks.
    """
    make = HistoryMerger if mirror.rows.keeps_versions else BatchMerger
    look, mode = look_of(mirror.auditor, table, landing, conform), mirror.merge_mode
    return make(batch, table, mirror.key or (), mirror.rows, entries, mode, hands, written, look)
