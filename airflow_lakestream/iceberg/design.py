"""What a user asks of a table: how it is created when missing, and what an existing one is held to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema


@dataclass(frozen=True, slots=True)
class TableDesign:
    """`schema` is the payload's, None to infer it; `metadata` are the metadata columns added to each row.

    `partition_by` and `sort_order` of None ask for nothing: a new table gets none, an existing one keeps its own.
    """

    metadata: pa.Schema
    schema: Schema | None = None
    partition_by: tuple[str, ...] | None = None
    sort_order: tuple[str, ...] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
