"""`lakestream status` on a real broker, a real catalog and real drivers' leases: each state, each cause by its name."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.cli.app import run
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.driver.lease import request_stop
from airflow_lakestream.driver.progress import read_progress
from airflow_lakestream.run.replay import RejectReplay
from tests.support import spark_stand_in
from tests.support.airflow_home import CHECKOUT
from tests.support.broker import Producing, Topics, poll_until
from tests.support.delta_lake import DELTA, EACH_FORMAT, DeltaLake
from tests.support.lake import TABLE, Lake, events
from tests.support.status import AT_ONCE, LONG, StatusCommand, causes, landings, old

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("connections")]


@pytest.fixture
def name(old_topic: str) -> str:
    return old_topic


@EACH_FORMAT
def test_a_stream_that_lands_and_an_idle_one(
    lake: Lake, name: str, produce: Producing, status_after: StatusCommand
) -> None:
    produce(name, 0, [*events(0, 0, 5), "not JSON"], timestamps=old(6))
    lake.land(name)
    code, [stream] = status_after(LONG)
    assert (code, stream["state"], stream["engine"], stream["reasons"]) == (0, "landing", "extract", [])
    assert (stream["topic"], stream["table"], stream["consumer_group"]) == (name, lake.name, "g")
    assert (stream["lag"], stream["overdue"], stream["rejected"]) == (0, 0, 1)
    assert landings(stream) == lake.snapshots()
    assert [(one["rows"], one["rejected"]) for one in stream["landings"]] == [(5, 1)]
    assert stream["age"] < 600
    assert stream["partitions"] == {
        "0": {"end": 6, "lag": 0, "overdue": 0},
        "1": {"end": 0, "lag": 0, "overdue": 0},
    }
    code, [stream] = status_after(AT_ONCE)
    assert (code, stream["state"], causes(stream)) == (0, "idle", ["idle topic"])


@EACH_FORMAT
def test_a_slow_consumer_and_a_stopped_one(
    lake: Lake, name: str, produce: Producing, status_after: StatusCommand
) -> None:
    for partition in (0, 1):
        produce(name, partition, events(partition, 0, 5), timestamps=old(5))
    lake.land(name, max_records=4)
    code, [stream] = status_after(LONG)
    assert (code, stream["state"], causes(stream)) == (1, "behind", ["slow consumer"])
    assert (stream["lag"], stream["overdue"]) == (6, 6)
    code, [stream] = status_after(AT_ONCE)
    assert (code, stream["state"], causes(stream)) == (1, "stalled", ["stopped consumer"])
    lake.land(name)
    # What has just come is not overdue.
    produce(name, 0, events(0, 5, 3))
    code, [stream] = status_after(LONG)
    assert (code, stream["state"], stream["lag"], stream["overdue"]) == (0, "landing", 3, 0)


@EACH_FORMAT
def test_a_late_partition_is_named(lake: Lake, name: str, produce: Producing, status_after: StatusCommand) -> None:
    for partition in (0, 1):
        produce(name, partition, events(partition, 0, 5), timestamps=old(5))
    lake.land(name)
    produce(name, 1, events(1, 5, 2), timestamps=old(2))
    code, [stream] = status_after(LONG)
    assert (code, causes(stream)) == (1, ["slow consumer", "late partition"])
    assert f"{name}[1] [5,7)" in stream["reasons"][1]["text"]


@EACH_FORMAT
def test_a_replay_of_rejected_records_is_no_landing_that_hides_a_stopped_consumer(
    lake: Lake, name: str, produce: Producing, status_after: StatusCommand
) -> None:
    produce(name, 0, ['{"id":0}', '{"id":1,"more":1}'], timestamps=old(2))
    lake.land(name, schema="id bigint", unknown_fields="fail")
    landed = lake.snapshots()
    produce(name, 0, ['{"id":2}'], timestamps=old(1))
    opened = DeltaStorage() if isinstance(lake, DeltaLake) else lake.catalog()
    assert RejectReplay(table=lake.name, consumer_group="g").run(opened).counts.written == 1
    assert len(lake.snapshots()) == 2
    code, [stream] = status_after(AT_ONCE)
    assert (code, stream["state"], landings(stream)) == (1, "stalled", landed)
    assert (stream["landings"][0]["rows"], stream["rejected"]) == (1, 0)


@EACH_FORMAT
def test_a_compaction_another_writer_and_a_rollback_are_told_apart(
    lake: Lake, name: str, produce: Producing, status_after: StatusCommand
) -> None:
    for first in (0, 5):
        produce(name, 0, events(0, first, 5), timestamps=old(5))
        lake.land(name)
    first, second = lake.snapshots()
    lake.compact()
    code, [stream] = status_after(AT_ONCE)
    assert (code, stream["state"], causes(stream)) == (0, "idle", ["idle topic", "compaction"])
    assert landings(stream) == [second, first]

    lake.append_foreign()
    _, [stream] = status_after(AT_ONCE)
    assert causes(stream) == ["idle topic", "compaction", "other writer"]

    lake.roll_back(first)
    code, [stream] = status_after(AT_ONCE)
    assert (code, stream["state"]) == (1, "stalled")
    assert causes(stream)[:3] == ["stopped consumer", "late partition", "rollback"]
    assert str(second) in stream["reasons"][2]["text"]
    lake.land(name)
    code, [stream] = status_after(LONG)
    assert (code, stream["state"], stream["reasons"], stream["lag"]) == (0, "landing", [], 0)


@EACH_FORMAT
def test_topics_and_groups_of_one_table_are_streams_of_their_own(
    lake: Lake, topic: Topics, produce: Producing, status_after: StatusCommand
) -> None:
    one, other = topic(1), topic(1)
    for name in (one, other):
        produce(name, 0, events(0, 0, 3))
        lake.land(name)
    produce(one, 0, events(0, 3, 4))
    lake.land(one, consumer_group="h", mode="ranges", ranges=[[0, 3, 7]])
    code, streams = status_after(LONG)
    assert code == 0
    first, second, third = lake.snapshots()
    assert {(s["topic"], s["consumer_group"]): (landings(s), s["lag"]) for s in streams} == {
        (one, "g"): ([first], 4),
        (other, "g"): ([second], 0),
        (one, "h"): ([third], 0),
    }
    _, [stream] = status_after(LONG, "--table", lake.name, "--group", "h")
    assert (stream["topic"], causes(stream)) == (one, [])


def test_a_topic_that_is_gone_fails_its_stream_alone(
    lake: Lake, topic: Topics, produce: Producing, status_after: StatusCommand
) -> None:
    gone, there = topic(1), topic(1)
    for name, group in ((gone, "a"), (there, "b")):
        produce(name, 0, events(0, 0, 2))
        lake.land(name, consumer_group=group)
    topic.delete(gone)
    code, streams = status_after(LONG)
    assert code == 1
    assert {one["topic"]: one["state"] for one in streams} == {gone: "failing", there: "landing"}
    assert gone in streams[0]["reasons"][0]["text"]
    code, [stream] = status_after(LONG, "--table", TABLE, "--group", "b")
    assert (code, stream["topic"]) == (0, there)


def test_a_namespace_shows_its_tables_with_a_ledger(
    lake: Lake, name: str, produce: Producing, status_after: StatusCommand
) -> None:
    produce(name, 0, [*events(0, 0, 2), "not JSON"])
    lake.land(name)
    lake.land(name, table="lake.others", consumer_group="h")
    code, streams = status_after(LONG, "--namespace", "lake")
    assert (code, [one["table"] for one in streams]) == (0, [TABLE, "lake.others"])


def test_a_stream_that_can_not_be_looked_at_is_a_row_beside_the_others(
    lake: Lake,
    name: str,
    produce: Producing,
    status_after: StatusCommand,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    produce(name, 0, events(0, 0, 2))
    lake.land(name)
    lake.land(name, table="lake.others", consumer_group="h")
    Path(lake.catalog().load_table("lake.others").metadata_location.removeprefix("file://")).unlink()
    code, streams = status_after(LONG, "--namespace", "lake")
    assert code == 2
    assert [(one["table"], one["state"]) for one in streams] == [(TABLE, "landing"), ("lake.others", "could not look")]
    assert causes(streams[1]) == ["could not look"]
    page = tmp_path / "status.html"
    assert run(["status", "--namespace", "lake", "--max-age", LONG, "--html", str(page)]) == 2
    printed = capsys.readouterr().out
    assert re.search(r"^\? -> lake\.others \(\?\) +- +could not look", printed, re.MULTILINE)
    assert "\n  could not look: " in printed
    assert 'class="state unseen"' in page.read_text()


@DELTA
def test_a_delta_table_that_can_not_be_read_is_a_row_beside_the_others(
    lake: Lake, name: str, produce: Producing, status_after: StatusCommand
) -> None:
    produce(name, 0, events(0, 0, 2))
    lake.land(name)
    damaged = Path(lake.name).parent / "damaged"
    shutil.copytree(lake.name, damaged)
    for entry in (damaged / "_delta_log").glob("*.json"):
        entry.write_text("{")
    code, streams = status_after(LONG, "--table", str(damaged), "--table", lake.name)
    assert (code, [one["state"] for one in streams]) == (2, ["could not look", "landing"])


def test_what_can_not_be_looked_at_is_exit_code_2(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        ([], "--table"),
        (["--table", "lake.nothing"], "lake.nothing"),
        (["--namespace", "nowhere"], "nowhere"),
        (["--checkpoint", str(lake.folder / "none")], "there is no checkpoint"),
        (["--table", TABLE, "--kafka-conn", "nowhere"], "nowhere"),
        (["--table", TABLE, "--max-age", "soon"], "--max-age"),
    ):
        assert run(["status", *arguments]) == 2
        assert text in capsys.readouterr().err


def test_people_get_a_table_and_the_reasons(
    lake: Lake, name: str, produce: Producing, capsys: pytest.CaptureFixture[str]
) -> None:
    produce(name, 0, events(0, 0, 5), timestamps=old(5))
    lake.land(name, max_records=3)
    assert run(["status", "--table", TABLE, "--max-age", AT_ONCE]) == 1
    head, row, *rest = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["stream", "engine", "state"]
    assert row.startswith(f"{name} -> {TABLE} (g)")
    assert row.split()[4:8] == ["extract", "stalled", "2", "2"]
    assert any(line.startswith("  stopped consumer: ") and f"{name}[0] [3,5)" in line for line in rest)


def test_watch_looks_again_until_it_is_interrupted(lake: Lake, name: str, produce: Producing) -> None:
    produce(name, 0, events(0, 0, 5), timestamps=old(5))
    lake.land(name, max_records=3)
    # Tests that a shell runs in the background have had the signal ignored, and with them all that they start.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heed}; from airflow_lakestream.cli.app import main; main()"]
    command += ["status", "--table", TABLE, "--max-age", LONG, "--watch", "--every", "200ms", "--json"]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        [behind] = json.loads(watching.stdout.readline())["streams"]
        lake.land(name)
        for line in watching.stdout:
            [stream] = json.loads(line)["streams"]
            if stream["state"] != "behind":
                break
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(60) == 0
    assert (behind["state"], behind["lag"], stream["state"]) == ("behind", 2, "landing")


# Spark queries


class Drivers:
    """Drivers of one checkpoint, real processes with real leases."""

    def __init__(self, folder: Path, topic: str) -> None:
        self.location = folder / "checkpoint"
        self._folder = folder
        self._inputs = {"app": "kafka_to_iceberg", "topic": topic, "table": TABLE, "group": "g"}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **config: Any) -> None:
        status_after = {
            "checkpoint_location": str(self.location),
            "fingerprint": "f",
            "owner": "o",
            "inputs": self._inputs,
        }
        (self._folder / "app.json").write_text(json.dumps(status_after | config))
        command = [sys.executable, "-m", spark_stand_in.__name__, "--config", str(self._folder / "app.json")]
        before = read_progress(str(self.location)).batches
        self.process = subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.DEVNULL)
        poll_until(lambda: read_progress(str(self.location)).batches > before, "a batch", 120)

    def end(self) -> None:
        assert self.process is not None
        self.process.wait(120)


@pytest.fixture
def drivers(lake: Lake, name: str) -> Iterator[Drivers]:
    """Give the drivers of the test's topic."""
    given = Drivers(lake.folder, name)
    yield given
    if given.process is not None:
        given.process.kill()
        given.process.wait()


def test_a_query_that_was_stopped_or_died_is_told_from_a_stopped_consumer(
    lake: Lake, name: str, produce: Producing, status_after: StatusCommand, drivers: Drivers
) -> None:
    produce(name, 0, events(0, 0, 5), timestamps=old(5))
    lake.land(name)
    query = ("--checkpoint", str(drivers.location))
    drivers.start()
    code, [stream] = status_after(LONG, *query)
    assert (code, stream["state"], stream["engine"], stream["driver"]) == (0, "landing", "spark", "held")

    produce(name, 0, events(0, 5, 5), timestamps=old(5))
    request_stop(str(drivers.location), "a person")
    drivers.end()
    code, [stream] = status_after(AT_ONCE, *query)
    assert (code, stream["state"], causes(stream)) == (1, "stalled", ["stopped Spark query", "late partition"])
    assert f"{name}[0] [5,10)" in stream["reasons"][0]["text"]

    drivers.start()
    assert drivers.process is not None
    os.kill(drivers.process.pid, signal.SIGKILL)
    drivers.end()
    code, [stream] = status_after(AT_ONCE, *query)
    assert (code, stream["state"], causes(stream)[0]) == (1, "stalled", "vanished Spark query")

    drivers.start(ends=["fail"] * 9)
    drivers.end()
    code, [stream] = status_after(LONG, *query)
    assert (code, stream["state"], causes(stream)[0]) == (1, "failing", "failed Spark query")
    assert "the table is away" in stream["reasons"][0]["text"]

    drivers.start(ends=["stall"] * 9)
    poll_until(lambda: time.time() - read_progress(str(drivers.location)).moved_at > 1.0, "a driver that is stuck", 180)
    code, [stream] = status_after("1s", *query)
    assert (code, stream["state"], causes(stream)[0]) == (1, "stalled", "stuck Spark query")


def test_a_query_that_has_landed_nothing_yet_is_a_stream_too(
    lake: Lake, name: str, status_after: StatusCommand, drivers: Drivers
) -> None:
    drivers.start(batches=1)
    drivers.end()
    code, [stream] = status_after(LONG, "--checkpoint", str(drivers.location))
    assert (code, stream["table"], stream["topic"], causes(stream)) == (0, TABLE, name, ["no landing"])


def test_another_applications_query_is_known_by_its_checkpoint(
    lake: Lake, name: str, produce: Producing, status_after: StatusCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    for partition in (0, 1):
        produce(name, partition, events(partition, 0, 5), timestamps=old(5))
    folder, now = lake.folder / "theirs", int(time.time() * 1000)
    header = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": now, "conf": {}})
    for file, text in (
        ("metadata", '{"id": "0f3c"}'),
        ("sources/0/0", "\0v1\n" + json.dumps({name: {"0": 0, "1": 0}})),
        ("offsets/0", f"v1\n{header}\n" + json.dumps({name: {"0": 5, "1": 2}})),
        ("commits/0", "v1\n{}"),
    ):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    query = ("--checkpoint", str(folder))
    code, [stream] = status_after(LONG, *query)
    assert (code, stream["state"], stream["engine"], stream["lag"]) == (1, "behind", "spark", 3)
    assert (stream["table"], stream["topic"], stream["checkpoint"]) == ("", name, str(folder))
    code, [stream] = status_after(AT_ONCE, *query)
    assert (code, stream["state"], causes(stream)) == (1, "stalled", ["stopped Spark query", "late partition"])
    assert run(["status", *query, "--max-age", LONG]) == 1
    assert f"{name} -> {folder} is behind" in capsys.readouterr().out


def test_a_page_of_it(lake: Lake, name: str, produce: Producing, tmp_path: Path) -> None:
    page = tmp_path / "status.html"
    for first in range(0, 8):
        produce(name, 0, events(0, first, 1))
        lake.land(name)
    assert run(["status", "--table", TABLE, "--html", str(page)]) == 0
    assert "Landings of the last 24 hours: 8, 8 rows." in page.read_text()
    assert [one.name for one in tmp_path.glob("status*")] == ["status.html"]
    assert run(["status", "--table", TABLE, "--html", str(tmp_path / "nowhere" / "status.html")]) == 2
