"""KafkaLagEventTrigger on a real broker and a real table: when it fires, and that nothing of it blocks the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from airflow_lakestream.triggers.kafka_lag_event import KafkaLagEventTrigger
from airflow_lakestream.triggers.shared_looks import WatcherLooks
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, Topics
from tests.support.event_loop import in_loop
from tests.support.lake import GROUP, TABLE, Lake, events

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

PATIENCE = 60.0
# So many looks see what has happened before the first of them ended, and what the trigger makes of it.
QUIET = 4


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the times at which looks of triggers ended."""
    ended: list[float] = []
    real = WatcherLooks.look

    async def look(self: WatcherLooks, looking: Any) -> Any:
        found = await real(self, looking)
        ended.append(time.monotonic())
        return found

    monkeypatch.setattr(WatcherLooks, "look", look)
    return ended


async def next_event(stream: AsyncIterator[Any]) -> dict[str, Any]:
    event = await asyncio.wait_for(anext(stream), PATIENCE)
    return dict(event.payload)


def test_it_fires_when_enough_waits_and_again_when_that_is_landed(
    connections: Connections, lake: Lake, topic: Topics, produce: Producing, looks: list[float]
) -> None:
    connections.iceberg(
        {"type": "sql", "uri": f"sqlite:///{lake.folder}/catalog.db", "warehouse": f"file://{lake.folder}/warehouse"}
    )
    name = topic(2)
    trigger = KafkaLagEventTrigger(
        topic=name, table=TABLE, consumer_group=GROUP, min_records=5, again_after="1h", poll_interval=0.3
    )

    async def watched() -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []

        async def tell() -> None:
            async for event in trigger.run():
                told.append({**event.payload, "at": time.monotonic()})

        async def until(count: int) -> None:
            before, end = len(looks), time.monotonic() + PATIENCE
            # And no more of them.
            while (len(told) < count or len(looks) < before + QUIET) and time.monotonic() < end:
                await asyncio.sleep(0.05)
            assert len(told) == count

        watching = asyncio.create_task(tell())
        await until(0)
        await asyncio.to_thread(produce, name, 0, events(0, 0, 4))
        await until(0)
        await asyncio.to_thread(produce, name, 1, events(1, 0, 3))
        # Before the first run there is no table yet.
        await until(1)
        await asyncio.to_thread(lake.land, name)
        await until(1)
        await asyncio.to_thread(produce, name, 0, events(0, 4, 6))
        await until(2)
        watching.cancel()
        return told

    told, seen = in_loop(watched)
    assert [one["records"] for one in told] == [7, 6]
    assert told[0]["partitions"] == {name: {"0": 4, "1": 3}}
    assert (told[1]["table"], told[1]["consumer_group"]) == (TABLE, GROUP)
    assert all(one["seconds"] >= 0 for one in told)
    assert seen == []


def test_it_fires_for_one_record_that_waits_too_long(
    connections: Connections, lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, events(0, 0, 1))
    trigger = KafkaLagEventTrigger(topic=name, table=TABLE, consumer_group=GROUP, min_wait=1, poll_interval=0.3)

    async def first() -> dict[str, Any]:
        return await next_event(aiter(trigger.run()))

    told = asyncio.run(first())
    assert told["records"] == 1
    assert told["seconds"] >= 1
