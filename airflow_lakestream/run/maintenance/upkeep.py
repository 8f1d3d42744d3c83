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
# The budget that a plan is compared with, if none is given: a night.
NIGHT = 6 * 3600.0


@dataclass(frozen=True, kw_only=True)
class TableUpkeep:
    """Report of the maintenance of a table, or of what it would gain.

    :param after: None if nothing was changed, since only the gain was asked for.
    :param advice: a hint to let Spark compact, or None.
    :param removed_rows: rows removed by retention, from `removed_files` files.
    :param kept_files: files that retention keeps until all rows are old.
    :param failure: the error of retention, which ends no other work, or None.
    :param is_whole: whether all works were ended; else the time was over.
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
        """Return values for JSON."""
        sizes = {"before": self.before, "after": self.after}
        shown = {name: None if one is None else one.to_dict() for name, one in sizes.items()}
        return {**vars(self), **shown, "failure": None if self.failure is None else str(self.failure)}

    def __str__(self) -> str:
        works = [
            *self._removals,
            f"{counted(self.expired, 'snapshot')} expired",
            f"{counted(self.orphans, 'orphan')} of {counted(self.orphan_bytes, 'byte')} removed",
            *([f"{counted(self.manifests, 'manifest')} fewer"] if self.manifests else []),
            *([f"wrong bounds of {counted(self.mended, 'file')} mended"] if self.mended else []),
            *(
                [f"{counted(self.lost, 'group')} of files left to the next run, since they were changed"]
                if self.lost
                else []
            ),
            *([] if self.is_whole else ["the time was over: the next run goes on"]),
        ]
        if self.after is not None:
            return f"{self.table}: {self.before} before, {self.after} after; {', '.join(works)}{self._hint}"
        would = ", ".join(works).replace("expired", "would expire").replace("removed", "would go")
        gain = f"{self.compaction or 'No compaction'}; {would}. Nothing was changed{self._hint}"
        return f"{self.table}: {self.before}. {gain}"

    @property
    def _removals(self) -> list[str]:
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
    :param dry_run: only report what would be gained; no commit is made, and no file deleted.
    :param budget: seconds after which no further work begins; None: no limit.
    :param stop: ends the maintenance as soon as nothing is left by halves.
    :param children: processes of `run.maintenance.processes`, or None.
    """

    lake: Any
    section: MaintenanceSection
    dry_run: bool = False
    budget: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    children: ChildProcesses | None = None
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> list[TableUpkeep]:
        """Maintain the tables; return a report per table. The time limit counts from the making of this object.

        After a failed table the other tables are still maintained, and after a failed retention the other works; at the
        end TableNotMaintained names the failed tables, or TableToMaintainAgain if a retry may help.
        """
        if (how := self.section.compact) is not None:
            how.rule_for(1)
        reports, failed = list[TableUpkeep](), dict[str, Exception]()
        for name in self._names():
            if self.is_over():
                log.info("The time is over: %s and the tables after it wait for the next run.", name)
                break
            try:
                reports.append((self._look if self.dry_run else self._maintain)(name))
                if (failure := reports[-1].failure) is not None:
                    failed[name] = failure
            except (
                Exception
            ) as e:  # any error of the catalog or the store; the others are maintained, then it is raised
                log.error("%s was not maintained: %s", name, e, exc_info=not isinstance(e, LakestreamError))
                failed[name] = e
                continue
            log.info("%s", reports[-1])
        raise_failed(failed, sum(one.table not in failed for one in reports))
        return reports

    def is_over(self) -> bool:
        """Return whether the time is over, or an end was asked for."""
        return self.stop.is_set() or (self.budget is not None and time.monotonic() - self._began >= self.budget)

    def _with_removal(
        self, done: TableUpkeep, properties: Mapping[str, str], work: Callable[[RowRetention], RemovalReport]
    ) -> TableUpkeep:
        """Return the report with the result of a work of retention, or with its error."""
        if (given := self.section.retention) is None:
            return done
        try:
            if (rule := rule_of(done.table, properties, given.rule)) is None:
                return done
            found = work(rule)
        except LakestreamError as e:
            log.error("%s: old rows were not removed as asked, and the other works go on: %s", done.table, e)
            return replace(done, failure=e)
        files = found.files + found.rewritten
        done = replace(done, removed_rows=found.rows, removed_files=files, kept_files=found.left)
        return replace(done, is_whole=found.is_whole)

    @abstractmethod
    def _names(self) -> Sequence[str]:
        """Return the tables."""

    @abstractmethod
    def _look(self, name: str) -> TableUpkeep:
        """Return what the works would gain."""

    @abstractmethod
    def _maintain(self, name: str) -> TableUpkeep:
        """Do the works. Works that make files unneeded come before the works that delete unneeded files."""


class IcebergUpkeep(WorkerUpkeep):
    """Maintenance of Iceberg tables; `lake` is the catalog."""

    def _names(self) -> Sequence[str]:
        return select(self.lake, self.section.tables)

    def _look(self, name: str) -> TableUpkeep:
        table, section = fitness.load_table(self.lake, name), self.section
        plan = manifests = None
        if section.compact is not None and not is_memory(table):
            plan = TableHead.of(table).plan(_rule(section.compact, table))
        if section.rewrite_manifests:
            manifests = manifest_merge.saved(manifest_merge.mergeable(table))
        found = self._orphans(name, remove=False)
        done = TableUpkeep(
            table=name,
            before=TableSize.of(table),
            after=None,
            compaction=None if plan is None else str(plan),
            advice=None if plan is None else self._advice(plan),
            rewritten=plan.out if plan else 0,
            new=plan.new if plan else 0,
            manifests=manifests or 0,
            expired=0 if section.expire is None else len(section.expire.expiring(table.metadata)),
            orphans=len(found.files),
            orphan_bytes=found.bytes,
        )
        return self._with_removal(done, table.metadata.properties, partial(find_old_rows, table))

    def _maintain(self, name: str) -> TableUpkeep:
        table, section = fitness.load_table(self.lake, name), self.section
        done = TableUpkeep(table=name, before=TableSize.of(table), after=None)
        done = replace(done, mended=self._mend(table))
        remove = partial(remove_old_rows, self.lake, name, is_over=self.is_over)
        done = self._with_removal(done, table.metadata.properties, remove)
        if section.compact is not None and not is_memory(table):
            compacted = self._compact(section.compact, name)
            done = replace(
                done,
                compaction=str(compacted.plan),
                advice=None if compacted.is_whole else self._advice(compacted.plan),
                rewritten=compacted.files,
                new=compacted.new,
                lost=compacted.lost,
            )
        if section.rewrite_manifests and not self.is_over():
            done = replace(done, manifests=manifest_merge.rewrite_manifests(self.lake, name))
        if section.expire is not None and not self.is_over():
            done = replace(done, expired=len(expiry.expire(self.lake, name, section.expire).snapshots))
        if not self.is_over():
            found = self._orphans(name, remove=True)
            done = replace(done, orphans=len(found.files) - found.left, orphan_bytes=found.bytes)
        after = TableSize.of(self.lake.load_table(name))
        return replace(done, after=after, is_whole=done.is_whole and not self.is_over())

    def _advice(self, plan: CompactionPlan) -> str | None:
        assert self.section.compact is not None, "the plan is of a compaction"
        return advice_for(plan, self.budget, self.section.compact.parallelism)

    def _mend(self, table: Table) -> int:
        wrong = narrow_bounds.wrong_bounds(table, ledger_store.head_of(table.metadata))
        for one in wrong:
            log.warning("%s: %s. Its manifests are rewritten.", ledger_store.name_of(table), one.text)
        narrow_bounds.mend(self.lake, ledger_store.name_of(table), wrong)
        return len(wrong)

    def _compact(self, how: CompactionConfig, name: str) -> CompactionReport:
        table = self.lake.load_table(name)
        began = time.monotonic()

        def report(done: CompactionReport) -> None:
            seconds = max(1e-3, time.monotonic() - began)
            left = (done.plan.bytes - done.bytes) * seconds / max(1, done.bytes)
            log.info(
                "%s: %s of %s files compacted into %s; %.1f MB/s, some %.0f s left.",
                name,
                f"{done.files:,}",
                f"{done.plan.out:,}",
                f"{done.new:,}",
                done.bytes / 1e6 / seconds,
                left,
            )

        children = self.children
        rewrite = rewrite_in_turn
        if children is not None and not children.are_broken:
            rewrite = PooledRewriting(children).rewrite
        return compact(self.lake, name, _rule(how, table), _order(table), self.is_over, report, rewrite)

    def _orphans(self, name: str, *, remove: bool) -> OrphanFiles:
        if self.section.remove_orphans is None:
            return OrphanFiles()
        if neighbours := inside(self.lake, self.lake.load_table(name)):
            raise SharedFolder(name, neighbours)
        work = orphans.remove_orphans if remove else orphans.find_orphans
        return work(self.lake, name, self.section.remove_orphans)


def advice_for(plan: CompactionPlan, budget: float | None, processes: int = 1) -> str | None:
    """Return a hint for Spark's app, if a plan is more than the processes rewrite within a run; or None.

    :param budget: seconds of a run; None: a night.
    """
    seconds, limit = plan.bytes / BYTES_PER_SECOND / processes, budget or NIGHT
    if (runs := math.ceil(seconds / limit)) < 2:
        return None
    who = "one process" if processes == 1 else f"{processes} processes"
    text = f"The compaction takes {who} some {span(seconds)}: {runs:,} runs of {span(limit)}"
    return f"{text}. Spark's app maintain_iceberg rewrites several groups of files at a time"


def _rule(how: CompactionConfig, table: Table) -> CompactionRule:
    rule = how.rule_for(target_size(table.metadata))
    # Merges change a mirror all over: a file is rewritten as soon as rows are deleted in place.
    is_mirror = MIRROR in table.metadata.properties and "delete-file-threshold" not in how.options
    return replace(rule, most_deletes=1) if is_mirror else rule


def _order(table: Table) -> SortOrder:
    """Return the table's order, or the key of a mirror without one: a merge then finds keys by bounds."""
    order, note = table.sort_order(), table.metadata.properties.get(MIRROR)
    if order.fields or note is None:
        return order
    columns = [table.schema().find_field(name) for name in json.loads(note)["key"]]
    if not isinstance(columns[0].field_type, PLAIN_BOUNDS):
        return order
    # Ascending; not an order of the table, which files could name.
    return SortOrder(*(SortField(column.field_id, IdentityTransform()) for column in columns), order_id=0)


class _Undone(LakestreamError):
    """Error of a maintenance with failed tables. `failed` has the reasons by table."""

    def __init__(self, failed: Mapping[str, Exception], done: int) -> None:
        # Messages of foreign errors may hold secrets, and this text goes further than the log.
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
