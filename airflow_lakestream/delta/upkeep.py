"""Maintenance of a Delta table by delta-rs: small files, files that no version needs, and the log."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import UnfitTable, check_writable


def check_maintainable(head: DeltaTableHead) -> DeltaTable:
    """Return the table, or refuse it before any work. Raises UnfitTable."""
    check_writable(head)
    assert head.delta is not None, "the table is really there"
    if dead := pa.table(head.delta.deletion_vectors()).num_rows:
        raise UnfitTable(
            head.table,
            f"it has {dead} files with deletion vectors, which delta-rs does not rewrite",
            "Let Spark do it: OPTIMIZE, or REORG TABLE ... APPLY (PURGE).",
        )
    return head.delta


def sizes(delta: DeltaTable) -> tuple[int, int]:
    """Return the number of data files of a version, and their bytes."""
    found = pa.table(delta.get_add_actions())["size_bytes"].to_pylist()
    return len(found), sum(found)


# A file below this share of the target size is small.
SMALL_SHARE = 0.75
# The target size of delta-rs for tables without `delta.targetFileSize`.
TARGET_BYTES = 100 * 2**20


@dataclass(frozen=True)
class FileCounts:
    """Counts of a version's files from the log; no data file is opened.

    :param files: data files.
    :param small: small data files of partitions that have two or more of these: a compaction puts them together.
    :param deletes: data files with deletion vectors.
    """

    files: int
    small: int
    deletes: int

    @classmethod
    def of(cls, head: DeltaTableHead) -> FileCounts:
        """Count the files of a version."""
        assert head.delta is not None, "the table is really there"
        found = pa.table(head.delta.get_add_actions(flatten=True))
        partitions = [name for name in found.column_names if name.startswith("partition.")]
        text = head.properties.get("delta.targetFileSize", "")
        target = int(text) if text.isdecimal() else TARGET_BYTES
        small = found.filter(pc.less(found["size_bytes"], SMALL_SHARE * target)).select(["size_bytes", *partitions])
        counts = small.group_by(partitions).aggregate([("size_bytes", "count")])["size_bytes_count"].to_pylist()
        deletes = pa.table(head.delta.deletion_vectors()).num_rows
        return cls(found.num_rows, sum(one for one in counts if one > 1), deletes)


def compact(delta: DeltaTable, target_bytes: int | None) -> tuple[int, int]:
    """Compact small files; return how many went, and how many came. Raises DeltaError, also if another writer won.

    :param target_bytes: size of a new file; None: the table's.
    """
    done: dict[str, Any] = delta.optimize.compact(target_size=target_bytes)
    return int(done["numFilesRemoved"]), int(done["numFilesAdded"])


def vacuum(delta: DeltaTable, age: float, *, dry_run: bool) -> list[str]:
    """Delete files that no version needs, also those of killed runs; return their paths.

    :param age: least age in seconds; a longer one of the table (`delta.deletedFileRetentionDuration`) counts instead.
    """
    hours = math.ceil(age / 3600)
    try:
        return delta.vacuum(hours, dry_run=dry_run, full=True)
    except DeltaError as e:
        if "retention" not in str(e).lower():
            raise
        return delta.vacuum(dry_run=dry_run, full=True)


def shorten_log(delta: DeltaTable) -> None:
    """Write a checkpoint, and delete versions of the log older than `delta.logRetentionDuration`."""
    delta.create_checkpoint()
    delta.cleanup_metadata()
