"""`lakestream status` of Delta tables: the same states and causes as of Iceberg's, from the table's own log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_lakestream.cli.app import run
from tests.support.broker import Producing
from tests.support.delta_lake import DeltaLake
from tests.support.delta_table import GROUP
from tests.support.lake import events
from tests.support.status import LONG, StatusCommand, causes, old

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("connections")]


def test_a_ledger_that_somebody_took_away_fails_its_stream_alone(
    lake: DeltaLake, old_topic: str, produce: Producing, status_after: StatusCommand
) -> None:
    produce(old_topic, 0, events(0, 0, 3))
    lake.land(old_topic)
    produce(old_topic, 0, events(0, 3, 3))
    lake.land(old_topic)
    key = f"lakestream.ledger.{GROUP}"
    table = DeltaTable(lake.place)
    # Of version 0, as `SET TBLPROPERTIES` would put it back.
    first = json.loads(Path(lake.place, "_delta_log", f"{0:020}.json").read_text().splitlines()[2])
    own = {key: first["metaData"]["configuration"][key], f"lakestream.generation.{GROUP}": "1"}
    table.alter.set_table_properties(own, raise_if_not_exists=False)
    code, [stream] = status_after(LONG)
    assert (code, stream["state"], causes(stream)) == (1, "failing", ["unusable"])
    assert "RESTORE" in stream["reasons"][0]["text"]


def test_a_log_that_was_cleaned_up_still_tells_the_lag(
    lake: DeltaLake, old_topic: str, produce: Producing, status_after: StatusCommand
) -> None:
    produce(old_topic, 0, events(0, 0, 3), timestamps=old(3))
    lake.land(old_topic)
    # A change of properties is no other writer's landing.
    DeltaTable(lake.place).alter.set_table_properties({"delta.appendOnly": "false"})
    assert causes(status_after(LONG)[1][0]) == []
    DeltaTable(lake.place).create_checkpoint()
    Path(lake.place, "_delta_log", f"{0:020}.json").unlink()
    produce(old_topic, 0, events(0, 3, 2), timestamps=old(2))
    code, [stream] = status_after(LONG)
    assert (code, stream["state"], stream["landings"], stream["overdue"]) == (1, "stalled", [], 2)


def test_a_place_without_a_table_and_a_connection_that_is_not_there(
    lake: DeltaLake, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, text in (
        (["--table", f"{lake.folder}/nothing"], f"there is no table at {lake.folder}/nothing"),
        (["--table", lake.place, "--storage-conn", "nowhere"], "nowhere"),
        (["--table", "lake.t", "--iceberg-conn", "nowhere"], "nowhere"),
    ):
        assert run(["status", *arguments]) == 2
        assert text in capsys.readouterr().err
