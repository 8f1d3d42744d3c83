"""The landings of a Delta table, told from its log: through foreign commits, a RESTORE, and a log that was cut."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_lakestream.core.codec import encode_summary
from airflow_lakestream.core.event_cursor import EventCursor
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.watching.streams.delta import DeltaStreams

BEGINNING = EventCursor()
ROWS = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "t")


def land(place: str, number: int, group: str = "g") -> None:
    entry = TopicEntry(landed=RangeSet.of("orders", 0, number, number + 1), counts=Counts(1, 1))
    landing = Landing(f"id-{number}", "run", {TopicIdentity("orders", "id", "cluster"): entry})
    append(place, encode_summary(group, landing))


def append(place: str, summary: dict[str, str] | None = None) -> None:
    properties = CommitProperties(custom_metadata=summary or {})
    write_deltalake(place, ROWS, mode="append", commit_properties=properties)


def streams(place: str) -> DeltaStreams:
    found = DeltaStreams.at(DeltaStorage(), place)
    assert found is not None
    return found


def told(place: str, cursor: EventCursor = BEGINNING, group: str | None = None) -> list[tuple[str, int]]:
    found = streams(place).after(cursor, group)
    return [(one.event["landing_id"], one.event["sequence"]) for one in found.landings]


def test_landings_are_told_in_order_and_other_commits_are_not(place: str) -> None:
    land(place, 0)
    append(place)
    land(place, 1, group="other")
    DeltaTable(place).restore(0)
    land(place, 2)
    assert told(place) == [("id-0", 1), ("id-1", 3), ("id-2", 5)]
    assert told(place, group="other") == [("id-1", 3)]
    [last] = streams(place).after(EventCursor(3, 2, streams(place).head.table_id)).landings
    assert (last.event["snapshot_id"], last.event["ranges"]) == ("4", {"orders": [[0, 2, 3]]})
    assert last.cursor == streams(place).cursor() == EventCursor(5, 4, streams(place).head.table_id)
    assert told(place, last.cursor) == []


def test_a_table_that_was_made_anew_is_told_from_its_beginning(place: str) -> None:
    land(place, 0)
    assert told(place, EventCursor(9, 8, "another table")) == [("id-0", 1)]


def test_a_log_that_was_cut_is_said(place: str) -> None:
    for number in range(3):
        land(place, number)
    DeltaTable(place).create_checkpoint()
    (Path(place) / "_delta_log" / "00000000000000000000.json").unlink()
    found = streams(place).after(EventCursor())
    assert [one.event["earlier_expired"] for one in found.landings] == [True, False]
