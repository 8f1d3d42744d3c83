"""Columns of a Delta table, compared by the rules that hold for Iceberg's: one place knows what fits.

The Delta table's columns are taken for those of an Iceberg table that is nowhere; what comes of it is Arrow again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types as arrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.delta.design import DeltaDesign
from airflow_lakestream.delta.write.layout import check_order, check_partitions
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.arrow_types import arrow_schema, fields_from_arrow
from airflow_lakestream.tables.schema.change import SchemaChange, change_for
from airflow_lakestream.tables.schema.columns import (
    check_compatible,
    check_metadata,
    payload_schema,
    to_schema,
    with_metadata,
)

if TYPE_CHECKING:
    from airflow_lakestream.delta.sink import DeltaSink
    from airflow_lakestream.delta.storage import Tables

_KNOWN_PROPERTIES = (
    *("delta.logRetentionDuration", "delta.deletedFileRetentionDuration", "delta.checkpointInterval"),
    *("delta.enableExpiredLogCleanup", "delta.appendOnly", "delta.targetFileSize", "delta.tuneFileSizesForRewrites"),
    *("delta.autoOptimize.autoCompact", "delta.autoOptimize.optimizeWrite", "delta.dataSkippingNumIndexedCols"),
)


def delta_design(design: TableDesign, *, widens: bool = False) -> DeltaDesign:
    """Return a design as a Delta table can have it. Raises InvalidArgument for what it can't.

    :param widens: types may become wider: the files are to be of no table.
    """
    if design.evolution is SchemaEvolution.WIDEN and not widens:
        raise InvalidArgument(
            "schema_evolution",
            '"widen": a wider type is a table feature of Delta (typeWidening) that is not written here.',
            'Set "add", or widen the column with ALTER TABLE first.',
        )
    for key in design.properties:
        if key.startswith("lakestream.") or (key.startswith("delta.") and key not in _KNOWN_PROPERTIES):
            raise InvalidArgument(
                "table_properties",
                f"{key!r} asks of all writers what is not done here, or is kept free.",
                f"Known ones: {', '.join(_KNOWN_PROPERTIES)}; and all without delta. before them.",
            )
    check_partitions(None, design.partition_by)
    check_order(None, design.sort_order)
    return DeltaDesign(
        columns=DesignedColumns(design),
        metadata=design.metadata,
        partition_by=design.partition_by,
        sort_order=design.sort_order,
        properties=design.properties,
        grows=design.grows,
        notes=design.notes,
    )


def delta_sink(tables: Tables, table: str, consumer_group: str, design: TableDesign, **settings: Any) -> DeltaSink:
    """Return the sink of a Delta table by the design that tables of all formats have."""
    # Imports Delta's libraries, which are no dependency of every installation.
    from airflow_lakestream.delta.sink import DeltaSink

    # Files that grow with their records and may widen are a mirror's events, which are of no table.
    return DeltaSink(tables, table, consumer_group, delta_design(design, widens=design.grows), **settings)


@dataclass(frozen=True)
class DesignedColumns:
    """`delta.design.Columns` of what a user asked for."""

    design: TableDesign

    def asked_for(self) -> ColumnFit | None:
        """Return the columns of a new table; None where the first rows have to say them."""
        payload = self.design.schema
        return None if payload is None else self._new(payload)

    def of_rows(self, rows: pa.Schema) -> ColumnFit:
        """Return the columns of a new table with such rows."""
        if self.design.schema is not None:
            return self._new(self.design.schema)
        return self._new(to_schema(pa.schema([f for f in rows if f.name not in self.design.metadata.names])))

    def fit(self, held: pa.Schema, table: str) -> ColumnFit:
        """Return what becomes of a table's columns. Raises InvalidArgument where they contradict the design."""
        design = self.design
        for name in _narrow_integers(held, ""):
            raise InvalidArgument(
                "table", f"{table} has a column {name!r} of Delta's byte or short.", "Make it an int with ALTER TABLE."
            )
        change = change_for(design, _metadata(to_schema(held, "table")), table)
        if design.schema is not None:
            check_compatible(design.schema, change.schema, table, design.metadata, design.argument)
        else:
            check_metadata(change.schema, table, design.metadata)
        return ColumnFit(design, change)

    def _new(self, payload: Schema) -> ColumnFit:
        return ColumnFit(self.design, SchemaChange.none(_metadata(with_metadata(payload, self.design.metadata))))


@dataclass(frozen=True)
class ColumnFit:
    """`delta.design.Fit`: a table's columns with the change that the next commit makes."""

    design: TableDesign
    change: SchemaChange

    @property
    def schema(self) -> pa.Schema:
        """All columns."""
        return arrow_schema(self.change.schema)

    @property
    def decoder(self) -> pa.Schema:
        """The columns that decoders fill."""
        design = self.design
        return payload_schema(self.change.schema, design.metadata.names, design.schema, with_others=design.grows)

    @property
    def changes(self) -> tuple[str, ...]:
        """What is changed, in words."""
        return self.change.texts

    def grown(self, rows: pa.Schema) -> tuple[ColumnFit, tuple[str, ...]]:
        """Return the columns with room for these rows, and what can't be had of it."""
        # Without a table that widens, only those that are written for none do.
        policy = max(self.design.evolution, SchemaEvolution.ADD, key=list(SchemaEvolution).index)
        change, problems = self.change.and_then(fields_from_arrow(rows, "rows"), policy)
        return replace(self, change=change), problems

    def made(self) -> ColumnFit:
        """Return the columns as they are once the change is made."""
        return replace(self, change=SchemaChange.none(self.change.metadata))


def _metadata(schema: Schema) -> TableMetadata:
    return new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "", {"format-version": "2"})


def _narrow_integers(fields: pa.Schema | pa.DataType, path: str) -> Iterator[str]:
    for field in fields:
        if arrow.is_int8(field.type) or arrow.is_int16(field.type):
            yield path + field.name
        elif arrow.is_struct(field.type):
            yield from _narrow_integers(field.type, f"{path}{field.name}.")
