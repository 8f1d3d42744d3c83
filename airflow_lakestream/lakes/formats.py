"""The table formats: a row for each, with all that differs between them.

A part is written as module:name and imported when it is first used: not every installation has all that Delta needs.
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
    """One table format. What its tables are opened with, a catalog or a store, is called `lake` below.

    `sink`, `checked`, `mirror` and `rejecting` make `core.ports.SharedSink`s: of records, of records that are checked
    before they show, of change events, and of another sink with a reject table beside it. `check` is asked whether a
    table can be designed so. `books` opens a table's ledgers and their history, `audit` is an `audit.run.Audit`, `swap`
    a module that knows the table which is built aside a mirror, and `beside` one that opens and deletes files which lie
    beside those of a table.

    `columns_taken` are names of columns that its readers need themselves, in lower case; `characters_refused` can be in
    none. `modules` are those that executors need, with the packages that they come from.
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
    beside: str
    check: str | None = None
    columns_taken: tuple[str, ...] = ()
    characters_refused: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)

    def part(self, name: str) -> Any:
        """Return one of its parts. Raises MissingExtra where a package that it needs is missing."""
        try:
            return resolve_name(getattr(self, name))
        except ModuleNotFoundError as e:
            raise MissingExtra(self.format, e.name) from e

    def check_design(self, design: TableDesign) -> None:
        """Refuse a design that no table of the format can have. Raises InvalidArgument."""
        if self.check is not None:
            self.part("check")(design)

    def check_name(self, table: str) -> str:
        """Return a table's name, if it can be one. Raises InvalidArgument."""
        return check_table_name(table) if self.has_catalog else check_location(table)


_ROWS = (
    LakeFormat(
        format=TableFormat.ICEBERG,
        has_catalog=True,
        sink="airflow_lakestream.iceberg.sink:IcebergSink",
        checked="airflow_lakestream.iceberg.checked.sink:CheckedSink",
        mirror="airflow_lakestream.cdc.iceberg:MirrorSink",
        rejecting="airflow_lakestream.iceberg.reject_table:RejectingSink",
        books="airflow_lakestream.watching.streams.landings:IcebergStreams",
        audit="airflow_lakestream.audit.run:Audit",
        swap="airflow_lakestream.cdc.swap.iceberg:",
        beside="airflow_lakestream.iceberg.write.handover:",
        columns_taken=ICEBERG_COLUMNS,
    ),
    LakeFormat(
        format=TableFormat.DELTA,
        has_catalog=False,
        sink="airflow_lakestream.delta.sink:DeltaSink",
        checked="airflow_lakestream.delta.checked:CheckedDeltaSink",
        mirror="airflow_lakestream.cdc.delta:DeltaMirrorSink",
        rejecting="airflow_lakestream.delta.reject_table:RejectingSink",
        check="airflow_lakestream.delta.design:check_design",
        books="airflow_lakestream.watching.streams.delta:DeltaStreams",
        audit="airflow_lakestream.audit.delta:DeltaAudit",
        swap="airflow_lakestream.cdc.swap.delta:",
        beside="airflow_lakestream.delta.write.handover:",
        characters_refused=REFUSED_CHARACTERS,
        modules={"deltalake": "deltalake", "obstore": "obstore"},
    ),
)
LAKES: Mapping[TableFormat, LakeFormat] = {row.format: row for row in _ROWS}


def lake_of(table: str) -> LakeFormat:
    """Return the format of a table, which its name tells."""
    return LAKES[TableFormat.of(table)]
