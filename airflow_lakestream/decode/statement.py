"""SQL as a step of a row decoder: what a statement makes of raw records, or of their decoded columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.values.outcome import BadRow, Indices, all_but


class Failed(Protocol):
    """A record on which a statement fails."""

    @property
    def index(self) -> int:
        """Which of the batch."""

    @property
    def reason(self) -> str:
        """Why."""


class Made(Protocol):
    """What a statement makes of a batch; each of its records is in exactly one of `kept`, `filtered` and `bad`."""

    @property
    def rows(self) -> pa.Table:
        """The rows."""

    @property
    def kept(self) -> Indices:
        """The record that each row was made from."""

    @property
    def filtered(self) -> Indices:
        """The records that the statement leaves out."""

    @property
    def bad(self) -> Sequence[Any]:
        """The records on which it fails, as `Failed`."""


class Statement(Protocol):
    """A statement that makes one row of each record, or none; called by several threads at once."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that it makes."""

    @property
    def input_schema(self) -> pa.Schema | None:
        """The columns that it reads, metadata columns among them; None for raw records."""

    @property
    def needs_keys(self) -> bool:
        """Whether it reads raw records' keys."""

    @property
    def needs_headers(self) -> bool:
        """Whether it reads raw records' headers."""

    def apply(self, batch: RawBatch | pa.Table) -> Made:
        """Return what becomes of each record."""


@dataclass(frozen=True)
class SqlStep:
    """Runs a statement, and keeps NULL out of columns that take none.

    :param names: which of the statement's columns land; the others are metadata columns, which a record has anyway.
    :param required: which of these may not be NULL.
    """

    statement: Statement
    names: tuple[str, ...]
    required: tuple[str, ...] = ()

    @property
    def reads_raw_records(self) -> bool:
        """Whether it is given records, not their decoded columns."""
        return self.statement.input_schema is None

    def apply(self, given: RawBatch | pa.Table) -> tuple[pa.Table, Indices, Indices, list[BadRow]]:
        """Return the rows, the record behind each, the records left out, and the bad ones."""
        made = self.statement.apply(given)
        rows, kept = made.rows.select(self.names), made.kept
        bad = [BadRow(one.index, one.reason) for one in made.bad]
        nulls: dict[int, str] = {}
        for name in self.required:
            for at in np.flatnonzero(rows[name].is_null()) if rows[name].null_count else ():
                nulls.setdefault(int(at), f"column {name}: NULL, and the column is required")
        if nulls:
            good = all_but(len(kept), list(nulls))
            bad += [BadRow(int(kept[at]), reason) for at, reason in nulls.items()]
            rows, kept = rows.take(pa.array(good)), kept[good]
        return rows, kept, made.filtered, sorted(bad, key=lambda one: one.index)
