"""JSON documents that are decoded only as long as each field has a column: whoever can add one is told.

A field without a column ends the batch by a signal that holds it. The caller adds the column, and decodes anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.policies import OutOfRange, UnknownFields
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.json.document import Json
from airflow_lakestream.decode.values.outcome import Decoded


class WithoutColumn(Exception):
    """A signal: documents hold fields that have no column; see `json_leftovers`."""

    def __init__(self, leftovers: Mapping[int, Json]) -> None:
        super().__init__("documents hold fields that have no column")
        self.leftovers = leftovers


class WatchingDecoder:
    """Decodes JSON documents. `decode` raises WithoutColumn where a field of them has none, and is not null.

    :param schema: columns and their types.
    :param within: the members whose fields need a column.
    :param alone: see `JsonDecoder`.
    :param out_of_range: likewise.
    """

    def __init__(
        self, schema: pa.Schema, within: Sequence[str], *, alone: bool = False, out_of_range: OutOfRange | None = None
    ) -> None:
        self.schema = schema
        self._within, self._alone, self._out_of_range = tuple(within), alone, out_of_range
        self._documents = JsonDecoder(
            schema, UnknownFields.EVOLVE, within=within, alone=alone, out_of_range=out_of_range
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), alone=self._alone, out_of_range=self._out_of_range), (self.schema, self._within)

    def decode(self, batch: RawBatch) -> Decoded:
        """Return the rows of a batch, and its bad records. Raises WithoutColumn."""
        decoded, unknown = self._documents.decode_and_find(batch)
        if unknown:
            raise WithoutColumn(unknown)
        return decoded
