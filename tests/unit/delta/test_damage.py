"""A log of a Delta table that was cut: refused before anything is read, and whole again by what the error says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_lakestream.delta.protocol import UnfitTable
from airflow_lakestream.delta.storage import DamagedLog, DeltaStorage, find_damage
from airflow_lakestream.exceptions import Terminal
from tests.support.delta_table import a_sink, append_foreign_row, expected, land, landed, rows_of

CHECKPOINT = 3
NEWEST = 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven versions of one row each, with a checkpoint in between."""
    table = tmp_path_factory.mktemp("whole") / "clicks"
    for n in range(NEWEST + 1):
        land(table, n, n + 1)
        if n == CHECKPOINT:
            DeltaTable(str(table)).create_checkpoint()
    return table


@pytest.fixture
def table(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of the whole table, to be cut."""
    return shutil.copytree(whole, tmp_path / "clicks")


def commit(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def checkpoint(table: Path) -> Path:
    return table / "_delta_log" / f"{CHECKPOINT:020}.checkpoint.parquet"


def last(table: Path) -> Path:
    return table / "_delta_log" / "_last_checkpoint"


def refused(table: Path, match: str) -> str:
    with pytest.raises(DamagedLog, match=match) as error:
        a_sink(table).load("run")
    assert isinstance(error.value, Terminal)
    assert str(table) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("version", [NEWEST, NEWEST - 1])
@pytest.mark.parametrize(
    "cut", [lambda data: b"", lambda data: data[:-30], lambda data: b"\0" * len(data), lambda data: b"\xff\xfe"]
)
def test_a_version_that_was_cut_is_named_and_what_went_is_landed_again_once_it_is_deleted(
    table: Path, version: int, cut: Callable[[bytes], bytes]
) -> None:
    file = commit(table, version)
    file.write_bytes(cut(file.read_bytes()))
    told = refused(table, rf"_delta_log/{version:020}\.json (is empty|was cut)")
    assert (
        f"delete it and all versions after it from _delta_log: the table is then as it was at version {version - 1}"
        in told
    )
    for gone in range(version, NEWEST + 1):
        commit(table, gone).unlink()
    assert landed(table) == f"clicks[0] [0,{version})"
    land(table, version, 9)
    assert rows_of(table) == expected((0, 9))


def test_text_that_looks_like_the_end_of_a_line_is_no_damage(table: Path) -> None:
    odd = json.dumps({"add": {"path": "a", "stats": "\u2028 \x85 \x0b \x1c"}}, ensure_ascii=False)
    with commit(table, NEWEST).open("a", encoding="utf-8") as log:
        log.write(f"\n{odd}\n")
    # Whatever else keeps delta-rs from reading it.
    commit(table, NEWEST - 1).unlink()
    assert f"{NEWEST - 1:020}.json is missing" in str(find_damage(DeltaStorage().store(str(table)), str(table)))
    commit(table, NEWEST - 1).write_bytes(commit(table, NEWEST).read_bytes())
    assert find_damage(DeltaStorage().store(str(table)), str(table)) is None


def test_a_version_that_is_missing_is_named(table: Path) -> None:
    commit(table, NEWEST - 1).unlink()
    refused(table, rf"{NEWEST - 1:020}\.json is missing.*Put it back from a backup")
    last(table).unlink()
    checkpoint(table).unlink()
    commit(table, 0).unlink()
    refused(table, rf"{0:020}\.json is missing.*land in another table")


def test_versions_before_the_checkpoint_are_not_asked_for(table: Path) -> None:
    commit(table, 1).unlink()
    commit(table, 2).write_bytes(b"")
    assert landed(table) == "clicks[0] [0,7)"


@pytest.mark.parametrize("cut", [lambda data: b"", lambda data: data[:200], lambda data: b"PAR1" + b"x" * 99 + b"PAR1"])
def test_a_checkpoint_that_was_cut_is_named_and_expendable(table: Path, cut: Callable[[bytes], bytes]) -> None:
    checkpoint(table).write_bytes(cut(checkpoint(table).read_bytes()))
    refused(
        table,
        rf"{CHECKPOINT:020}\.checkpoint\.parquet is not a whole checkpoint.*Delete _delta_log/_last_checkpoint, and",
    )
    last(table).unlink()
    checkpoint(table).unlink()
    assert landed(table) == "clicks[0] [0,7)"
    land(table, 7, 9)
    assert rows_of(table) == expected((0, 9))


@pytest.mark.parametrize("named", [CHECKPOINT, NEWEST, 99])
def test_a_hint_without_its_checkpoint_is_named_and_expendable(table: Path, named: int) -> None:
    checkpoint(table).unlink()
    last(table).write_text(json.dumps({"version": named, "size": 5}))
    refused(
        table, f"_last_checkpoint names a checkpoint of version {named}, which is missing.*Delete _delta_log/_last_c"
    )
    last(table).unlink()
    assert landed(table) == "clicks[0] [0,7)"


def test_a_checkpoint_that_nothing_stands_in_for_is_not_to_be_deleted(table: Path) -> None:
    checkpoint(table).write_bytes(b"PAR1")
    for version in range(CHECKPOINT):
        commit(table, version).unlink()
    assert "Delete" not in refused(table, "checkpoint.*Put it back from a backup.*no longer there")


@pytest.mark.parametrize("left", [b"", b'{"ver', b"[]", b"\xff"])
def test_a_damaged_hint_is_passed_over_as_all_readers_do(table: Path, left: bytes) -> None:
    last(table).write_bytes(left)
    assert landed(table) == "clicks[0] [0,7)"
    append_foreign_row(table)


@pytest.mark.parametrize(
    ("feature", "told"),
    [
        ("columnMapping", None),
        ("deletionVectors", None),
        ("v2Checkpoint", None),
        ("rowTracking", "rowTracking, unknown here"),
        ("inCommitTimestamp", "inCommitTimestamp, unknown here"),
        ("clustering", "clustering, unknown here"),
        ("variantType", "variantType, unknown here"),
        ("geoSpatial", "delta-rs can't read it: .*geoSpatial"),
        ("catalogManaged", "its commits are its catalog's"),
    ],
)
def test_a_feature_is_refused_by_name_or_asks_nothing(table: Path, feature: str, told: str | None) -> None:
    features = {"writerFeatures": [feature]}
    if feature not in ("rowTracking", "inCommitTimestamp", "clustering"):
        features["readerFeatures"] = [feature]
    protocol = {"minReaderVersion": 3 if "readerFeatures" in features else 1, "minWriterVersion": 7, **features}
    actions = [{"commitInfo": {"operation": "UPGRADE PROTOCOL"}}, {"protocol": protocol}]
    commit(table, NEWEST + 1).write_text("\n".join(map(json.dumps, actions)))
    if told is not None:
        with pytest.raises(UnfitTable, match=f"{told}.*Nothing was written"):
            a_sink(table).load("run")
        return
    land(table, 7, 9)
    assert rows_of(table) == expected((0, 9))
