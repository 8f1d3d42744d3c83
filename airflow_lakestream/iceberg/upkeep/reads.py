"""Files opened by a read of a whole table: data files, and delete files for the deleted rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.table import Table

from airflow_lakestream.core.printable import counted
from airflow_lakestream.iceberg.replace.takeout import live_files
from airflow_lakestream.iceberg.write.deletes import deleted_positions


@dataclass(frozen=True)
class ReadCounts:
    """Counts of the files at a table's head.

    :param data_files: data files, each opened once.
    :param delete_files: opened delete files, each counted for every data file that it may apply to.
    :param most: the most delete files of a data file.
    :param shared: delete files that may apply to several data files, as far as their bounds show.
    :param needless: delete files at the head that apply to no data file: their rows were rewritten.
    """

    data_files: int
    delete_files: int
    most: int
    shared: int
    needless: int

    @property
    def may_be_fewer(self) -> bool:
        """Whether fewer delete files could delete the same rows."""
        return self.most > 1 or self.shared > 0 or self.needless > 0

    @classmethod
    def of(cls, table: Table) -> ReadCounts:
        """Return the counts of a table's head. Raises ValueError for equality deletes, unsupported by PyIceberg."""
        tasks = live_files(table)
        needed = Counter(file.file_path for task in tasks for file in task.delete_files)
        shared = sum(count > 1 for count in needed.values())
        most = max((len(task.delete_files) for task in tasks), default=0)
        return cls(len(tasks), needed.total(), most, shared, len(_position_deletes(table) - needed.keys()))


@dataclass(frozen=True)
class TableSize:
    """The files of a table's head; `files` and `bytes` include delete files."""

    files: int
    bytes: int
    deletes: int = 0

    @classmethod
    def of(cls, table: Table) -> TableSize:
        """Return the size from the head's manifests, since not every writer keeps the totals of summaries."""
        head = table.current_snapshot()
        manifests = [] if head is None else head.manifests(table.io)
        files = [entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]
        deletes = sum(file.content != DataFileContent.DATA for file in files)
        return cls(len(files), sum(file.file_size_in_bytes for file in files), deletes)

    def to_dict(self) -> dict[str, int]:
        """Return the numbers by name."""
        return {"files": self.files, "delete_files": self.deletes, "bytes": self.bytes}

    def __str__(self) -> str:
        deletes = f" ({self.deletes:,} of them delete files)" if self.deletes else ""
        return f"{counted(self.files, 'file')}{deletes} of {counted(self.bytes, 'byte')}"


def live_rows(table: Table) -> int:
    """Return the number of rows at a table's head. Position deletes are read, since no total is exact.

    `total-records` counts deleted rows that are still in their files, and `total-position-deletes` counts rows that a
    compaction has long removed.
    """
    return sum(task.file.record_count - len(deleted_positions(table.io, task)) for task in live_files(table))


def _position_deletes(table: Table) -> set[str]:
    head = table.current_snapshot()
    return {
        entry.data_file.file_path
        for manifest in ([] if head is None else head.manifests(table.io))
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == DataFileContent.POSITION_DELETES
    }
