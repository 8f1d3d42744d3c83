"""Whole rows from raw records: the payload's columns, the metadata columns, and where the row goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.ports import Decoder
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode import resolve_decoder
from airflow_lakestream.decode.infer import infer_schema
from airflow_lakestream.decode.metadata import metadata_columns, metadata_schema
from airflow_lakestream.decode.routing import Router


@dataclass(frozen=True)
class RowDecoders:
    """Makes row decoders for a format: for a schema, or for the one inferred from the first batch."""

    format: str
    unknown_fields: str
    metadata: tuple[str, ...]
    router: Router | None = None

    def __call__(self, schema: pa.Schema | None, first: RawBatch | None) -> Decoder | None:
        """Return a decoder, None without a schema and without a record; see `core.ports.DecoderFactory`."""
        if schema is None:
            if first is None:
                return None
            schema = infer_schema(first)
        # A clash of names is found before the first row: the metadata columns are built for this payload.
        metadata_schema(self.metadata, schema)
        if self.router is not None:
            self.router.check(schema)
        return RowDecoder(resolve_decoder(self.format)(schema, self.unknown_fields), self.metadata, self.router)


@dataclass(frozen=True)
class RowDecoder:
    """The payload's columns and the metadata columns side by side."""

    payload: Any
    metadata: tuple[str, ...]
    router: Router | None = None

    def decode(self, batch: RawBatch) -> pa.Table:
        """Return one row per record; see `core.ports.Decoder`."""
        rows = self.payload.decode(batch)
        columns = metadata_columns(batch, self.metadata)
        for column_field, column in zip(metadata_schema(self.metadata), columns, strict=True):
            rows = rows.append_column(column_field, column)
        for name, column in self.router.columns(batch, rows) if self.router is not None else ():
            rows = rows.append_column(name, column)
        return rows
