"""Batches and decoders for these tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.decoder import JsonDecoder


def batch(values: Sequence[bytes | None], first: int = 1000) -> RawBatch:
    """Return a batch of these values; offsets with holes, so that an index is never taken for an offset."""
    offsets = [first + 3 * i for i in range(len(values))]
    return RawBatch("orders", 7, offsets, [-1] * len(values), pa.array(values, pa.binary()))


def one_by_one(schema: pa.Schema, unknown_fields: str = "ignore") -> JsonDecoder:
    """Return a decoder that never takes the bulk path."""
    decoder = JsonDecoder(schema, unknown_fields)
    decoder._layouts = decoder._bulk = None
    return decoder


def column(kind: pa.DataType | pa.Field) -> pa.Schema:
    """Return a schema of the one column `v`."""
    return pa.schema([kind if isinstance(kind, pa.Field) else pa.field("v", kind)])


def shown(value: Any) -> str:
    """Return a value as text: unlike ==, it tells -0.0 from 0.0, True from 1 and 1.50 from 1.5."""
    return repr(value).replace("zoneinfo.ZoneInfo(key='UTC')", repr(UTC))


def decoded(decoder: JsonDecoder, records: RawBatch) -> pa.Table:
    """Return the rows of records that are all good. Raises BadRecord for the first that is not."""
    return decoder.decode(records).whole(records)
