"""A statement in SQL over plain records, before their key is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.keys import ColumnDecoder
from airflow_lakestream.decode.metadata import metadata_columns, metadata_schema
from airflow_lakestream.decode.values.outcome import BadRow, Indices, all_but, pick

if TYPE_CHECKING:
    from airflow_lakestream.transform import SqlTransform


@dataclass(frozen=True)
class RecordRows:
    """Result of a statement for a batch's values.

    :param kept: for each row the index of its value.
    :param filtered: the indices of the values that the statement leaves out.
    :param bad: the values that the statement can't process.
    """

    rows: pa.Table
    kept: Indices
    filtered: Indices
    bad: Sequence[BadRow]


@dataclass(frozen=True)
class RecordStatement:
    """Statement that makes each value a row, or leaves it out.

    :param transform: the statement, checked and bound.
    :param metadata: the metadata columns that a statement over decoded columns may read.
    """

    transform: SqlTransform
    metadata: tuple[str, ...]

    @property
    def columns(self) -> pa.Schema:
        """The columns of the rows."""
        return self._own(self.transform.schema)

    @property
    def decoded(self) -> pa.Schema | None:
        """The decoded columns that the statement reads, or None if the statement reads keys and values as text."""
        input_columns = self.transform.input_schema
        return None if input_columns is None else self._own(input_columns)

    def rows(self, values: RawBatch, decoder: ColumnDecoder) -> RecordRows:
        """Return the rows of values. Raises SqlFailed, and the errors of the decoder.

        :param decoder: decodes values into the columns of `decoded`; not used if the statement reads text.
        """
        input_rows: RawBatch | pa.Table = values
        places, bad = np.arange(len(values)), list[BadRow]()
        if self.decoded is not None:
            decoded = decoder.decode(values)
            bad += decoded.bad
            places = all_but(len(values), [row.index for row in decoded.bad])
            input_rows = decoded.rows
            columns = metadata_columns(pick(values, places) if decoded.bad else values, self.metadata)
            for field, column in zip(metadata_schema(self.metadata), columns, strict=True):
                input_rows = input_rows.append_column(field, column)
        output = self.transform.apply(input_rows)
        bad += [BadRow(int(places[row.index]), row.reason) for row in output.bad]
        return RecordRows(output.rows.select(self.columns.names), places[output.kept], places[output.filtered], bad)

    def _own(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns without the metadata columns."""
        names = metadata_schema(self.metadata).names
        return pa.schema([column for column in columns if column.name not in names])
