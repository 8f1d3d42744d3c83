"""A stream that is watched without a worker slot: the trigger by itself, and the task that defers to it."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import DriverOutcome
from airflow_lakestream.driver.progress import read_progress
from airflow_lakestream.driver.supervisor import SupervisionHistory, SupervisionLimits
from tests.support import spark_stand_in
from tests.support.airflow_home import DAGS
from tests.support.broker import poll_until
from tests.support.event_loop import in_loop
from tests.support.spark_stream import Streams

LIMITS = SupervisionLimits(backoff=0.5, stall_timeout=3, start_timeout=60, unknown_timeout=2)


class Driver:
    """A driver that nobody but its lease tells of."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.location = folder / "checkpoint"
        told = {"checkpoint_location": str(self.location), "fingerprint": "f", "owner": "o", "inputs": {}, **config}
        (folder / "app.json").write_text(json.dumps(told))
        command = [sys.executable, "-m", spark_stand_in.__name__, "--config", str(folder / "app.json")]
        self.process = subprocess.Popen(command, cwd=DAGS.parent, stderr=subprocess.DEVNULL)

    def await_batches(self, count: int) -> None:
        poll_until(lambda: read_progress(str(self.location)).batches >= count, f"{count} batches", 120)

    @property
    def outcome(self) -> DriverOutcome | None:
        lease = read_lease(str(self.location))
        assert lease is not None
        return lease.outcome


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Driver] = []

    def start(**config: Any) -> Driver:
        started.append(Driver(tmp_path, **config))
        return started[-1]

    yield start
    for driver in started:
        driver.process.kill()
        driver.process.wait()


def trigger(driver: Driver, **options: Any) -> Any:
    from airflow_lakestream.triggers.spark_stream import SparkStreamTrigger

    given = {
        "checkpoint_location": str(driver.location),
        "generation": 1,
        "limits": asdict(LIMITS),
        "history": SupervisionHistory(submitted_at=time.time()).to_dict(),
        "poll_interval": 0.1,
        "on_kill_action": "graceful",
        "begun": {"batches": 0},
        "restarts": 2,
    }
    return SparkStreamTrigger(**given | options)


def anew(given: Any, **more: Any) -> Any:
    """Make the trigger again, as another triggerer does from Airflow's database."""
    path, kwargs = given.serialize()
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)(**json.loads(json.dumps(kwargs)), **more)


async def first_event(given: Any) -> dict[str, Any]:
    async for event in given.run():
        return dict(event.payload)
    raise AssertionError("no event")


def fires(given: Any) -> dict[str, Any]:
    return asyncio.run(asyncio.wait_for(first_event(given), 120))


@pytest.mark.parametrize(
    ("config", "action", "reason", "terminal"),
    [
        ({"batches": 3}, "finish", "", False),
        ({"ends": ["fail"]}, "restart", "failed: the table is away", False),
        ({"ends": ["terminal"]}, "give up", "failed: topic: is missing.", True),
        ({"ends": ["vanish"]}, "restart", "vanished without a word", False),
        ({"ends": ["stall"]}, "restart", "made no progress for", False),
    ],
)
def test_fires_when_something_has_to_be_done(
    start: Any, config: dict[str, Any], action: str, reason: str, terminal: bool
) -> None:
    event = fires(trigger(start(**config)))
    assert (event["action"], event["terminal"]) == (action, terminal)
    assert event["reason"].startswith(reason)
    assert (event["begun"], event["restarts"]) == ({"batches": 0}, 2)
    json.dumps(event)


def test_a_restart_is_fired_when_it_is_due(start: Any) -> None:
    driver = start(ends=["fail"])
    driver.process.wait(120)
    begun = time.time()
    event = fires(trigger(driver, limits={**asdict(LIMITS), "backoff": 1.5}))
    assert event["action"] == "restart"
    assert time.time() - begun >= 1.5


def test_a_triggerer_that_restarts_leaves_the_driver_and_goes_on(start: Any) -> None:
    driver = start(batches=30, pause=0.1)
    given = trigger(driver)

    async def shut_down() -> None:
        task = asyncio.ensure_future(first_event(given))
        await asyncio.to_thread(driver.await_batches, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await given.cleanup()

    asyncio.run(shut_down())
    assert driver.process.poll() is None
    # And one of a newer version, that was rolled back since.
    assert fires(anew(given, knows_more=1))["action"] == "finish"
    assert driver.outcome is DriverOutcome.DONE


@pytest.mark.parametrize(("action", "outcome"), [("graceful", DriverOutcome.STOPPED), ("kill", None), ("leave", None)])
def test_a_person_ends_the_driver_as_was_promised(start: Any, action: str, outcome: DriverOutcome | None) -> None:
    driver = start(batch=0.5)
    driver.await_batches(1)
    asyncio.run(anew(trigger(driver, on_kill_action=action)).on_kill())
    if action == "leave":
        driver.await_batches(3)
        return
    driver.process.wait(120)
    assert driver.outcome is outcome


def test_a_batch_that_hangs_after_a_request_to_stop_is_killed_in_time(start: Any) -> None:
    driver = start(batch=3600, ttl=3)
    poll_until(lambda: Path(f"{driver.location}.batch").exists(), "the batch to begin", 120)
    bounded = asdict(LIMITS) | {"stop_timeout": 1}
    given = trigger(driver, limits=bounded)
    asyncio.run(given.on_kill())
    # Not by the one who asked: it may be gone by then.
    assert driver.process.wait(120) == 1
    lease = read_lease(str(driver.location))
    assert lease is not None
    assert (lease.outcome, lease.error) == (
        DriverOutcome.STOPPED,
        "killed: its batch did not end within 1 s after it was asked to",
    )
    # Whoever watches it takes it for stopped, and restarts nothing.
    assert fires(given)["action"] == "finish"


def test_nothing_blocks_the_triggerers_loop(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    driver = start(batches=20, pause=0.1)
    caplog.set_level(logging.INFO, "airflow_lakestream")

    async def watched() -> dict[str, Any]:
        # Made in the loop, as the triggerer does it.
        given = anew(trigger(driver), knows_more=1)
        task = asyncio.ensure_future(first_event(given))
        await asyncio.to_thread(driver.await_batches, 3)
        await given.on_kill()
        return await task

    event, seen = in_loop(watched)
    assert (event["action"], driver.outcome) == ("finish", DriverOutcome.STOPPED)
    assert seen == []
    for text in ("Ignored arguments of a newer version: knows_more", "10 records", "The task was cleared or marked"):
        assert any(text in line for line in caplog.messages), caplog.messages


def test_nothing_blocks_it_where_the_driver_is_to_be_restarted(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    driver = start(ends=["fail"])
    caplog.set_level(logging.INFO, "airflow_lakestream")
    event, seen = in_loop(lambda: first_event(trigger(driver)))
    assert (event["action"], seen) == ("restart", [])
    assert any("It is restarted." in line for line in caplog.messages)


def test_a_trigger_that_looks_or_logs_in_the_loop_is_seen(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_lakestream.triggers import driver as module

    async def in_the_loop(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    driver = start(batches=3)
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(to_thread=in_the_loop, sleep=asyncio.sleep))
    monkeypatch.setattr(module, "log_in_thread", lambda log, *line: in_the_loop(log.log, *line))
    event, seen = in_loop(lambda: first_event(trigger(driver)))
    assert event["action"] == "finish"
    assert {what for what, _ in seen} >= {"open", logging.__file__}


def test_a_deferred_task_restarts_its_driver_and_reports(streams: Streams) -> None:
    config = {"batches": 4, "ends": ["fail", "stall", "done"]}
    run = streams.run("deferred", config, deferrable=True, stall_timeout="5s")
    task = run.task("stream")
    assert (task.state, run.errors) == ("success", [])
    assert {name: task.xcom[name] for name in ("batches", "restarts", "rows_out")} == {
        "batches": 8,
        "restarts": 2,
        "rows_out": 72,
    }
    assert (spark_stand_in.launched(streams.location), spark_stand_in.most_drivers(streams.location)) == (3, 1)


def test_a_deferred_task_gives_up(streams: Streams) -> None:
    run = streams.run("deferred_gives_up", {"ends": ["vanish"]}, deferrable=True, max_restarts=1)
    assert run.task("stream").state == "failed"
    assert "was restarted 1 times and vanished without a word" in str(run.errors[0])
    assert spark_stand_in.launched(streams.location) == 2


def test_a_task_that_defers_holds_no_slot_and_leaves_no_secret(streams: Streams, monkeypatch) -> None:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "canary-4711"}
    kafka = {"bootstrap.servers": "b", "security.protocol": "SASL_SSL", **login}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": kafka}))
    run, file = streams.write("defers", {}, deferrable=True, kafka_conn_id="kafka_default")
    with streams.airflow.process(run, file, "stream") as process:
        streams.await_end(process)
    assert run.task("stream").state == "deferred", process.log
    assert len(streams.drivers) == 1
    [folder] = streams.folders()
    assert not (folder / "app.json").exists()
    assert "canary-4711" not in json.dumps(_triggers())


def _triggers() -> list[Any]:
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = [(one.classpath, one.kwargs) for one in session.scalars(select(Trigger))]
    assert any(path.endswith("SparkStreamTrigger") for path, _ in found)
    return [(path, {key: str(value) for key, value in kwargs.items()}) for path, kwargs in found]
