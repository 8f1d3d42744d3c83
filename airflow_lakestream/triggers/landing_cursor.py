"""Where the cursor of told landings is kept: in the state of each asset that the trigger watches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_lakestream.core.untold import Cursor


class Since(StrEnum):
    """Where a trigger without a cursor begins."""

    NOW = "now"
    EARLIEST = "earliest"


class Cursors:
    """The cursors of all assets of one trigger, by Airflow's asset state store.

    Airflow tells each event to all of the trigger's assets in one transaction. So the cursor that is furthest behind
    counts, and an asset that comes to the trigger later begins there.

    :param store: `AssetStateStoreAccessors`.
    """

    def __init__(self, store: Any, key: str) -> None:
        self._stores = list(_each(store))
        self._key = key

    async def read(self) -> Cursor | None:
        """Return the cursor; None where no asset has one."""
        found = [await one.aget(self._key) for one in self._stores]
        cursors = [Cursor.parse(one) for one in found if one is not None]
        return min(cursors, key=lambda one: one.sequence, default=None)

    async def write(self, cursor: Cursor) -> None:
        """Keep the cursor for all assets."""
        for one in self._stores:
            await one.aset(self._key, cursor.to_json())


def _each(store: Any) -> Iterable[Any]:
    """Return the accessors of all assets; Airflow's own methods refuse more than one asset."""
    return (*store._by_name.values(), *store._by_uri.values())


@dataclass
class Subscription:
    """What a trigger and the producer of its stream share: the cursors, and which event Airflow has taken."""

    cursors: Cursors
    taken: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
