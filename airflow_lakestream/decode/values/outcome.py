"""What a decoder makes of a batch: rows, and the records that can't become one, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.exceptions import BadRecord


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

    def whole(self, batch: RawBatch) -> pa.Table:
        """Return the rows of the batch that was decoded. Raises BadRecord for the first record that is bad."""
        for bad in self.bad:
            raise BadRecord(batch.topic, batch.partition, batch.offsets[bad.index], bad.reason)
        return self.rows
