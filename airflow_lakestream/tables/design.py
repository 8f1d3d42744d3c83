"""What a user asks of a table: how it is created when missing, and what an existing one is held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema

from airflow_lakestream.core.policies import SchemaEvolution


@dataclass(frozen=True, slots=True)
class TableDesign:
    """`schema` is the payload's, None to infer it; `metadata` are the metadata columns added to each row.

    `partition_by` and `sort_order` of None ask for nothing: a new table gets none, an existing one keeps its own.
    `evolution` says how far an existing table's schema may change, `rescues` that rows come with the column RESCUED,
    which it is given in any case, and `grows` that rows may come with columns that nobody has asked for. Without a
    `schema`, `incoming` tells the columns that records have by now, for `evolution`, given those of the table, whose
    names it keeps; it may answer None.

    `argument` is what the user gave the schema by, for errors; `notes` are table properties set with each landing.
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
