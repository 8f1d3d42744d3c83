"""First landings of a mirror by two runs at once: one run creates the mirror, the other one lands again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from airflow_lakestream.cdc import delta, iceberg
from airflow_lakestream.cdc.merge import memory
from airflow_lakestream.cdc.merge.memory import entry_schema
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import Conflict, StaleFiles
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.tables.schema.columns import to_schema
from tests.support.mirroring import TABLE, Event, HandDeltaMirror, HandMirror, landing_of, rows_of

MIRRORS = {"iceberg": HandMirror, "delta": HandDeltaMirror}
KEY = pa.schema([("id", pa.int64())])


@pytest.fixture(params=sorted(MIRRORS))
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> HandMirror:
    return MIRRORS[request.param](tmp_path)


def events_of(partition: int) -> list[Event]:
    """Return events of a partition: a row that stays, and a row that is deleted."""
    stays, goes = 10 * partition, 10 * partition + 1
    return [
        Event("c", stays, (f"n{stays}", "X"), 100, stays, partition, 0),
        Event("d", goes, None, 200, goes, partition, 1),
    ]


def assert_both_are_landed(mirror: HandMirror) -> None:
    """Assert that the rows are there, and that late events bring no deleted row back."""
    rows = {0: ("n0", "X"), 10: ("n10", "X")}
    assert mirror.rows() == rows
    mirror.land([Event("c", key, ("late", "L"), 150, key, 2, key) for key in (1, 11)])
    assert mirror.rows() == rows


def test_a_run_that_saw_no_mirror_goes_on_so_though_another_creates_it_meanwhile(mirror: HandMirror) -> None:
    sink = mirror.sink()
    look = sink.table.load_notes

    def look_before_another_lands() -> Any:
        found = look()
        mirror.land(events_of(0))
        return found

    sink.table.load_notes = look_before_another_lands
    assert not sink.load("run").exists
    with pytest.raises(StaleFiles, match="another run created the table"):
        land(mirror, sink, events_of(1))
    sink.discard()
    mirror.land(events_of(1))
    assert_both_are_landed(mirror)


def land(mirror: HandMirror, sink: Any, events: list[Event]) -> None:
    mirror.take(sink, rows_of(events, mirror.kind))
    sink.commit(landing_of(events))


def test_the_entries_of_the_run_that_creates_the_mirror_stay(
    mirror: HandMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {partition: mirror.sink() for partition in (0, 1)}
    for sink in runs.values():
        sink.load("run")
    failed, real = list[int](), memory.commit_entries

    def attempt(partition: int) -> None:
        try:
            land(mirror, runs[partition], events_of(partition))
        except Conflict:
            runs[partition].discard()
            failed.append(partition)

    def another_first(*arguments: Any) -> None:
        monkeypatch.setattr(memory, "commit_entries", real)
        attempt(1)
        real(*arguments)

    monkeypatch.setattr(memory, "commit_entries", another_first)
    attempt(0)
    assert len(failed) == 1
    mirror.land(events_of(failed[0]))
    assert_both_are_landed(mirror)


@pytest.fixture
def entries_of(mirror: HandMirror) -> Callable[[str, pa.Schema], Any]:
    """Give a function that returns the entries of a mirror with an id and a key."""

    def entries(mirror_id: str, key: pa.Schema) -> Any:
        if isinstance(mirror, HandDeltaMirror):
            return delta.entries_of(DeltaStorage(), mirror.place, mirror_id, key, key.names)
        properties = {memory.MIRROR_ID: mirror_id}
        schema = Schema(*to_schema(key).fields)
        metadata = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "", properties)
        table = Table(tuple(TABLE.split(".")), metadata, "", PyArrowFileIO(), mirror.catalog)
        return iceberg.entries_of(mirror.catalog, TABLE, table, key.names)

    return entries


def entry(key: pa.Schema, value: Any) -> pa.Table:
    values = {key.names[0]: value, "_cdc_commit": 200, "_cdc_position": 1, "_kafka_partition": 0, "_kafka_offset": 11}
    return pa.Table.from_pylist([values], entry_schema(key))


@pytest.mark.parametrize(
    "old_key", [KEY, pa.schema([("id", pa.string())]), pa.schema([("code", pa.string())])], ids=str
)
def test_two_runs_replace_the_entries_of_a_dropped_mirror_at_once(
    entries_of: Callable[[str, pa.Schema], Any], old_key: pa.Schema
) -> None:
    entries_of("old", old_key).add(entry(old_key, 1 if old_key is KEY else "a"))
    first, second = entries_of("new", KEY), entries_of("new", KEY)
    for one in (first, second):
        assert one.open() is None
    sink, commit = second.add.args

    def commit_after_the_first(landing: Landing) -> Any:
        first.add(entry(KEY, 0))
        return commit(landing)

    memory.commit_entries(sink, commit_after_the_first, entry(KEY, 1))
    opened = entries_of("new", KEY).open()
    assert sorted(opened.read()["id"].to_pylist()) == [0, 1]
    assert entries_of("old", old_key).open() is None
