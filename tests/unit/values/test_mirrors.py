"""A mirror takes NULL structs and the ends of the years, and says which event it can't take."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.run.job import build_job
from tests.support.given_records import GROUP, TOPIC, GivenLake, GivenTopic, Record

LAKES = pytest.mark.parametrize("table_format", ["iceberg", "delta"])
SCHEMA = "id bigint not null, st struct<a: bigint not null>, at timestamp"


def event(op: str, key: int, at: int, st: Any = None, when: str | None = None) -> Record:
    after = None if op == "d" else {"id": key, "st": st, "at": when}
    before = {"id": key, "st": st, "at": when} if op == "d" else None
    value = {"before": before, "after": after, "op": op, "source": {"ts_ms": at, "lsn": at}, "ts_ms": at}
    return Record(json.dumps(value).encode(), key=json.dumps({"id": key}).encode())


def mirror(lake: GivenLake, events: Sequence[Record], **config: Any) -> LandingReport:
    asked = {"topic": TOPIC.topic, "table": lake.name, "consumer_group": GROUP, "table_format": lake.table_format}
    made = MirrorConfig(**(asked | {"key": ["id"], "schema": SCHEMA} | config))
    tables: Any = lake.catalog() if lake.table_format == "iceberg" else DeltaStorage()
    topic: Any = GivenTopic(events)
    return land(replace(build_job(made, {}, tables, run_id=uuid.uuid4().hex), source=topic, reader=topic))


def states(lake: GivenLake) -> list[tuple[int, Any, Any]]:
    rows = lake.by_pyiceberg() if lake.table_format == "iceberg" else lake.by_duckdb()
    return sorted((row["id"], row["st"], row["at"] and row["at"].astimezone(dt.UTC)) for row in rows)


@LAKES
def test_null_structs_come_go_and_change(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    events = [event("c", 1, 1), event("c", 2, 2, {"a": 2}), event("c", 3, 3), Record(None, key=b'{"id":9}')]
    mirror(lake, events)
    assert states(lake) == [(1, None, None), (2, {"a": 2}, None), (3, None, None)]

    events += [event("u", 2, 4), event("d", 3, 5), event("u", 1, 6, {"a": 5}), event("c", 4, 7)]
    mirror(lake, events)
    assert states(lake) == [(1, {"a": 5}, None), (2, None, None), (4, None, None)]

    # The rows of files that are written anew have NULL structs, too.
    mirror(lake, [*events, event("u", 1, 8)])
    assert states(lake) == [(1, None, None), (2, None, None), (4, None, None)]


@LAKES
def test_deleted_rows_that_stay_may_have_null_structs(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    mirror(lake, [event("c", 1, 1), event("d", 1, 2)], soft_delete=True)
    assert states(lake) == [(1, None, None)]


@LAKES
def test_the_ends_of_the_years_are_mirrored_and_what_is_beyond_is_named(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    ends = [event("c", 1, 1, when="0001-01-01T00:00:00Z"), event("c", 2, 2, when="9999-12-31T23:59:59.999999Z")]
    mirror(lake, ends)
    first, last = dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)
    assert states(lake) == [(1, None, first), (2, None, last)]

    with pytest.raises(MirrorStopped, match=r"offset 2.*10000-01-01T00:00:00Z.*value-out-of-range"):
        mirror(lake, [*ends, event("c", 3, 3, when="10000-01-01T00:00:00Z")])
    with pytest.raises(BadRecord, match=r"given\[0\] offset 2: after.st.a: "):
        mirror(lake, [*ends, event("c", 3, 3, st={"a": None})])
    assert len(states(lake)) == 2
