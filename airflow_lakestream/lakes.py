"""The table formats: a row for each, with all differences between the formats, and the capabilities of each.

A part of a format, such as the sink, is the text "module:name". The import waits for the first use: not every
installation has Delta's packages, and the parse of a DAG must not pay for imports.
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
    """Capability that not every table format has. The value is a plural, the subject of the sentence that refuses."""

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
    """A table format. `part` imports a part, whose field has the text "module:name".

    :param pattern: regex that matches the names of the format's tables, and no table of a later row.
    :param named: a table in words, for errors.
    :param example: a valid name.
    :param can: the capabilities.
    :param instead: by missing capability, a sentence with another way to the user's aim.
    :param connection: the operators' argument for the connection that opens tables.
    :param apps: the bundled Spark apps: first of landings, then of mirrors, then others.
    :param extras: extras of the package that the format needs.
    :param sink: part that makes the `core.ports.Sink` of records.
    :param checks: part that makes a sink's `tables.sink.CommitChecks`.
    :param mirror: part that makes the `core.ports.Sink` of change events.
    :param rejecting: part that puts a reject table next to another sink.
    :param books: part that opens a table's ledgers and their history, a `TableStreams`.
    :param state: part that reads the state of a table at the begin of a run.
    :param rejects: part that opens a table together with its reject table.
    :param filled: part that opens a table to adopt.
    :param facts: part that reads commits for OpenLineage.
    :param near: part that returns "Did you mean ...?" with the nearest table, for the name of a missing table.
    :param audit: part, an `audit.run.Audit`.
    :param upkeep: part, a `run.maintenance.upkeep.WorkerUpkeep`.
    :param swap: module that opens a resnapshot's staging table, and swaps a mirror's rows for its rows.
    :param staging: module that opens and deletes staged files next to a table's files.
    :param check_new: part that refuses a design whose partitions or order do not fit the schema.
    :param check: part that refuses a design that no table of the format can have; None: there is none.
    :param columns_taken: column names that readers of the format need themselves, in lower case.
    :param characters_refused: characters that no column name may have.
    :param modules: by name, the modules that Spark's executors need, with the package that has each.
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

        :param name: the field with the part, such as "sink".
        """
        try:
            return resolve_name(getattr(self, name))
        except ModuleNotFoundError as e:
            raise MissingExtra(self.format, e.name) from e

    def require(self, capability: LakeCapability, argument: str, table: str | None = None) -> None:
        """Refuse an argument if the format lacks a capability. Raises InvalidArgument with the formats that have it.

        :param argument: the argument that needs the capability, for the error.
        :param table: the table that the argument is for, for the error; None: the format is named.
        """
        if capability in self.can:
            return
        capable = " and ".join(row.format.capitalize() for row in LAKES.values() if capability in row.can)
        problem = f"{capability} are for {capable or 'no'} tables"
        if table is None:
            problem = f"{problem}, not for {self.format.capitalize()}"
        else:
            problem = f"{table!r} is {self.named}; {problem}"
        raise InvalidArgument(argument, f"{problem}.", self.instead.get(capability, ""))

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
        check = check_table_name if LakeCapability.CATALOG in self.can else check_location
        return check(table, argument)

    def missing_text(self, lake: Any, table: str) -> str:
        """Return the text "there is no table ...", followed by a question for the nearest table, if any is near.

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
DEFAULT = _ROWS[0]  # the default of `table_format`


def lake_of(table: str) -> LakeFormat:
    """Return the format of a table, by the table's name.

    The last row is tried first: Iceberg's pattern matches any name.
    """
    return next(row for row in reversed(LAKES.values()) if re.search(row.pattern, table))


def lake_named(argument: str, name: object) -> LakeFormat:
    """Return the format with a name. Raises UnknownValue with the known names.

    :param argument: the argument that has the name, for the error.
    """
    if (row := LAKES.get(str(name))) is None:
        raise UnknownValue(argument, name, map(str, LAKES))
    return row


def lake_of_app(app: str | None) -> LakeFormat:
    """Return the format of a bundled Spark app's tables; Iceberg for an app of the user."""
    return next((row for row in LAKES.values() if app in row.apps), DEFAULT)
