"""The cursor of a LandingEventTrigger: the last emitted landing, kept in the state of each of the trigger's assets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_lakestream.core.event_cursor import EventCursor


class CursorStart(StrEnum):
    """First landing that a trigger without a cursor emits: the next landing, or the oldest in the history."""

    NOW = "now"
    EARLIEST = "earliest"


class AssetCursors:
    """Cursors of all assets of a trigger, in Airflow's asset state store.

    Airflow gives each event to all of the trigger's assets in one transaction. So the cursors are equal, apart from the
    cursors of an asset that was added to the trigger later: the cursor that is furthest behind counts.

    :param store: Airflow's `AssetStateStoreAccessors`.
    :param key: name of the cursor in each asset's state.
    """

    def __init__(self, store: Any, key: str) -> None:
        # The public methods of Airflow's class refuse a trigger with several assets.
        self._stores = [*store._by_name.values(), *store._by_uri.values()]
        self._key = key

    async def read(self) -> EventCursor | None:
        """Return the cursor furthest behind, or None if no asset has a cursor."""
        texts = [await store.aget(self._key) for store in self._stores]
        cursors = [EventCursor.parse(text) for text in texts if text is not None]
        return min(cursors, key=lambda cursor: cursor.sequence, default=None)

    async def write(self, cursor: EventCursor) -> None:
        """Keep the cursor for all assets."""
        for store in self._stores:
            await store.aset(self._key, cursor.to_json())


@dataclass
class StreamSubscription:
    """State shared by a trigger and the producer of the trigger's stream.

    :param cursors: the trigger's cursors.
    :param last_taken: number of the last event that Airflow has taken from the trigger.
    :param events_stored: set when Airflow has stored events.
    """

    cursors: AssetCursors
    last_taken: int = 0
    events_stored: asyncio.Event = field(default_factory=asyncio.Event)
