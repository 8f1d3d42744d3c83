"""SQL as a step of a row decoder, for raw records or decoded columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.values.outcome import BadRow, Indices, all_but


class StatementFailure(Protocol):
    """Record with a failure of the statement."""

    @property
    def index(self) -> int:
        """Position of the record in the batch."""

    @property
    def reason(self) -> str:
        """Reason of the failure."""


class StatementResult(Protocol):
    """Result of a statement for a batch; `kept`, `filtered` and `bad` contain each record exactly once."""

    @property
    def rows(self) -> pa.Table:
        """The rows."""

    @property
    def kept(self) -> Indices:
        """Source record of each row."""

    @property
    def filtered(self) -> Indices:
        """Records left out by the statement."""

    @property
    def bad(self) -> Sequence[Any]:
        """Records with a failure, as `StatementFailure`."""


class RowStatement(Protocol):
    """Statement with at most a row for each record; called by several threads at once."""

    @property
    def schema(self) -> pa.Schema:
        """Output columns."""

    @property
    def input_schema(self) -> pa.Schema | None:
        """Input columns, metadata columns included, or None for raw records."""

    @property
    def needs_keys(self) -> bool:
        """Whether the statement reads the keys of raw records."""

    @property
    def needs_headers(self) -> bool:
        """Whether the statement reads the headers of raw records."""

    def apply(self, batch: RawBatch | pa.Table) -> StatementResult:
        """Return the result for each record."""


@dataclass(frozen=True)
class SqlStep:
    """Step that runs a statement, and rejects NULL in required columns.

    :param names: the statement's columns that land; the others are metadata columns, which a record has anyway.
    :param required: columns among these that may not be NULL.
    """

    statement: RowStatement
    names: tuple[str, ...]
    required: tuple[str, ...] = ()

    @property
    def reads_raw_records(self) -> bool:
        """Whether the input is raw records, not decoded columns."""
        return self.statement.input_schema is None

    def apply(self, given: RawBatch | pa.Table) -> tuple[pa.Table, Indices, Indices, list[BadRow]]:
        """Return the rows, the source record of each row, the filtered records, and the bad records."""
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
