"""Maintenance of tables in this process: table after table, by need, within a budget of time."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from airflow_lakestream.cdc.iceberg_head import PLAIN_BOUNDS
from airflow_lakestream.config.maintenance import CompactionConfig, MaintenanceSection
from airflow_lakestream.core.landing.run_log import span
from airflow_lakestream.core.printable import counted
from airflow_lakestream.core.routing import MIRROR
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.upkeep import expiry, manifest_merge, narrow_bounds, orphans
from airflow_lakestream.iceberg.upkeep.compaction import CompactionReport, TableHead, compact, rewrite_in_turn
from airflow_lakestream.iceberg.upkeep.compaction_plan import CompactionPlan, CompactionRule
from airflow_lakestream.iceberg.upkeep.old_rows import find_old_rows, remove_old_rows
from airflow_lakestream.iceberg.upkeep.orphans import OrphanFiles
from airflow_lakestream.iceberg.upkeep.reads import TableSize
from airflow_lakestream.iceberg.upkeep.rewrite_pool import PooledRewriting
from airflow_lakestream.iceberg.write.files import target_size
from airflow_lakestream.run.maintenance.tables import SharedFolder, inside, is_memory, select
from airflow_lakestream.runtime.processes import ChildProcesses
from airflow_lakestream.tables.retention import RemovalReport, RowRetention, rule_of

log = logging.getLogger(__name__)

# Bytes of Parquet files that one process rewrites in a second: measured, 24 MB/s of a core with rows of five columns.
BYTES_PER_SECOND = 20e6
# Seconds of a night: a plan is compared with it if there is no budget.
NIGHT = 6 * 3600.0


@dataclass(frozen=True, kw_only=True)
class TableUpkeep:
    """Report of the maintenance of a table, or of the gain that a maintenance would have.

    :param after: None if only the gain was determined.
    :param advice: a hint to let Spark compact, or None.
    :param rewritten: number of compacted files, which became `new` files.
    :param lost: number of groups of files that another writer has changed meanwhile.
    :param manifests: number of manifests fewer than before.
    :param mended: number of files whose wrong bounds were corrected.
    :param removed_rows: number of rows removed by retention, from `removed_files` files.
    :param kept_files: number of files that retention keeps until all rows are old.
    :param failure: the error of retention, after which the other works go on, or None.
    :param is_whole: whether all works were finished within the time.
    """

    table: str
    before: TableSize
    after: TableSize | None
    compaction: str | None = None
    advice: str | None = None
    rewritten: int = 0
    new: int = 0
    lost: int = 0
    manifests: int = 0
    expired: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    mended: int = 0
    removed_rows: int = 0
    removed_files: int = 0
    kept_files: int = 0
    failure: LakestreamError | None = None
    is_whole: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            **vars(self),
            "before": self.before.to_dict(),
            "after": None if self.after is None else self.after.to_dict(),
            "failure": None if self.failure is None else str(self.failure),
        }

    def __str__(self) -> str:
        works = [
            *self._removals,
            f"{counted(self.expired, 'snapshot')} expired",
            f"{counted(self.orphans, 'orphan')} of {counted(self.orphan_bytes, 'byte')} removed",
        ]
        if self.manifests:
            works.append(f"{counted(self.manifests, 'manifest')} fewer")
        if self.mended:
            works.append(f"wrong bounds of {counted(self.mended, 'file')} mended")
        if self.lost:
            works.append(f"{counted(self.lost, 'group')} of files left to the next run, since they were changed")
        if not self.is_whole:
            works.append("the time was over: the next run goes on")
        if self.after is not None:
            return f"{self.table}: {self.before} before, {self.after} after; {', '.join(works)}{self._hint}"
        would = ", ".join(works).replace("expired", "would expire").replace("removed", "would go")
        gain = f"{self.compaction or 'No compaction'}; {would}. Nothing was changed{self._hint}"
        return f"{self.table}: {self.before}. {gain}"

    @property
    def _removals(self) -> list[str]:
        """The result of retention in words; empty without a removal."""
        if self.failure is not None:
            return [f"old rows not removed as asked ({self.failure})"]
        kept = f"{counted(self.kept_files, 'file')} with some old rows kept"
        gone = f"{counted(self.removed_rows, 'old row')} of {counted(self.removed_files, 'file')} removed"
        return [*([gone] if self.removed_files else []), *([kept] if self.kept_files else [])]

    @property
    def _hint(self) -> str:
        return "" if self.advice is None else f". {self.advice}"


@dataclass(frozen=True)
class WorkerUpkeep(ABC):
    """Maintenance of tables in this process.

    :param lake: the catalog of Iceberg tables, or the storage of Delta tables.
    :param section: the tables and the works.
    :param dry_run: whether only the gain is reported, without a commit or the deletion of a file.
    :param budget: seconds after which no further work begins; None: no limit.
    :param stop: event that ends the maintenance after the current step.
    :param children: processes of `run.maintenance.processes` that rewrite files; None: this process rewrites them.
    """

    lake: Any
    section: MaintenanceSection
    dry_run: bool = False
    budget: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    children: ChildProcesses | None = None
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> list[TableUpkeep]:
        """Maintain the tables; return a report per table. The budget counts from the construction of this object.

        After a failed table the other tables are still maintained, and after a failed retention the other works; at the
        end TableNotMaintained names the failed tables, or TableToMaintainAgain if a retry may help.
        """
        if (config := self.section.compact) is not None:
            # For its errors: wrong options are reported before any work.
            config.rule_for(1)
        reports, failed = list[TableUpkeep](), dict[str, Exception]()
        for name in self._names():
            if self.is_over():
                log.info("The time is over: %s and the tables after it wait for the next run.", name)
                break
            try:
                reports.append((self._look if self.dry_run else self._maintain)(name))
                if (failure := reports[-1].failure) is not None:
                    failed[name] = failure
            except Exception as e:  # any error of catalog or store: the other tables are maintained before it is raised
                log.error("%s was not maintained: %s", name, e, exc_info=not isinstance(e, LakestreamError))
                failed[name] = e
                continue
            log.info("%s", reports[-1])
        raise_failed(failed, sum(report.table not in failed for report in reports))
        return reports

    def is_over(self) -> bool:
        """Return whether the budget is used up, or an end was requested."""
        return self.stop.is_set() or (self.budget is not None and time.monotonic() - self._began >= self.budget)

    def _with_removal(
        self, report: TableUpkeep, properties: Mapping[str, str], work: Callable[[RowRetention], RemovalReport]
    ) -> TableUpkeep:
        """Return the report with the result of retention, or with its error.

        :param properties: the table's properties, which may contain the rule.
        :param work: removes, or only finds, old rows by a rule.
        """
        if (retention := self.section.retention) is None:
            return report
        try:
            if (rule := rule_of(report.table, properties, retention.rule)) is None:
                return report
            removal = work(rule)
        except LakestreamError as e:
            log.error("%s: old rows were not removed as asked, and the other works go on: %s", report.table, e)
            return replace(report, failure=e)
        files = removal.files + removal.rewritten
        report = replace(report, removed_rows=removal.rows, removed_files=files, kept_files=removal.left)
        return replace(report, is_whole=removal.is_whole)

    @abstractmethod
    def _names(self) -> Sequence[str]:
        """Return the names of the tables to maintain."""

    @abstractmethod
    def _look(self, name: str) -> TableUpkeep:
        """Return the gain of a table's maintenance, without a change."""

    @abstractmethod
    def _maintain(self, name: str) -> TableUpkeep:
        """Maintain a table. Works that make files unneeded come before the works that delete unneeded files."""


class IcebergUpkeep(WorkerUpkeep):
    """Maintenance of Iceberg tables; `lake` is the catalog."""

    def _names(self) -> Sequence[str]:
        return select(self.lake, self.section.tables)

    def _look(self, name: str) -> TableUpkeep:
        """Return the report of what an upkeep of the table would do, without a change."""
        table, section = fitness.load_table(self.lake, name), self.section
        plan = manifests = None
        if section.compact is not None and not is_memory(table):
            plan = TableHead.of(table).plan(_rule(section.compact, table))
        if section.rewrite_manifests:
            manifests = manifest_merge.saved(manifest_merge.mergeable(table))
        orphan_files = self._orphans(name, remove=False)
        report = TableUpkeep(
            table=name,
            before=TableSize.of(table),
            after=None,
            compaction=None if plan is None else str(plan),
            advice=None if plan is None else self._advice(plan),
            rewritten=plan.out if plan else 0,
            new=plan.new if plan else 0,
            manifests=manifests or 0,
            expired=0 if section.expire is None else len(section.expire.expiring(table.metadata)),
            orphans=len(orphan_files.files),
            orphan_bytes=orphan_files.bytes,
        )
        return self._with_removal(report, table.metadata.properties, partial(find_old_rows, table))

    def _maintain(self, name: str) -> TableUpkeep:
        """Do the table's upkeep; after the time is over, leave out its remaining steps. Return the report."""
        table, section = fitness.load_table(self.lake, name), self.section
        report = TableUpkeep(table=name, before=TableSize.of(table), after=None, mended=self._mend_bounds(table))
        remove = partial(remove_old_rows, self.lake, name, is_over=self.is_over)
        report = self._with_removal(report, table.metadata.properties, remove)
        if section.compact is not None and not is_memory(table):
            compacted = self._compact(section.compact, name)
            report = replace(
                report,
                compaction=str(compacted.plan),
                advice=None if compacted.is_whole else self._advice(compacted.plan),
                rewritten=compacted.files,
                new=compacted.new,
                lost=compacted.lost,
            )
        if section.rewrite_manifests and not self.is_over():
            report = replace(report, manifests=manifest_merge.rewrite_manifests(self.lake, name))
        if section.expire is not None and not self.is_over():
            report = replace(report, expired=len(expiry.expire(self.lake, name, section.expire).snapshots))
        if not self.is_over():
            removed = self._orphans(name, remove=True)
            report = replace(report, orphans=len(removed.files) - removed.left, orphan_bytes=removed.bytes)
        after = TableSize.of(self.lake.load_table(name))
        return replace(report, after=after, is_whole=report.is_whole and not self.is_over())

    def _advice(self, plan: CompactionPlan) -> str | None:
        assert self.section.compact is not None, "the plan is of a compaction"
        return advice_for(plan, self.budget, self.section.compact.parallelism)

    def _mend_bounds(self, table: Table) -> int:
        """Correct wrong bounds of data files in the manifests; return the number of files."""
        wrong = narrow_bounds.wrong_bounds(table, ledger_store.head_of(table.metadata))
        for bounds in wrong:
            log.warning("%s: %s. Its manifests are rewritten.", ledger_store.name_of(table), bounds.text)
        narrow_bounds.mend(self.lake, ledger_store.name_of(table), wrong)
        return len(wrong)

    def _compact(self, config: CompactionConfig, name: str) -> CompactionReport:
        """Compact a table, with a report of progress to the log."""
        table = self.lake.load_table(name)
        began = time.monotonic()

        def report(done: CompactionReport) -> None:
            seconds = max(1e-3, time.monotonic() - began)
            seconds_left = (done.plan.bytes - done.bytes) * seconds / max(1, done.bytes)
            log.info(
                "%s: %s of %s files compacted into %s; %.1f MB/s, some %.0f s left.",
                name,
                f"{done.files:,}",
                f"{done.plan.out:,}",
                f"{done.new:,}",
                done.bytes / 1e6 / seconds,
                seconds_left,
            )

        children = self.children
        rewrite = rewrite_in_turn
        if children is not None and not children.are_broken:
            rewrite = PooledRewriting(children).rewrite
        return compact(self.lake, name, _rule(config, table), _order(table), self.is_over, report, rewrite)

    def _orphans(self, name: str, *, remove: bool) -> OrphanFiles:
        """Find or remove files in no snapshot. Raises SharedFolder if another table is in the table's folder."""
        if self.section.remove_orphans is None:
            return OrphanFiles()
        if neighbours := inside(self.lake, self.lake.load_table(name)):
            raise SharedFolder(name, neighbours)
        work = orphans.remove_orphans if remove else orphans.find_orphans
        return work(self.lake, name, self.section.remove_orphans)


def advice_for(plan: CompactionPlan, budget: float | None, processes: int = 1) -> str | None:
    """Return a hint to use Spark's app if a plan takes the processes more than one run; None otherwise.

    :param budget: seconds of a run; None: a night.
    """
    seconds, seconds_per_run = plan.bytes / BYTES_PER_SECOND / processes, budget or NIGHT
    if (runs := math.ceil(seconds / seconds_per_run)) < 2:
        return None
    workers = "one process" if processes == 1 else f"{processes} processes"
    text = f"The compaction takes {workers} some {span(seconds)}: {runs:,} runs of {span(seconds_per_run)}"
    return f"{text}. Spark's app maintain_iceberg rewrites several groups of files at a time"


def _rule(config: CompactionConfig, table: Table) -> CompactionRule:
    """Return the rule of a table's compaction."""
    rule = config.rule_for(target_size(table.metadata))
    if MIRROR not in table.metadata.properties or "delete-file-threshold" in config.options:
        return rule
    # Merges delete rows in all files of a mirror: a file is rewritten as soon as rows are deleted in place.
    return replace(rule, most_deletes=1)


def _order(table: Table) -> SortOrder:
    """Return the table's sort order, or a mirror's key without a sort order: a merge then finds keys by bounds."""
    order, note = table.sort_order(), table.metadata.properties.get(MIRROR)
    if order.fields or note is None:
        return order
    columns = [table.schema().find_field(name) for name in json.loads(note)["key"]]
    if not isinstance(columns[0].field_type, PLAIN_BOUNDS):
        return order
    # With the id of no order: files must not name an order that the table does not have.
    return SortOrder(*(SortField(column.field_id, IdentityTransform()) for column in columns), order_id=0)


class _Undone(LakestreamError):
    """Error of a maintenance with failed tables. `failed` has the reasons by table."""

    def __init__(self, failed: Mapping[str, Exception], done: int) -> None:
        # Without messages of foreign errors, which may hold secrets: this text is shown outside of the log, too.
        self.failed = {
            table: str(e) if isinstance(e, LakestreamError) else f"{type(e).__name__}, explained in the log"
            for table, e in failed.items()
        }
        failures = "; ".join(f"{table} ({text})" for table, text in self.failed.items())
        super().__init__(f"{len(failed)} tables were not maintained as asked, {done} were: {failures}")


class TableNotMaintained(_Undone, Terminal):
    """Error of failed tables that a retry would not help."""


class TableToMaintainAgain(_Undone, Transient):
    """Error of failed tables, with at least one table that a retry may help."""


def raise_failed(failed: Mapping[str, Exception], done: int) -> None:
    """Raise TableNotMaintained or TableToMaintainAgain if tables failed.

    :param failed: the errors by table.
    :param done: the number of maintained tables.
    """
    if failed:
        kind = TableNotMaintained if all(isinstance(e, Terminal) for e in failed.values()) else TableToMaintainAgain
        raise kind(failed, done)
