"""A mirror and its table aside, in Iceberg or Delta."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol, cast

import pyarrow as pa
from pyiceberg.catalog import Catalog

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.cdc.swap import iceberg as swap
from airflow_lakestream.cdc.swap.exchange import Swap
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.mirrors import MIRROR
from airflow_lakestream.core.names import ANEW
from airflow_lakestream.core.ports import TableState
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.job import Lake
from airflow_lakestream.tables.design import TableDesign


class SwapSink(Protocol):
    """`cdc.swap.iceberg.SwapSink`, or its Delta counterpart."""

    swap: Swap | None

    def load(self, run_id: str) -> TableState:
        """Look at the mirror again."""

    def exchange(self, landing: Landing, key: tuple[str, ...], reach: RangeSet) -> int:
        """Replace its rows; see `cdc.swap.iceberg`."""


class Tables:
    """The mirror `table`, and `aside`, the table that is built to replace its rows."""

    def __init__(self, lake: Lake, table: str) -> None:
        self._lake, self.table, self.aside = lake, table, f"{table.rstrip('/')}{ANEW}"

    @property
    def is_delta(self) -> bool:
        """Whether they are Delta tables."""
        return "/" in self.table

    def design(self) -> MirrorDesign:
        """Return the mirror's design. Raises InvalidArgument if the table is no mirror."""
        return self._design(self.table)

    def key_aside(self) -> tuple[str, ...]:
        """Return the key of the table aside."""
        return self._design(self.aside).key or ()

    def aside_id(self) -> str | None:
        """Return the id of the table aside; None if it does not exist."""
        if self.is_delta:
            head = cast(Any, self._lake).open(self.aside)
            return None if head is None else str(head.table_id)
        return swap.aside_id(cast(Catalog, self._lake), self.aside)

    def drop_aside(self) -> None:
        """Drop the table aside."""
        # The table itself last: it tells what was done as long as it exists.
        names = (f"{self.aside}{SUFFIX}", self.aside)
        if not self.is_delta:
            swap.drop(cast(Catalog, self._lake), *names)
            return
        from airflow_lakestream.cdc.swap import delta as delta_swap

        delta_swap.drop(cast(Any, self._lake), *names)

    def sink(self, consumer_group: str, *, soft_delete: bool) -> SwapSink:
        """Return the sink that replaces the mirror's rows."""
        # The table's key is taken as it is.
        design = MirrorDesign(TableDesign(metadata=pa.schema([])), soft_delete=soft_delete)
        if not self.is_delta:
            return swap.SwapSink(cast(Catalog, self._lake), self.table, consumer_group, design, self.aside)
        # An optional dependency.
        from airflow_lakestream.cdc.swap.delta import DeltaSwapSink

        return DeltaSwapSink(cast(Any, self._lake), self.table, consumer_group, design, self.aside)

    def _design(self, table: str) -> MirrorDesign:
        properties = self._properties(table)
        if properties is None:
            raise InvalidArgument("table", f"there is no table {table}.")
        note = properties.get(MIRROR)
        if note is None:
            raise InvalidArgument("table", f"{table} is no mirror.", "Only a mirror can be read again.")
        held = json.loads(note)
        return MirrorDesign(TableDesign(metadata=pa.schema([])), tuple(held["key"]), bool(held["soft_delete"]))

    def _properties(self, table: str) -> Mapping[str, str] | None:
        if self.is_delta:
            head = cast(Any, self._lake).open(table)
            return None if head is None else dict(head.properties)
        return swap.properties_of(cast(Catalog, self._lake), table)
