"""Bare keys and values: Confluent's serializers can put a schema's GUID into a header instead of the key or value.

These headers are not read. A bare key or value is not decoded even if its first bytes look like an id, nor is a
registry asked for the id: the result could be a plausible wrong row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow.compute as pc

from airflow_lakestream.core.policies import ValueFormat
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.metadata import last_header
from airflow_lakestream.decode.values.outcome import BadRow, all_but, pick
from airflow_lakestream.exceptions import InvalidArgument

KEY, VALUE = "key", "value"
_SERIALIZER = "io.confluent.kafka.serializers.schema.id.PrefixSchemaIdSerializer"


def named_by_header(side: str, format_name: str | None = None) -> str:
    """Return the problem of a bare key or value, and the remedy."""
    alternative = ', or set format="json", which needs no schema' if format_name == ValueFormat.JSON_SCHEMA else ""
    return (
        f"the id of its schema is in the header __{side}_schema_id, which is not read, and not in the {side}: set "
        f"{side}.schema.id.serializer={_SERIALIZER} in the producer{alternative}"
    )


def bare(batch: RawBatch, side: str) -> list[int]:
    """Return the positions of records with a bare key or value: the schema is in a header.

    :param side: "key" or "value".
    """
    payloads = batch.keys if side == KEY else batch.values
    if batch.headers is None or payloads is None or batch.headers.null_count == len(batch):
        return []
    # Like Confluent's own deserializers: the last header of the name counts, unless it has no value.
    schema_ids = last_header(batch.headers, f"__{side}_schema_id")
    is_bare = pc.and_(schema_ids.is_valid(), payloads.is_valid()).to_numpy(zero_copy_only=False)
    places: list[int] = np.flatnonzero(is_bare).tolist()
    return places


def bad_rows(batch: RawBatch, sides: Collection[str], format_name: str) -> Iterator[BadRow]:
    """Yield the records with a bare key or value as bad rows, each record once.

    :param sides: the sides to check, see `bare`.
    """
    reasons: dict[int, str] = {}
    if KEY in sides:
        reasons |= dict.fromkeys(bare(batch, KEY), f"the key: {named_by_header(KEY)}")
    if VALUE in sides:
        reasons |= dict.fromkeys(bare(batch, VALUE), named_by_header(VALUE, format_name))
    for place in sorted(reasons):
        yield BadRow(place, reasons[place])


def without_bare(batch: RawBatch, sides: Collection[str], format_name: str) -> RawBatch:
    """Return the first records of a topic without bare records.

    Raises InvalidArgument if each record with a value is bare: no record can be decoded.

    :param sides: the sides to check, see `bare`.
    :param format_name: the format of the values, for the error.
    """
    bad = list(bad_rows(batch, sides, format_name))
    # A tombstone has no columns, and may have a bare key.
    with_value = [row for row in bad if batch.values[row.index].is_valid]
    if with_value and len(with_value) == len(batch) - batch.values.null_count:
        reason = with_value[0].reason
        argument = "key_format" if reason.startswith("the key: ") else "format"
        problem = f"no record of the first {len(batch)} can be decoded. Of the first one: {reason}."
        raise InvalidArgument(argument, problem)
    return pick(batch, all_but(len(batch), [row.index for row in bad])) if bad else batch
