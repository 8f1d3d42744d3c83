"""The table formats: a row for each, with all differences between formats, and the capabilities of each.

A part is written as module:name and imported when it is first used: not every installation has Delta's packages. Where
a DAG is parsed, the rows cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from airflow_lakestream.core.names import ICEBERG_COLUMNS, REFUSED_CHARACTERS, check_location, check_table_name
from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.exceptions import InvalidArgument, MissingExtra, UnknownValue

if TYPE_CHECKING:
    from airflow_lakestream.tables.design import TableDesign


class LakeCapability(StrEnum):
    """Capability that not every table format has; refusals name it by its value, a plural."""

    CATALOG = "names in a catalog"
    STORE = "connections of a store"
    FAN_OUT = "tables that records choose"
    MERGE_ON_READ = "deletion vectors of a mirror"
    REPAIR = "repairs"
    EDITS = "histories and changes of ledgers"
    MAINTAIN = "bundled apps of maintenance"
    COMPACT = "compactions after landings"
    ZORDER = "Z-orders"
    PARTITIONS = "emitted partitions"
    COMPLETENESS = "looks for complete intervals"
    FRESHNESS = "sensors of freshness"
    PUBLISH = "branches of an engine"
    TAGS = "tags of mirrors"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFormat:
    """A table format, with all parts as texts module:name. `part` imports a part for the first use.

    `sink`, `mirror` and `rejecting` make `core.ports.Sink`s: of records, of change events, and of another sink with a
    reject table. `checks` makes a sink's `tables.sink.CommitChecks`. `check` refuses a design that a table can't have,
    `check_new` one with partitions or an order unfit for its schema. `books` opens a table's ledgers and their history,
    `state` reads the state that a run begins with, `rejects` opens a table with its reject table, `filled` a table to
    adopt, `near` returns a question for the nearest table of a missing one, and `facts` looks at commits for
    OpenLineage. `audit` is an `audit.run.Audit`, `upkeep` a `run.maintenance.upkeep.WorkerUpkeep`, `swap` a module for
    the table aside a mirror, and `staging` a module that opens and deletes staged files next to a table's files.

    :param pattern: a regex found in the names of the format's tables, and not in the names of later rows.
    :param named: a table in words, for errors.
    :param example: a valid name.
    :param can: the capabilities.
    :param instead: ways out, by missing capability: sentences.
    :param connection: the argument of operators with the connection that opens tables.
    :param apps: the bundled Spark apps: of landings, of mirrors, and others.
    :param extras: extras of the package that the format needs.
    :param columns_taken: column names that readers of the format need themselves, in lower case.
    :param characters_refused: characters that no column name may have.
    :param modules: the modules that executors need, each with its package.
    """

    format: str
    pattern: str
    named: str
    example: str
    can: frozenset[LakeCapability]
    instead: Mapping[LakeCapability, str] = field(default_factory=dict)
    connection: str
    apps: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    sink: str
    checks: str
    mirror: str
    rejecting: str
    books: str
    state: str
    rejects: str
    filled: str
    facts: str
    near: str
    audit: str
    upkeep: str
    swap: str
    staging: str
    check_new: str
    check: str | None = None
    columns_taken: tuple[str, ...] = ()
    characters_refused: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)

    def part(self, name: str) -> Any:
        """Import and return a part of the format. Raises MissingExtra if a package is missing.

        :param name: the name of the attribute, such as "sink".
        """
        try:
            return resolve_name(getattr(self, name))
        except ModuleNotFoundError as e:
            raise MissingExtra(self.format, e.name) from e

    def require(self, capability: LakeCapability, argument: str, table: str | None = None) -> None:
        """Refuse an argument without a capability. Raises InvalidArgument with the formats that have it."""
        if capability in self.can:
            return
        able = " and ".join(row.format.capitalize() for row in LAKES.values() if capability in row.can)
        problem = f"{capability} are for {able or 'no'} tables"
        own = f", not for {self.format.capitalize()}" if table is None else ""
        subject = f"{table!r} is {self.named}; " if table is not None else ""
        raise InvalidArgument(argument, f"{subject}{problem}{own}.", self.instead.get(capability, ""))

    def check_design(self, design: TableDesign) -> None:
        """Refuse a design unfit for tables of the format. Raises InvalidArgument."""
        if self.check is not None:
            self.part("check")(design)

    def check_columns(self, design: TableDesign) -> None:
        """Refuse partitions and an order of a design that do not fit its schema. Raises InvalidArgument."""
        if design.schema is not None:
            self.part("check_new")(design)

    def check_name(self, table: str, argument: str = "table") -> str:
        """Return the name or location of a table, if valid. Raises InvalidArgument."""
        if "{" in table:
            self.require(LakeCapability.FAN_OUT, argument, table)
        return (check_table_name if LakeCapability.CATALOG in self.can else check_location)(table, argument)

    def missing_text(self, lake: Any, table: str) -> str:
        """Return a sentence on a missing table, with a question for the nearest one.

        :param lake: the catalog or the store.
        """
        where = f"{table} in the catalog" if LakeCapability.CATALOG in self.can else f"at {table}"
        return f"there is no table {where}.{self.part('near')(lake, table)}"

    def uri(self, table: str) -> str:
        """Return the URI of a table's asset: `iceberg://namespace/table`, or the location."""
        if LakeCapability.CATALOG in self.can:
            return f"{self.format}://{table.replace('.', '/')}"
        return table if "://" in table else f"file://{table}"


_ROWS = (
    LakeFormat(
        format=TableFormat.ICEBERG,
        pattern="",
        named="the name of an Iceberg table",
        example="some.table",
        can=frozenset(LakeCapability) - {LakeCapability.STORE, LakeCapability.ZORDER},
        instead={
            LakeCapability.STORE: 'A catalog knows where its tables are; or set table_format="delta".',
            LakeCapability.ZORDER: (
                "Give the table a sort order, by sort_order of its landings: compactions keep the order. "
                'Spark\'s app also takes sort_order: "zorder(a, b)".'
            ),
        },
        connection="iceberg_conn_id",
        apps=("kafka_to_iceberg", "cdc_to_iceberg", "maintain_iceberg"),
        sink="airflow_lakestream.iceberg.sink:IcebergSink",
        checks="airflow_lakestream.iceberg.checked:BranchChecks",
        mirror="airflow_lakestream.cdc.iceberg:mirror_sink",
        rejecting="airflow_lakestream.iceberg.reject_table:rejecting_sink",
        books="airflow_lakestream.watching.streams.landings:IcebergStreams",
        state="airflow_lakestream.iceberg.sink:table_state",
        rejects="airflow_lakestream.run.rejected:of_iceberg",
        filled="airflow_lakestream.adopt.filled:IcebergFilledTable",
        facts="airflow_lakestream.lineage.looking:look_at_iceberg",
        near="airflow_lakestream.audit.run:near_table",
        audit="airflow_lakestream.audit.run:Audit",
        upkeep="airflow_lakestream.run.maintenance.upkeep:IcebergUpkeep",
        swap="airflow_lakestream.cdc.iceberg:",
        staging="airflow_lakestream.iceberg.write.handover:",
        check_new="airflow_lakestream.iceberg.commit.new_table:check_new",
        columns_taken=ICEBERG_COLUMNS,
    ),
    LakeFormat(
        format=TableFormat.DELTA,
        pattern="/",
        named="the path of a Delta table",
        example="/some/table",
        can=frozenset({LakeCapability.STORE, LakeCapability.ZORDER}),
        instead={
            LakeCapability.FAN_OUT: "Give each topic a task of its own.",
            LakeCapability.MERGE_ON_READ: "Leave it out: the mirror is merged by copy-on-write.",
            LakeCapability.REPAIR: 'Land the ranges again: mode="ranges", replace=True.',
            LakeCapability.EDITS: "`lakestream ledger show` reads both; docs/delta.md has what to ask Delta itself.",
            LakeCapability.MAINTAIN: "`lakestream maintain` keeps it small.",
            LakeCapability.COMPACT: "`lakestream maintain`, or LakestreamMaintainOperator, compacts it.",
            LakeCapability.COMPLETENESS: "Leave it out.",
            LakeCapability.TAGS: "Delta has no tags: mirror the tables in Iceberg.",
            LakeCapability.FRESHNESS: "CheckpointLagSensor, or type: lag in a pipeline, takes max_batch_age.",
        },
        connection="storage_conn_id",
        apps=("kafka_to_delta", "cdc_to_delta"),
        extras=("delta",),
        sink="airflow_lakestream.delta.sink:DeltaSink",
        checks="airflow_lakestream.delta.checked:DeltaChecks",
        mirror="airflow_lakestream.cdc.delta:mirror_sink",
        rejecting="airflow_lakestream.delta.reject_table:rejecting_sink",
        check="airflow_lakestream.delta.sink:check_design",
        check_new="airflow_lakestream.delta.sink:check_new",
        books="airflow_lakestream.watching.streams.delta:DeltaStreams",
        state="airflow_lakestream.delta.sink:table_state",
        rejects="airflow_lakestream.run.rejected:of_delta",
        filled="airflow_lakestream.adopt.delta:DeltaFilledTable",
        facts="airflow_lakestream.lineage.looking:look_at_delta",
        near="airflow_lakestream.delta.storage:near_table",
        audit="airflow_lakestream.audit.delta:DeltaAudit",
        upkeep="airflow_lakestream.run.maintenance.delta:DeltaUpkeep",
        swap="airflow_lakestream.cdc.delta:",
        staging="airflow_lakestream.delta.handover:",
        characters_refused=REFUSED_CHARACTERS,
        modules={"deltalake": "deltalake", "obstore": "obstore"},
    ),
)
LAKES: dict[str, LakeFormat] = {row.format: row for row in _ROWS}


# The default of `table_format`.
DEFAULT = _ROWS[0]


def lake_of(table: str) -> LakeFormat:
    """Return the format of a table, by the table's name."""
    return next(row for row in reversed(LAKES.values()) if re.search(row.pattern, table))


def lake_named(argument: str, name: object) -> LakeFormat:
    """Return the format of a name. Raises UnknownValue with the known names."""
    if (row := LAKES.get(str(name))) is None:
        raise UnknownValue(argument, name, map(str, LAKES))
    return row


def lake_of_app(app: str | None) -> LakeFormat:
    """Return the format of a bundled Spark app's tables; Iceberg for an app of the user."""
    return next((row for row in LAKES.values() if app in row.apps), DEFAULT)
