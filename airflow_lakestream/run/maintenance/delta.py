"""Maintenance of Delta tables in this process, by delta-rs, with the rule of age of orphans."""

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

    `rewrite_manifests` and `expire` become a checkpoint and a shorter log, `remove_orphans` a vacuum. A budget ends
    after the current work.
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
        delta, orphans = self._open(name), self.section.remove_orphans
        found = [] if orphans is None else vacuum(delta, orphans, dry_run=True)
        head, how, files = self._head(name), self.section.compact, 0
        compaction = None if how is None else "The gain of a compaction is known afterwards"
        if how is not None and how.zorder_by:
            plan = self._zorder_plan(head, how.zorder_by)
            compaction, files = str(plan), plan.files
        done = TableUpkeep(table=name, before=TableSize(*sizes(delta)), after=None, orphans=len(found))
        done = replace(done, compaction=compaction, rewritten=files)
        return self._with_removal(done, head.properties, partial(old_rows.find_old_rows, head))

    def _maintain(self, name: str) -> TableUpkeep:
        head, section = self._head(name), self.section
        done = TableUpkeep(table=name, before=TableSize(*sizes(check_maintainable(head))), after=None)
        remove = partial(old_rows.remove_old_rows, self.lake, head, is_over=self.is_over)
        done = self._with_removal(done, head.properties, remove)
        if section.compact is not None:
            done = self._compact(section.compact, done)
        if (section.rewrite_manifests or section.expire is not None) and not self.is_over():
            shorten_log(self._open(name))
        if section.remove_orphans is not None and not self.is_over():
            done = replace(done, orphans=len(vacuum(self._open(name), section.remove_orphans, dry_run=False)))
        after = TableSize(*sizes(self._open(name)))
        return replace(done, after=after, is_whole=done.is_whole and not self.is_over())

    def _compact(self, how: CompactionConfig, done: TableUpkeep) -> TableUpkeep:
        target = how.rule_for(1).target_bytes if "target-file-size-bytes" in how.options else None
        if how.zorder_by:
            head = self._head(done.table)
            plan = self._zorder_plan(head, how.zorder_by)
            columns, claim = how.zorder_by, partial(self._claimed, done.table)
            found = optimizing.zorder(claim, head, plan, columns, target, self.is_over)
            done = replace(done, compaction=str(plan), rewritten=found.files, new=found.new, lost=found.lost)
            return replace(done, is_whole=done.is_whole and found.is_whole)
        if not has_several_files(self._head(done.table)):
            return done
        try:
            rewritten, new = compact(self._claimed(done.table), target)
        except CommitFailedError:
            # Another writer removed one of the files.
            return replace(done, lost=1)
        return replace(done, rewritten=rewritten, new=new)

    def _claimed(self, name: str) -> DeltaTable:
        def look() -> DeltaTableHead:
            head = self._head(name)
            check_maintainable(head)
            return head

        return optimizing.claimed(look, self.lake.store(name))

    def _zorder_plan(self, head: DeltaTableHead, columns: Sequence[str]) -> optimizing.ZOrderPlan:
        return optimizing.plan_of(self.lake.store(head.table), head, columns)


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


def has_several_files(head: DeltaTableHead) -> bool:
    """Return whether a partition has more than one file, so that a compaction may join files."""
    files = [tuple(add["partitionValues"].values()) for add in adds_of(head)]
    return len(set(files)) < len(files)


def sizes(delta: DeltaTable) -> tuple[int, int]:
    """Return the number of data files of a version, and their bytes."""
    found = pa.table(delta.get_add_actions())["size_bytes"].to_pylist()
    return len(found), sum(found)


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
