"""The stream of a table's new landings, in Airflow's ack mode: the cursor moves once an event is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow.providers.common.compat.sdk import conf
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_lakestream.core.untold import EventCursor
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.triggers.landing_cursor import CursorStart, StreamSubscription

# At most this many events may wait to be stored; Airflow stores them about once a second.
MOST_WAITING = 64


class NotStored(LakestreamError, Transient):
    """An event is missing in Airflow's database: the stream begins again at the cursor, and emits the event again."""


class LandingProducer(SharedStreamProducer):
    """Reads the landings of a trigger's table from the cursor on.

    :param given: the trigger's arguments.
    """

    def __init__(self, arguments: Mapping[str, Any], subscription: StreamSubscription) -> None:
        self._arguments = arguments
        self._subscription = subscription
        self._most = min(MOST_WAITING, conf.getint("triggerer", "shared_stream_subscriber_queue_size"))
        self._connections: Any = None
        self._patience: Any = None
        self._yielded = 0
        self._stored = 0

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield ((number, event), (number, cursor)) of each landing, for ever."""
        watch, self._connections, self._patience = await asyncio.to_thread(self._open)
        cursor = await self._begin(watch)
        while True:
            room = self._most - (self._yielded - self._stored)
            new_landings = await self._look(watch, cursor, room) if room > 0 else None
            for one in new_landings.landings if new_landings is not None else ():
                self._yielded += 1
                yield (self._yielded, one.event), (self._yielded, one.cursor)
                cursor = one.cursor
            if new_landings is not None and not new_landings.landings and new_landings.head not in (None, cursor):
                cursor = await self._pass_over(cursor, new_landings.head)
            is_full = room <= 0 or (new_landings is not None and bool(new_landings.landings))
            await self._wait(self._patience.pause(watch.subject), is_full=is_full)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Move the cursor behind stored events. Raises NotStored."""
        number, cursor = batch[-1].broker_payload
        if not all(item.outcome.is_clean for item in batch) or number > self._subscription.taken:
            # Airflow 3.3.2 also calls an event done that a trigger had not yielded yet when it was cancelled.
            raise NotStored(
                f"A landing of {self._arguments['table']} was not stored: it is emitted again from the cursor on."
            )
        await self._subscription.cursors.write(cursor)
        self._stored = number
        self._subscription.quiet.set()

    def _open(self) -> tuple[Any, Any, Any]:
        # Imported late, neither in a DAG's parser nor in the triggerer's loop: PyIceberg and librdkafka.
        from airflow_lakestream.hooks.places import AirflowPlaces
        from airflow_lakestream.triggers.patience import WatcherLooks
        from airflow_lakestream.watching.streams.watch import LandingWatch

        names = ("table", "consumer_group", "iceberg_conn_id", "storage_conn_id", "kafka_conn_id")
        patience = WatcherLooks(
            f"Landings of {self._arguments['table']} can't be emitted", self._arguments["poll_interval"]
        )
        return LandingWatch(**{name: self._arguments[name] for name in names}), AirflowPlaces(), patience

    async def _begin(self, watch: Any) -> EventCursor:
        """Return the cursor. A first cursor is kept at once, or a killed triggerer would begin at a later "now"."""
        cursor = await self._subscription.cursors.read()
        while cursor is None:
            if self._arguments["since"] == CursorStart.EARLIEST:
                cursor = EventCursor()
            else:
                cursor = await self._patience.look(watch.cursor(self._connections))
            if cursor is None:
                await asyncio.sleep(self._arguments["poll_interval"])
            else:
                await self._subscription.cursors.write(cursor)
        return cursor

    async def _look(self, watch: Any, cursor: EventCursor, most: int) -> Any:
        return await self._patience.look(watch.after(self._connections, cursor, most))

    async def _pass_over(self, cursor: EventCursor, head: EventCursor) -> EventCursor:
        """Move the cursor over commits without a landing, once all events before them are stored."""
        if self._stored < self._yielded:
            return cursor
        await self._subscription.cursors.write(head)
        return head

    async def _wait(self, pause: float, *, is_full: bool) -> None:
        """Wait for the next look; while events wait to be stored, at most until Airflow has stored a part."""
        self._subscription.quiet.clear()
        if not is_full:
            await asyncio.sleep(pause)
        elif self._stored < self._yielded:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._subscription.quiet.wait()
