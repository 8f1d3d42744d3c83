"""The table formats: a row for each, with all differences between formats.

A part is written as module:name and imported when it is first used: not every installation has Delta's packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from airflow_lakestream.core.names import ICEBERG_COLUMNS, check_location, check_table_name
from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.delta.write.columns import REFUSED_CHARACTERS
from airflow_lakestream.exceptions import MissingExtra
from airflow_lakestream.tables.design import TableDesign


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFormat:
    """A table format, with all parts as texts module:name. `part` imports a part for the first use.

    `sink`, `checked`, `mirror` and `rejecting` make `core.ports.SharedSink`s: of records, of records with checks before
    the commit, of change events, and of another sink with a reject table. `check` refuses a design that a table can't
    have. `books` opens a table's ledgers and their history, `audit` is an `audit.run.Audit`, `swap` a module for the
    table aside a mirror, and `staging` a module that opens and deletes staged files next to a table's files.

    :param has_catalog: whether a table is named in a catalog; otherwise by its location.
    :param columns_taken: column names that readers of the format need themselves, in lower case.
    :param characters_refused: characters that no column name may have.
    :param modules: the modules that executors need, each with its package.
    """

    format: TableFormat
    has_catalog: bool
    sink: str
    checked: str
    mirror: str
    rejecting: str
    books: str
    audit: str
    swap: str
    staging: str
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

    def check_design(self, design: TableDesign) -> None:
        """Refuse a design unfit for tables of the format. Raises InvalidArgument."""
        if self.check is not None:
            self.part("check")(design)

    def check_name(self, table: str) -> str:
        """Return the name or location of a table, if valid. Raises InvalidArgument."""
        return check_table_name(table) if self.has_catalog else check_location(table)


_ROWS = (
    LakeFormat(
        format=TableFormat.ICEBERG,
        has_catalog=True,
        sink="airflow_lakestream.iceberg.sink:IcebergSink",
        checked="airflow_lakestream.iceberg.checked.sink:CheckedIcebergSink",
        mirror="airflow_lakestream.cdc.iceberg:MirrorSink",
        rejecting="airflow_lakestream.iceberg.reject_table:IcebergRejectingSink",
        books="airflow_lakestream.watching.streams.landings:IcebergStreams",
        audit="airflow_lakestream.audit.run:Audit",
        swap="airflow_lakestream.cdc.swap.iceberg:",
        staging="airflow_lakestream.iceberg.write.handover:",
        columns_taken=ICEBERG_COLUMNS,
    ),
    LakeFormat(
        format=TableFormat.DELTA,
        has_catalog=False,
        sink="airflow_lakestream.delta.sink:DeltaSink",
        checked="airflow_lakestream.delta.checked:CheckedDeltaSink",
        mirror="airflow_lakestream.cdc.delta:DeltaMirrorSink",
        rejecting="airflow_lakestream.delta.reject_table:DeltaRejectingSink",
        check="airflow_lakestream.delta.sink:check_design",
        books="airflow_lakestream.watching.streams.delta:DeltaStreams",
        audit="airflow_lakestream.audit.delta:DeltaAudit",
        swap="airflow_lakestream.cdc.swap.delta:",
        staging="airflow_lakestream.delta.write.handover:",
        characters_refused=REFUSED_CHARACTERS,
        modules={"deltalake": "deltalake", "obstore": "obstore"},
    ),
)
LAKES: Mapping[TableFormat, LakeFormat] = {row.format: row for row in _ROWS}


def lake_of(table: str) -> LakeFormat:
    """Return the format of a table, by the table's name."""
    return LAKES[TableFormat.of(table)]
