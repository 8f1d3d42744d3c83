"""Versions of rows that have several records.

Records that come in the order of their key are taken all at once, after a sort; those of the other keys one after the
other, as they came.
Values that a record leaves out are those of the version in which it comes. A record between the first and the last one
of a version cuts the version, if it changes a column: the records between these two are not known any more.
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

Values = tuple[int, ...]


@dataclass
class _RowSpan:
    """A version: places and times of its first and last record, its columns' numbers, and where its values are.

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
    """All versions of a key, and the places of deletions and truncations, both in order."""

    ends: list[Place]
    spans: list[_RowSpan] = field(default_factory=list)
    firsts: list[Place] = field(default_factory=list)

    def insert(self, at: int, span: _RowSpan) -> None:
        self.spans.insert(at, span)
        self.firsts.insert(at, span.first)

    def around(self, place: Place) -> tuple[int, _RowSpan | None]:
        """Return the index of the next version, and the version that is valid at a place, or None."""
        at = bisect_right(self.firsts, place)
        span = self.spans[at - 1] if at else None
        return at, None if span is None or self._is_ended(span.last, place) else span

    def delete(self, place: Place) -> None:
        """End the version that is valid at a place."""
        at, span = self.around(place)
        if span is not None and span.last > place:
            self._split(at, span)
        insort(self.ends, place)

    def write(self, new: _RowSpan, *, has_columns: bool) -> None:
        """Take a record: it goes on with a version, or begins one."""
        at, span = self.around(new.first)
        if has_columns and span is not None and span.values == new.values:
            if new.first > span.last:
                span.last, span.last_time, span.source = new.last, new.last_time, new.source
            return
        if span is not None and span.last > new.first:
            self._split(at, span)
        after = self.spans[at] if at < len(self.spans) else None
        goes_on = after is not None and after.values == new.values and not self._is_ended(new.last, after.first)
        if has_columns and after is not None and goes_on:
            after.first, after.time = new.first, new.time
            self.firsts[at] = new.first
        else:
            self.insert(at, new)

    def _split(self, at: int, span: _RowSpan) -> None:
        self.insert(at, replace(span, first=span.last, time=span.last_time, hit=-1))
        span.last, span.last_time = span.first, span.time

    def _is_ended(self, one: Place, other: Place) -> bool:
        at = bisect_left(self.ends, one)
        return at < len(self.ends) and self.ends[at] < other


@dataclass
class SpanFold:
    """Fold of a batch into the versions of its keys.

    :param known: all records, and `repeated` a mask of those that change nothing.
    :param rows: the batch, and `held` the hits in files.
    :param absent: for each column masks of the batch's records that leave it out.
    :param moved: the numbers of rows that another key had, by the position in the log; and `moved_rows` these rows.
    """

    known: KnownRecords
    repeated: Mask
    rows: pa.Table
    held: pa.Table | None
    rules: HistoryRules
    absent: Mapping[str, Mask]
    moved: dict[tuple[int, ...], int] = field(default_factory=dict)
    moved_rows: Sequence[pa.Table] = ()

    def __post_init__(self) -> None:
        # For each record of the batch, the number of the record whose values it takes for absent columns.
        self.bases = np.full(len(self.rows), -1, np.int64)
        known, of_log = self.known, self.rules.of_log
        self._firsts, self._lasts = (known.places(one, of_log=of_log) for one in (known.firsts, known.lasts))
        self._codes, self._ops = self._numbered(), self.rows[OP]
        self._moved_values = {place: tuple(int(one[at]) for one in self._codes) for place, at in self.moved.items()}
        self._keys: dict[int, _KeySpans] = {}

    def versions(self, cuts: Sequence[Place]) -> RowVersions:
        """Return the versions after the batch, without ends.

        :param cuts: the places of all truncations.
        """
        known, count = self.known, self.known.batch
        came = self._as_they_came()
        is_late = self._late(came)
        # Deletions end the versions of the keys that are taken one after the other, too.
        found = self._rising(np.flatnonzero(~self.repeated & (~is_late | known.gone)), cuts)
        times, lasts = known.times, known.last_times
        for number in (np.flatnonzero(~self.repeated[count:] & is_late[count:]) + count).tolist():
            own = self._keys.setdefault(int(known.keys[number]), _KeySpans(list(cuts)))
            place = tuple(self._firsts[number].tolist())
            if known.gone[number]:
                insort(own.ends, place)
                continue
            values, last = tuple(int(one[number]) for one in self._codes), tuple(self._lasts[number].tolist())
            span = _RowSpan(place, last, int(times[number]), int(lasts[number]), values, number, number)
            own.insert(bisect_left(own.firsts, place), span)
        for at in came[is_late[came]].tolist():
            self._take(at, self._keys.setdefault(int(known.keys[at]), _KeySpans(list(cuts))), int(times[at]))
        return found.joined(self._of_late())

    def _sorted(self, numbers: Numbers) -> tuple[Numbers, Mask]:
        """Return records by key and place, and a mask of those whose key is that of the record before."""
        keys = self.known.keys[numbers]
        numbers = numbers[np.lexsort((*self._firsts[numbers].T[::-1], keys))]
        keys = self.known.keys[numbers]
        follows = np.zeros(len(numbers), np.bool_)
        follows[1:] = keys[1:] == keys[:-1]
        return numbers, follows

    def _late(self, came: Numbers) -> Mask:
        """Return a mask of the records of keys with a record that comes when a later one is known.

        So are keys whose row had another key before, if that one's values are needed.
        """
        known, count = self.known, self.known.batch
        numbers, follows = self._sorted(np.flatnonzero(~self.repeated & (known.keys >= 0)))
        ranks = np.full(len(known.keys), -1, np.int64)
        ranks[came] = np.arange(len(came))
        this, previous = numbers[1:][follows[1:]], numbers[:-1][follows[1:]]
        late = this[(this < count) & ~before(self._lasts[previous], self._firsts[this])]
        late = np.concatenate([late, this[ranks[this] < ranks[previous]], self._moving()])
        is_late = np.zeros(int(known.keys.max(initial=0)) + 1, np.bool_)
        is_late[known.keys[late]] = True
        found: Mask = is_late[np.maximum(known.keys, 0)] & (known.keys >= 0)
        return found

    def _moving(self) -> Numbers:
        """Return the records that give a row's values to another key or take them: both are at one place of the log."""
        if not self.rules.of_log or not self.absent:
            return np.zeros(0, np.int64)
        lacking = np.logical_or.reduce([*self.absent.values()])
        created = np.flatnonzero(lacking & pc.fill_null(pc.equal(self._ops, "c"), False).to_numpy())
        gone = np.flatnonzero(self.known.gone[: self.known.batch])
        at_same = [np.isin(self._firsts[gone, at], self._firsts[created, at]) for at in (0, 1)]
        return np.concatenate([created, gone[at_same[0] & at_same[1]]])

    def _rising(self, numbers: Numbers, cuts: Sequence[Place]) -> RowVersions:
        """Return the versions of records that each come after those known of their key, all at once.

        A record goes on with the version of the record before, if that is not ended and has the same values.
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
        found = known.take(firsts)
        found.lasts, found.last_times = known.lasts[lasts], known.last_times[lasts]
        return RowVersions(found, lasts, np.where((firsts >= count) & ~found.gone, firsts, -1))

    def _take(self, at: int, own: _KeySpans, time: int) -> None:
        """Take a record of the batch."""
        place = tuple(self._firsts[at].tolist())
        base = own.around(place)[1]
        source, values = (-1, None) if base is None else (base.source, base.values)
        if self.rules.of_log and self._ops[at].as_py() == "c":
            # Debezium sends a changed key as a deletion and a new row, which keeps the values that it leaves out.
            source = self.moved.get(place[:2], -1)
            values = self._moved_values.get(place[:2])
        self.bases[at] = source
        if self.known.gone[at]:
            if base is not None:
                self.moved[place[:2]], self._moved_values[place[:2]] = base.source, base.values
            own.delete(place)
            return
        columns = enumerate(zip(self.rules.columns, self._codes, strict=True))
        held = tuple(
            (values[number] if values is not None else 0) if self._is_absent(name, at) else int(codes[at])
            for number, (name, codes) in columns
        )
        own.write(_RowSpan(place, place, time, time, held, at), has_columns=bool(self.rules.columns))

    def _is_absent(self, name: str, at: int) -> bool:
        return name in self.absent and bool(self.absent[name][at])

    def _as_they_came(self) -> Numbers:
        """Return the batch's records in the order of the log, or as they came: those of a partition by offset."""
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
        found: Numbers = in_order[~self.repeated[in_order]]
        return found

    def _numbered(self) -> list[Numbers]:
        """Return for each column of the history a number for each value: of the batch, the hits, and moved rows."""
        extra = len(self.known.keys) - self.known.batch - self.known.hits
        found = []
        for name in self.rules.columns:
            gap = pa.table({name: pa.nulls(extra)})
            parts = [self.rows, *([] if self.held is None else [self.held]), gap, *self.moved_rows]
            found.append(value_numbers(joined([column_of(one, name) for one in parts])))
        return found

    def _of_late(self) -> RowVersions:
        """Return the versions of keys with late records, which are folded one record after the other."""
        known = self.known
        spans = [(key, one) for key, own in self._keys.items() for one in own.spans]
        count = len(spans)

        def places(side: str) -> Numbers:
            own = [getattr(one, side) for _, one in spans]
            return np.array([(*one[:2], *one[3:]) for one in own], np.int64).reshape(-1, 4)

        def numbers(side: str) -> Numbers:
            return np.array([getattr(one, side) for _, one in spans], np.int64)

        merged = KnownRecords(
            np.array([key for key, _ in spans], np.int64),
            places("first"),
            places("last"),
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
        values = pa.array([None if one is None else repr(one) for one in values.to_pylist()], pa.string())
    found: Numbers = pc.fill_null(values.dictionary_encode().indices, -1).to_numpy(zero_copy_only=False)
    return found.astype(np.int64) + 1
