"""Nothing of a deferred sensor blocks the triggerer's event loop: no file, no socket, no client, no catalog."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from airflow_lakestream.triggers import look as triggers_look
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, Topics
from tests.support.event_loop import in_loop
from tests.support.lake import GROUP, TABLE, Lake, events
from tests.support.sensing import commit

pytestmark = [pytest.mark.integration, pytest.mark.airflow]


async def event_of(trigger: triggers_look.LookTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        return dict(event.payload)
    raise AssertionError("no event")


def trigger(check: str = "checkpoint_lag", **arguments: Any) -> triggers_look.LookTrigger:
    return triggers_look.LookTrigger(check=check, poll_interval=0.3, timeout=3, **arguments)


@pytest.fixture
def subjects(
    connections: Connections, lake: Lake, topic: Topics, produce: Producing, admin: AdminClient
) -> list[dict[str, Any]]:
    """Give a table and a group that are behind."""
    connections.iceberg(
        {"type": "sql", "uri": f"sqlite:///{lake.folder}/catalog.db", "warehouse": f"file://{lake.folder}/warehouse"}
    )
    name, group = topic(1), f"g-{uuid.uuid4().hex[:8]}"
    produce(name, 0, events(0, 0, 5))
    lake.land(name)
    produce(name, 0, events(0, 5, 5))
    commit(admin, group, name, {0: 0})
    return [{"table": TABLE, "consumer_group": GROUP}, {"group_id": group}]


@pytest.mark.parametrize("check", ["checkpoint_lag", "retention_risk"])
def test_nothing_blocks_the_triggerers_loop(
    subjects: list[dict[str, Any]], check: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "airflow_lakestream")
    more = {"watch_for": "1m"} if check == "retention_risk" else {}

    async def all_of_them() -> list[dict[str, Any]]:
        return await asyncio.gather(*(event_of(trigger(check, **one, **more)) for one in subjects))

    told, seen = in_loop(all_of_them)
    assert [one["outcome"] for one in told] == ["timed out", "timed out"]
    assert [one["value"]["lag" if check == "checkpoint_lag" else "unread"] for one in told] == [5, 10]
    assert seen == []
    assert any("Waiting. " in line for line in caplog.messages)


def test_a_trigger_that_looks_in_the_loop_is_seen(subjects: list[dict[str, Any]], monkeypatch: Any) -> None:
    class InTheLoop:
        async def in_thread(self, work: Callable[[], Any]) -> Any:
            return work()

        async def look(self, looking: Any, interval: float) -> Any:
            from airflow_lakestream.watching.asking import look_now

            return look_now(looking)

    monkeypatch.setattr(triggers_look, "shared_looks", InTheLoop)
    for subject in subjects:
        told, seen = in_loop(lambda given=subject: event_of(trigger(**given)))
        assert told["outcome"] == "timed out"
        assert seen


def test_a_line_that_is_logged_in_the_loop_is_seen(
    subjects: list[dict[str, Any]], monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def log_in_thread(log: logging.Logger, *line: Any) -> None:
        log.log(*line)

    caplog.set_level(logging.INFO, "airflow_lakestream")
    monkeypatch.setattr(triggers_look, "log_in_thread", log_in_thread)
    _, seen = in_loop(lambda: event_of(trigger(**subjects[0])))
    assert {name for _, name in seen} == {"callHandlers"}
