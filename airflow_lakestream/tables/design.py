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

    `schema` is the payload's, or None to infer it; `metadata` are the metadata columns added to each row.

    A `partition_by` or `sort_order` of None asks for nothing: a new table gets none, an existing table keeps its own.
    `evolution` limits the changes of an existing table's schema. If `rescues` is set, rows have the column RESCUED,
    which the table gets in any case. If `grows` is set, rows may have columns that the design does not contain. Without
    a `schema`, `incoming` returns the columns of the records read so far, for `evolution`; its argument is the table's
    columns, whose names it keeps. It may return None.

    `argument` is the operator's argument that gave the schema, for errors; `notes` are table properties that each
    landing sets.
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
