"""Requirements of a user on a table: schema and layout of a new table, columns of an existing table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.core.policies import SchemaEvolution


@dataclass(frozen=True, slots=True)
class TableDesign:
    """Requirements on a table, for the creation and for each later landing.

    :param metadata: the metadata columns added to each row.
    :param schema: the columns of the payload; None to infer the columns from records.
    :param partition_by: terms of the partitions. None: a new table has no partitions, an existing table keeps its own.
    :param sort_order: terms of the order of rows. None: a new table has no order, an existing table keeps its own.
    :param properties: the properties of a new table.
    :param evolution: the allowed changes of an existing table's schema.
    :param rescues: rows have the column RESCUED. A table without this column gets it, even if `evolution` allows no
        change.
    :param grows: rows may have columns that the design does not contain; the table gets these columns.
    :param incoming: used without a `schema`, for `evolution`: returns the columns of the records read so far, or None
        if no columns are known. The argument is the table's columns, and the result keeps their names.
    :param argument: the operator's argument that gave the schema, for errors.
    :param notes: table properties that each landing sets.
    """

    metadata: pa.Schema
    schema: Schema | None = None
    partition_by: tuple[str, ...] | None = None
    sort_order: tuple[str, ...] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    evolution: SchemaEvolution = SchemaEvolution.NONE
    rescues: bool = False
    grows: bool = False
    incoming: Callable[[pa.Schema], pa.Schema | None] | None = None
    argument: str = "schema"
    notes: Mapping[str, str] = field(default_factory=dict)
