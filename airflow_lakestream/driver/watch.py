"""The watch over a driver from outside: lease, progress and job read together, and a decision."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import LeaseRecord
from airflow_lakestream.driver.progress import BatchProgress, Progress, read_progress
from airflow_lakestream.driver.supervisor import (
    Decision,
    DriverState,
    History,
    JobState,
    Limits,
    Sight,
    decide,
    sight_of,
)


@dataclass(frozen=True)
class Look:
    """The decision and the state of a look; `batches` ended since the last look."""

    decision: Decision
    sight: Sight
    lease: LeaseRecord | None
    progress: Progress
    batches: tuple[BatchProgress, ...]


class Watch:
    """The watch over the driver of a checkpoint.

    :param generation: the lowest possible lease generation of the driver.
    :param history: history of earlier looks, perhaps of another process.
    :param job: asks the backend for the driver's state.
    :param seen: number of the checkpoint's batches that were reported already.
    :param properties: the catalog's, for a checkpoint in its object store.
    """

    def __init__(
        self,
        location: str,
        generation: int,
        limits: Limits,
        history: History,
        job: Callable[[], JobState],
        seen: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._location = location
        self._generation = generation
        self._limits = limits
        self._job = job
        self._properties = properties
        self.seen = seen
        self.history = history

    def look(self) -> Look:
        """Look, and decide. Without an answer of the store the state is unknown, and tolerated for a while."""
        now = time.time()
        lease, progress = None, Progress()
        try:
            lease = read_lease(self._location, self._properties)
            progress = read_progress(self._location, self._properties)
            sight = sight_of(lease, self._generation, self._job(), progress.moves, now)
            sight = replace(sight, doing=progress.doing)
        except OSError as e:
            sight = Sight(DriverState.UNKNOWN, self.history.moves, type(e).__name__)
        decision = decide(self.history, self._limits, sight, now)
        self.history = decision.history
        return Look(decision, sight, lease, progress, self._new(progress))

    def _new(self, progress: Progress) -> tuple[BatchProgress, ...]:
        known, self.seen = self.seen, max(progress.batches, self.seen or 0)
        if known is None:
            return ()
        return progress.last[-new:] if (new := progress.batches - known) > 0 else ()
