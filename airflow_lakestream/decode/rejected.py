"""Raw records without a row, for the reject table: everything for another try, and the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from airflow_lakestream.core.records import RawBatch, RecordPart
from airflow_lakestream.decode.metadata import NO_TIMESTAMP, bad_timestamps, metadata_columns, metadata_schema
from airflow_lakestream.decode.values.outcome import BadRow, pick

_RECORD = ("topic", "partition", "offset", "timestamp", "key", "headers")
REJECTED_PARTS = RecordPart.of(_RECORD)
# The columns of a reject table: the record, and the reason of the rejection.
RECORD_SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("schema_id", pa.int64()),
        pa.field("stage", pa.string()),
        pa.field("error", pa.string()),
        # As the record has it: producers may write any 64 bits, and a column of timestamps has a range.
        pa.field("timestamp_ms", pa.int64()),
        *metadata_schema(_RECORD),
    ]
)


# The steps at which a record may turn out to be bad.
STAGES = ("record", "decode", "sql", "route", "write")


@dataclass(frozen=True, slots=True)
class StageFailure:
    """A bad record, with the step of `STAGES`."""

    row: BadRow
    stage: str


def rejected_rows(batch: RawBatch, bad: Sequence[StageFailure]) -> pa.Table:
    """Return the bad records of a batch as rows of a reject table, each with its reason and stage.

    `_kafka_timestamp` is null if the record's timestamp is out of range; `timestamp_ms` has it in any case.
    """
    records = pick(batch, [one.row.index for one in bad])
    timestamps = list(records.timestamps)
    for row in bad_timestamps(records):
        timestamps[row.index] = NO_TIMESTAMP
    columns = [
        records.values,
        pa.array([one.row.schema_id for one in bad], pa.int64()),
        pa.array([one.stage for one in bad]),
        pa.array([one.row.reason for one in bad]),
        pa.array(records.timestamps, pa.int64()),
        *metadata_columns(replace(records, timestamps=timestamps), _RECORD),
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)


def timestamps_of(rows: pa.Table) -> list[int]:
    """Return the original timestamps of rejected records, in milliseconds; -1 for a record without a timestamp."""
    # Not by Python's datetime, which ends with the year 9999.
    micros = rows["_kafka_timestamp"].cast(pa.int64()).to_pylist()
    written = rows["timestamp_ms"].to_pylist() if "timestamp_ms" in rows.column_names else [None] * len(rows)
    errors = rows["error"].to_pylist()
    return [_of_earlier_version(*row) if at is None else at for at, *row in zip(written, micros, errors, strict=True)]


# Rows of earlier versions have no such column; if the timestamp is out of range, their reason contains it.
_BAD_TIMESTAMP = re.compile(r"the record's timestamp (-?\d+) ms is out of range$")


def _of_earlier_version(micros: int | None, error: str) -> int:
    if micros is not None:
        return micros // 1000
    match = _BAD_TIMESTAMP.search(error)
    return int(match[1]) if match else NO_TIMESTAMP
