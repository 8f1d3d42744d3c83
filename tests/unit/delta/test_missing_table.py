"""Errors of a missing Delta table: each suggests the nearest table of the folder, and is no worse without a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.adopt.claim import CannotAdopt
from airflow_lakestream.adopt.delta import DeltaFilledTable
from airflow_lakestream.audit.delta import DeltaAudit
from airflow_lakestream.cli.app import run
from airflow_lakestream.delta.storage import DeltaStorage, near_table
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.run.replay import RejectReplay
from airflow_lakestream.run.resnapshot import ResnapshotTables
from airflow_lakestream.watching.asking import NotThere
from airflow_lakestream.watching.source import delta_streams
from tests.support.delta_table import GROUP, land


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in ("shipments", "shipments__rejected"):
        land(tmp_path / name, 0, 1)
    # The nearest name of all is a folder without a table.
    (tmp_path / "shipmens").mkdir()
    return tmp_path


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(
    ("table", "near"),
    [
        ("shipmen", "shipments"),
        ("Shipment/", "shipments"),
        ("shipments__rejecte", "shipments"),
        ("xyz", None),
        ("nowhere/shipments", None),
    ],
)
def test_the_nearest_table_of_the_folder_is_suggested(scheme: str, table: str, near: str | None, lake: Path) -> None:
    hint = "" if near is None else f" Did you mean '{scheme}{lake}/{near}'?"
    assert near_table(DeltaStorage(), f"{scheme}{lake}/{table}") == hint


def test_a_store_that_does_not_answer_changes_nothing() -> None:
    assert near_table(DeltaStorage({"aws_endpoint_url": "no address"}), "s3://bucket/lake/shipment") == ""


@pytest.mark.parametrize(
    ("look", "error"),
    [
        (lambda name: DeltaAudit(table=name, consumer_group=GROUP).run(DeltaStorage()), InvalidArgument),
        (lambda name: RejectReplay(table=name, consumer_group=GROUP).run(DeltaStorage()), InvalidArgument),
        (lambda name: ResnapshotTables(DeltaStorage(), name).design(), InvalidArgument),
        (lambda name: DeltaFilledTable(DeltaStorage(), name, GROUP), CannotAdopt),
        (lambda name: delta_streams(DeltaStorage(), name), NotThere),
    ],
    ids=["audit", "replay", "resnapshot", "adopt", "sensors"],
)
def test_each_part_that_needs_a_table_suggests_it(
    look: Callable[[str], Any], error: type[LakestreamError], lake: Path
) -> None:
    with pytest.raises(error) as missing:
        look(f"{lake}/shipment")
    assert str(missing.value).endswith(f" Did you mean '{lake}/shipments'?")


@pytest.mark.parametrize("command", ["ledger show", "rejects show", "audit", "status"])
def test_each_command_suggests_it(
    command: str, lake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # `status` opens the connection, and asks no broker about a table that does not exist.
    servers = {"conn_type": "kafka", "extra": {"bootstrap.servers": "b"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(servers))
    assert run([*command.split(), "--table", f"{lake}/shipment"]) == 2
    assert f"Did you mean '{lake}/shipments'?" in capsys.readouterr().err
