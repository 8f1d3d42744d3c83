"""What a replace takes out of a table: whole files, or files whose other rows are written anew.

Found for one head, and found again when the head moves; a file that is still there with the same deletes is not read
or written a second time, so a replace gets on however often others commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata

from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.core.ranges import PartitionKey, RangeSet
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.replace.hits import (
    COORDINATES,
    FileHits,
    Offsets,
    equality_deletes,
    is_hit,
    joined,
    live_files,
    look_into,
    may_hold,
    not_among,
    read_rows,
    rows_with_coordinates,
)
from airflow_lakestream.iceberg.write.files import delete_files

# So many bytes of kept rows come together, then they are written.
REMAINDER_BYTES = 64 * 2**20
# Each holds some batches of three columns; reading a file lets go of the interpreter.
FILES_AT_ONCE = 2
# An error's text names so many; its attribute holds all.
RANGES_NAMED = 100

WriteFiles = Callable[[pa.Table], list[DataFile]]
# A data file with the delete files that apply to it.
FileKey = tuple[str, frozenset[str]]


class NotReadAgain(CannotReplace):
    """Rows that a replace would take out were not read again: Kafka no longer has them; `ranges` says which."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(
            f"{table} holds {shortly(ranges)}, and the topic no longer gives these records (retention or compaction "
            "took them): to replace them would be to lose them. Nothing was changed. Leave them out of the ranges."
        )


@dataclass(frozen=True, slots=True)
class Takeout:
    """The files out, the files of rows that stay, and how many rows are out in the end."""

    out: Sequence[DataFile]
    remainders: Sequence[DataFile]
    rows: int


@dataclass
class Finder:
    """Finds what to take out for one replace, at one head after the other.

    `new` are the files of the rows read again, `rowless` the records read again that became no row; `write` writes rows
    for the schema and spec that all heads must have.
    """

    ranges: RangeSet
    new: Sequence[DataFile]
    write: WriteFiles
    rowless: Sequence[tuple[PartitionKey, pa.Array]] = ()
    _seen: dict[FileKey, FileHits] = field(default_factory=dict)
    _kept: dict[tuple[str, frozenset[str], int], list[DataFile]] = field(default_factory=dict)
    _written: list[DataFile] = field(default_factory=list)
    _read_again: Offsets | None = None

    def find(self, table: Table, landed: int) -> Takeout:
        """Find it at the table's head. `landed` is how many rows all ledgers of the table say it got.

        Raises CannotReplace; nothing is written then.
        """
        check_columns(table.schema().column_names, ledger_store.name_of(table))
        _refuse_equality_deletes(table)
        files = self._live_files(table)
        self._check_rows_can_be_told(table, files, landed)
        candidates = {key_of(task): task for task in files if self._may_hold(table, task.file)}
        self._look_into(table, {key: task for key, task in candidates.items() if key not in self._seen})
        hits = {key: self._seen[key] for key in candidates if self._seen[key].count}
        self._check_all_read_again(table, hits.values())
        # A file that the table lists twice has its rows twice, and goes out with all of them.
        times = Counter(map(key_of, files))
        remainders: list[DataFile] = []
        for key, found in hits.items():
            for number in range(times[key] if found.count < found.rows else 0):
                remainders += self._remainder(table, (*key, number), found)
        out = [found.task.file for found in hits.values()]
        return Takeout(out, remainders, sum(found.count * times[key] for key, found in hits.items()))

    def delete_remainders(self, io: FileIO, keep: Takeout | None) -> list[str]:
        """Delete the files of rows that stay, but for those of `keep`; return those that may be left. Never raises."""
        kept = {file.file_path for file in keep.remainders} if keep is not None else set()
        paths = [file.file_path for file in self._written if file.file_path not in kept]
        self._written = []
        return delete_files(io, paths)

    def _live_files(self, table: Table) -> list[FileScanTask]:
        return live_files(table)

    def _may_hold(self, table: Table, file: DataFile) -> bool:
        return may_hold(table.metadata, file, self.ranges)

    def _beside(self, rows: pa.Table) -> pa.ChunkedArray | None:
        """Tell which rows go out beside those of the ranges; None for none."""
        return None

    def _check_rows_can_be_told(self, table: Table, files: Sequence[FileScanTask], landed: int) -> None:
        name = ledger_store.name_of(table)
        known, lacking = rows_with_coordinates(table, files)
        # NULL is no hit; but only a row that no landing wrote may have it, or its record would be there twice.
        if lacking and known < landed:
            raise CannotReplace(
                f"{name} has rows without values in {', '.join(COORDINATES)}, such as in {lacking[0]}; {landed} rows "
                f"were landed and {known} rows have values. Which of the others are records of {self.ranges} can't be "
                "told. Nothing was changed. Delete those rows, or fill in their values."
            )

    def _look_into(self, table: Table, tasks: Mapping[FileKey, FileScanTask]) -> None:
        def look(task: FileScanTask) -> FileHits:
            return look_into(table.metadata, table.io, task, self.ranges, self._beside)

        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="lakestream-look") as pool:
            self._seen.update(zip(tasks, pool.map(look, tasks.values()), strict=True))

    def _check_all_read_again(self, table: Table, hits: Iterable[FileHits]) -> None:
        if self._read_again is None:
            tasks = [FileScanTask(file) for file in self.new]
            parts = [look_into(table.metadata, table.io, task, self.ranges) for task in tasks]
            if any(part.count < part.rows for part in parts):
                raise AssertionError(f"{ledger_store.name_of(table)}: rows to put in are not of {self.ranges}")
            self._read_again = joined(parts, self.rowless)
        if gone := self._not_read_again(joined(hits), self._read_again):
            raise NotReadAgain(ledger_store.name_of(table), gone)

    def _not_read_again(self, hits: Offsets, read_again: Offsets) -> RangeSet:
        return not_among(hits, read_again)

    def _remainder(self, table: Table, key: tuple[str, frozenset[str], int], found: FileHits) -> list[DataFile]:
        if key not in self._kept:
            self._kept[key] = self._write_remainder(table.metadata, table.io, found.task)
        return self._kept[key]

    def _write_remainder(self, metadata: TableMetadata, io: FileIO, task: FileScanTask) -> list[DataFile]:
        files: list[DataFile] = []
        rows: list[pa.Table] = []
        for batch in read_rows(metadata, io, task):
            out = is_hit(batch, self.ranges)
            beside = self._beside(batch)
            rows.append(batch.filter(pc.invert(out if beside is None else pc.or_(out, beside))))
            if sum(part.nbytes for part in rows) >= REMAINDER_BYTES:
                files += self._write(rows)
                rows = []
        return files + self._write(rows)

    def _write(self, rows: Sequence[pa.Table]) -> list[DataFile]:
        if not rows:
            return []
        files = self.write(pa.concat_tables(rows, promote_options="permissive"))
        self._written += files
        return files


def check_columns(columns: Collection[str], table: str) -> None:
    """Raise CannotReplace where rows keep no topic, partition or offset."""
    missing = [name for name in COORDINATES if name not in columns]
    if missing:
        raise CannotReplace(
            f"{table} keeps no {', '.join(missing)}: which rows come from which records can't be told, so none can be "
            "replaced. Nothing was changed. Only tables landed with metadata_columns topic, partition and offset can."
        )


def shortly(ranges: RangeSet) -> str:
    """Return the text of ranges, the first hundred of them."""
    # Compaction leaves a hole at every other offset.
    parts = [str(r) for r in ranges]
    more = f" and {len(parts) - RANGES_NAMED} more ranges" if len(parts) > RANGES_NAMED else ""
    return ", ".join(parts[:RANGES_NAMED]) + more


def _refuse_equality_deletes(table: Table) -> None:
    if paths := equality_deletes(table):
        raise CannotReplace(
            f"{ledger_store.name_of(table)} has equality deletes, such as {paths[0]}, which PyIceberg does not read: "
            "deleted rows would come back. Nothing was changed. Rewrite its data files with another engine first."
        )


def key_of(task: FileScanTask) -> FileKey:
    """Return what a data file and its deletes are known by."""
    return task.file.file_path, frozenset(delete.file_path for delete in task.delete_files)
