"""Small files, delete files and the last compaction of a table, from summaries of snapshots: no manifest is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from airflow_lakestream.core import codec
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.upkeep.compaction_plan import CompactionRule
from airflow_lakestream.iceberg.write.files import target_size

# Keys of summaries, by Iceberg's specification.
_FILES, _BYTES, _DELETES = "total-data-files", "total-files-size", "total-delete-files"
_ADDED, _ADDED_BYTES, _REMOVED = "added-data-files", "added-files-size", "deleted-data-files"
_PARTITIONS = "changed-partition-count"


@dataclass(frozen=True, kw_only=True)
class FileUse:
    """Files of a table's head; of a Delta table, see `watching.streams.delta.file_use`.

    :param files: data files; None if the head's writer keeps no totals. The same for `delete_files`.
    :param small: small data files that came since the last compaction by any engine, judged by the mean size in each
        commit; if no kept snapshot is a compaction, older files are judged by the mean of the whole table.
    :param partitions: the most partitions that one of these commits wrote to.
    :param compacted_at: time of the last compaction, in milliseconds since 1970, or None.
    """

    files: int | None = None
    delete_files: int | None = None
    small: int = 0
    partitions: int = 1
    compacted_at: int | None = None

    @classmethod
    def of(cls, metadata: TableMetadata) -> FileUse:
        """Return the use of a table's head."""
        head = metadata.current_snapshot()
        if head is None:
            return cls()
        limit, by_id = _limit(metadata), {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        total = _number(head, _FILES)
        small, partitions, current, is_cut = 0, 1, by_id.get(head.snapshot_id), False
        while current is not None and not _compacts(current):
            small += _small(current, limit) - (_number(current, _REMOVED) or 0)
            partitions = max(partitions, _number(current, _PARTITIONS) or 1)
            is_cut = current.parent_snapshot_id is not None and current.parent_snapshot_id not in by_id
            current = by_id.get(current.parent_snapshot_id or 0)
        if is_cut and total and (_number(head, _BYTES) or 0) / total < limit:
            small = total
        return cls(
            files=total,
            delete_files=_number(head, _DELETES),
            small=max(0, small if total is None else min(small, total)),
            partitions=partitions,
            compacted_at=None if current is None else current.timestamp_ms,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "files": self.files,
            "small_files": self.small,
            "delete_files": self.delete_files,
            "compacted_at": self.compacted_at,
        }


def small_files_of(metadata: TableMetadata, snapshots: Collection[int]) -> int:
    """Return the number of small files that some snapshots added, as far as the snapshots are kept."""
    return sum(_small(s, _limit(metadata)) for s in metadata.snapshots if s.snapshot_id in snapshots)


def _limit(metadata: TableMetadata) -> float:
    """Return the bytes below which a compaction takes a file for small."""
    target = target_size(metadata)
    return CompactionRule(target_bytes=target).small_share * target


def _small(snapshot: Snapshot, limit: float) -> int:
    """Return the number of data files that a snapshot added, or 0 if they are not small on average."""
    added = _number(snapshot, _ADDED) or 0
    return added if added and (_number(snapshot, _ADDED_BYTES) or 0) / added < limit else 0


def is_compaction(operation: str, summary: Mapping[str, str]) -> bool:
    """Return whether the snapshot only rewrote files with the same rows, by the numbers in the summary.

    Rows that were deleted in place are in the old files, and not in the new ones.
    """
    if operation != "overwrite":
        return operation == "replace"
    old, new, position_deletes, more_deletes = (
        int(summary.get(name, 0))
        for name in ("deleted-records", "added-records", "removed-position-deletes", "added-delete-files")
    )
    return old > 0 and new == old - position_deletes and not more_deletes


def _compacts(snapshot: Snapshot) -> bool:
    """Return whether a snapshot is a compaction by any engine."""
    summary = ledger_store.summary_of(snapshot)
    # A rewrite of manifests is a `replace`, too; a merge or a replaced range may have as many rows as before.
    if snapshot.summary is None or codec.SUMMARY_GROUP in summary or not _number(snapshot, _REMOVED):
        return False
    return is_compaction(snapshot.summary.operation.value, summary)


def _number(snapshot: Snapshot, key: str) -> int | None:
    text = None if snapshot.summary is None else snapshot.summary.get(key)
    return int(text) if text is not None and text.isdecimal() else None
