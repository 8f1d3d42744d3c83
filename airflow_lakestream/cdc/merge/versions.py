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
    """Records of a batch, then rows of files, then deletions that the memory has. Each has a number.

    :param keys: the number of each record's key. A row that only a truncation reaches has a negative number of its own.
    :param firsts: the versions of the first records, and `lasts` of the last ones, which differ only for rows of files.
    :param times: the times of the first records in microseconds, and `last_times` of the last ones.
    :param ends: the ends of rows of files, -1 for none; and `is_open` whether a row has no end.
    :param gone: whether a record is a deletion.
    :param batch: the number of the batch's records, and `hits` of the rows of files.
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
        (first,) = greatest_of_each(by_place(rows, key), -np.arange(len(rows)))
        distinct = rows.take(pa.array(-first))
        numbers, deletions = places(rows, distinct, key), memory.deletions(distinct)
        held = [one.rows for one in results if one.rows is not None]
        of_hits = np.concatenate([np.zeros(0, np.int64), *(one.at for one in results)])
        keys = np.arange(-len(of_hits), 0)
        keys[of_hits >= 0] = numbers[of_hits[of_hits >= 0]]
        parts, starts = [rows, *held, deletions], [rows, *(_of_begin(one) for one in held), deletions]
        count, hits = len(rows), len(of_hits)
        ends = np.full(count + hits + len(deletions), -1, np.int64)
        is_open = np.ones(len(ends), np.bool_)
        if held:
            of_rows = one_array(joined([one.select([VALID_TO]) for one in held])[VALID_TO]).cast(pa.int64())
            ends[count : count + hits] = of_rows.fill_null(-1)
            is_open[count : count + hits] = of_rows.is_null().to_numpy(zero_copy_only=False)
        return cls(
            np.concatenate([numbers, keys, places(deletions, distinct, key)]).astype(np.int64),
            _versions(starts),
            _versions(parts),
            np.concatenate([_times(one) for one in parts]),
            np.concatenate([_times(one, last=True) for one in parts]),
            ends,
            is_open,
            np.concatenate([is_gone(rows), np.zeros(hits, np.bool_), np.ones(len(deletions), np.bool_)]),
            count,
            hits,
        )

    def take(self, numbers: Numbers) -> KnownRecords:
        """Return some of the records."""
        arrays = {one.name: getattr(self, one.name)[numbers] for one in fields(self)[:-2]}
        return KnownRecords(**arrays, batch=self.batch, hits=self.hits)

    def kinds(self, *, of_log: bool) -> Numbers:
        """Return 1 for each row, and 0 for each deletion, which comes first if both have one position in the log."""
        found: Numbers = ((self.firsts[:, 1] != 0) & ~self.gone & of_log).astype(np.int64)
        return found

    def in_order(self, *, of_log: bool) -> tuple[Numbers, Mask]:
        """Return the numbers of the records, sorted by key and place, and a mask of the repeated records.

        A batch's record is repeated if the table or the memory has the same record, or, with a position in the log, if
        an earlier record of its key has the same position and kind.
        """
        is_new = np.arange(len(self.keys)) < self.batch
        commit, position, partition, offset = self.firsts.T
        kinds, has_position = self.kinds(of_log=of_log), of_log & (position != 0)
        may_be_copy = has_position & is_new
        order = np.lexsort((is_new, offset, partition, may_be_copy, kinds, position, commit, self.keys))

        def repeats(*columns: Numbers) -> Mask:
            """Return a mask of the sorted records, without the first, that equal the record before in the columns."""
            equal: Mask = np.logical_and.reduce([one[order[1:]] == one[order[:-1]] for one in columns])
            return equal

        repeated = np.zeros(len(order), np.bool_)
        is_same_record = repeats(partition, offset)
        repeated[order[1:]] = repeats(self.keys, commit, position, kinds) & (is_same_record | may_be_copy[order[1:]])
        return order, repeated

    def places(self, versions: Versions, *, of_log: bool) -> Versions:
        """Return the places of records in the order of their key, a row of five numbers for each.

        :param versions: `firsts` or `lasts`.
        """
        found: Versions = np.column_stack([versions[:, :2], self.kinds(of_log=of_log), versions[:, 2:]])
        return found


def _of_begin(rows: pa.Table) -> pa.Table:
    """Return the versions of the first records of rows in files."""
    return rows.select(BEGIN).rename_columns(VERSION) if BEGIN[0] in rows.column_names else rows


def _versions(parts: Sequence[pa.Table]) -> Versions:
    columns = [np.concatenate([one[name].to_numpy().astype(np.int64) for one in parts]) for name in VERSION]
    return np.stack(columns, axis=1)


def _times(rows: pa.Table, *, last: bool = False) -> Numbers:
    names = [TIME, VALID_FROM, COMMIT] if last else [VALID_FROM, TIME, COMMIT]
    name = next(one for one in names if one in rows.column_names)
    found: Numbers = one_array(rows[name]).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


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
        """Return these versions and others of the same records."""
        names = [one.name for one in fields(KnownRecords)[:-2]]
        arrays = {name: np.concatenate([getattr(own, name) for own in (self.known, more.known)]) for name in names}
        known = KnownRecords(**arrays, batch=self.known.batch, hits=self.known.hits)
        return RowVersions(known, np.concatenate([self.sources, more.sources]), np.concatenate([self.hits, more.hits]))

    def end(self, cuts: Sequence[VersionCut], *, of_log: bool) -> None:
        """Set the end of each version: the time of the key's next version or deletion, or of an earlier truncation.

        A row that only a truncation reaches keeps its end, if that is earlier.
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
    """Return a mask of the versions below `than`: a single version, or a version for each."""
    found, same = np.zeros(len(versions), np.bool_), np.ones(len(versions), np.bool_)
    for column, bound in zip(versions.T, than.T if isinstance(than, np.ndarray) else than, strict=True):
        found |= same & (column < bound)
        same &= column == bound
    return found
