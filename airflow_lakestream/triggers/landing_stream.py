"""The stream of a table's new landings, in Airflow's ack mode: Airflow confirms each stored event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow.providers.common.compat.sdk import conf
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_lakestream.core.event_cursor import EventCursor
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.triggers.landing_cursor import CursorStart, StreamSubscription

# At most this many events may wait to be stored; Airflow stores them about once a second.
MOST_WAITING = 64


class NotStored(LakestreamError, Transient):
    """Error for an event that Airflow has not stored: the stream begins again at the cursor, and emits it again."""


class LandingProducer(SharedStreamProducer):
    """Reads the landings of a trigger's table from the cursor on.

    :param arguments: the trigger's arguments.
    :param subscription: the state shared with the trigger.
    """

    def __init__(self, arguments: Mapping[str, Any], subscription: StreamSubscription) -> None:
        self._arguments = arguments
        self._subscription = subscription
        self._most_waiting = min(MOST_WAITING, conf.getint("triggerer", "shared_stream_subscriber_queue_size"))
        self._connections: Any = None
        self._looks: Any = None
        # Numbers of the last yielded and of the last stored event.
        self._yielded = 0
        self._stored = 0

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield each landing, for ever, as ((number, event), (number, cursor)).

        The trigger gets the first pair. Airflow gives the second pair to `advance` once the event is stored. At most
        `_most_waiting` events wait to be stored; a failed look is only logged.
        """
        watch, self._connections, self._looks = await asyncio.to_thread(self._open)
        cursor = await self._begin(watch)
        while True:
            room = self._most_waiting - (self._yielded - self._stored)
            new_landings = await self._look(watch, cursor, room) if room > 0 else None
            landings = new_landings.landings if new_landings is not None else ()
            for landing in landings:
                self._yielded += 1
                yield (self._yielded, landing.event), (self._yielded, landing.cursor)
                cursor = landing.cursor
            if new_landings is not None and not landings and new_landings.head not in (None, cursor):
                cursor = await self._pass_over(cursor, new_landings.head)
            may_have_more = room <= 0 or bool(landings)
            await self._wait(self._looks.pause(watch.subject), may_have_more=may_have_more)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Store the cursor after the last event of a batch, once Airflow has stored the batch.

        :param batch: consecutive events, each with Airflow's outcome.

        Raises NotStored if an event of the batch was not stored: Airflow then begins the stream again, at the old
        cursor.
        """
        number, cursor = batch[-1].broker_payload
        if not all(item.outcome.is_clean for item in batch) or number > self._subscription.last_taken:
            # Of a cancelled trigger Airflow 3.3.2 also confirms an event that the trigger had not yielded yet.
            raise NotStored(
                f"A landing of {self._arguments['table']} was not stored: it is emitted again from the cursor on."
            )
        await self._subscription.cursors.write(cursor)
        self._stored = number
        self._subscription.events_stored.set()

    def _open(self) -> tuple[Any, Any, Any]:
        """Return (LandingWatch, connections for the looks, WatcherLooks)."""
        # These import PyIceberg and librdkafka, which take long: not while a DAG is parsed, nor in the event loop.
        from airflow_lakestream.hooks.places import AirflowPlaces
        from airflow_lakestream.triggers.shared_looks import WatcherLooks
        from airflow_lakestream.watching.streams.looking import LandingWatch

        names = ("table", "consumer_group", "iceberg_conn_id", "storage_conn_id", "kafka_conn_id")
        looks = WatcherLooks(
            f"Landings of {self._arguments['table']} can't be emitted", self._arguments["poll_interval"]
        )
        return LandingWatch(**{name: self._arguments[name] for name in names}), AirflowPlaces(), looks

    async def _begin(self, watch: Any) -> EventCursor:
        """Return the stored cursor, or for a trigger without a cursor the cursor of `since`.

        A first cursor is stored at once: otherwise a killed triggerer would begin at a later "now". After a failed look
        the next look comes in `poll_interval` seconds.
        """
        cursor = await self._subscription.cursors.read()
        while cursor is None:
            if self._arguments["since"] == CursorStart.EARLIEST:
                cursor = EventCursor()
            else:
                cursor = await self._looks.look(watch.cursor(self._connections))
            if cursor is None:
                await asyncio.sleep(self._arguments["poll_interval"])
            else:
                await self._subscription.cursors.write(cursor)
        return cursor

    async def _look(self, watch: Any, cursor: EventCursor, most: int) -> Any:
        """Return at most `most` landings after the cursor, or None if the look failed."""
        return await self._looks.look(watch.after(self._connections, cursor, most))

    async def _pass_over(self, cursor: EventCursor, head: EventCursor) -> EventCursor:
        """Move the cursor over commits without a landing, once all earlier events are stored.

        Returns the new cursor, or the old cursor while events are not stored.
        """
        if self._stored < self._yielded:
            return cursor
        await self._subscription.cursors.write(head)
        return head

    async def _wait(self, pause: float, *, may_have_more: bool) -> None:
        """Wait for the next look, `pause` seconds at most.

        :param may_have_more: the table may have more new landings: wait only if events wait to be stored, and until
            Airflow has stored some of them.
        """
        self._subscription.events_stored.clear()
        if not may_have_more:
            await asyncio.sleep(pause)
        elif self._stored < self._yielded:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._subscription.events_stored.wait()
