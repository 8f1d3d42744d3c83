"""Data files that merges take out of a mirror: deleted once their snapshots have expired, by the merges themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyiceberg.table import Table

from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.iceberg.commit import retention
from airflow_lakestream.iceberg.ledger_store import read_ledger
from tests.support.mirroring import Event, HandMirror, Values

KEEP = 3
MODES = [MergeMode.COPY_ON_WRITE, MergeMode.MERGE_ON_READ]


@pytest.fixture
def mirror(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandMirror:
    # No read is under way, however young a file is.
    monkeypatch.setattr(retention, "YOUNGEST_MS", -60_000)
    mode = getattr(request, "param", MergeMode.COPY_ON_WRITE)
    mirror = HandMirror(tmp_path, modes=[mode], **{retention.KEEP: str(KEEP)})
    mirror.land([Event("c", key, ("n0", "X"), 1, key, offset=key) for key in range(20)])
    return mirror


def merge(mirror: HandMirror, batches: range) -> None:
    for batch in batches:
        keys = (batch % 7, 7 + batch % 11)
        mirror.land([Event("u", k, (f"n{batch}", "X"), 1 + batch, k, offset=1_000 * batch + k) for k in keys])


def on_disk(table: Table) -> set[str]:
    return {path.as_uri() for path in Path(urlsplit(table.location()).path).glob("data/**/*.parquet")}


def named(table: Table, *, live: bool) -> set[str]:
    """Return the files that manifests of the snapshots name: those that are there, or also those taken out."""
    return {
        entry.data_file.file_path
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=live)
    }


def rows_at(table: Table, snapshot_id: int) -> Mapping[int, Values]:
    return {row["id"]: (row["name"], row["big"]) for row in table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()}


@pytest.mark.parametrize("mirror", MODES, indirect=True)
def test_a_mirror_keeps_the_files_of_so_many_snapshots_and_each_of_them_reads(mirror: HandMirror) -> None:
    merge(mirror, range(1, 25))
    table = mirror.table()
    assert len(table.snapshots()) <= KEEP + 1
    # Those that the kept snapshots themselves took out go with them.
    assert named(table, live=True) <= on_disk(table) <= named(table, live=False)
    assert len(on_disk(table)) < 24
    for snapshot in table.snapshots():
        assert len(rows_at(table, snapshot.snapshot_id)) == 20
    [entry] = read_ledger(table, "g").topics.values()
    assert entry.landed.width == 20 + 24 * 2


def test_files_of_a_tag_stay_also_if_the_tagged_one_was_rolled_back(mirror: HandMirror) -> None:
    merge(mirror, range(1, 3))
    base = mirror.table().current_snapshot()
    merge(mirror, range(3, 5))
    fork = mirror.table().current_snapshot()
    assert base is not None
    assert fork is not None
    wanted = {one.snapshot_id: rows_at(mirror.table(), one.snapshot_id) for one in (base, fork)}
    with mirror.table().manage_snapshots() as manage:
        manage.create_tag(fork.snapshot_id, "fork").create_tag(base.snapshot_id, "base")
    mirror.table().manage_snapshots().rollback_to_snapshot(base.snapshot_id).commit()
    merge(mirror, range(5, 20))
    table = mirror.table()
    assert len(table.snapshots()) <= KEEP + 3
    assert {one: rows_at(table, one) for one in wanted} == wanted
    assert named(table, live=True) <= on_disk(table)


def test_files_that_a_read_may_still_open_stay(mirror: HandMirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "YOUNGEST_MS", 3_600_000)
    merge(mirror, range(1, 13))
    assert len(mirror.table().snapshots()) <= KEEP + 1
    assert len(on_disk(mirror.table())) == 13


def test_files_outside_of_the_tables_folder_and_those_that_were_put_in_again_stay(mirror: HandMirror) -> None:
    [first] = named(mirror.table(), live=True)
    merge(mirror, range(1, 3))
    table = mirror.table()
    gone = [one for one in table.snapshots() if one.snapshot_id != table.metadata.current_snapshot_id]
    after = table.metadata.model_copy(update={"snapshots": [one for one in table.snapshots() if one not in gone]})
    later = int(time.time() * 1000) + 7_200_000
    assert retention.taken_out(table, after, gone, later) == {first}
    elsewhere = Table(
        table.name(),
        table.metadata.model_copy(update={"location": "file:///elsewhere"}),
        table.metadata_location,
        table.io,
        table.catalog,
    )
    assert retention.taken_out(elsewhere, after, gone, later) == set()
    # As `add_files` would.
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        old = table.snapshots()[0]
        [entry] = [e for m in old.manifests(table.io) for e in m.fetch_manifest_entry(table.io)]
        append.append_data_file(entry.data_file)
    head = mirror.table().current_snapshot()
    assert head is not None
    put_in = mirror.table().metadata.model_copy(update={"snapshots": [head]})
    assert retention.taken_out(mirror.table(), put_in, gone, later) == set()
