"""Guessed columns of a new file: likely times become times where the name says so, too, and are noted elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.infer import infer_schema
from airflow_lakestream.decode.json.kinds import kinds_of
from airflow_lakestream.onramp.dag_file import is_of_a_time, with_likely_times
from airflow_lakestream.tables.schema.columns import to_schema, to_timed_schema
from airflow_lakestream.tables.schema.types import schema_text

MS = 1_763_596_800_123


def guessed(*documents: Any) -> tuple[str, list[str]]:
    values = pa.array([json.dumps(one).encode() for one in documents], pa.binary())
    batch = RawBatch("t", 3, range(100, 100 + len(values)), [0] * len(values), values)
    columns, notes = with_likely_times(schema_text(to_schema(infer_schema(batch))), kinds_of([batch]))
    to_timed_schema(columns)
    return columns, list(notes)


def test_times_become_times_wherever_they_stand_and_the_note_has_the_way_back() -> None:
    document = {"shippedAt": MS, "ts": MS / 1000, "o": {"time": MS * 1000}, "l": [{"scans": [{"at": MS}]}]}
    columns, notes = guessed(document, document)
    assert columns == (
        "shippedAt timestamp from epoch_ms, ts timestamp from epoch_s, o struct<time: timestamp from epoch_us>, "
        "l array<struct<scans: array<struct<at: timestamp from epoch_ms>>>>"
    )
    assert notes[0] == (
        f"shippedAt: 2 integers, likely milliseconds since the epoch (such as {MS} at [3] 100). They land as times; "
        "bigint as its type lands the numbers."
    )
    assert [note.partition(":")[0] for note in notes] == ["shippedAt", "ts", "o.time", "l[].scans[].at"]


@pytest.mark.parametrize(
    ("documents", "columns", "note"),
    [
        # A phone number looks like seconds.
        ([{"phone": 2_125_551_234}], "phone bigint", '"phone timestamp from epoch_s" in the file\'s schema'),
        ([{"at": MS}, {"at": 12}], "at bigint", None),
        ([{"at": MS}] * 9 + [{"at": "soon"}], "at string", '"at timestamp from epoch_ms"'),
        ([{"at": "2026-11-20T05:05:00Z"}], "at timestamp", None),
    ],
)
def test_what_is_not_sure_keeps_its_type(documents: list[Any], columns: str, note: str | None) -> None:
    found, notes = guessed(*documents)
    assert found == columns
    assert [one for one in notes if note is None or note not in one] == []
    assert len(notes) == (note is not None)


@pytest.mark.parametrize(
    "name", ["at", "shippedAt", "created_at", "ts", "tsMs", "event_time", "eventTIME", "o.updated"]
)
def test_names_of_times(name: str) -> None:
    assert is_of_a_time(name)


@pytest.mark.parametrize(
    "name", ["id", "phone", "time_zone_id", "timestampCount", "format", "state", "timeout", "at.id"]
)
def test_names_of_other_things(name: str) -> None:
    assert not is_of_a_time(name)
