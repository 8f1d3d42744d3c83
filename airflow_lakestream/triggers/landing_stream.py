"""The stream of a table's untold landings, in Airflow's ack mode: the cursor moves once an event is stored."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import conf
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_lakestream.core.untold import Cursor
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.triggers.landing_cursor import Since, Subscription
from airflow_lakestream.triggers.logs import tell
from airflow_lakestream.triggers.shared_looks import next_look, shared_looks

log = logging.getLogger(__name__)

# So many events may wait to be stored; Airflow stores them about once a second.
MOST_WAITING = 64
# An error of the same text is logged again after this many looks.
_SAY_AGAIN = 30


class NotStored(LakestreamError, Transient):
    """An event is not in Airflow's database: the stream begins again at the cursor, and tells it again."""


class LandingProducer(SharedStreamProducer):
    """Reads the landings of one trigger's table from its cursor on.

    :param given: the trigger's arguments.
    """

    def __init__(self, given: Mapping[str, Any], subscription: Subscription) -> None:
        self._given = given
        self._subscription = subscription
        self._most = min(MOST_WAITING, conf.getint("triggerer", "shared_stream_subscriber_queue_size"))
        self._yielded = 0
        self._stored = 0
        self._said = ""
        self._looks_since = 0

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield ((number, event), (number, cursor)) of each landing, for ever."""
        watch = await shared_looks().in_thread(self._watch)
        cursor = await self._begin(watch)
        while True:
            room = self._most - (self._yielded - self._stored)
            found = await self._look(watch, cursor, room) if room > 0 else None
            for one in found.landings if found is not None else ():
                self._yielded += 1
                yield (self._yielded, one.event), (self._yielded, one.cursor)
                cursor = one.cursor
            if found is not None and not found.landings and found.head not in (None, cursor):
                cursor = await self._pass_over(cursor, found.head)
            pause = next_look(time.time(), self._given["poll_interval"], watch.subject) - time.time()
            await self._wait(pause, is_full=room <= 0 or (found is not None and bool(found.landings)))

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Move the cursor behind events that are stored. Raises NotStored."""
        number, cursor = batch[-1].broker_payload
        if not all(item.outcome.is_clean for item in batch) or number > self._subscription.taken:
            # Airflow 3.3.2 also calls an event done that a trigger held, not told yet, when it was cancelled.
            raise NotStored(f"A landing of {self._given['table']} was not stored: it is told again from the cursor on.")
        await self._subscription.cursors.write(cursor)
        self._stored = number
        self._subscription.quiet.set()

    def _watch(self) -> Any:
        # Imports PyIceberg.
        from airflow_lakestream.watching.streams.watch import LandingWatch

        names = ("table", "consumer_group", "iceberg_conn_id", "storage_conn_id", "kafka_conn_id")
        return LandingWatch(**{name: self._given[name] for name in names})

    async def _begin(self, watch: Any) -> Cursor:
        """Return the cursor; a first one is kept at once, or a killed triggerer would begin at a later "now"."""
        cursor = await self._subscription.cursors.read()
        while cursor is None:
            if self._given["since"] == Since.EARLIEST:
                cursor = Cursor()
            else:
                cursor = await self._ask(watch.cursor(await self._places()))
            if cursor is None:
                await asyncio.sleep(self._given["poll_interval"])
            else:
                await self._subscription.cursors.write(cursor)
        return cursor

    async def _look(self, watch: Any, cursor: Cursor, most: int) -> Any:
        return await self._ask(watch.after(await self._places(), cursor, most))

    async def _pass_over(self, cursor: Cursor, head: Cursor) -> Cursor:
        """Move the cursor over commits that are no landings, once all events before them are stored."""
        if self._stored < self._yielded:
            return cursor
        await self._subscription.cursors.write(head)
        return head

    async def _wait(self, pause: float, *, is_full: bool) -> None:
        """Wait for the next look; after landings, which may be more than fit, only until events were stored."""
        self._subscription.quiet.clear()
        if not is_full:
            await asyncio.sleep(max(0.0, pause))
        elif self._stored < self._yielded:
            try:
                await asyncio.wait_for(self._subscription.quiet.wait(), max(0.0, pause))
            except TimeoutError:
                return

    async def _places(self) -> Any:
        def opened() -> Any:
            from airflow_lakestream.hooks.places import AirflowPlaces

            return AirflowPlaces()

        return await shared_looks().in_thread(opened)

    async def _ask(self, looking: Any) -> Any:
        """Look; None after an error, which is logged: a watcher has no task that could fail."""
        try:
            found = await shared_looks().look(looking, self._given["poll_interval"])
        except Exception as e:  # noqa: BLE001  # whatever a catalog raises: the next look may succeed
            await self._say(e)
            return None
        self._said = ""
        return found

    async def _say(self, error: Exception) -> None:
        text = str(error) if isinstance(error, LakestreamError) else f"{type(error).__name__}: {error}"
        self._looks_since += 1
        if text != self._said or self._looks_since >= _SAY_AGAIN:
            self._said, self._looks_since = text, 0
            await tell(log, logging.WARNING, "Landings of %s can't be told: %s", self._given["table"], text)
