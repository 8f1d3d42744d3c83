"""`lakestream status` of Delta tables: the same states and causes as of Iceberg's, from the table's own log."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_lakestream.cli.app import run
from airflow_lakestream.driver.lease import Lease
from airflow_lakestream.hooks.delta_storage import DeltaStorageHook
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.stream import kafka_to_iceberg
from dev.services.s3 import REGION
from dev.stack import Stack
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import DeltaLake
from tests.support.delta_table import GROUP, append_foreign_row
from tests.support.lake import events

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("connections")]

DAY = 1_763_596_800_000
KEPT = {"retention_ms": -1}
AT_ONCE, LONG = "1ms", "1h"

Told = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def told(lake: DeltaLake, capsys: pytest.CaptureFixture[str]) -> Told:
    """Give `told(max_age, *arguments)`: the exit code, and what the JSON says of each stream of the test's table."""

    def go(max_age: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        capsys.readouterr()
        # No catalog is asked, so none has to be there.
        given = arguments or ("--table", lake.place)
        code = run(["status", "--json", "--max-age", max_age, "--iceberg-conn", "nowhere", *given])
        printed = capsys.readouterr()
        assert printed.out, printed.err
        return code, json.loads(printed.out)["streams"]

    return go


@pytest.fixture
def name(topic: Topics) -> str:
    """Give a topic of two partitions that keeps old records."""
    return topic(2, **KEPT)


def old(count: int) -> list[int]:
    return [DAY + n for n in range(count)]


def causes(stream: dict[str, Any]) -> list[str]:
    return [reason["cause"] for reason in stream["reasons"]]


def versions(stream: dict[str, Any]) -> list[str]:
    return [one["snapshot_id"] for one in stream["landings"]]


def test_a_stream_lands_is_idle_and_stops(lake: DeltaLake, name: str, produce: Producing, told: Told) -> None:
    produce(name, 0, [*events(0, 0, 5), "not JSON"], timestamps=old(6))
    lake.land(name)
    code, [stream] = told(LONG)
    assert (code, stream["state"], stream["engine"], stream["reasons"]) == (0, "landing", "extract", [])
    assert (stream["topic"], stream["table"], stream["consumer_group"]) == (name, lake.place, GROUP)
    assert (stream["lag"], stream["rejected"]) == (0, 1)
    assert [(one["snapshot_id"], one["rows"], one["rejected"]) for one in stream["landings"]] == [("0", 5, 1)]
    assert stream["age"] < 600
    code, [stream] = told(AT_ONCE)
    assert (code, stream["state"], causes(stream)) == (0, "idle", ["idle topic"])
    produce(name, 1, events(1, 0, 4), timestamps=old(4))
    code, [stream] = told(AT_ONCE)
    assert (code, stream["state"], causes(stream)) == (1, "stalled", ["stopped consumer", "late partition"])
    assert (stream["lag"], stream["overdue"], stream["partitions"]["1"]["overdue"]) == (4, 4, 4)


def test_a_compaction_another_writer_and_a_restore_are_told_apart(
    lake: DeltaLake, name: str, produce: Producing, told: Told
) -> None:
    for first in (0, 5):
        produce(name, 0, events(0, first, 5), timestamps=old(5))
        lake.land(name)
    table = DeltaTable(lake.place)
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table.optimize.compact()
    code, [stream] = told(AT_ONCE)
    assert (code, stream["state"], causes(stream)) == (0, "idle", ["idle topic", "compaction"])
    assert versions(stream) == ["1", "0"]

    append_foreign_row(lake.place)
    _, [stream] = told(AT_ONCE)
    assert causes(stream) == ["idle topic", "compaction", "other writer"]

    DeltaTable(lake.place).restore(0)
    code, [stream] = told(AT_ONCE)
    assert (code, stream["state"]) == (1, "stalled")
    assert causes(stream)[:3] == ["stopped consumer", "late partition", "rollback"]
    assert "5 rows in snapshots 1" in stream["reasons"][2]["text"]
    lake.land(name)
    code, [stream] = told(LONG)
    assert (code, stream["state"], stream["reasons"], stream["lag"]) == (0, "landing", [], 0)


def test_topics_and_groups_of_one_table_are_streams_of_their_own(
    lake: DeltaLake, topic: Topics, produce: Producing, told: Told
) -> None:
    one, other = topic(1), topic(1)
    for name in (one, other):
        produce(name, 0, events(0, 0, 3))
        lake.land(name)
    produce(one, 0, events(0, 3, 4))
    lake.land(one, consumer_group="h", mode="ranges", ranges=[[0, 3, 7]])
    code, streams = told(LONG)
    assert code == 0
    assert {(s["topic"], s["consumer_group"]): (versions(s), s["lag"]) for s in streams} == {
        (one, GROUP): (["0"], 4),
        (other, GROUP): (["1"], 0),
        (one, "h"): (["2"], 0),
    }
    _, [stream] = told(LONG, "--table", lake.place, "--group", "h")
    assert (stream["topic"], causes(stream)) == (one, [])


def test_a_ledger_that_somebody_took_away_fails_its_stream_alone(
    lake: DeltaLake, name: str, produce: Producing, told: Told
) -> None:
    produce(name, 0, events(0, 0, 3))
    lake.land(name)
    produce(name, 0, events(0, 3, 3))
    lake.land(name)
    key = f"lakestream.ledger.{GROUP}"
    table = DeltaTable(lake.place)
    # Of version 0, as `SET TBLPROPERTIES` would put it back.
    first = json.loads(Path(lake.place, "_delta_log", f"{0:020}.json").read_text().splitlines()[2])
    own = {key: first["metaData"]["configuration"][key], f"lakestream.generation.{GROUP}": "1"}
    table.alter.set_table_properties(own, raise_if_not_exists=False)
    code, [stream] = told(LONG)
    assert (code, stream["state"], causes(stream)) == (1, "failing", ["unusable"])
    assert "RESTORE" in stream["reasons"][0]["text"]


def test_a_log_that_was_cleaned_up_still_tells_the_lag(
    lake: DeltaLake, name: str, produce: Producing, told: Told
) -> None:
    produce(name, 0, events(0, 0, 3), timestamps=old(3))
    lake.land(name)
    DeltaTable(lake.place).create_checkpoint()
    Path(lake.place, "_delta_log", f"{0:020}.json").unlink()
    produce(name, 0, events(0, 3, 2), timestamps=old(2))
    code, [stream] = told(LONG)
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


def test_a_query_into_delta_is_found_by_its_checkpoint(
    lake: DeltaLake, name: str, produce: Producing, told: Told, spark: SparkSession
) -> None:
    produce(name, 0, events(0, 0, 5), timestamps=old(5))
    checkpoint = lake.folder / "checkpoint"
    landing = {"topic": name, "table": lake.place, "consumer_group": GROUP}
    given = {"app": "kafka_to_delta", "kafka": lake.kafka, "checkpoint_location": str(checkpoint)}
    kafka_to_iceberg(AppConfig.parse({**given, "landing": landing}), spark)
    code, [stream] = told(LONG, "--checkpoint", str(checkpoint))
    assert (code, stream["state"], stream["engine"], stream["driver"]) == (0, "landing", "spark", "released")
    assert (stream["table"], stream["checkpoint"]) == (lake.place, str(checkpoint))
    # Without the checkpoint the landing says so itself; and then the extract's does.
    shutil.rmtree(checkpoint)
    assert told(LONG)[1][0]["engine"] == "spark"
    produce(name, 0, events(0, 5, 5))
    lake.land(name)
    [stream] = told(LONG)[1]
    assert (stream["engine"], [one["engine"] for one in stream["landings"]]) == ("extract", ["extract", "spark"])


def test_a_table_and_its_querys_checkpoint_on_s3_are_opened_by_one_connection(
    lake: DeltaLake, name: str, produce: Producing, told: Told, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = stack.up_s3()
    folder = f"{s3.bucket('status')}/{uuid.uuid4().hex}"
    place, checkpoint = f"s3://{folder}/events", f"s3a://{folder}/checkpoint"
    extra = {"region_name": REGION, "endpoint_url": s3.url}
    key = {"conn_type": "aws", "login": s3.access_key, "password": s3.secret_key, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_STORE", json.dumps(key))
    storage = DeltaStorageHook("lake_store").open_storage()
    produce(name, 0, events(0, 0, 5), timestamps=old(5))
    lake.land(name, catalog=storage, table=place)
    inputs = {"app": "kafka_to_delta", "topic": name, "table": place, "group": GROUP}
    with Lease.take(checkpoint, "f", "a task", inputs=inputs, properties=storage.options):
        code, [stream] = told(LONG, "--checkpoint", checkpoint, "--storage-conn", "lake_store")
    assert (code, stream["state"], stream["engine"], stream["driver"]) == (0, "landing", "spark", "held")
    assert (stream["table"], versions(stream)) == (place, ["0"])
