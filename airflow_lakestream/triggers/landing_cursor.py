"""The cursor of emitted landings, kept in the state of each asset of the trigger."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_lakestream.core.event_cursor import EventCursor


class CursorStart(StrEnum):
    """Start of a trigger without a cursor."""

    NOW = "now"
    EARLIEST = "earliest"


class AssetCursors:
    """Cursors of all assets of a trigger, in Airflow's asset state store.

    Airflow gives each event to all of the trigger's assets in one transaction. So the cursor that is furthest behind
    counts, and an asset that is added to the trigger later begins there.

    :param store: `AssetStateStoreAccessors`.
    :param key: name of the cursor in each asset's state.
    """

    def __init__(self, store: Any, key: str) -> None:
        # Airflow's own methods refuse several assets.
        self._stores = [*store._by_name.values(), *store._by_uri.values()]
        self._key = key

    async def read(self) -> EventCursor | None:
        """Return the cursor furthest behind, or None if no asset has a cursor."""
        stored = [await one.aget(self._key) for one in self._stores]
        cursors = [EventCursor.parse(one) for one in stored if one is not None]
        return min(cursors, key=lambda one: one.sequence, default=None)

    async def write(self, cursor: EventCursor) -> None:
        """Keep the cursor for all assets."""
        for one in self._stores:
            await one.aset(self._key, cursor.to_json())


@dataclass
class StreamSubscription:
    """State shared by a trigger and the producer of the trigger's stream.

    `taken` is the number of the last event that Airflow has taken from the trigger. `quiet` is set when Airflow has
    stored events.
    """

    cursors: AssetCursors
    taken: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
