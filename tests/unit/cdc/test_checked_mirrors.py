"""Mirrors whose new rows are checked before they show: complete, as the merge has made them; or all is as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.iceberg import mirror_sink
from airflow_lakestream.config.checks import auditor_of
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.faults import FAILED, FaultyCatalog, applied, before, unapplied
from tests.support.mirroring import IDENTITY, TABLE, Event, HandDeltaMirror, HandMirror, landing_of, rows_of

KINDS: dict[str, Any] = {
    "copy": (HandMirror, MergeMode.COPY_ON_WRITE),
    "read": (HandMirror, MergeMode.MERGE_ON_READ),
    "delta": (HandDeltaMirror, MergeMode.AUTO),
}


@pytest.fixture(params=KINDS)
def mirror(tmp_path: Path, request: pytest.FixtureRequest) -> HandMirror:
    kind, mode = KINDS[request.param]
    made: HandMirror = kind(tmp_path, modes=[mode])
    return made


def upsert(key: int, name: str | None, big: str, at: int, op: str = "u") -> Event:
    return Event(op, key, (name, big), at, at, offset=at)


def land(mirror: HandMirror, events: Sequence[Event], **checks: Any) -> None:
    mirror.design = replace(mirror.design, auditor=auditor_of({"checks": checks}))
    mirror.land(events)


def files(tmp_path: Path) -> set[str]:
    return {path.name for path in tmp_path.rglob("*.parquet")}


def test_new_versions_of_rows_are_checked_with_the_values_that_events_leave_out(
    mirror: HandMirror, tmp_path: Path
) -> None:
    land(mirror, [upsert(1, "a", "x", 0, "c"), upsert(2, "b", "y", 1, "c")], not_null="name", unique="id")
    there, known = mirror.found(), files(tmp_path)
    events = [upsert(1, "c", UNAVAILABLE, 2), upsert(3, "d", "z", 3, "c")]
    with pytest.raises(ChecksFailed) as caught:
        land(mirror, events, sql="SELECT * FROM landing WHERE big = 'x'")
    assert "_kafka_offset=2" in str(caught.value)
    assert f"the rows of {IDENTITY.topic}[0] [2,4) did not pass" in str(caught.value)
    assert "their events are in Kafka" in str(caught.value)
    assert (mirror.found(), files(tmp_path)) == (there, known)
    # Rows that do not change are not looked at.
    land(mirror, events, sql="SELECT * FROM landing WHERE big = 'y'", row_count={"max": 2})
    assert mirror.rows() == {1: ("c", "x"), 2: ("b", "y"), 3: ("d", "z")}
    # A deletion brings no row.
    land(mirror, [Event("d", 2, None, 4, 4, offset=4)], not_null="name")
    assert mirror.rows() == {1: ("c", "x"), 3: ("d", "z")}


def test_a_mirror_whose_first_rows_do_not_pass_is_not_made(mirror: HandMirror, tmp_path: Path) -> None:
    events = [upsert(1, None, "x", 0, "c")]
    with pytest.raises(ChecksFailed, match="not_null: name: NULL in 1 of the rows"):
        land(mirror, events, not_null="name")
    assert files(tmp_path) == set()
    land(mirror, events, not_null="big")
    assert mirror.rows() == {1: (None, "x")}


@pytest.mark.parametrize("fault", [unapplied(FAILED), applied(FAILED), None], ids=["failed", "applied", "moved"])
def test_a_merge_that_is_made_again_is_checked_again(tmp_path: Path, fault: Any) -> None:
    mirror = HandMirror(tmp_path)
    land(mirror, [upsert(1, "a", "x", 0, "c")], not_null="name")
    other = before(lambda: mirror.table().append(pa.table({"id": [9]})))
    design = replace(mirror.design, auditor=auditor_of({"checks": {"row_count": {"max": 1}}}))
    catalog: Any = FaultyCatalog(mirror.catalog, other if fault is None else fault)
    events = [upsert(1, "b", "y", 1)]
    sink = mirror_sink(catalog, TABLE, "g", design)
    sink.load("run")
    sink.write(rows_of(events, mirror.kind), IDENTITY)
    sink.commit(landing_of(events))
    assert mirror.rows()[1] == ("b", "y")


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ({"freshness": "1h"}, r"checks\.freshness: is not for a mirror"),
        ({"row_count": {"max_of_week": 2}}, r"checks\.row_count: min_of_week and max_of_week are not for a mirror"),
        ({"sql": "SELEC"}, r"checks\.sql"),
    ],
    ids=["freshness", "week", "sql"],
)
def test_checks_that_a_mirror_can_not_have(checks: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        MirrorConfig(topic="t", table="lake.t", consumer_group="g", checks=checks)
    assert MirrorConfig(topic="t", table="lake.t", consumer_group="g", checks={"unique": "id"}).mirror.auditor
