"""What a decoder makes of a batch: rows, and the records that can't become one, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that can't become a row without losing something: which of the batch, and why."""

    index: int
    reason: str
    schema_id: int | None = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """One row for each record of a batch that is not bad, in the order of the records.

    `bad` is in that order, too; every record is a row or bad, so `len(rows) + len(bad)` is the length of the batch.
    """

    rows: pa.Table
    bad: Sequence[BadRow] = ()
