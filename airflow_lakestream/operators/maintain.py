"""LakestreamMaintainOperator: compacts tables and removes what is old, in the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_lakestream.config import arguments
from airflow_lakestream.core.policies import is_given
from airflow_lakestream.operators.arguments import documented, set_arguments, templated
from airflow_lakestream.operators.base import IDLE_THREADS, StopsOnKill, airflow_errors, late_imports
from airflow_lakestream.operators.rendering import TextRendering

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


@documented()
class LakestreamMaintainOperator(TextRendering, StopsOnKill, BaseOperator):
    """Maintain Iceberg tables, or Delta tables, as far as needed, without Spark; landings and merges go on meanwhile.

    Returns a list with a report per table: `before` and `after` with `files`, `delete_files` and `bytes`, `rewritten`
    and `new` data files, `lost` groups of files, which the next run compacts, `manifests`, `expired`, `orphans`,
    `orphan_bytes`, `mended`, of retention `removed_rows`, `removed_files`, `kept_files`, `advice` (a hint for Spark),
    and `is_whole`: False if the time was over. Each work takes true, false, or a mapping of its settings. If a table
    fails, the others are still maintained, and after a failed retention the other works; then the task fails.

    .. seealso:: docs/maintenance.md

    :param tables: names, or patterns such as `lake.*`, or paths and URIs of Delta tables. `lake.clicks` does not
        include `lake.clicks__rejected`; `lake.clicks*` does (templated)
    :param retention: remove rows older than the table's property `lakestream.retention` says, or than a mapping with
        `column` and `keep` (templated)
    :param compact: rewrite small files, and files with deletes (templated)
    :param rewrite_manifests: merge small manifests (templated)
    :param expire: remove old snapshots, and files that only they need (templated)
    :param remove_orphans: delete old files that no snapshot has (templated)
    :param dry_run: only report what would be gained (templated)
    :param budget: time after which no work begins, such as `"10m"`; the next run goes on (templated)
    """

    ui_color = "#f7ecdf"

    def __init__(
        self,
        *,
        tables: str | Sequence[str],
        retention: bool | str | Mapping[str, Any] = True,
        compact: bool | str | Mapping[str, Any] = True,
        rewrite_manifests: bool | str = True,
        expire: bool | str | Mapping[str, Any] = True,
        remove_orphans: bool | str | Mapping[str, Any] = True,
        dry_run: bool | str = False,
        budget: float | str | None = None,
        iceberg_conn_id: str = "iceberg_default",
        storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        set_arguments(self, LakestreamMaintainOperator, locals(), {"budget": _seconds, "dry_run": arguments.flag})

    template_fields: Sequence[str] = templated(__init__)

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Maintain the tables, and return the reports; see the class."""
        with late_imports():
            from airflow_lakestream.config.maintenance import WORKS, MaintenanceSection, format_of
            from airflow_lakestream.hooks.places import open_tables
            from airflow_lakestream.run.maintenance.processes import rewriter_processes

        with airflow_errors():
            section = MaintenanceSection.parse({name: getattr(self, name) for name in ("tables", *WORKS)})
            dry_run = arguments.flag("dry_run", self.dry_run)
            lake, budget = format_of(section.tables), _seconds("budget", self.budget)
            # Before the catalog is opened: see `runtime.processes` about threads that may exist before a fork.
            with rewriter_processes(section, dry_run, IDLE_THREADS) as children:
                tables = open_tables(lake, self.iceberg_conn_id, self.storage_conn_id)
                work = lake.part("upkeep")(tables, section, dry_run, budget, self._stop, children)
                return [report.to_dict() for report in work.run()]


def _seconds(argument: str, value: object) -> float | None:
    return arguments.positive_seconds(argument, value) if is_given(value) else None
