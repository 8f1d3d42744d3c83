"""The facts of a stream: its batches since some were told, and what real tables say of their snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.driver.progress import KEPT, BatchProgress, DriverProgress
from airflow_lakestream.lineage.facts import LineageFacts
from airflow_lakestream.lineage.looking import add_batches, look_at_tables

TABLE = "lake.t"
WHAT = {"topic": "t", "table": TABLE}
NOTHING = DriverProgress().sums()


def batch(number: int, topic: str = "t", snapshot: str | None = None, table: str = TABLE, **more: Any) -> BatchProgress:
    ranges = ((topic, 0, 10 * number, 10 * number + 10),)
    ids = (snapshot or str(number),)
    return BatchProgress(number, 10, 9, 1, ranges=ranges, snapshot_ids=ids, tables={table: 9}, **more)


def progress(*batches: BatchProgress) -> DriverProgress:
    given = DriverProgress()
    for one in batches:
        given = given.plus(one)
    return given


def facts(given: DriverProgress, before: Any = NOTHING, what: Any = WHAT) -> LineageFacts:
    found = LineageFacts("b:9092", "g")
    add_batches(found, given, before, what)
    return found


def test_each_try_tells_what_came_since_the_one_before() -> None:
    first = progress(batch(0), batch(1))
    both = first.plus(batch(2))
    early, late = facts(first), facts(both, first.sums())
    assert (early.tables[TABLE].rows, early.tables[TABLE].snapshots) == (18, ["0", "1"])
    assert (late.tables[TABLE].rows, late.tables[TABLE].snapshots) == (9, ["2"])
    assert late.topics["t"].counts == Counts(read=10, written=9, rejected=1)
    assert [(r.from_offset, r.until_offset) for r in late.topics["t"].ranges] == [(20, 30)]
    again = facts(both, both.sums())
    assert (again.tables[TABLE].rows, again.tables[TABLE].snapshots, list(again.topics["t"].ranges)) == (0, [], [])


def test_a_batch_that_was_found_landed_is_told_once() -> None:
    landed = batch(0)
    assert facts(progress(landed, landed.emptied(), batch(1))).tables[TABLE].snapshots == ["0", "1"]


def test_of_several_topics_ranges_are_told_and_counts_are_not() -> None:
    found = facts(progress(batch(0, "a"), batch(1, "b")), what={"topic": "^[ab]$", "table": "lake.{topic}"})
    assert {name: read.counts for name, read in found.topics.items()} == {"a": None, "b": None}


def test_of_more_batches_than_are_kept_the_sizes_are_not_known(tmp_path: Path) -> None:
    found = facts(progress(*(batch(n) for n in range(KEPT + 1))))
    assert (found.tables[TABLE].rows, len(found.tables[TABLE].snapshots)) == (9 * (KEPT + 1), KEPT)
    assert not found.tables[TABLE].knows_all


def test_a_stream_that_has_landed_nothing_yet_names_what_it_is_told_to_read_and_write() -> None:
    found = facts(DriverProgress())
    assert (list(found.topics), list(found.tables)) == (["t"], [TABLE])
    assert facts(DriverProgress(), what={}).topics == {}


def test_an_iceberg_table_tells_its_place_and_the_sizes_of_its_snapshots(tmp_path: Path) -> None:
    where = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
    catalog = SqlCatalog("mine", **where)
    catalog.create_namespace("lake")
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "at": pa.array([{"x": 1}] * 2)})
    table = catalog.create_table(TABLE, rows.schema)
    for _ in range(2):
        table.append(rows)
    ids = [str(one.snapshot_id) for one in table.snapshots()]
    found = facts(progress(*(batch(n, snapshot=one) for n, one in enumerate(ids))))
    look_at_tables(found, catalog)
    written = found.tables[TABLE]
    assert written.place is not None
    assert (written.place.location, [one.name for one in written.place.columns]) == (table.location(), ["id", "at"])
    assert written.place.columns[1].fields[0].name == "x"
    assert written.place.catalog is not None
    assert (written.place.catalog.name, written.place.catalog.namespace) == ("mine", tmp_path.as_uri())
    sizes = [int(one.summary.additional_properties["added-files-size"]) for one in table.snapshots()]
    assert (written.size, written.files) == (sum(sizes), 2)

    catalog.drop_table(TABLE)
    gone = facts(progress(batch(0, snapshot=ids[0])))
    look_at_tables(gone, catalog)
    assert (gone.tables[TABLE].place, gone.tables[TABLE].rows) == (None, 9)


def test_an_expired_snapshot_makes_the_sizes_unknown_and_nothing_else(tmp_path: Path) -> None:
    catalog = SqlCatalog("mine", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("lake")
    catalog.create_table(TABLE, pa.schema([("id", pa.int64())]))
    found = facts(progress(batch(0, snapshot="77")))
    look_at_tables(found, catalog)
    assert found.tables[TABLE].place is not None
    assert (found.tables[TABLE].size, found.tables[TABLE].rows) == (None, 9)


def test_a_delta_table_tells_its_place_and_the_sizes_of_its_versions(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    where = str(tmp_path / "t")
    for _ in range(2):
        deltalake.write_deltalake(where, pa.table({"id": pa.array([1, 2], pa.int64())}), mode="append")
    found = facts(progress(batch(0, snapshot="1", table=where)), what={"topic": "t", "table": where})
    look_at_tables(found, DeltaStorage())
    written = found.tables[where]
    assert written.place is not None
    assert (written.place.location, written.place.format, written.place.catalog) == (where, "delta", None)
    actions = deltalake.DeltaTable(where).get_add_actions(flatten=True)
    assert (written.size, written.files) == (actions["size_bytes"].to_pylist()[0], 1)
