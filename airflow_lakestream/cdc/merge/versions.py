"""Known records of a batch's keys, and the versions of rows that they make, each until the next record of its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_lakestream.cdc.columns import BEGIN, COMMIT, TIME, VALID_FROM, VALID_TO, VERSION
from airflow_lakestream.cdc.keys.identity import by_place, greatest_of_each, places
from airflow_lakestream.cdc.merge.lookup import LookupResult, joined
from airflow_lakestream.cdc.merge.memory import MirrorMemory
from airflow_lakestream.cdc.merge.newest import NewestEvents
from airflow_lakestream.cdc.merge.snapshots import is_gone
from airflow_lakestream.cdc.rows import VersionCut
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.tables.rising import Numbers
from airflow_lakestream.tables.row_buffer import one_array

Versions = npt.NDArray[np.int64]
# A place in the order of a key's records: the version, with deletions first among the events at one log position.
Place = tuple[int, ...]


@dataclass
class KnownRecords:
    """Records of a batch, then rows of files, then deletions that the memory has; a record's number is its index here.

    A row of a file may be of several records: its first and last record then differ.

    :param keys: the number of each record's key. A row that is here only because a truncation ends it has a negative
        number of its own.
    :param firsts: the versions of the first records; `lasts` those of the last records.
    :param times: the times of the first records in microseconds; `last_times` those of the last records.
    :param ends: the ends of rows of files in microseconds, or -1; `is_open` is true for a row without an end.
    :param gone: a mask of the deletions.
    :param batch: the number of records in the batch.
    :param hits: the number of rows of files.
    """

    keys: Numbers
    firsts: Versions
    lasts: Versions
    times: Numbers
    last_times: Numbers
    ends: Numbers
    is_open: Mask
    gone: Mask
    batch: int
    hits: int

    @classmethod
    def of(
        cls, batch: NewestEvents, results: Sequence[LookupResult], memory: MirrorMemory, key: tuple[str, ...]
    ) -> KnownRecords:
        """Return the records of a batch, the hits of its lookup, and the deletions of the keys."""
        rows = batch.rows
        (negated,) = greatest_of_each(by_place(rows, key), -np.arange(len(rows)))
        distinct = rows.take(pa.array(-negated))
        numbers, deletions = places(rows, distinct, key), memory.deletions(distinct)
        hit_rows = [part.rows for part in results if part.rows is not None]
        hit_events = np.concatenate([np.zeros(0, np.int64), *(part.at for part in results)])
        keys = np.arange(-len(hit_events), 0)
        keys[hit_events >= 0] = numbers[hit_events[hit_events >= 0]]
        parts, starts = [rows, *hit_rows, deletions], [rows, *(_of_begin(part) for part in hit_rows), deletions]
        count, hits = len(rows), len(hit_events)
        ends = np.full(count + hits + len(deletions), -1, np.int64)
        is_open = np.ones(len(ends), np.bool_)
        if hit_rows:
            valid_to = one_array(joined([part.select([VALID_TO]) for part in hit_rows])[VALID_TO]).cast(pa.int64())
            ends[count : count + hits] = valid_to.fill_null(-1)
            is_open[count : count + hits] = valid_to.is_null().to_numpy(zero_copy_only=False)
        return cls(
            np.concatenate([numbers, keys, places(deletions, distinct, key)]).astype(np.int64),
            _versions(starts),
            _versions(parts),
            np.concatenate([_times(part) for part in parts]),
            np.concatenate([_times(part, last=True) for part in parts]),
            ends,
            is_open,
            np.concatenate([is_gone(rows), np.zeros(hits, np.bool_), np.ones(len(deletions), np.bool_)]),
            count,
            hits,
        )

    def take(self, numbers: Numbers) -> KnownRecords:
        """Return some of the records."""
        arrays = {field.name: getattr(self, field.name)[numbers] for field in fields(self)[:-2]}
        return KnownRecords(**arrays, batch=self.batch, hits=self.hits)

    def kinds(self, *, of_log: bool) -> Numbers:
        """Return 1 for each row, and 0 for each deletion, which comes first if both have one position in the log."""
        kinds: Numbers = ((self.firsts[:, 1] != 0) & ~self.gone & of_log).astype(np.int64)
        return kinds

    def in_order(self, *, of_log: bool) -> tuple[Numbers, Mask]:
        """Return the numbers of the records, sorted by key and version, and a mask of the repeated records.

        A record is repeated if it has the key, version and kind of the record before it. For an event of the batch in
        the database's log, the same key, log position and kind are enough: rows of files and deletions of the memory
        are sorted before such events.
        """
        is_new = np.arange(len(self.keys)) < self.batch
        commit, position, partition, offset = self.firsts.T
        kinds, is_new_event = self.kinds(of_log=of_log), is_new & (position != 0) & of_log
        order = np.lexsort((is_new, offset, partition, is_new_event, kinds, position, commit, self.keys))
        earlier, later = order[:-1], order[1:]
        same_place = np.logical_and.reduce(
            [column[earlier] == column[later] for column in (self.keys, commit, position, kinds)]
        )
        same_offset = (partition[earlier] == partition[later]) & (offset[earlier] == offset[later])
        repeated = np.zeros(len(order), np.bool_)
        repeated[later] = same_place & (same_offset | is_new_event[later])
        return order, repeated

    def places(self, versions: Versions, *, of_log: bool) -> Versions:
        """Return the places of records in the order of their key, a row of five numbers for each.

        :param versions: `firsts` or `lasts`.
        """
        places: Versions = np.column_stack([versions[:, :2], self.kinds(of_log=of_log), versions[:, 2:]])
        return places


def _of_begin(rows: pa.Table) -> pa.Table:
    """Return the versions of the first records of rows in files."""
    return rows.select(BEGIN).rename_columns(VERSION) if BEGIN[0] in rows.column_names else rows


def _versions(parts: Sequence[pa.Table]) -> Versions:
    """Return the versions of all rows, a row of four numbers for each."""
    columns = [np.concatenate([part[name].to_numpy().astype(np.int64) for part in parts]) for name in VERSION]
    return np.stack(columns, axis=1)


def _times(rows: pa.Table, *, last: bool = False) -> Numbers:
    """Return the times of the first records of rows in microseconds, or with `last` of the last records."""
    names = [TIME, VALID_FROM, COMMIT] if last else [VALID_FROM, TIME, COMMIT]
    name = next(column for column in names if column in rows.column_names)
    times: Numbers = one_array(rows[name]).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return times


@dataclass
class RowVersions:
    """Versions of rows after a batch, with deletions that end them.

    :param known: the first and last records; a deletion is in `known.gone`.
    :param sources: for each version the number of the record that has the row's values.
    :param hits: the number of the version's row in a file, or -1.
    """

    known: KnownRecords
    sources: Numbers
    hits: Numbers

    def joined(self, more: RowVersions) -> RowVersions:
        """Return these versions, and then the versions of `more`."""
        names = [field.name for field in fields(KnownRecords)[:-2]]
        arrays = {
            name: np.concatenate([getattr(records, name) for records in (self.known, more.known)]) for name in names
        }
        known = KnownRecords(**arrays, batch=self.known.batch, hits=self.known.hits)
        return RowVersions(known, np.concatenate([self.sources, more.sources]), np.concatenate([self.hits, more.hits]))

    def end(self, cuts: Sequence[VersionCut], *, of_log: bool) -> None:
        """Set the end of each version: the time of the key's next version or deletion, or of an earlier truncation.

        A row that is known only because of a truncation keeps its end, if the end is earlier.
        """
        known, count = self.known, len(self.known.keys)
        order, _ = known.in_order(of_log=of_log)
        follows = known.keys[order[1:]] == known.keys[order[:-1]]
        following = np.full(count, -1, np.int64)
        following[order[:-1][follows]] = order[1:][follows]
        has_next, keeps = following >= 0, known.keys < 0
        known.ends = np.where(keeps, known.ends, np.where(has_next, known.times[following], -1))
        known.is_open = np.where(keeps, known.is_open, ~has_next)
        for cut in cuts:
            ended = before(known.lasts, cut.version) & ~(has_next & before(known.firsts[following], cut.version))
            earlier = ended & (known.is_open | (known.ends > cut.time))
            known.ends[earlier], known.is_open[earlier] = cut.time, False


def before(versions: Versions, than: Sequence[int] | Versions) -> Mask:
    """Return a mask of the versions that are below `than`: a single version, or a version for each of `versions`."""
    mask, same = np.zeros(len(versions), np.bool_), np.ones(len(versions), np.bool_)
    for column, bound in zip(versions.T, than.T if isinstance(than, np.ndarray) else than, strict=True):
        mask |= same & (column < bound)
        same &= column == bound
    return mask
