"""What a read of a whole table opens: its data files, and the delete files that say which of their rows are gone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.table import Table

from airflow_lakestream.iceberg.replace.takeout import live_files
from airflow_lakestream.iceberg.write.deletes import deleted_positions


@dataclass(frozen=True)
class Reads:
    """The files of a table's head.

    :param data_files: each is opened once.
    :param delete_files: how many are opened, each with every data file that it may be of.
    :param most: of one data file.
    :param shared: delete files that may be of several data files, as far as their bounds tell.
    :param needless: delete files that are in the head, and of no data file: their rows were rewritten.
    """

    data_files: int
    delete_files: int
    most: int
    shared: int
    needless: int

    @property
    def may_be_fewer(self) -> bool:
        """Whether the same rows would be gone with fewer delete files to open."""
        return self.most > 1 or self.shared > 0 or self.needless > 0

    @classmethod
    def of(cls, table: Table) -> Reads:
        """Look at the manifests. Raises ValueError for a table with equality deletes, which PyIceberg can't apply."""
        tasks = live_files(table)
        needed = Counter(file.file_path for task in tasks for file in task.delete_files)
        shared = sum(of > 1 for of in needed.values())
        most = max((len(task.delete_files) for task in tasks), default=0)
        return cls(len(tasks), needed.total(), most, shared, len(_position_deletes(table) - needed.keys()))


def live_rows(table: Table) -> int:
    """Count the rows of a table's head. Position deletes are read: no total of a snapshot tells.

    `total-records` counts deleted rows that are still in their files, and `total-position-deletes` those that a
    compaction has long taken out.
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
