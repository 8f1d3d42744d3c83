"""Schemas named by headers: Confluent's serializers can put a schema's GUID into a header, with a bare key or value.

These headers are not read. A bare key or value is not decoded by first bytes that look like an id, nor is a registry
asked for that id: the result could be a plausible wrong row.
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
    """Return the problem of a key or a value with the schema in a header, and the remedy."""
    instead = ', or set format="json", which needs no schema' if format_name == ValueFormat.JSON_SCHEMA else ""
    return (
        f"the id of its schema is in the header __{side}_schema_id, which is not read, and not in the {side}: set "
        f"{side}.schema.id.serializer={_SERIALIZER} in the producer{instead}"
    )


def bare(batch: RawBatch, side: str) -> list[int]:
    """Return the positions of records with a bare key or value: the schema is in a header.

    :param side: "key" or "value".
    """
    there = batch.keys if side == KEY else batch.values
    if batch.headers is None or there is None or batch.headers.null_count == len(batch):
        return []
    # Like Confluent's own deserializers: the last header of the name counts, unless it has no value.
    named = last_header(batch.headers, f"__{side}_schema_id")
    found = pc.and_(named.is_valid(), there.is_valid()).to_numpy(zero_copy_only=False)
    places: list[int] = np.flatnonzero(found).tolist()
    return places


def bad_rows(batch: RawBatch, sides: Collection[str], format_name: str) -> Iterator[BadRow]:
    """Yield the records with a bare key or value as bad rows, each record once.

    :param sides: the sides to check, see `bare`.
    """
    found = {at: f"the key: {named_by_header(KEY)}" for at in (bare(batch, KEY) if KEY in sides else ())}
    if VALUE in sides:
        found |= dict.fromkeys(bare(batch, VALUE), named_by_header(VALUE, format_name))
    for at in sorted(found):
        yield BadRow(at, found[at])


def without_bare(batch: RawBatch, sides: Collection[str], format_name: str) -> RawBatch:
    """Return the batch without bare records. Raises InvalidArgument if all records are bare, except tombstones."""
    bad = list(bad_rows(batch, sides, format_name))
    if bad and len(bad) == len(batch) - batch.values.null_count:
        argument = "key_format" if bad[0].reason.startswith("the key: ") else "format"
        problem = f"no record of the first {len(batch)} can be decoded. Of the first one: {bad[0].reason}."
        raise InvalidArgument(argument, problem)
    return pick(batch, all_but(len(batch), [one.index for one in bad])) if bad else batch
