"""Versions of rows that have several records, taken one after the other as the records came.

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
from airflow_lakestream.cdc.merge.versions import KnownRecords, Place, RowVersions
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
        self._firsts, self._lasts = known.places(known.firsts, of_log=of_log), known.places(known.lasts, of_log=of_log)
        self._codes, self._ops = self._numbered(), self.rows[OP].to_pylist()
        self._moved_values = {place: tuple(int(one[at]) for one in self._codes) for place, at in self.moved.items()}
        self._keys: dict[int, _KeySpans] = {}

    def versions(self, cuts: Sequence[Place]) -> RowVersions:
        """Return the versions after the batch, without ends.

        :param cuts: the places of all truncations.
        """
        known, count = self.known, self.known.batch
        times, lasts = known.times.tolist(), known.last_times.tolist()
        for number in (np.flatnonzero(~self.repeated[count:] & (known.keys[count:] >= 0)) + count).tolist():
            own = self._keys.setdefault(int(known.keys[number]), _KeySpans(list(cuts)))
            if known.gone[number]:
                insort(own.ends, self._firsts[number])
                continue
            values = tuple(int(one[number]) for one in self._codes)
            span = _RowSpan(
                self._firsts[number], self._lasts[number], times[number], lasts[number], values, number, number
            )
            own.insert(bisect_left(own.firsts, span.first), span)
        for at in self._as_they_came():
            self._take(at, self._keys.setdefault(int(known.keys[at]), _KeySpans(list(cuts))), times[at])
        return self._result()

    def _take(self, at: int, own: _KeySpans, time: int) -> None:
        """Take a record of the batch."""
        place = self._firsts[at]
        base = own.around(place)[1]
        source, values = (-1, None) if base is None else (base.source, base.values)
        if self.rules.of_log and self._ops[at] == "c":
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

    def _as_they_came(self) -> list[int]:
        """Return the batch's records in the order of the log, or as they came: those of a partition by offset."""
        count, own = self.known.batch, self._firsts[: self.known.batch]
        in_order = np.array(sorted(range(count), key=own.__getitem__), np.int64)
        if not self.rules.of_log:
            # A record of another partition comes as if the greatest place of its key before it were its own.
            partitions, offsets = self.known.firsts[:count, 2:].T
            ranks = np.empty(count, np.int64)
            ranks[in_order] = np.arange(count)
            pairs = np.stack([self.known.keys[:count], partitions])
            group = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
            by_offset = np.lexsort((offsets, group))
            beyond = group[by_offset] * count
            ranks[by_offset] = np.maximum.accumulate(ranks[by_offset] + beyond) - beyond
            in_order = np.lexsort((offsets, ranks))
        return [at for at in in_order.tolist() if not self.repeated[at]]

    def _numbered(self) -> list[Numbers]:
        """Return for each column of the history a number for each value: of the batch, the hits, and moved rows."""
        extra = len(self.known.keys) - self.known.batch - self.known.hits
        found = []
        for name in self.rules.columns:
            gap = pa.table({name: pa.nulls(extra)})
            parts = [self.rows, *([] if self.held is None else [self.held]), gap, *self.moved_rows]
            found.append(value_numbers(joined([column_of(one, name) for one in parts])))
        return found

    def _result(self) -> RowVersions:
        """Return all versions and deletions as arrays."""
        known = self.known
        spans = [(key, one) for key, own in self._keys.items() for one in own.spans]
        gone = np.flatnonzero(known.gone & ~self.repeated)
        alone = np.flatnonzero(known.keys < 0)
        rest = known.take(np.concatenate([alone, gone]))

        def places(side: str) -> Numbers:
            own = [getattr(one, side) for _, one in spans]
            return np.array([(*one[:2], *one[3:]) for one in own], np.int64).reshape(-1, 4)

        def whole(numbers: list[int], others: Numbers) -> Numbers:
            return np.concatenate([np.array(numbers, np.int64), others])

        count = len(spans)
        merged = KnownRecords(
            whole([key for key, _ in spans], rest.keys),
            np.concatenate([places("first"), rest.firsts]),
            np.concatenate([places("last"), rest.lasts]),
            whole([one.time for _, one in spans], rest.times),
            whole([one.last_time for _, one in spans], rest.last_times),
            whole([-1] * count, rest.ends),
            np.concatenate([np.ones(count, np.bool_), rest.is_open]),
            np.concatenate([np.zeros(count, np.bool_), rest.gone]),
            known.batch,
            known.hits,
        )
        of_rest = np.concatenate([alone, np.full(len(gone), -1, np.int64)])
        return RowVersions(
            merged, whole([one.source for _, one in spans], of_rest), whole([one.hit for _, one in spans], of_rest)
        )


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
