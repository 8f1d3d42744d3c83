"""Maintenance of tables in the worker: by the command, by the operator, for Iceberg and Delta."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from deltalake import DeltaTable
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.cli.app import FAILED, run
from airflow_lakestream.config.maintenance import MaintenanceSection
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.operators.maintain import LakestreamMaintainOperator
from airflow_lakestream.run.maintenance import upkeep as upkeep_module
from airflow_lakestream.run.maintenance.upkeep import IcebergUpkeep, TableNotMaintained
from tests.support.given_records import FORMATS, GivenLake
from tests.support.mirroring import Event, HandMirror
from tests.unit.maintenance import test_compaction
from tests.unit.maintenance.test_removal import aged

CONN = ("--iceberg-conn", "lake")
EASY = {"options": {"min-input-files": 2}}


def upkeep(lake: GivenLake, *tables: str, dry_run: bool = False, budget: float | None = None, **works: Any) -> Any:
    section = MaintenanceSection.parse({"tables": list(tables or (lake.name,)), **works})
    return IcebergUpkeep(lake.catalog(), section, dry_run, budget)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GivenLake:
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "iceberg", "extra": extra}))
    return test_compaction.lake_of(tmp_path, 6)


def test_a_dry_run_says_what_there_is_to_gain_and_changes_nothing(
    lake: GivenLake, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(urlsplit(lake.iceberg().location()).path)
    aged(folder / "data" / "lost.parquet", 9)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    head = lake.iceberg().metadata_location
    every = ("--compact", "--rewrite-manifests", "--remove-orphans", "--expire-older-than", "0s")
    assert run(["maintain", lake.name, "--dry-run", *every, "--json", *CONN]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["rewritten"], found["new"], found["manifests"]) == (6, 1, 5)
    assert (found["expired"], found["orphans"], found["orphan_bytes"], found["after"]) == (5, 1, 4, None)
    assert found["before"]["files"] == 6
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert lake.iceberg().metadata_location == head
    assert run(["maintain", lake.name, "--dry-run", *CONN]) == 0
    assert "6 of 6 data files" in capsys.readouterr().out


def test_the_command_does_the_works_that_are_asked_for(lake: GivenLake, capsys: pytest.CaptureFixture[str]) -> None:
    rows = lake.rows()
    assert run(["maintain", "lake.*", "--compact", "--json", *CONN]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["rewritten"], found["new"], found["expired"], found["is_whole"]) == (6, 1, 0, True)
    assert (found["before"]["files"], found["after"]["files"]) == (6, 1)
    assert run(["maintain", lake.name, "--expire", "--expire-older-than", "0s", "--retain-last", "2", *CONN]) == 0
    assert "5 snapshots expired" in capsys.readouterr().out
    assert lake.rows() == rows


@pytest.mark.parametrize(
    ("bound", "done"),
    [
        (("--expire-older-than", "0d"), {"expired": 5}),
        (("--retain-last", "1"), {}),
        (("--target-size", "64MiB"), {"rewritten": 6}),
        (("--orphans-older-than", "2d"), {"orphans": 1}),
        (("--longest-run", "1d", "--rewrite-manifests"), {"orphans": 1, "manifests": 5}),
    ],
)
def test_a_bound_chooses_its_work_alone(
    lake: GivenLake, bound: tuple[str, ...], done: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    aged(Path(urlsplit(lake.iceberg().location()).path) / "data" / "lost.parquet", 9)
    assert run(["maintain", lake.name, *bound, "--json", *CONN]) == 0
    [found] = json.loads(capsys.readouterr().out)
    works = ("rewritten", "manifests", "expired", "orphans")
    assert {name: found[name] for name in works if found[name]} == done


def test_numbers_have_their_nouns_and_sizes_their_units(lake: GivenLake, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["maintain", lake.name, "--compact", *CONN]) == 0
    assert "1 file of " in capsys.readouterr().out
    assert run(["maintain", lake.name, "--dry-run", "--compact", *CONN]) == 0
    assert "Nothing to compact in 1 data file; 0 snapshots would expire, 0 orphans" in capsys.readouterr().out
    assert run(["maintain", lake.name, "--target-size", "much", *CONN]) == FAILED
    assert "--target-size: 'much' is not a positive size." in capsys.readouterr().err


def test_the_operator_returns_the_reports_and_fails_for_a_table_that_is_none(lake: GivenLake) -> None:
    operator = LakestreamMaintainOperator(
        task_id="t", tables=lake.name, expire="false", remove_orphans=False, iceberg_conn_id="lake"
    )
    [found] = operator.execute({})
    assert (found["rewritten"], found["new"], found["expired"]) == (6, 1, 0)
    json.dumps(found)
    with pytest.raises(AirflowFailException, match=r"is not an Iceberg table .* Did you mean 'lake\.events'\?"):
        LakestreamMaintainOperator(task_id="t", tables=["lake.event"], iceberg_conn_id="lake").execute({})
    with pytest.raises(InvalidArgument, match="budget"):
        LakestreamMaintainOperator(task_id="t", tables="lake.t", budget="soon")


def test_after_a_table_that_fails_the_others_are_maintained(lake: GivenLake) -> None:
    within = f"{lake.iceberg().location()}/data/within"
    lake.catalog().create_table("lake.within", Schema(NestedField(1, "n", LongType())), location=within)
    # The files of one would be orphans of the other.
    work = upkeep(lake, "lake.*", compact=EASY, remove_orphans=True)
    with pytest.raises(TableNotMaintained, match=r"lake\.within has its files in the same folder"):
        work.run()
    assert len(lake.files()) == 1


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_refused_retention_fails_its_table_after_the_other_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], table_format: str
) -> None:
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "iceberg", "extra": extra}))
    lake = GivenLake(tmp_path, table_format)
    for number in range(1, 6):
        lake.land([b'{"n": 1}'] * number, schema="n bigint")
    folder = Path(urlsplit(lake.iceberg().location()).path, "data") if table_format == "iceberg" else Path(lake.name)
    lost = aged(folder / "lost.parquet", 9)
    conn = CONN if table_format == "iceberg" else ()
    given = [lake.name, "--keep", "1 day of n", "--compact", "--expire-older-than", "0s", "--orphans-older-than", "2d"]
    # Nothing is compacted by a dry run, and the refusal is there before a removal.
    for dry_run, left in ((["--dry-run"], 5), ([], 1)):
        assert run(["maintain", *given, *dry_run, *conn]) == FAILED
        said = capsys.readouterr().err
        assert "1 tables were not maintained as asked, 0 were:" in said
        assert "column 'n' is of type int64, which is not a time" in said
        assert len(lake.files()) == left
        assert lost.exists() is bool(dry_run)
    if table_format == "iceberg":
        # Main's head, and the one before that notes the ledgers.
        assert len(lake.iceberg().snapshots()) == 2
    works = {"retention": {"column": "n", "keep": "1d"}, "compact": EASY}
    section = MaintenanceSection.parse({"tables": [lake.name], **works})
    storage: Any = lake.catalog() if table_format == "iceberg" else DeltaStorage()
    work = lake_of(lake.name).part("upkeep")(storage, section)
    report = work._maintain(lake.name)
    assert "old rows not removed as asked (retention: " in str(report)
    assert "which is not a time" in json.loads(json.dumps(report.to_dict()))["failure"]


def test_nothing_begins_after_the_time_or_a_request_to_end(lake: GivenLake) -> None:
    assert upkeep(lake, compact=EASY, budget=1e-9).run() == []
    work = upkeep(lake, compact=EASY)
    work.stop.set()
    assert work.run() == []
    assert isinstance(work.stop, threading.Event)
    assert len(lake.files()) == 6


@pytest.mark.parametrize(
    ("works", "reason"),
    [
        ({"compact": {"where": "n > 1"}}, r"maintenance\.compact\.where: is for Spark's app"),
        ({"compact": {"strategy": "sort", "sort_order": "n"}}, r"maintenance\.compact\.sort_order: is for Spark's"),
        ({"compact": {"options": {"rewrite-all": True}}}, r"rewrite-all"),
        ({"compact": {"options": {"delete-ratio-threshold": 7}}}, "is not a share"),
    ],
)
def test_settings_of_spark_alone_are_refused_before_any_work(lake: GivenLake, works: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        upkeep(lake, **works).run()


def test_a_mirror_is_sorted_by_its_key_and_its_memory_is_left_alone(tmp_path: Path) -> None:
    mirror = HandMirror(tmp_path / "m")
    for commit, keys in ((1, (9, 3, 5)), (2, (4, 8, 2)), (3, (1, 7, 6))):
        mirror.land([Event("c", key, ("n", "X"), commit, key, offset=commit * 10 + key) for key in keys])
    mirror.land([Event("d", 5, None, 9, 1, offset=99)])
    section = MaintenanceSection.parse({"tables": ["lake.*"], "compact": EASY})
    reports = IcebergUpkeep(mirror.catalog, section).run()
    assert [one.table.endswith(SUFFIX) for one in reports].count(True) == 1
    assert mirror.keys_by_file() == [[1, 2, 3, 4, 6, 7, 8, 9]]


def test_delta_tables_are_maintained_by_the_same_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = GivenLake(tmp_path, "delta")
    for run_number in range(5):
        lake.land([b'{"n": 1}'] * (run_number + 1), schema="n bigint")
    rows = lake.rows()
    assert run(["maintain", lake.name, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["before"]["files"], found["after"]["files"], found["rewritten"], found["new"]) == (5, 1, 5, 1)
    assert lake.rows() == rows
    assert list(Path(lake.name, "_delta_log").glob("*.checkpoint.parquet"))
    lake.land([b'{"n": 1}'] * 6)
    assert [row["_kafka_offset"] for row in lake.rows()] == list(range(6))
    assert DeltaTable(lake.name).version() > 5
    assert run(["maintain", lake.name, "lake.t"]) == FAILED
    assert "are of several formats" in capsys.readouterr().err
    assert run(["maintain", str(tmp_path / "none")]) == FAILED
    assert "there is no Delta table" in capsys.readouterr().err


def test_a_plan_that_one_process_can_not_rewrite_in_time_is_a_hint_for_spark(
    lake: GivenLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["maintain", lake.name, "--dry-run", "--json", *CONN]) == 0
    assert json.loads(capsys.readouterr().out)[0]["advice"] is None
    size = sum(Path(one).stat().st_size for one in lake.files())
    monkeypatch.setattr(upkeep_module, "BYTES_PER_SECOND", size / 590)
    # Ten minutes of work: within a night and within half an hour, and four runs of three minutes.
    for budget, hint in (([], ""), (["--budget", "30m"], ""), (["--budget", "3m"], "some 10 min: 4 runs of 3 min.")):
        assert run(["maintain", lake.name, "--dry-run", *budget, *CONN]) == 0
        said = capsys.readouterr().out
        assert hint in said
        assert ("Spark's app" in said) is bool(hint)
