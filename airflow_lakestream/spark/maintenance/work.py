"""The maintenance of Iceberg tables by Iceberg's procedures, table after table, with a readable ledger throughout."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.types import TimeType

from airflow_lakestream.cdc.iceberg_head import PLAIN_BOUNDS
from airflow_lakestream.cdc.merge.merge import MOST_DELETED
from airflow_lakestream.config.maintenance import CompactionConfig, CompactionStrategy, MaintenanceSection
from airflow_lakestream.core.printable import counted
from airflow_lakestream.core.routing import MIRROR
from airflow_lakestream.driver.lease import LeaseLost
from airflow_lakestream.driver.progress import BatchProgress
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit import retention
from airflow_lakestream.iceberg.upkeep import expiry, narrow_bounds
from airflow_lakestream.iceberg.upkeep.reads import ReadCounts, TableSize
from airflow_lakestream.run.maintenance.tables import SharedFolder, inside, is_memory, select
from airflow_lakestream.run.maintenance.upkeep import raise_failed
from airflow_lakestream.spark import lake_settings as catalog_options
from airflow_lakestream.spark.lake_settings import catalog_packages
from airflow_lakestream.spark.maintenance.config import MaintenanceConfig
from airflow_lakestream.spark.session import check_class, start_session
from airflow_lakestream.spark.stream import AppSupervision, supervised

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Sent together with snapshot ids: without a time, Iceberg would also expire all snapshots older than five days.
_BEFORE_ALL_SNAPSHOTS = "TIMESTAMP '1970-01-02 00:00:00'"
# A data file is rewritten if it has lost this share of its rows (the share of merges), or has this many delete files.
_DELETE_LIMITS = {"delete-ratio-threshold": MOST_DELETED, "delete-file-threshold": 5}
# By default Iceberg only warns of parts that lost a conflict; as a failure, the next try rewrites these parts.
_NO_LOST_PART = {"partial-progress.max-failed-commits": 0}
# Iceberg's messages if another writer was first: its retries are used up, or the files are gone.
_CONFLICT_MESSAGES = (
    "Cannot commit rewrite",
    "rewrite commits failed",
    "CommitFailedException",
    "database is locked",
    "SQLITE_BUSY",
)


class CompactionLost(LakestreamError, Transient):
    """Error of a compaction that lost against other writers in each try."""

    def __init__(self, table: str, tries: int, last: str) -> None:
        super().__init__(
            f"{table}: not compacted, since in each of {tries} tries another writer removed the files or committed too "
            f"often (last: {last}). Nothing was changed. Compact while less is replaced, narrow it by "
            "`where`, or commit in parts: maintenance.compact.partial_progress."
        )


@dataclass(frozen=True)
class IcebergProcedures:
    """Calls of Iceberg's Spark procedures for a table.

    :param catalog: the catalog's name, the same in Spark and PyIceberg.
    :param table: namespace.table.
    """

    spark: SparkSession
    catalog: str
    table: str

    def compact(self, config: CompactionConfig) -> None:
        """Rewrite small files, and files that deletes make slow to read.

        Landings meanwhile are kept: Iceberg commits on top of them. With partial progress, parts that lose against
        other writers in each try stay as they are. Raises CompactionLost.
        """
        parts: dict[str, Any] = {"partial-progress.enabled": "false"}
        if config.partial_progress:
            parts = {"partial-progress.enabled": "true", **_NO_LOST_PART}
        options = {**_DELETE_LIMITS, **parts, **config.options}
        strategy = config.strategy or CompactionStrategy.BINPACK
        arguments = {"strategy": strategy, "sort_order": config.sort_order, "where": config.where, "options": options}
        try:
            self._call_with_retries("rewrite_data_files", arguments, config.tries)
        except CompactionLost as e:
            if not config.partial_progress:
                raise
            log.warning("%s A part of the table stays as it is until the next run.", e)

    def rewrite_position_deletes(self, tries: int) -> None:
        """Rewrite delete files, so that each data file has at most one; if other writers win each try, log a warning.

        Remaining delete files only make reads slower, so the maintenance goes on.
        """
        try:
            self._call_with_retries("rewrite_position_delete_files", {"options": {"rewrite-all": "true"}}, tries)
        except CompactionLost as e:
            log.warning("%s", e)

    def _call_with_retries(self, procedure: str, arguments: Mapping[str, Any], tries: int) -> None:
        """Call a procedure, again if another writer has committed first. Raises CompactionLost.

        Any other error of the procedure is raised at once.

        :param tries: greatest number of calls.
        """
        for number in range(1, tries + 1):
            try:
                self._call(procedure, arguments)
            except Exception as e:
                if not any(message in str(e) for message in _CONFLICT_MESSAGES):
                    raise
                log.info("%s: compaction %s of %s lost against another writer.", self.table, number, tries)
                if number == tries:
                    raise CompactionLost(self.table, number, str(e).partition("\n")[0]) from e
            else:
                return

    def rewrite_manifests(self) -> None:
        """Rewrite manifests, with entries ordered by partition."""
        self._call("rewrite_manifests", {})

    def expire(self, snapshot_ids: Sequence[int]) -> None:
        """Expire exactly these snapshots, and delete the files that only these snapshots have."""
        ids = _SqlText(f"ARRAY({', '.join(f'{snapshot_id}L' for snapshot_id in snapshot_ids)})")
        self._call("expire_snapshots", {"older_than": _SqlText(_BEFORE_ALL_SNAPSHOTS), "snapshot_ids": ids})

    def remove_orphans(self, age: float, *, by_prefix: bool) -> int:
        """Delete files of the table's folder that are in no snapshot; return the number of files.

        :param age: age in seconds below which files are kept.
        :param by_prefix: whether Iceberg's own client of the store lists the folder, and not Hadoop's client.
        """
        before = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() - age))
        arguments = {
            "older_than": _SqlText(f"TIMESTAMP '{before} UTC'"),
            "prefix_listing": _SqlText("true") if by_prefix else None,
        }
        return self._call("remove_orphan_files", arguments)

    def _call(self, procedure: str, arguments: Mapping[str, Any]) -> int:
        """Call a procedure; return the number of rows in the result. Arguments that are None are left out."""
        # With the catalog's name: a namespace may have the name of a catalog.
        table = ".".join(f"`{part}`" for part in (self.catalog, *self.table.split(".")))
        named = {"table": table, **arguments}
        text = ", ".join(f"{key} => {_literal(value)}" for key, value in named.items() if value is not None)
        return len(self.spark.sql(f"CALL `{self.catalog}`.system.{procedure}({text})").collect())


class _SqlText(str):
    """Text to insert as SQL, not to quote as a value."""

    __slots__ = ()


def _literal(value: Any) -> str:
    """Return a procedure's argument as SQL; the items of a mapping become texts."""
    if isinstance(value, _SqlText):
        return value
    if isinstance(value, Mapping):
        pairs = (f"{_literal(str(key))}, {_literal(str(item))}" for key, item in value.items())
        return f"map({', '.join(pairs)})"
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def times_of_day(schema: Schema) -> list[str]:
    """Return the columns of type time, nested columns included: Spark 4.0 opens no table with such a column."""
    ids = (number for number, field in index_by_id(schema).items() if isinstance(field.field_type, TimeType))
    return [str(schema.find_column_name(number)) for number in ids]


def of_table(config: CompactionConfig, table: Table) -> CompactionConfig:
    """Return the compaction of a table: `config`, changed if the table is a mirror.

    A mirror is sorted by the table's sort order, or else by the mirror's key: a merge then finds by the bounds of the
    files which of them may have the keys of a batch. A mirror is compacted in parts, since a merge undoes the rewrite
    of the files that it changes.
    """
    note = table.metadata.properties.get(MIRROR)
    if note is None:
        return config
    key = json.loads(note)["key"]
    if not table.sort_order().is_unsorted:
        return config.of_mirror(None, is_sorted=True)
    has_bounds = isinstance(table.schema().find_field(key[0]).field_type, PLAIN_BOUNDS)
    order = ", ".join("`" + name.replace("`", "``") + "`" for name in key)
    return config.of_mirror(order if has_bounds else None, is_sorted=has_bounds)


def needs_fewer_deletes(table: Table) -> bool:
    """Return whether a read would open fewer delete files after a rewrite of the delete files.

    Only tables of format version 2 have such files.
    """
    if table.metadata.format_version != 2:
        return False
    try:
        return ReadCounts.of(table).may_be_fewer
    except ValueError:
        # The table has equality deletes, whose reads can't be counted. Iceberg's procedure leaves these alone.
        return True


log = logging.getLogger(__name__)

_CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
# This extension parses sort orders.
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


@dataclass(frozen=True)
class TableReport:
    """Report of the maintenance of a table.

    :param expired: number of expired snapshots.
    :param orphans: number of deleted files that were in no snapshot.
    :param mended: number of files whose wrong bounds were corrected.
    """

    table: str
    before: TableSize
    after: TableSize
    expired: int = 0
    orphans: int = 0
    mended: int = 0

    def __str__(self) -> str:
        mended = f", wrong bounds of {counted(self.mended, 'file')} mended" if self.mended else ""
        return (
            f"{self.table}: {self.before} before, {self.after} after; "
            f"{counted(self.expired, 'snapshot')} expired, {counted(self.orphans, 'orphan')} removed{mended}"
        )


def open_maintenance_session(config: MaintenanceConfig) -> SparkSession:
    """Start Spark with Iceberg, or join the session of `spark-submit`. Raises SparkLacks without Iceberg."""
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


def own_session(config: MaintenanceConfig, spark: SparkSession) -> SparkSession:
    """Return a new session with the catalog's settings, so that other sessions do not have the catalog's secrets."""
    session = spark.newSession()
    for key, value in config.catalog_settings.items():
        session.conf.set(key, value)
    return session


def maintain(config: MaintenanceConfig, spark: SparkSession) -> list[TableReport]:
    """Maintain the tables; return a report per table, in the order of the configuration.

    After a failed table the other tables are still maintained. At the end TableNotMaintained names the failed tables,
    or TableToMaintainAgain if a retry may help. On a request to end, the app ends after the current work.

    Raises LeaseHeld, and OtherInputs if the lease's location belongs to another stream.
    """
    with supervised(config, spark, "maintaining") as supervision:
        return _maintain(config, spark, supervision)


def _maintain(config: MaintenanceConfig, spark: SparkSession, supervision: AppSupervision) -> list[TableReport]:
    """Maintain the tables one after the other; return their reports.

    A table's error is raised after the last table. Raises LeaseLost at once.
    """
    work = config.work
    catalog = load_catalog(config.catalog_name, **config.catalog_properties)
    session = own_session(config, spark)
    reports: list[TableReport] = []
    failed: dict[str, Exception] = {}
    for number, name in enumerate(select(catalog, work.tables)):
        if supervision.is_over():
            log.info("Asked to end: %s and the tables after it are not maintained.", name)
            break
        started = time.monotonic()
        procedures = IcebergProcedures(session, config.catalog_name, name)
        try:
            reports.append(_TableMaintenance(catalog, procedures, work, supervision).run())
        except LeaseLost:
            raise
        except Exception as e:
            # Any error of Spark or the catalog: the other tables must still be maintained.
            log.exception("%s was not maintained.", name)
            failed[name] = e
            continue
        log.info("%s", reports[-1])
        supervision.report(BatchProgress(number, 0, 0, duration=time.monotonic() - started, what=str(reports[-1])))
    raise_failed(failed, len(reports))
    return reports


@dataclass(frozen=True)
class _TableMaintenance:
    """The maintenance of a table: the works of the section `maintenance` of the configuration."""

    catalog: Catalog
    procedures: IcebergProcedures
    work: MaintenanceSection
    supervision: AppSupervision

    def run(self) -> TableReport:
        """Do the works, and return the report.

        Works that make files unneeded are done before works that delete unneeded files. On a request to end, the works
        that have not begun are left out.
        """
        table = self._table()
        before, work = TableSize.of(table), self.work
        if times := times_of_day(table.schema()):
            work = self._without_types(times)
        expired = orphans = 0
        mended = self._mend_bounds(table)
        if work.compact is not None and self._has_rows() and self._begins("compaction"):
            self._compact(work.compact)
        if work.rewrite_manifests and self._has_rows() and self._begins("rewriting manifests"):
            self.procedures.rewrite_manifests()
        if work.expire is not None and self._begins("expiring snapshots"):
            expired = self._expire(work.expire)
        if work.remove_orphans is not None and self._begins("removing orphans"):
            orphans = self._remove_orphans(work.remove_orphans)
        return TableReport(self.procedures.table, before, TableSize.of(self._table()), expired, orphans, mended)

    def _without_types(self, columns: Sequence[str]) -> MaintenanceSection:
        """Return the works for a table that Spark can't read, and warn of the works left out.

        :param columns: the columns of type time, for the warning.
        """
        work = self.work
        works = (
            ("it was not compacted", work.compact),
            ("its manifests were not rewritten", work.rewrite_manifests),
            ("no snapshot expired", work.expire),
        )
        if left_out := [text for text, is_configured in works if is_configured]:
            all_but_last = ", ".join(left_out[:-1])
            log.warning(
                "%s: %s. Spark has no type for a time of day, and %s is one. Landings still remove old snapshots "
                "(lakestream.snapshots.keep), and a mirror's merges put small files together.",
                self.procedures.table,
                f"{all_but_last} and {left_out[-1]}" if all_but_last else left_out[-1],
                ", ".join(columns),
            )
        return replace(work, compact=None, rewrite_manifests=False, expire=None)

    def _mend_bounds(self, table: Table) -> int:
        """Correct wrong bounds of data files in the manifests; return the number of files."""
        wrong = narrow_bounds.wrong_bounds(table, ledger_store.head_of(table.metadata))
        for bounds in wrong:
            log.warning("%s: %s. Its manifests are rewritten.", self.procedures.table, bounds.text)
        narrow_bounds.mend(self.catalog, self.procedures.table, wrong)
        return len(wrong)

    def _begins(self, work: str) -> bool:
        """Report the start of a work; return False, without a report, if the app was asked to end."""
        if self.supervision.is_over():
            return False
        self.supervision.begin(f"{self.procedures.table}: {work}")
        return True

    def _has_rows(self) -> bool:
        return self._table().current_snapshot() is not None

    def _table(self) -> Table:
        return self.catalog.load_table(self.procedures.table)

    def _compact(self, config: CompactionConfig) -> None:
        table = self._table()
        if is_memory(table):
            log.info("%s is not compacted: it keeps its files sorted, and few, by itself.", self.procedures.table)
            return
        # Before, so that each delete file is of one data file: then Iceberg knows which data files lost many rows.
        self._rewrite_deletes(config.tries)
        self.procedures.compact(of_table(config, table))
        # After, to remove delete files whose data files are gone.
        self._rewrite_deletes(config.tries)

    def _rewrite_deletes(self, tries: int) -> None:
        if needs_fewer_deletes(self._table()):
            self.procedures.rewrite_position_deletes(tries)

    def _expire(self, rule: expiry.ExpiryRule) -> int:
        """Expire the snapshots that a rule does not keep; return their number."""
        expiring = expiry.prepare(self.catalog, self.procedures.table, rule)
        if expiring:
            self.procedures.expire(expiring)
        return len(expiring)

    def _remove_orphans(self, age: float) -> int:
        """Delete files in no snapshot, unless the table forbids it by `gc.enabled`; return the number of files.

        Raises SharedFolder if another table is in the table's folder.

        :param age: age in seconds below which files are kept.
        """
        table = self._table()
        if table.properties.get(retention.GC_ENABLED, "").lower() == "false":
            return 0
        if neighbours := inside(self.catalog, table):
            raise SharedFolder(self.procedures.table, neighbours)
        by_prefix = catalog_options.is_on_s3(table.location())
        return self.procedures.remove_orphans(age, by_prefix=by_prefix)
