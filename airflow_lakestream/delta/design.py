"""What a user asks of a Delta table, and who knows about columns: schemas are compared in one place for all formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa


class Fit(Protocol):
    """A table's columns as they are to be with the next commit."""

    @property
    def schema(self) -> pa.Schema:
        """All columns, those that are to be added included."""

    @property
    def decoder(self) -> pa.Schema:
        """The columns that decoders fill."""

    @property
    def changes(self) -> tuple[str, ...]:
        """What is changed, in words."""

    def grown(self, rows: pa.Schema) -> tuple[Fit, tuple[str, ...]]:
        """Return the columns with room for these rows, and what can't be had of it."""

    def made(self) -> Fit:
        """Return the columns as they are once the change is made."""


class Columns(Protocol):
    """Compares what is asked for with what is there."""

    def asked_for(self) -> Fit | None:
        """Return the columns of a new table; None where the first rows have to say them."""

    def of_rows(self, rows: pa.Schema) -> Fit:
        """Return the columns of a new table with such rows."""

    def fit(self, held: pa.Schema, table: str) -> Fit:
        """Return what becomes of a table's columns. Raises InvalidArgument where they contradict the design."""


@dataclass(frozen=True)
class DeltaDesign:
    """How a table is created when missing, and what an existing one is held to; see `tables.design`."""

    columns: Columns
    metadata: pa.Schema
    partition_by: tuple[str, ...] | None = None
    sort_order: tuple[str, ...] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    grows: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
