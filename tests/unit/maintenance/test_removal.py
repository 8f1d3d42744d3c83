"""What maintenance in the worker removes, on real files: never what a snapshot needs, and nothing young."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile

from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.upkeep.compaction import compact
from airflow_lakestream.iceberg.upkeep.expiry import ExpiryRule, expire
from airflow_lakestream.iceberg.upkeep.manifest_merge import rewrite_manifests
from airflow_lakestream.iceberg.upkeep.orphans import find_orphans, remove_orphans
from tests.support.delete_files import delete_positions
from tests.support.faults import FaultyCatalog, before
from tests.support.given_records import GROUP
from tests.support.lake import files_of
from tests.unit.maintenance.test_compaction import RULE, assert_sound, head_deletes, lake_of, land

AT_ONCE = ExpiryRule(0)
DAY = 86_400.0


def assert_every_snapshot_reads(table: Table) -> None:
    for snapshot in table.snapshots():
        assert snapshot.summary is not None
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows
        assert rows == int(snapshot.summary["total-records"] or 0)


def assert_whole(table: Table) -> None:
    """Assert that under the table's folder are the files that its snapshots need, and no other data or manifest."""
    needed = {snapshot.manifest_list for snapshot in table.snapshots()}
    for manifest in itertools.chain.from_iterable(one.manifests(table.io) for one in table.snapshots()):
        entries = manifest.fetch_manifest_entry(table.io)
        needed |= {manifest.manifest_path, *(one.data_file.file_path for one in entries)}
    assert {urlsplit(path).path for path in needed} == set(files_of(table))


def test_expired_snapshots_go_with_their_files_and_the_ledger_goes_on(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    table, rows = lake.iceberg(), lake.rows()
    second = table.snapshots()[1].snapshot_id
    table.manage_snapshots().create_tag(second, "kept").commit()
    compact(lake.catalog(), lake.name, RULE)
    there = set(files_of(lake.iceberg()))
    done = expire(lake.catalog(), lake.name, AT_ONCE)
    table = lake.iceberg()
    # The tagged one, main's head before, and the one that notes the ledgers.
    assert next(one.snapshot_id for one in table.snapshots()) == second
    assert (len(table.snapshots()), len(done.snapshots)) == (3, 3)
    gone = there - set(files_of(table))
    assert len(gone) == done.files
    # Two data files that only compacted snapshots had; the tag has the first two.
    assert sum(path.endswith(".parquet") for path in gone) == 2
    assert_whole(table)
    assert_every_snapshot_reads(table)
    assert_sound(lake, rows)
    # The head of before goes by the next expiry, then only snapshots of expiries would be left to go.
    assert [len(expire(lake.catalog(), lake.name, AT_ONCE).snapshots) for _ in range(2)] == [1, 0]
    land(lake, [{"n": 99}])
    assert [row["n"] for row in lake.rows()] == [*range(12), 99]


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_tag_that_comes_with_the_last_request_keeps_its_snapshot(tmp_path: Path, kind: str) -> None:
    # PyIceberg's catalogs load the table once more, and would remove the tag together with the snapshot.
    lake = lake_of(tmp_path)
    second = lake.iceberg().snapshots()[1].snapshot_id

    def name_it() -> None:
        manage = lake.iceberg().manage_snapshots()
        (manage.create_tag if kind == "tag" else manage.create_branch)(second, "kept").commit()

    done = expire(FaultyCatalog(lake.catalog(), before(name_it)), lake.name, AT_ONCE)
    assert second not in done.snapshots
    assert len(done.snapshots) > 0
    table = lake.iceberg()
    assert table.metadata.refs["kept"].snapshot_id == second
    assert_whole(table)
    assert_every_snapshot_reads(table)


def test_a_rollback_after_an_expiry_finds_the_ledger(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    expire(lake.catalog(), lake.name, ExpiryRule(0, retain_last=2))
    table = lake.iceberg()
    before = table.snapshots()[-2]
    table.manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    ledger = ledger_store.read_ledger(lake.iceberg(), GROUP)
    assert sum(entry.landed.width for entry in ledger.topics.values()) == lake.iceberg().scan().to_arrow().num_rows


def test_a_landing_between_the_choice_and_the_commit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_of(tmp_path)
    catalog, calls = lake.catalog(), iter(range(9))
    load = catalog.load_table

    def late(name: str) -> Table:
        # The second look makes the commit; a landing comes right after.
        found = load(name)
        if next(calls, 9) == 1:
            land(lake, [{"n": 99}])
        return found

    monkeypatch.setattr(catalog, "load_table", late)
    assert len(expire(catalog, lake.name, AT_ONCE).snapshots) == 4
    assert [row["n"] for row in lake.rows()] == [*range(12), 99]
    assert_whole(lake.iceberg())


def two_days_old(table: Table) -> None:
    for path in all_files(Path(urlsplit(table.location()).path)):
        os.utime(path, (time.time() - 2 * DAY,) * 2)


def after_look(look: int, catalog: SqlCatalog, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Act once, right after a catalog has loaded a table for the `look`-th time, counted from 0."""
    load, calls = catalog.load_table, itertools.count()

    def late(name: str) -> Table:
        found = load(name)
        if next(calls) == look:
            act()
        return found

    monkeypatch.setattr(catalog, "load_table", late)


@pytest.mark.parametrize("look", range(8))
def test_an_expiry_whose_files_another_run_deletes_first_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    lake = lake_of(tmp_path)
    compact(lake.catalog(), lake.name, RULE)
    two_days_old(lake.iceberg())
    catalog = lake.catalog()
    after_look(look, catalog, lambda: remove_orphans(lake.catalog(), lake.name, DAY), monkeypatch)
    assert len(expire(catalog, lake.name, AT_ONCE).snapshots) == 4
    remove_orphans(lake.catalog(), lake.name, 0)
    assert_whole(lake.iceberg())
    assert_every_snapshot_reads(lake.iceberg())


@pytest.mark.parametrize("look", range(3))
def test_a_removal_of_orphans_during_an_expiry_deletes_no_file_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    lake = lake_of(tmp_path)
    compact(lake.catalog(), lake.name, RULE)
    (Path(urlsplit(lake.iceberg().location()).path) / "data" / "stray.parquet").write_bytes(b"nobody's")
    two_days_old(lake.iceberg())
    catalog = lake.catalog()
    after_look(look, catalog, lambda: expire(lake.catalog(), lake.name, AT_ONCE), monkeypatch)
    found = remove_orphans(catalog, lake.name, DAY)
    assert any(one.location.endswith("stray.parquet") for one in found.files)
    remove_orphans(lake.catalog(), lake.name, 0)
    assert_whole(lake.iceberg())
    assert_every_snapshot_reads(lake.iceberg())


def test_files_that_somebody_added_from_elsewhere_are_not_deleted(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, 1)
    elsewhere = tmp_path / "elsewhere.parquet"
    rows = lake.iceberg().scan().to_arrow()
    pq.write_table(pa.table(dict(zip(rows.column_names, rows.columns, strict=True))), elsewhere)
    lake.iceberg().add_files([elsewhere.as_uri()])
    for _ in range(3):
        compact(lake.catalog(), lake.name, RULE)
        land(lake, [{"n": 7}])
    expire(lake.catalog(), lake.name, AT_ONCE)
    assert elsewhere.exists()
    assert elsewhere.as_uri() not in {task.file.file_path for task in lake.iceberg().scan().plan_files()}


def aged(path: Path, days: float) -> Path:
    """Make a file of some days ago, if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(b"some")
    at = time.time() - days * DAY
    os.utime(path, (at, at))
    return path


def all_files(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.rglob("*") if path.is_file())


def test_orphans_are_old_and_needed_by_nothing(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, 2, partition_by=["_kafka_partition"])
    table = lake.iceberg()
    table.manage_snapshots().create_branch(table.snapshots()[0].snapshot_id, "other").commit()
    compact(lake.catalog(), lake.name, RULE)
    folder = Path(urlsplit(table.location()).path)
    statistics = aged(folder / "metadata" / "s.puffin", 9)
    file = StatisticsFile(
        snapshot_id=table.snapshots()[0].snapshot_id,
        statistics_path=statistics.as_uri(),
        file_size_in_bytes=4,
        file_footer_size_in_bytes=4,
        blob_metadata=list[BlobMetadata](),
    )
    with lake.iceberg().update_statistics() as update:
        update.set_statistics(file)
    for path in all_files(folder):
        aged(path, 9)
    needed = set(all_files(folder))
    orphans = {
        aged(folder / "data" / "lost.parquet", 4),
        aged(folder / "data" / "_kafka_partition=7" / "a b%20c é.parquet", 4),
        aged(folder / "metadata" / "lost.avro", 4),
        aged(folder / "metadata" / "00000-lost.metadata.json", 4),
    }
    kept = {
        aged(folder / "data" / "young.parquet", 2),
        aged(folder / "data" / "_delta_log" / "x.json", 9),
        aged(folder / "data" / ".hidden", 9),
        aged(folder / "metadata" / "version-hint.text", 9),
    }
    found = find_orphans(lake.catalog(), lake.name, 3 * DAY)
    assert {Path(urlsplit(one.location).path) for one in found.files} == orphans
    assert found.bytes == 16
    assert set(all_files(folder)) == needed | orphans | kept
    assert remove_orphans(lake.catalog(), lake.name, 3 * DAY) == found
    assert set(all_files(folder)) == needed | kept
    assert len(lake.rows()) == 6


def test_a_table_without_garbage_collection_keeps_its_files(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, 2, table_properties={"gc.enabled": "false"})
    folder = Path(urlsplit(lake.iceberg().location()).path)
    aged(folder / "data" / "lost.parquet", 9)
    assert find_orphans(lake.catalog(), lake.name, DAY).files == ()
    assert expire(lake.catalog(), lake.name, AT_ONCE).snapshots == ()


def test_manifests_become_few_and_list_the_same_files(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, 7)
    first = next(iter(lake.iceberg().scan().plan_files())).file.file_path
    delete_positions(lake.iceberg(), first, [0])
    delete_positions(lake.iceberg(), first, [1])
    rows, deletes = lake.rows(), head_deletes(lake.iceberg())
    files = {(one.file.file_path, len(one.delete_files)) for one in lake.iceberg().scan().plan_files()}
    assert rewrite_manifests(lake.catalog(), lake.name) == 7
    head = lake.iceberg().current_snapshot()
    assert head is not None
    manifests = head.manifests(lake.iceberg().io)
    assert {one.content for one in manifests} == {ManifestContent.DATA, ManifestContent.DELETES}
    assert len(manifests) == 2
    assert {(one.file.file_path, len(one.delete_files)) for one in lake.iceberg().scan().plan_files()} == files
    assert (lake.rows(), head_deletes(lake.iceberg())) == (rows, deletes)
    assert rewrite_manifests(lake.catalog(), lake.name) == 0
    land(lake, [{"n": 99}])
    assert len(lake.rows()) == len(rows) + 1
