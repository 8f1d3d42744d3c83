"""Raw records that became no row, as the reject table keeps them: all that is needed to try again, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.metadata import NO_TIMESTAMP, bad_timestamps, metadata_columns, metadata_schema
from airflow_lakestream.decode.values.outcome import BadRow
from airflow_lakestream.decode.values.pick import pick

_RECORD = ("topic", "partition", "offset", "timestamp", "key", "headers")
# The columns of a reject table that say what the record is, and why it was rejected.
RECORD_SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("schema_id", pa.int64()),
        pa.field("stage", pa.string()),
        pa.field("error", pa.string()),
        *metadata_schema(_RECORD),
    ]
)


@dataclass(frozen=True, slots=True)
class Bad:
    """A bad record, and the step at which it was found to be one: "record", "decode", "sql", "route" or "write"."""

    row: BadRow
    stage: str


def rejected_rows(batch: RawBatch, bad: Sequence[Bad]) -> pa.Table:
    """Return the bad records of a batch with their reasons; its reason tells a timestamp that no column takes."""
    records = pick(batch, [one.row.index for one in bad])
    wrong = {row.index: row.reason for row in bad_timestamps(records)}
    timestamps = [NO_TIMESTAMP if index in wrong else at for index, at in enumerate(records.timestamps)]
    records = replace(records, timestamps=timestamps)
    columns = [
        records.values,
        pa.array([one.row.schema_id for one in bad], pa.int64()),
        pa.array([one.stage for one in bad]),
        pa.array([_with_timestamp(one.row.reason, wrong.get(index)) for index, one in enumerate(bad)]),
        *metadata_columns(records, _RECORD),
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)


def _with_timestamp(reason: str, timestamp: str | None) -> str:
    # At the end, where a replay finds it.
    return reason if timestamp is None or reason.endswith(timestamp) else f"{reason}; {timestamp}"
