"""Raw records as the input table of a statement."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.records import RawBatch, RecordPart
from airflow_lakestream.transform.outcome import FailedRecord

_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_TIMESTAMP = pa.timestamp("us", "UTC")
_MAX_MILLIS = (2**63 - 1) // 1000

RAW_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.string()),
        ("event_timestamp", _TIMESTAMP),
        ("headers", _HEADERS),
        ("_kafka_topic", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
        ("_kafka_timestamp", _TIMESTAMP),
        ("_kafka_key", pa.binary()),
        ("_kafka_headers", _HEADERS),
    ]
)
PARTS = {
    "key": RecordPart.KEY,
    "_kafka_key": RecordPart.KEY,
    "headers": RecordPart.HEADERS,
    "_kafka_headers": RecordPart.HEADERS,
}


def raw_columns(batch: RawBatch, columns: Collection[str]) -> tuple[dict[str, pa.Array], list[FailedRecord]]:
    """Return columns of the records, by name, and the bad records.

    A record is bad if the text of a column is not UTF-8, or if its timestamp is out of range. The column then has NULL
    for it.

    :param columns: the names of the columns to return.
    """
    made: dict[str, pa.Array] = {}
    bad: dict[int, str] = {}
    for field in RAW_SCHEMA:
        if field.name in columns:
            made[field.name] = _column(field.name, batch, bad)
    return made, [FailedRecord(index, bad[index]) for index in sorted(bad)]


def _column(name: str, batch: RawBatch, bad: dict[int, str]) -> pa.Array:
    count = len(batch)
    if name == "value":
        return _text("value", batch.values, bad)
    if name == "key":
        return _text("key", batch.keys, bad)
    if name in ("event_timestamp", "_kafka_timestamp"):
        return _timestamps(batch, bad)
    if name in PARTS:
        return getattr(batch, PARTS[name])
    if name == "_kafka_offset":
        return pa.array(np.asarray(batch.offsets, np.int64))
    value = pa.scalar(batch.topic) if name == "_kafka_topic" else pa.scalar(batch.partition, pa.int32())
    return pa.repeat(value, count)


def _text(name: str, values: pa.Array | pa.ChunkedArray, bad: dict[int, str]) -> pa.Array:
    # Returns the bytes as text, null for invalid UTF-8; `bad` gets the reasons.
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = []
        for index, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError as error:
                bad[index] = f"{name}: it is not UTF-8 text (byte {error.start})"
                texts.append(None)
        return pa.array(texts, pa.string())


def _timestamps(batch: RawBatch, bad: dict[int, str]) -> pa.Array:
    millis = np.asarray(batch.timestamps, np.int64)
    # Producers may write any 64-bit number.
    wrong = (millis > _MAX_MILLIS) | (millis < -_MAX_MILLIS)
    for index in np.flatnonzero(wrong):
        bad[int(index)] = f"the record's timestamp {millis[index]} ms is out of range"
    none = wrong | (millis == -1)
    return pa.array(np.where(none, 0, millis) * 1000, mask=none).cast(_TIMESTAMP)
