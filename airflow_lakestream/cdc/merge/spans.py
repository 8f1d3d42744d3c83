"""Versions of rows that may cover several records.

Records of a key that come in order are processed all at once, after a sort. Keys with a late record, which comes after
a later one, are processed record by record, as they came.
A record gets the values that it leaves out from the version in which it comes. A record between the first and the last
record of a version cuts the version, if it changes a column: the records between these two are not known any more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.cdc.columns import OP
from airflow_lakestream.cdc.keys.identity import comparable
from airflow_lakestream.cdc.merge.lookup import joined
from airflow_lakestream.cdc.merge.versions import KnownRecords, Place, RowVersions, before
from airflow_lakestream.cdc.rows import HistoryRules
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.tables.rising import Numbers
from airflow_lakestream.tables.row_buffer import one_array

# The number of the value in each of the history's columns, see `value_numbers`.
Values = tuple[int, ...]


@dataclass
class _RowSpan:
    """A version of a row.

    :param first: the place of the first record, and `time` its time in microseconds.
    :param last: the place of the last record, and `last_time` its time in microseconds.
    :param source: the number of the record with the row's values.
    :param hit: the number of the row in a file, or -1.
    """

    first: Place
    last: Place
    time: int
    last_time: int
    values: Values
    source: int
    hit: int = -1


@dataclass
class _KeySpans:
    """All versions of a key in order.

    :param ends: the places of deletions and truncations, in order.
    :param firsts: the place of each version's first record.
    """

    ends: list[Place]
    spans: list[_RowSpan] = field(default_factory=list)
    firsts: list[Place] = field(default_factory=list)

    def insert(self, index: int, span: _RowSpan) -> None:
        """Insert a version before the version at an index."""
        self.spans.insert(index, span)
        self.firsts.insert(index, span.first)

    def around(self, place: Place) -> tuple[int, _RowSpan | None]:
        """Return the index of the version after a place, and the version that is valid at the place, or None."""
        index = bisect_right(self.firsts, place)
        span = self.spans[index - 1] if index else None
        return index, None if span is None or self._is_ended(span.last, place) else span

    def delete(self, place: Place) -> None:
        """End the version that is valid at a place."""
        index, span = self.around(place)
        if span is not None and span.last > place:
            self._split(index, span)
        insort(self.ends, place)

    def write(self, new: _RowSpan, *, has_columns: bool) -> None:
        """Add a record: it becomes part of a version, or begins a version.

        :param has_columns: whether records with the same values are one version; otherwise each record begins one.
        """
        index, span = self.around(new.first)
        if has_columns and span is not None and span.values == new.values:
            if new.first > span.last:
                span.last, span.last_time, span.source = new.last, new.last_time, new.source
            return
        if span is not None and span.last > new.first:
            self._split(index, span)
        after = self.spans[index] if index < len(self.spans) else None
        goes_on = after is not None and after.values == new.values and not self._is_ended(new.last, after.first)
        if has_columns and after is not None and goes_on:
            after.first, after.time = new.first, new.time
            self.firsts[index] = new.first
        else:
            self.insert(index, new)

    def _split(self, index: int, span: _RowSpan) -> None:
        """Split a version into its first record, and its last record as the version at `index`."""
        self.insert(index, replace(span, first=span.last, time=span.last_time, hit=-1))
        span.last, span.last_time = span.first, span.time

    def _is_ended(self, start: Place, end: Place) -> bool:
        """Return whether a deletion or truncation is between two places."""
        index = bisect_left(self.ends, start)
        return index < len(self.ends) and self.ends[index] < end


@dataclass
class SpanFold:
    """Fold of a batch into the versions of its keys.

    :param known: all records.
    :param repeated: a mask of the records that change nothing.
    :param rows: the records of the batch.
    :param hits: the rows of files; None without hits.
    :param absent: by column a mask of the batch's records that leave the column out.
    :param moved: the numbers of rows that had another key before, by their place in the log.
    :param moved_rows: these rows.
    :ivar bases: for each record of the batch the number of the record whose values it gets for absent columns, or -1.
    """

    known: KnownRecords
    repeated: Mask
    rows: pa.Table
    hits: pa.Table | None
    rules: HistoryRules
    absent: Mapping[str, Mask]
    moved: dict[tuple[int, ...], int] = field(default_factory=dict)
    moved_rows: Sequence[pa.Table] = ()

    def __post_init__(self) -> None:
        self.bases = np.full(len(self.rows), -1, np.int64)
        known, of_log = self.known, self.rules.of_log
        self._firsts, self._lasts = (known.places(versions, of_log=of_log) for versions in (known.firsts, known.lasts))
        self._codes, self._ops = self._numbered(), self.rows[OP]
        self._moved_values = {
            place: tuple(int(codes[number]) for codes in self._codes) for place, number in self.moved.items()
        }
        self._keys: dict[int, _KeySpans] = {}

    def versions(self, cuts: Sequence[Place]) -> RowVersions:
        """Return the versions of rows after the batch; `RowVersions.end` has to set their ends.

        :param cuts: the places of all truncations.
        """
        known, count = self.known, self.known.batch
        came = self._as_they_came()
        is_late = self._late(came)
        # With the deletions of all keys: they end versions of keys with late records, too.
        versions = self._rising(np.flatnonzero(~self.repeated & (~is_late | known.gone)), cuts)
        times, lasts = known.times, known.last_times
        for number in (np.flatnonzero(~self.repeated[count:] & is_late[count:]) + count).tolist():
            spans = self._keys.setdefault(int(known.keys[number]), _KeySpans(list(cuts)))
            place = tuple(self._firsts[number].tolist())
            if known.gone[number]:
                insort(spans.ends, place)
                continue
            values, last_place = tuple(int(codes[number]) for codes in self._codes), tuple(self._lasts[number].tolist())
            span = _RowSpan(place, last_place, int(times[number]), int(lasts[number]), values, number, number)
            spans.insert(bisect_left(spans.firsts, place), span)
        for record in came[is_late[came]].tolist():
            self._fold(
                record, self._keys.setdefault(int(known.keys[record]), _KeySpans(list(cuts))), int(times[record])
            )
        return versions.joined(self._of_late())

    def _sorted(self, numbers: Numbers) -> tuple[Numbers, Mask]:
        """Return records sorted by key and place, and a mask of the records whose key is that of the record before."""
        keys = self.known.keys[numbers]
        numbers = numbers[np.lexsort((*self._firsts[numbers].T[::-1], keys))]
        keys = self.known.keys[numbers]
        follows = np.zeros(len(numbers), np.bool_)
        follows[1:] = keys[1:] == keys[:-1]
        return numbers, follows

    def _late(self, came: Numbers) -> Mask:
        """Return a mask of all records of keys with a late record: one that comes when a later record is known.

        Keys whose row had another key before count as such, if the values under the other key are needed.

        :param came: the batch's records in the order in which they came.
        """
        known, count = self.known, self.known.batch
        numbers, follows = self._sorted(np.flatnonzero(~self.repeated & (known.keys >= 0)))
        ranks = np.full(len(known.keys), -1, np.int64)
        ranks[came] = np.arange(len(came))
        later, previous = numbers[1:][follows[1:]], numbers[:-1][follows[1:]]
        late = later[(later < count) & ~before(self._lasts[previous], self._firsts[later])]
        late = np.concatenate([late, later[ranks[later] < ranks[previous]], self._moving()])
        is_late = np.zeros(int(known.keys.max(initial=0)) + 1, np.bool_)
        is_late[known.keys[late]] = True
        mask: Mask = is_late[np.maximum(known.keys, 0)] & (known.keys >= 0)
        return mask

    def _moving(self) -> Numbers:
        """Return the records that move a row's values to another key: deletion and creation at one place of the log."""
        if not self.rules.of_log or not self.absent:
            return np.zeros(0, np.int64)
        lacking = np.logical_or.reduce([*self.absent.values()])
        created = np.flatnonzero(lacking & pc.fill_null(pc.equal(self._ops, "c"), False).to_numpy())
        deletions = np.flatnonzero(self.known.gone[: self.known.batch])
        at_place_of_created = [
            np.isin(self._firsts[deletions, number], self._firsts[created, number]) for number in (0, 1)
        ]
        return np.concatenate([created, deletions[at_place_of_created[0] & at_place_of_created[1]]])

    def _rising(self, numbers: Numbers, cuts: Sequence[Place]) -> RowVersions:
        """Return the versions of keys without late records, all at once.

        A record is part of the version before, if this version has not ended and has the same values.
        """
        known, count = self.known, self.known.batch
        numbers, goes_on = self._sorted(numbers)
        previous = np.concatenate([numbers[:1], numbers[:-1]])
        goes_on &= ~known.gone[previous]
        for cut in cuts:
            goes_on &= ~before(self._lasts[previous], cut) | before(self._firsts[numbers], cut)
        is_new = numbers < count
        self.bases[numbers[is_new]] = np.where(goes_on, previous, -1)[is_new]
        is_same = goes_on & is_new & ~known.gone[numbers] & bool(self.rules.columns)
        for name, codes in zip(self.rules.columns, self._codes, strict=True):
            values = codes[numbers]
            if name in self.absent:
                lacks = np.zeros(len(numbers), np.bool_)
                lacks[is_new] = self.absent[name][numbers[is_new]]
                values[lacks & ~goes_on] = 0
                values = values[np.maximum.accumulate(np.where(lacks & goes_on, 0, np.arange(len(numbers))))]
            is_same[1:] &= values[1:] == values[:-1]
        starts = np.flatnonzero(~is_same)
        firsts, lasts = numbers[starts], numbers[np.append(starts, len(numbers))[1:] - 1]
        records = known.take(firsts)
        records.lasts, records.last_times = known.lasts[lasts], known.last_times[lasts]
        return RowVersions(records, lasts, np.where((firsts >= count) & ~records.gone, firsts, -1))

    def _fold(self, number: int, spans: _KeySpans, time: int) -> None:
        """Fold a record of the batch into the versions of its key.

        :param time: the time of the record in microseconds.
        """
        place = tuple(self._firsts[number].tolist())
        base = spans.around(place)[1]
        source, values = (-1, None) if base is None else (base.source, base.values)
        if self.rules.of_log and self._ops[number].as_py() == "c":
            # Debezium sends a changed key as a deletion and a new row, which keeps the values that it leaves out.
            source = self.moved.get(place[:2], -1)
            values = self._moved_values.get(place[:2])
        self.bases[number] = source
        if self.known.gone[number]:
            if base is not None:
                self.moved[place[:2]], self._moved_values[place[:2]] = base.source, base.values
            spans.delete(place)
            return
        own_values = [int(codes[number]) for codes in self._codes]
        for column, name in enumerate(self.rules.columns):
            if name in self.absent and self.absent[name][number]:
                own_values[column] = 0 if values is None else values[column]
        span = _RowSpan(place, place, time, time, tuple(own_values), number)
        spans.write(span, has_columns=bool(self.rules.columns))

    def _as_they_came(self) -> Numbers:
        """Return the batch's records in the order of the log; without a log as they came, in a partition by offset."""
        count = self.known.batch
        in_order = np.lexsort(self._firsts[:count].T[::-1])
        if not self.rules.of_log:
            # A record of another partition comes as if the greatest place of its key before it were its own.
            keys, (partitions, offsets) = self.known.keys[:count], self.known.firsts[:count, 2:].T
            ranks = np.empty(count, np.int64)
            ranks[in_order] = np.arange(count)
            by_offset = np.lexsort((offsets, partitions, keys))
            keys, partitions = keys[by_offset], partitions[by_offset]
            is_other = (keys[1:] != keys[:-1]) | (partitions[1:] != partitions[:-1])
            beyond = np.concatenate([[0], np.cumsum(is_other)])[:count] * count
            ranks[by_offset] = np.maximum.accumulate(ranks[by_offset] + beyond) - beyond
            in_order = np.lexsort((offsets, ranks))
        numbers: Numbers = in_order[~self.repeated[in_order]]
        return numbers

    def _numbered(self) -> list[Numbers]:
        """Return for each column of the history the `value_numbers` of all records, and of the moved rows."""
        without_values = len(self.known.keys) - self.known.batch - self.known.hits
        codes = []
        for name in self.rules.columns:
            gap = pa.table({name: pa.nulls(without_values)})
            parts = [self.rows, *([] if self.hits is None else [self.hits]), gap, *self.moved_rows]
            codes.append(value_numbers(joined([column_of(part, name) for part in parts])))
        return codes

    def _of_late(self) -> RowVersions:
        """Return the versions of keys with late records, which are folded one record after the other."""
        known = self.known
        spans = [(key, span) for key, key_spans in self._keys.items() for span in key_spans.spans]
        count = len(spans)

        def versions(attribute: str) -> Numbers:
            places = [getattr(span, attribute) for _, span in spans]
            # Without the kind, which a place has between log position and partition.
            return np.array([(*place[:2], *place[3:]) for place in places], np.int64).reshape(-1, 4)

        def numbers(attribute: str) -> Numbers:
            return np.array([getattr(span, attribute) for _, span in spans], np.int64)

        merged = KnownRecords(
            np.array([key for key, _ in spans], np.int64),
            versions("first"),
            versions("last"),
            numbers("time"),
            numbers("last_time"),
            np.full(count, -1, np.int64),
            np.ones(count, np.bool_),
            np.zeros(count, np.bool_),
            known.batch,
            known.hits,
        )
        return RowVersions(merged, numbers("source"), numbers("hit"))


def column_of(rows: pa.Table, name: str) -> pa.Table:
    """Return a table with one column, of nulls if the rows lack it."""
    return rows.select([name]) if name in rows.column_names else pa.table({name: pa.nulls(len(rows))})


def value_numbers(column: pa.Table) -> Numbers:
    """Return a number for each value of a table's column, the same for equal values; 0 for NULL."""
    values = one_array(comparable(column)[0])
    if t.is_nested(values.type):
        values = pa.array([None if value is None else repr(value) for value in values.to_pylist()], pa.string())
    indices: Numbers = pc.fill_null(values.dictionary_encode().indices, -1).to_numpy(zero_copy_only=False)
    return indices.astype(np.int64) + 1
