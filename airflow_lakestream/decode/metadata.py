"""Metadata columns: the Kafka record of each row."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.names import METADATA_NAMES as METADATA_NAMES
from airflow_lakestream.core.records import RawBatch, RecordPart
from airflow_lakestream.decode.values.outcome import BadRow
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue
from airflow_lakestream.tables.schema.value_ranges import MAX_MILLIS, MIN_MILLIS

NO_TIMESTAMP = -1


def metadata_schema(names: Iterable[str], payload: pa.Schema | None = None) -> pa.Schema:
    """Return the metadata columns of these names, in this order.

    Raises UnknownValue for an unknown name, InvalidArgument for a name given twice or for a column that `payload` has,
    too.
    """
    fields = []
    for name in names:
        if name not in _COLUMNS:
            raise UnknownValue("metadata_columns", name, _COLUMNS)
        field = _COLUMNS[name][0]
        if field in fields:
            raise InvalidArgument("metadata_columns", f"{name!r} is listed twice.")
        if payload is not None and field.name in payload.names:
            remedy = f"Rename the field, or leave {name!r} out."
            raise InvalidArgument("metadata_columns", f"the payload has a column {field.name}, too.", remedy)
        fields.append(field)
    return pa.schema(fields)


def metadata_columns(batch: RawBatch, names: Iterable[str]) -> list[pa.Array]:
    """Return an array for each name, with an entry for each record; no timestamp may be out of range.

    A record without a timestamp has null. Raises InvalidArgument if a part of the records was not read.
    """
    names = list(names)
    metadata_schema(names)
    return [_COLUMNS[name][1](batch) for name in names]


def _topic(batch: RawBatch) -> pa.Array:
    return pa.repeat(batch.topic, len(batch))


def _partition(batch: RawBatch) -> pa.Array:
    return pa.repeat(pa.scalar(batch.partition, pa.int32()), len(batch))


def _offset(batch: RawBatch) -> pa.Array:
    return _integers(batch.offsets)


def _integers(values: Sequence[int]) -> pa.Array:
    if isinstance(values, range) and len(values):
        # A running sum makes the numbers without a Python object for each.
        steps = pa.repeat(pa.scalar(values.step, pa.int64()), len(values))
        return pc.cumulative_sum(steps, start=pa.scalar(values.start - values.step, pa.int64()))
    # Through an array of machine integers: Arrow takes five times as long over Python's own.
    numbers = values if isinstance(values, array) else array("q", values)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def bad_timestamps(batch: RawBatch) -> list[BadRow]:
    """Return the records with timestamps outside a column's range as bad rows: producers may write any 64 bits."""
    millis = np.asarray(batch.timestamps, np.int64)
    if not len(millis) or MIN_MILLIS <= millis.min() <= millis.max() <= MAX_MILLIS:
        return []
    wrong = np.flatnonzero((millis < MIN_MILLIS) | (millis > MAX_MILLIS))
    return [BadRow(int(at), f"the record's timestamp {millis[at]} ms is out of range") for at in wrong]


def _timestamp(batch: RawBatch) -> pa.Array:
    millis = _integers(batch.timestamps)
    millis = pc.if_else(pc.equal(millis, NO_TIMESTAMP), pa.scalar(None, pa.int64()), millis)
    return pc.multiply_checked(millis, 1000).cast(pa.timestamp("us", "UTC"))


def _read(part: RecordPart, batch: RawBatch) -> pa.Array:
    if (column := getattr(batch, part)) is None:
        raise InvalidArgument("metadata_columns", f"the records were read without their {part}.")
    return column


def last_header(headers: pa.Array, name: str) -> pa.Array:
    """Return the value of each record's last header of a name, like Kafka's lastHeader(), else null."""
    pairs = pc.list_flatten(headers)
    owners = pc.list_parent_indices(headers).to_numpy()
    named = np.flatnonzero(pc.equal(pairs.field("key"), name))
    # For a record with several such headers, the last assignment counts.
    places = np.full(len(headers), -1, np.int64)
    places[owners[named]] = named
    return pairs.field("value").take(pa.array(places, mask=places < 0))


HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

_COLUMNS: dict[str, tuple[pa.Field, Callable[[RawBatch], pa.Array]]] = {
    "topic": (pa.field("_kafka_topic", pa.string()), _topic),
    "partition": (pa.field("_kafka_partition", pa.int32()), _partition),
    "offset": (pa.field("_kafka_offset", pa.int64()), _offset),
    "timestamp": (pa.field("_kafka_timestamp", pa.timestamp("us", "UTC")), _timestamp),
    "key": (pa.field("_kafka_key", pa.binary()), partial(_read, RecordPart.KEY)),
    "headers": (pa.field("_kafka_headers", HEADERS), partial(_read, RecordPart.HEADERS)),
    "timestamp_type": (pa.field("_kafka_timestamp_type", pa.string()), partial(_read, RecordPart.TIMESTAMP_TYPE)),
}
# The metadata column of each part.
PART_FIELDS = {part: _COLUMNS[part.name.lower()][0] for part in RecordPart}
