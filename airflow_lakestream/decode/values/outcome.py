"""What a decoder makes of a batch: rows, and the records that can't become one, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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

    @classmethod
    def without(cls, reasons: Mapping[int, str], columns: Sequence[pa.Array], schema: pa.Schema) -> Decoded:
        """Return columns of all records, without those that are bad by these reasons."""
        if reasons:
            kept = pa.array(good_ones(len(columns[0]), reasons))
            columns = [column.filter(kept) for column in columns]
        rows = pa.Table.from_arrays(columns, schema=schema)
        return cls(rows, [BadRow(index, reasons[index]) for index in sorted(reasons)])

    def refined(
        self, places: npt.NDArray[np.int64], reasons: Mapping[int, str], columns: Sequence[pa.Array], schema: pa.Schema
    ) -> Decoded:
        """Return other columns of the rows, without those that turned out to be bad.

        :param places: where the rows' records stand in the batch.
        """
        rest = Decoded.without(reasons, columns, schema)
        bad = [*self.bad, *(BadRow(int(places[row.index]), row.reason) for row in rest.bad)]
        return Decoded(rest.rows, sorted(bad, key=lambda row: row.index))

    def whole(self, batch: RawBatch) -> pa.Table:
        """Return the rows of the batch that was decoded. Raises BadRecord for the first record that is bad."""
        for bad in self.bad:
            raise BadRecord(batch.topic, batch.partition, batch.offsets[bad.index], bad.reason)
        return self.rows


def good_ones(count: int, bad: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Tell of each of `count` records whether it is not among the bad ones."""
    good = np.ones(count, np.bool_)
    good[list(bad)] = False
    return good
