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
    """Rows of a batch's values: each value is a row, filtered, or bad; the indices are those of the values."""

    rows: pa.Table
    kept: Indices
    filtered: Indices
    bad: Sequence[BadRow]


@dataclass(frozen=True)
class RecordStatement:
    """Statement that makes each value a row, or leaves it out.

    :param transform: the statement, checked and bound.
    :param metadata: the metadata columns that it may read, if it reads decoded columns.
    """

    transform: SqlTransform
    metadata: tuple[str, ...]

    @property
    def columns(self) -> pa.Schema:
        """The columns of the rows."""
        return self._own(self.transform.schema)

    @property
    def decoded(self) -> pa.Schema | None:
        """The decoded columns that it reads, or None if it reads keys and values as text."""
        given = self.transform.input_schema
        return None if given is None else self._own(given)

    def rows(self, values: RawBatch, decoder: ColumnDecoder) -> RecordRows:
        """Return the rows of values. Raises SqlFailed, and the errors of the decoder.

        :param decoder: of the columns of `decoded`; not used for text.
        """
        given: RawBatch | pa.Table = values
        places, bad = np.arange(len(values)), list[BadRow]()
        if self.decoded is not None:
            found = decoder.decode(values)
            bad += found.bad
            places = all_but(len(values), [row.index for row in found.bad])
            given = found.rows
            columns = metadata_columns(pick(values, places) if found.bad else values, self.metadata)
            for one, column in zip(metadata_schema(self.metadata), columns, strict=True):
                given = given.append_column(one, column)
        made = self.transform.apply(given)
        bad += [BadRow(int(places[one.index]), one.reason) for one in made.bad]
        return RecordRows(made.rows.select(self.columns.names), places[made.kept], places[made.filtered], bad)

    def _own(self, columns: pa.Schema) -> pa.Schema:
        names = metadata_schema(self.metadata).names
        return pa.schema([one for one in columns if one.name not in names])
