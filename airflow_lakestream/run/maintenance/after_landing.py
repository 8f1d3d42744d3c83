"""Compaction at the end of a landing's run: small files of the last landings become few, within bounds.

A run looks only at the summaries of snapshots, which it has read anyway. Manifests are read once a partition has
LEAST_FILES small files since the last compaction, and again after each FURTHER_FILES. The rows are committed before: an
error here is a warning in the log, and no failure of the landing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import cast

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import LandingEngine
from airflow_lakestream.core.policies import MaintainMode
from airflow_lakestream.core.ports import Sink
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.table_properties import MAINTAIN
from airflow_lakestream.iceberg.upkeep import manifest_merge
from airflow_lakestream.iceberg.upkeep.compaction import compact
from airflow_lakestream.iceberg.upkeep.compaction_plan import CompactionRule
from airflow_lakestream.iceberg.upkeep.file_use import FileUse, small_files_of
from airflow_lakestream.iceberg.write.files import target_size
from airflow_lakestream.run.job import Lake
from airflow_lakestream.tables.rejects.sink import RejectingSink

log = logging.getLogger(__name__)

# Number of small files of a partition, since the last compaction, at which a run compacts; number of further small
# files after which a run tries again.
LEAST_FILES, FURTHER_FILES = 60, 15
# Greatest share of one file in the bytes of a group to rewrite: at a file each minute each byte is rewritten twice.
MOST_SHARE = 0.25
# Bounds of one run: seconds, bytes to rewrite, and bytes of manifests to read.
MOST_SECONDS, MOST_BYTES, MOST_MANIFEST_BYTES = 30.0, 2**30, 64 * 2**20
# Least number of manifests that a merge has to save: half a day of landings each minute is below.
LEAST_MANIFESTS = 100


@dataclass
class LandingUpkeep:
    """Compaction at the end of a run, of the tables of its topics one after the other.

    :param mode: None if the property `lakestream.maintain` of each table decides.
    :param stop: ends the compaction after the current row group.
    :param deadline: time of `time.monotonic` at which the run has to be over; None: no limit.
    """

    catalog: Lake
    mode: MaintainMode | None
    stop: threading.Event
    deadline: float | None = None
    _spent: float = 0.0

    def run(self, job: LandingJob, report: LandingReport) -> None:
        """Compact the table of a job that has landed, if a compaction is due. Errors are logged.

        Mirrors, tables that records choose and Delta tables are left alone, and so are landings of Spark's driver.
        """
        sink, landed = table_sink(job), report.snapshot_ids
        # The run has loaded the table after its last commit, too, when it looked for further records.
        table = sink.loaded if isinstance(sink, IcebergSink) else None
        is_extract = job.engine is LandingEngine.EXTRACT and not self.stop.is_set()
        if table is None or not landed or not is_extract or not self._is_wanted(table) or not is_due(table, landed):
            return
        began, name = time.monotonic(), ledger_store.name_of(table)
        end = began + self._seconds(began)

        def is_over() -> bool:
            return self.stop.is_set() or time.monotonic() >= end

        try:
            _compact(cast(Catalog, self.catalog), name, table, is_over)
        except Exception as e:  # the rows are landed: any error of the catalog or the store is the next run's matter
            text = "%s: the compaction after the landing failed, and a later run tries it again: %s"
            log.warning(text, name, e, exc_info=not isinstance(e, LakestreamError))
        self._spent += time.monotonic() - began

    def _is_wanted(self, table: Table) -> bool:
        mode = self.mode or table.metadata.properties.get(MAINTAIN)
        return mode == MaintainMode.AUTO

    def _seconds(self, now: float) -> float:
        """Return the seconds for this table: half of the time that the task has left, at most."""
        seconds_left = MOST_SECONDS - self._spent
        return seconds_left if self.deadline is None else min(seconds_left, (self.deadline - now) / 2)


def table_sink(job: LandingJob) -> Sink:
    """Return the sink of a job's table, without the sink of its reject table."""
    return job.sink.inner if isinstance(job.sink, RejectingSink) else job.sink


def is_due(table: Table, landed: Collection[int]) -> bool:
    """Return whether a run compacts: with LEAST_FILES small files, and then once for each FURTHER_FILES.

    :param landed: the run's snapshots.
    """
    use = FileUse.of(table.metadata)
    small_now = use.small // use.partitions
    small_before = (use.small - small_files_of(table.metadata, landed)) // use.partitions
    return small_now >= LEAST_FILES and small_now // FURTHER_FILES > small_before // FURTHER_FILES


def rule_of(table: Table) -> CompactionRule:
    """Return the rule of a compaction after a landing: at least five small files of a partition become one."""
    target = target_size(table.metadata)
    return CompactionRule(target_bytes=target, most_share=MOST_SHARE, most_bytes=MOST_BYTES)


def _compact(catalog: Catalog, name: str, table: Table, is_over: Callable[[], bool]) -> None:
    """Compact a table's small files, and merge its manifests.

    :param is_over: returns whether the run has no time left.
    """
    head = table.current_snapshot()
    manifests = [] if head is None else head.manifests(table.io)
    if (size := sum(manifest.manifest_length for manifest in manifests)) > MOST_MANIFEST_BYTES:
        text = "%s is not compacted after a landing: its manifests have %s bytes. Use LakestreamMaintainOperator."
        log.warning(text, name, f"{size:,}")
        return
    if is_over():
        log.info("%s is not compacted: the run has no time left.", name)
        return
    report = compact(catalog, name, rule_of(table), is_over=is_over)
    if report.files or report.lost:
        log.info("%s: %s small files were compacted into %s after the landing.", name, report.files, report.new)
    if report.lost:
        log.warning("%s: %s groups of files were changed meanwhile, and a later run compacts them.", name, report.lost)
    merges = manifest_merge.mergeable(catalog.load_table(name))
    if not is_over() and manifest_merge.saved(merges) >= LEAST_MANIFESTS:
        manifest_merge.rewrite_manifests(catalog, name)
