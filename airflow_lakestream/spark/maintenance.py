"""The maintenance of Iceberg tables that are landed into: one table after the other, the ledger kept readable."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.iceberg import expiry, retention
from airflow_lakestream.spark import catalog_options
from airflow_lakestream.spark.catalog_options import catalog_packages
from airflow_lakestream.spark.maintenance_calls import Procedures, Size
from airflow_lakestream.spark.maintenance_config import Maintenance, MaintenanceConfig
from airflow_lakestream.spark.maintenance_tables import inside, select
from airflow_lakestream.spark.session import check_class, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
# It reads sort orders.
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


class TableNotMaintained(LakestreamError, Terminal):
    """Some tables could not be maintained; the others were."""

    def __init__(self, failed: Mapping[str, str], done: int) -> None:
        self.failed = dict(failed)
        why = "; ".join(f"{table} ({text})" for table, text in failed.items())
        super().__init__(f"{len(failed)} tables were not maintained as asked, {done} were: {why}")


class SharedFolder(LakestreamError, Terminal):
    """Another table's files would look like orphans."""

    def __init__(self, table: str, others: Sequence[str]) -> None:
        super().__init__(
            f"{table}: no orphan was removed, since {', '.join(others)} has its files in the same folder: they would "
            "look like orphans. Move one of the tables, or leave remove_orphans out for this one."
        )


@dataclass(frozen=True)
class TableReport:
    """What was done to one table."""

    table: str
    before: Size
    after: Size
    expired: int = 0
    orphans: int = 0

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.before.files} files of {self.before.bytes:,} bytes before, {self.after.files} of "
            f"{self.after.bytes:,} after; {self.expired} snapshots expired, {self.orphans} orphans removed"
        )


def open_maintenance_session(config: MaintenanceConfig) -> SparkSession:
    """Start Spark with Iceberg, or join what `spark-submit` has started. Raises SparkLacks without Iceberg."""
    packages = catalog_packages(config.catalog_properties)
    settings = {
        "spark.sql.extensions": EXTENSIONS,
        "spark.redaction.regex": catalog_options.REDACTED,
        "spark.sql.redaction.options.regex": catalog_options.REDACTED,
        **config.spark,
    }
    spark = start_session(config.app, settings, packages)
    check_class(spark, _CATALOG_CLASS, "Spark has no Iceberg.", packages)
    return spark


def maintain(config: MaintenanceConfig, spark: SparkSession) -> list[TableReport]:
    """Maintain the tables; return one report for each, in the order they were asked for.

    A table that fails does not keep the others from being done: TableNotMaintained, raised at the end, names it.
    """
    work = config.work
    catalog = load_catalog(config.catalog_name, **config.catalog_properties)
    # A session of its own: the catalog's settings, secrets among them, are in no configuration of the whole Spark.
    session = spark.newSession()
    for key, value in config.catalog_settings.items():
        session.conf.set(key, value)
    reports, failed = [], {}
    for name in select(catalog, work.tables):
        try:
            reports.append(_Upkeep(catalog, Procedures(session, config.catalog_name, name), work).run())
        except Exception as e:
            # What it is, Spark and the catalog decide: it must not keep the other tables waiting.
            log.exception("%s was not maintained.", name)
            failed[name] = f"{type(e).__name__}: {next(iter(str(e).splitlines()), '')}"
            continue
        log.info("%s", reports[-1])
    if failed:
        raise TableNotMaintained(failed, len(reports))
    return reports


@dataclass(frozen=True)
class _Upkeep:
    """The works on one table."""

    catalog: Catalog
    procedures: Procedures
    work: Maintenance

    def run(self) -> TableReport:
        """Do them: first what makes files unneeded, then what removes such files."""
        before = self.procedures.size()
        table = self._table()
        if self.work.compact is not None and table.current_snapshot() is not None:
            self.procedures.compact(self.work.compact)
        if self.work.rewrite_manifests and table.current_snapshot() is not None:
            self.procedures.rewrite_manifests()
        expired = self._expire()
        orphans = self._remove_orphans()
        return TableReport(self.procedures.table, before, self.procedures.size(), expired, orphans)

    def _table(self) -> Table:
        return self.catalog.load_table(self.procedures.table)

    def _expire(self) -> int:
        if self.work.expire is None:
            return 0
        expiring = expiry.prepare(self.catalog, self.procedures.table, self.work.expire.rule)
        if expiring:
            self.procedures.expire(expiring)
        return len(expiring)

    def _remove_orphans(self) -> int:
        table = self._table()
        if self.work.remove_orphans is None or table.properties.get(retention.GC_ENABLED, "").lower() == "false":
            return 0
        if others := inside(self.catalog, table):
            raise SharedFolder(self.procedures.table, others)
        by_prefix = catalog_options.is_on_s3(table.location())
        return self.procedures.remove_orphans(self.work.remove_orphans.age, by_prefix=by_prefix)
