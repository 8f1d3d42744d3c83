"""The maintenance of Iceberg tables, table after table, with a readable ledger throughout."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.types import TimeType

from airflow_lakestream.cdc.iceberg_head import PLAIN_BOUNDS
from airflow_lakestream.cdc.merge.memory import MIRROR_ID, SUFFIX
from airflow_lakestream.core.mirrors import MIRROR
from airflow_lakestream.driver.lease import LeaseLost
from airflow_lakestream.driver.progress import BatchProgress
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit import retention
from airflow_lakestream.iceberg.upkeep import expiry, narrow_bounds
from airflow_lakestream.iceberg.upkeep.reads import ReadCounts
from airflow_lakestream.spark.at_once import AppSupervision, supervised
from airflow_lakestream.spark.inputs import lease_for
from airflow_lakestream.spark.lease import Lease
from airflow_lakestream.spark.maintenance.calls import IcebergProcedures, TableSize
from airflow_lakestream.spark.maintenance.config import CompactionConfig, MaintenanceConfig, MaintenanceSection
from airflow_lakestream.spark.session import check_class, start_session
from airflow_lakestream.spark.settings import catalog as catalog_options
from airflow_lakestream.spark.settings.catalog import catalog_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WILD = "*?["


class NoIcebergTable(InvalidArgument):
    """Error of a name that is not an Iceberg table of the catalog."""

    def __init__(self, name: str, catalog: str) -> None:
        super().__init__(
            "maintenance.tables",
            f"{name} is not an Iceberg table of catalog {catalog!r}.",
            "Delta tables are not for this app: Delta's own OPTIMIZE and VACUUM keep them.",
        )


def select(catalog: Catalog, wanted: Sequence[str]) -> list[str]:
    """Return the names of the tables, each once, in the order of the configuration.

    A pattern matches names with the pattern's number of parts. A pattern may match no table, and skips tables that are
    not Iceberg tables. Raises NoIcebergTable for a plain name that is not an Iceberg table.
    """
    names: dict[str, None] = {}
    for one in wanted:
        if not any(letter in one for letter in _WILD):
            if not _is_table(catalog, one):
                raise NoIcebergTable(one, catalog.name)
            names[one] = None
            continue
        parts = one.split(".")
        for name in _names(catalog, parts[:-1]):
            if fnmatchcase(name.split(".")[-1], parts[-1]) and name not in names and _is_table(catalog, name):
                names[name] = None
    return list(names)


def times_of_day(schema: Schema) -> list[str]:
    """Return the columns of type time, nested columns included: Spark 4.0 opens no table with such a column."""
    ids = (number for number, field in index_by_id(schema).items() if isinstance(field.field_type, TimeType))
    return [str(schema.find_column_name(number)) for number in ids]


def inside(catalog: Catalog, table: Table) -> list[str]:
    """Return the names of other tables with files in or around this table's folder, as far as the catalog knows.

    Only tables of the same namespace, and of the namespaces below, are compared.
    """
    name = ".".join(table.name())
    folder = _folder(table.location())
    namespace = name.split(".")[:-1]
    neighbours = [*_names(catalog, namespace), *_below(catalog, tuple(namespace))]
    return [
        other
        for other in dict.fromkeys(neighbours)
        if other != name
        and (at := _location(catalog, other)) is not None
        and (at.startswith(folder) or folder.startswith(at))
    ]


def _location(catalog: Catalog, name: str) -> str | None:
    try:
        return _folder(catalog.load_table(name).location())
    except NoSuchTableError:
        return None


def _folder(location: str) -> str:
    return location.rstrip("/") + "/"


def _is_table(catalog: Catalog, name: str) -> bool:
    try:
        catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        return False
    return True


def _names(catalog: Catalog, namespace: Sequence[str]) -> Iterator[str]:
    """Yield the tables of the matching namespaces, part by part."""
    for one in _namespaces(catalog, namespace):
        yield from sorted(".".join(table) for table in catalog.list_tables(one))


def _namespaces(catalog: Catalog, wanted: Sequence[str], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not any(letter in part for part in wanted for letter in _WILD):
        if catalog.namespace_exists((*above, *wanted)):
            yield (*above, *wanted)
        return
    for one in _children(catalog, above):
        if fnmatchcase(one[-1], wanted[0]):
            if len(wanted) == 1:
                yield one
            else:
                yield from _namespaces(catalog, wanted[1:], one)


def _below(catalog: Catalog, namespace: tuple[str, ...]) -> Iterator[str]:
    for one in _children(catalog, namespace):
        yield from (".".join(table) for table in catalog.list_tables(one))
        yield from _below(catalog, one)


def _children(catalog: Catalog, above: tuple[str, ...]) -> Collection[tuple[str, ...]]:
    below = catalog.list_namespaces(above)
    return [one for one in below if len(one) == len(above) + 1 and one[: len(above)] == above]


def of_table(how: CompactionConfig, table: Table) -> CompactionConfig:
    """Return the compaction of a table; a table other than a mirror keeps `how`.

    A mirror is sorted by its key, so that a merge finds by bounds which files may have the keys of a batch; or by the
    table's own order, if it has one. A mirror is compacted in parts, since merges undo the rewrite of their files.
    """
    note = table.metadata.properties.get(MIRROR)
    if note is None:
        return how
    key = json.loads(note)["key"]
    if not table.sort_order().is_unsorted:
        return how.of_mirror(None, is_sorted=True)
    has_bounds = isinstance(table.schema().find_field(key[0]).field_type, PLAIN_BOUNDS)
    order = ", ".join("`" + name.replace("`", "``") + "`" for name in key)
    return how.of_mirror(order if has_bounds else None, is_sorted=has_bounds)


def is_memory(table: Table) -> bool:
    """Return whether a table is a mirror's memory of deleted rows.

    Compaction would mix up its files, and make them too large.
    """
    return table.name()[-1].endswith(SUFFIX) and MIRROR_ID in table.metadata.properties


def needs_fewer_deletes(table: Table) -> bool:
    """Return whether a read would open fewer delete files after a rewrite of the delete files.

    Only tables of format version 2 have such files. A table with equality deletes, whose reads can't be counted, counts
    as in need.
    """
    if table.metadata.format_version != 2:
        return False
    try:
        return ReadCounts.of(table).may_be_fewer
    except ValueError:
        # With equality deletes, which Iceberg's procedure leaves alone.
        return True


log = logging.getLogger(__name__)

_CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
# This extension parses sort orders.
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


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


class SharedFolder(LakestreamError, Terminal):
    """Error of a folder shared by two tables: the files of the other table would count as orphans."""

    def __init__(self, table: str, neighbours: Sequence[str]) -> None:
        super().__init__(
            f"{table}: no orphan was removed, since {', '.join(neighbours)} has its files in the same folder: they "
            "would count as orphans. Move one of the tables, or leave out remove_orphans for this one."
        )


@dataclass(frozen=True)
class TableReport:
    """Report of the maintenance of a table."""

    table: str
    before: TableSize
    after: TableSize
    expired: int = 0
    orphans: int = 0
    mended: int = 0

    def __str__(self) -> str:
        mended = f", wrong bounds of {self.mended} files mended" if self.mended else ""
        return (
            f"{self.table}: {self.before} before, {self.after} after; {self.expired} snapshots expired, "
            f"{self.orphans} orphans removed{mended}"
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
    or TableToMaintainAgain if a retry may help. On a request to end, it ends after the current work.

    Raises LeaseHeld, and OtherInputs if the lease's location belongs to another stream.
    """

    def take(location: str) -> Lease:
        return lease_for(config, spark, location, config.fingerprint, config.inputs)

    with supervised(spark, "maintaining", take, config.lease_location, config.store_properties) as supervision:
        return _maintain(config, spark, supervision)


def _maintain(config: MaintenanceConfig, spark: SparkSession, supervision: AppSupervision) -> list[TableReport]:
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
        try:
            reports.append(
                _TableMaintenance(
                    catalog, IcebergProcedures(session, config.catalog_name, name), work, supervision
                ).run()
            )
        except LeaseLost:
            raise
        except Exception as e:
            # Any error of Spark or the catalog: the other tables must still be maintained.
            log.exception("%s was not maintained.", name)
            failed[name] = e
            continue
        log.info("%s", reports[-1])
        supervision.report(BatchProgress(number, 0, 0, duration=time.monotonic() - started, what=str(reports[-1])))
    if failed:
        kind = TableNotMaintained if all(isinstance(e, Terminal) for e in failed.values()) else TableToMaintainAgain
        raise kind(failed, len(reports))
    return reports


@dataclass(frozen=True)
class _TableMaintenance:
    """The work on a table."""

    catalog: Catalog
    procedures: IcebergProcedures
    work: MaintenanceSection
    supervision: AppSupervision

    def run(self) -> TableReport:
        """Do the works, and return the report.

        First come the works that make files unneeded, then the works that delete unneeded files. On a request to end,
        the works that have not begun are left out.
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
            expired = self._expire(work.expire.rule)
        if work.remove_orphans is not None and self._begins("removing orphans"):
            orphans = self._remove_orphans(work.remove_orphans.age)
        return TableReport(self.procedures.table, before, TableSize.of(self._table()), expired, orphans, mended)

    def _without_types(self, columns: Sequence[str]) -> MaintenanceSection:
        """Return the works for a table that Spark can't read, and warn of the works left out.

        :param columns: the columns of type time, for the warning.
        """
        work = self.work
        left = [
            what
            for what, is_asked in {
                "it was not compacted": work.compact,
                "its manifests were not rewritten": work.rewrite_manifests,
                "no snapshot expired": work.expire,
            }.items()
            if is_asked
        ]
        if left:
            log.warning(
                "%s: %s. Spark has no type for a time of day, and %s is one. Landings still remove old snapshots "
                "(lakestream.snapshots.keep), and a mirror's merges put small files together.",
                self.procedures.table,
                " and ".join([*filter(None, [", ".join(left[:-1])]), left[-1]]),
                ", ".join(columns),
            )
        return replace(work, compact=None, rewrite_manifests=False, expire=None)

    def _mend_bounds(self, table: Table) -> int:
        wrong = narrow_bounds.wrong_bounds(table, ledger_store.head_of(table.metadata))
        for one in wrong:
            log.warning("%s: %s. Its manifests are rewritten.", self.procedures.table, one.text)
        narrow_bounds.mend(self.catalog, self.procedures.table, wrong)
        return len(wrong)

    def _begins(self, what: str) -> bool:
        """Report the start of a work; return False, without a report, if the app was asked to end."""
        if self.supervision.is_over():
            return False
        self.supervision.begin(f"{self.procedures.table}: {what}")
        return True

    def _has_rows(self) -> bool:
        return self._table().current_snapshot() is not None

    def _table(self) -> Table:
        return self.catalog.load_table(self.procedures.table)

    def _compact(self, how: CompactionConfig) -> None:
        table = self._table()
        if is_memory(table):
            log.info("%s is not compacted: it keeps its files sorted, and few, by itself.", self.procedures.table)
            return
        # First: if each delete file is of one data file, Iceberg knows which data files lost many rows. Last: to delete
        # delete files whose data files are gone.
        self._rewrite_deletes(how.most_tries)
        self.procedures.compact(of_table(how, table))
        self._rewrite_deletes(how.most_tries)

    def _rewrite_deletes(self, tries: int) -> None:
        if needs_fewer_deletes(self._table()):
            self.procedures.rewrite_position_deletes(tries)

    def _expire(self, rule: expiry.ExpiryRule) -> int:
        expiring = expiry.prepare(self.catalog, self.procedures.table, rule)
        if expiring:
            self.procedures.expire(expiring)
        return len(expiring)

    def _remove_orphans(self, age: float) -> int:
        table = self._table()
        if table.properties.get(retention.GC_ENABLED, "").lower() == "false":
            return 0
        if neighbours := inside(self.catalog, table):
            raise SharedFolder(self.procedures.table, neighbours)
        by_prefix = catalog_options.is_on_s3(table.location())
        return self.procedures.remove_orphans(age, by_prefix=by_prefix)
