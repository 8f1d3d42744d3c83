"""Maintenance of Delta tables in this process, by delta-rs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from airflow_lakestream.config.maintenance import CompactionConfig
from airflow_lakestream.delta import old_rows, optimizing
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import UnfitTable, check_writable
from airflow_lakestream.delta.takeout import adds_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.upkeep.reads import TableSize
from airflow_lakestream.run.maintenance.upkeep import TableUpkeep, WorkerUpkeep


class DeltaUpkeep(WorkerUpkeep):
    """Maintenance of Delta tables; `lake` is the storage.

    For `rewrite_manifests` and `expire` a checkpoint is written and the log shortened; `remove_orphans` is a vacuum.
    """

    def _names(self) -> Sequence[str]:
        return self.section.tables

    def _head(self, name: str) -> DeltaTableHead:
        head: DeltaTableHead | None = self.lake.open(name)
        if head is None:
            raise InvalidArgument("maintenance.tables", f"there is no Delta table {name}.")
        return head

    def _open(self, name: str) -> DeltaTable:
        return check_maintainable(self._head(name))

    def _look(self, name: str) -> TableUpkeep:
        """Return the report of what an upkeep of the table would do, without a change."""
        delta, orphan_age = self._open(name), self.section.remove_orphans
        orphans = [] if orphan_age is None else vacuum(delta, orphan_age, dry_run=True)
        head, config, files = self._head(name), self.section.compact, 0
        compaction = None if config is None else "The gain of a compaction is known afterwards"
        if config is not None and config.zorder_by:
            plan = self._zorder_plan(head, config.zorder_by)
            compaction, files = str(plan), plan.files
        report = TableUpkeep(table=name, before=TableSize(*sizes(delta)), after=None, orphans=len(orphans))
        report = replace(report, compaction=compaction, rewritten=files)
        return self._with_removal(report, head.properties, partial(old_rows.find_old_rows, head))

    def _maintain(self, name: str) -> TableUpkeep:
        """Do the table's upkeep; after the time is over, leave out its remaining steps. Return the report."""
        head, section = self._head(name), self.section
        report = TableUpkeep(table=name, before=TableSize(*sizes(check_maintainable(head))), after=None)
        remove = partial(old_rows.remove_old_rows, self.lake, head, is_over=self.is_over)
        report = self._with_removal(report, head.properties, remove)
        if section.compact is not None:
            report = self._compact(section.compact, report)
        if (section.rewrite_manifests or section.expire is not None) and not self.is_over():
            shorten_log(self._open(name))
        if section.remove_orphans is not None and not self.is_over():
            report = replace(report, orphans=len(vacuum(self._open(name), section.remove_orphans, dry_run=False)))
        after = TableSize(*sizes(self._open(name)))
        return replace(report, after=after, is_whole=report.is_whole and not self.is_over())

    def _compact(self, config: CompactionConfig, report: TableUpkeep) -> TableUpkeep:
        """Compact a table; return the report with the result."""
        target = config.rule_for(1).target_bytes if "target-file-size-bytes" in config.options else None
        if config.zorder_by:
            head = self._head(report.table)
            plan = self._zorder_plan(head, config.zorder_by)
            columns, claim = config.zorder_by, partial(self._claimed, report.table)
            result = optimizing.zorder(claim, head, plan, columns, target, self.is_over)
            report = replace(report, compaction=str(plan), rewritten=result.files, new=result.new, lost=result.lost)
            return replace(report, is_whole=report.is_whole and result.is_whole)
        if not has_several_files(self._head(report.table)):
            return report
        try:
            rewritten, new = compact(self._claimed(report.table), target)
        except CommitFailedError:
            # Another writer removed one of the files.
            return replace(report, lost=1)
        return replace(report, rewritten=rewritten, new=new)

    def _claimed(self, name: str) -> DeltaTable:
        """Return a table claimed for this process's rewrite, see `delta.optimizing.claimed`."""

        def look() -> DeltaTableHead:
            head = self._head(name)
            check_maintainable(head)
            return head

        return optimizing.claimed(look, self.lake.store(name))

    def _zorder_plan(self, head: DeltaTableHead, columns: Sequence[str]) -> optimizing.ZOrderPlan:
        return optimizing.plan_of(self.lake.store(head.table), head, columns)


def check_maintainable(head: DeltaTableHead) -> DeltaTable:
    """Return the table of a head. Raises UnfitTable for a table that delta-rs can't maintain."""
    check_writable(head)
    assert head.delta is not None, "the table exists"
    if dead := pa.table(head.delta.deletion_vectors()).num_rows:
        raise UnfitTable(
            head.table,
            f"it has {dead} files with deletion vectors, which delta-rs does not rewrite",
            "Let Spark do it: OPTIMIZE, or REORG TABLE ... APPLY (PURGE).",
        )
    return head.delta


def has_several_files(head: DeltaTableHead) -> bool:
    """Return whether a partition has more than one file, so that a compaction may join files."""
    partition_of_files = [tuple(add["partitionValues"].values()) for add in adds_of(head)]
    return len(set(partition_of_files)) < len(partition_of_files)


def sizes(delta: DeltaTable) -> tuple[int, int]:
    """Return the number of a version's data files, and the sum of their bytes."""
    file_sizes = pa.table(delta.get_add_actions())["size_bytes"].to_pylist()
    return len(file_sizes), sum(file_sizes)


def compact(delta: DeltaTable, target_bytes: int | None) -> tuple[int, int]:
    """Compact small files; return the numbers of removed and of new files. Raises DeltaError.

    :param target_bytes: size of a new file; None for the table's setting.
    """
    metrics: dict[str, Any] = delta.optimize.compact(target_size=target_bytes)
    return int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])


def vacuum(delta: DeltaTable, age: float, *, dry_run: bool) -> list[str]:
    """Delete files that no version needs, files of killed runs included; return the paths.

    :param age: age in seconds below which files are kept, or the table's `delta.deletedFileRetentionDuration` if that
        is longer.
    """
    hours = math.ceil(age / 3600)
    try:
        return delta.vacuum(hours, dry_run=dry_run, full=True)
    except DeltaError as e:
        if "retention" not in str(e).lower():
            raise
        # delta-rs refuses a shorter age than the table's.
        return delta.vacuum(dry_run=dry_run, full=True)


def shorten_log(delta: DeltaTable) -> None:
    """Write a checkpoint, and delete versions of the log older than `delta.logRetentionDuration`."""
    delta.create_checkpoint()
    delta.cleanup_metadata()
