"""Takeout of a replace: files removed whole, and the remaining rows of these files written again.

The takeout is found for one head, and found again when the head moves. A file that is still there with the same deletes
is not read or written a second time, so a replace makes progress even if other writers commit often.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.core.ranges import PartitionKey, RangeSet, shown
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, Offsets, is_hit, is_of, missing_in
from airflow_lakestream.tables.guards import check_columns

# Kept rows are written once they have this many bytes.
REMAINDER_BYTES = 64 * 2**20
# Files that are read at once. Each holds some batches of three columns; reading releases the interpreter lock.
FILES_AT_ONCE = 2
# An error's text contains at most this many ranges; its attribute has all.
RANGES_NAMED = 100

# A live file with its deletes, and a new file for a commit.
Live = TypeVar("Live")
File = TypeVar("File")
# Returns for each row whether it is removed in addition to the hits.
RowSelector = Callable[[pa.Table], pa.ChunkedArray | None]


class NotReadAgain(CannotReplace):
    """Refusal of a replace with lost records: Kafka no longer has the records of rows to remove, at `ranges`."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(
            f"{table} holds {shortly(ranges)}, and the topic no longer gives these records (retention or compaction "
            "took them): to replace them would be to lose them. Nothing was changed. Leave them out of the ranges."
        )


class HeadFiles(ABC, Generic[Live, File]):
    """Files of a table at a head; `name` and `columns` are the table's."""

    name: str
    columns: Sequence[str]

    @abstractmethod
    def live(self) -> Sequence[Live]:
        """Return the live files. Raises CannotReplace if deleted rows would come back."""

    @abstractmethod
    def of_new(self, file: File) -> Live:
        """Return a new file of the commit as a live file."""

    @abstractmethod
    def key(self, file: Live) -> Hashable:
        """Return the key of a file and all deletes on the file."""

    @abstractmethod
    def may_hold(self, file: Live, ranges: RangeSet) -> bool:
        """Return by a file's statistics whether rows of the ranges are possible; True without statistics."""

    @abstractmethod
    def rows(self, file: Live, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the live rows of a file with these columns, by default all."""

    @abstractmethod
    def rows_with_coordinates(self, files: Sequence[Live]) -> tuple[int, Sequence[str]]:
        """Return the number of rows with values in all coordinates, and the names of files with a missing value."""


@dataclass(frozen=True, slots=True)
class FileHits(Generic[Live]):
    """Hits in a data file: the offsets by partition, and the number of all live rows.

    A hit is a row whose position is in the ranges to replace.

    :param others: number of rows to remove in addition to the hits.
    """

    file: Live
    rows: int
    offsets: Offsets
    others: int = 0

    @property
    def count(self) -> int:
        """The number of rows to remove: hits and additional rows."""
        return sum(len(offsets) for offsets in self.offsets.values()) + self.others


@dataclass(frozen=True, slots=True)
class TakeoutFiles(Generic[Live, File]):
    """Takeout of a replace: removed files, files of remaining rows, and the number of removed rows."""

    out: Sequence[Live] = ()
    remainders: Sequence[File] = ()
    rows: int = 0


@dataclass
class TakeoutFinder(Generic[Live, File]):
    """Search for the takeout of a replace, repeated at each new head.

    Hits and written remainders are kept from head to head, by the key of a file with its deletes.

    :param ranges: the offsets to replace.
    :param new: the files of the rows read again.
    :param write: writes remaining rows as files, for the columns and the layout that all heads must have.
    :param rowless: offsets of records read again that became no row.
    """

    ranges: RangeSet
    new: Sequence[File]
    write: Callable[[pa.Table], list[File]]
    rowless: Sequence[tuple[PartitionKey, pa.Array]] = ()
    _hits: dict[Hashable, FileHits[Live]] = field(default_factory=dict)
    _kept: dict[Hashable, list[File]] = field(default_factory=dict)
    _read_again: Offsets | None = None

    def find(self, head: HeadFiles[Live, File], landed: int) -> TakeoutFiles[Live, File]:
        """Return the takeout at a head, and write the remaining rows of the removed files.

        Raises CannotReplace, before a file is written, if rows can't be identified or if a row to remove was not read
        again.

        :param landed: the number of rows that all ledgers of the table count, to be compared with the rows that have
            positions.
        """
        check_columns(head.columns, head.name)
        files = self.live_files(head)
        self.check_rows_identifiable(head, files, landed)
        candidates = {head.key(file): file for file in files if self.may_hold(head, file)}
        self._look_into(head, {key: file for key, file in candidates.items() if key not in self._hits})
        hits = {key: self._hits[key] for key in candidates if self._hits[key].count}
        self._check_all_read_again(head, hits.values())
        # A file that the table lists twice has its rows twice, and goes out with all of them.
        times = Counter(map(head.key, files))
        remainders: list[File] = []
        for key, file_hits in hits.items():
            for number in range(times[key] if file_hits.count < file_hits.rows else 0):
                if (key, number) not in self._kept:
                    self._kept[key, number] = self._write_remainder(head, file_hits.file)
                remainders += self._kept[key, number]
        out = [file_hits.file for file_hits in hits.values()]
        return TakeoutFiles(out, remainders, sum(file_hits.count * times[key] for key, file_hits in hits.items()))

    def live_files(self, head: HeadFiles[Live, File]) -> Sequence[Live]:
        """Return the live files of a head."""
        return head.live()

    def may_hold(self, head: HeadFiles[Live, File], file: Live) -> bool:
        """Return by a file's statistics whether the file may have rows to remove."""
        return head.may_hold(file, self.ranges)

    def additional_rows(self, rows: pa.Table) -> pa.ChunkedArray | None:
        """Return a mask of the rows to remove in addition to the hits, or None."""
        return None

    def check_rows_identifiable(self, head: HeadFiles[Live, File], files: Sequence[Live], landed: int) -> None:
        """Refuse rows without a position that may be landed rows. Raises CannotReplace."""
        complete, lacking = head.rows_with_coordinates(files)
        # NULL is not a hit. Only a row that no landing wrote may have NULL, or its record would be in the table twice.
        if lacking and complete < landed:
            raise CannotReplace(
                f"{head.name} has rows without values in {', '.join(COORDINATES)}, such as in {lacking[0]}; {landed} "
                f"rows were landed and {complete} rows have values. Which of the others are records of {self.ranges} "
                "is unknown. Nothing was changed. Delete those rows, or fill in their values."
            )

    def _look_into(self, head: HeadFiles[Live, File], files: Mapping[Hashable, Live]) -> None:
        """Read the hits of files, and keep them by key."""

        def look(file: Live) -> FileHits[Live]:
            return look_into(head, file, self.ranges, self.additional_rows)

        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lakestream-look") as pool:
            self._hits.update(zip(files, pool.map(look, files.values()), strict=True))

    def _check_all_read_again(self, head: HeadFiles[Live, File], hits: Iterable[FileHits[Live]]) -> None:
        """Refuse the removal of a row whose record was not read again. Raises NotReadAgain."""
        # The new files are the same for each head, so they are read once.
        if self._read_again is None:
            parts = [look_into(head, head.of_new(file), self.ranges) for file in self.new]
            if any(part.count < part.rows for part in parts):
                raise AssertionError(f"{head.name}: rows to put in are not of {self.ranges}")
            self._read_again = joined(parts, self.rowless)
        if not_read_again := self.ranges_not_read_again(joined(hits), self._read_again):
            raise NotReadAgain(head.name, not_read_again)

    def ranges_not_read_again(self, hits: Offsets, read_again: Offsets) -> RangeSet:
        """Return the offsets of hits that were not read again."""
        return missing_in(hits, read_again)

    def _write_remainder(self, head: HeadFiles[Live, File], file: Live) -> list[File]:
        """Write the rows of a file that stay, and return the new files."""
        files: list[File] = []
        rows: list[pa.Table] = []
        for batch in head.rows(file):
            out = is_hit(batch, self.ranges)
            additional = self.additional_rows(batch)
            rows.append(batch.filter(pc.invert(out if additional is None else pc.or_(out, additional))))
            if sum(part.nbytes for part in rows) >= REMAINDER_BYTES:
                files += self.write_parts(rows)
                rows = []
        return files + self.write_parts(rows)

    def write_parts(self, parts: Sequence[pa.Table]) -> list[File]:
        """Write remaining rows as files; no file without rows."""
        rows = pa.concat_tables(parts, promote_options="permissive") if parts else None
        return self.write(rows) if rows is not None and rows.num_rows else []


def look_into(
    head: HeadFiles[Live, File], file: Live, ranges: RangeSet, additional: RowSelector | None = None
) -> FileHits[Live]:
    """Return the hits among the live rows of a data file.

    :param additional: selects rows to remove in addition to the hits; they are counted in `FileHits.others`.
    """
    rows = others = 0
    parts_by_partition: dict[PartitionKey, list[pa.Array]] = {key: [] for key in ranges.partitions}
    for batch in head.rows(file, COORDINATES):
        rows += batch.num_rows
        hits = batch.filter(is_hit(batch, ranges))
        if additional is not None and (wanted := additional(batch)) is not None:
            others += pc.sum(wanted).as_py() or 0
        for key, parts in parts_by_partition.items() if hits.num_rows else ():
            parts += hits.filter(is_of(hits, key))[OFFSET].cast(pa.int64()).chunks
    offsets = {key: pa.chunked_array(parts, pa.int64()).combine_chunks() for key, parts in parts_by_partition.items()}
    return FileHits(file, rows, offsets, others)


def joined(parts: Iterable[FileHits[Live]], others: Iterable[tuple[PartitionKey, pa.Array]] = ()) -> Offsets:
    """Return the hits of several files and further offsets in a single mapping, by partition."""
    by_partition: dict[PartitionKey, list[pa.Array]] = {}
    for key, offsets in itertools.chain(*(part.offsets.items() for part in parts), others):
        by_partition.setdefault(key, []).append(offsets)
    return {key: pa.concat_arrays(arrays) for key, arrays in by_partition.items()}


def shortly(ranges: RangeSet) -> str:
    """Return the first hundred ranges as text."""
    # Compaction leaves a hole at every other offset.
    return shown([str(r) for r in ranges], RANGES_NAMED)
