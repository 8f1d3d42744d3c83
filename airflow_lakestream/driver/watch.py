"""The watch over a driver from outside: lease, progress and job read together, and a decision."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import LeaseRecord
from airflow_lakestream.driver.progress import BatchProgress, DriverProgress, read_progress
from airflow_lakestream.driver.supervisor import (
    BackendState,
    DriverSight,
    DriverState,
    SupervisionDecision,
    SupervisionHistory,
    SupervisionLimits,
    decide,
    sight_of,
)


@dataclass(frozen=True)
class DriverLook:
    """The decision and the state of a look; `batches` ended since the last look."""

    decision: SupervisionDecision
    sight: DriverSight
    lease: LeaseRecord | None
    progress: DriverProgress
    batches: tuple[BatchProgress, ...]


class DriverWatch:
    """The watch over the driver of a checkpoint.

    :param generation: the lowest possible lease generation of the driver.
    :param history: history of earlier looks, perhaps of another process.
    :param job: asks the backend for the driver's state.
    :param reported: number of the checkpoint's batches that were reported already; None: all batches before the first
        look count as reported.
    :param properties: the catalog's, for a checkpoint in its object store.
    """

    def __init__(
        self,
        location: str,
        generation: int,
        limits: SupervisionLimits,
        history: SupervisionHistory,
        job: Callable[[], BackendState],
        reported: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._location = location
        self._generation = generation
        self._limits = limits
        self._job = job
        self._properties = properties
        self.reported = reported
        self.history = history

    def look(self) -> DriverLook:
        """Look at lease, progress and backend; return the look with its decision.

        Without an answer of the store the state is unknown, which is tolerated for `unknown_timeout`. The history and
        the number of reported batches are updated.
        """
        now = time.time()
        lease, progress = None, DriverProgress()
        try:
            lease = read_lease(self._location, self._properties)
            progress = read_progress(self._location, self._properties)
            sight = sight_of(lease, self._generation, self._job(), progress.moves, now)
            sight = replace(sight, doing=progress.doing)
        except OSError as e:
            sight = DriverSight(DriverState.UNKNOWN, self.history.moves, type(e).__name__)
        decision = decide(self.history, self._limits, sight, now)
        self.history = decision.history
        return DriverLook(decision, sight, lease, progress, self._new(progress))

    def _new(self, progress: DriverProgress) -> tuple[BatchProgress, ...]:
        # The greater number: a damaged progress file begins to count at 0 again, and no batch is reported twice.
        known, self.reported = self.reported, max(progress.batches, self.reported or 0)
        if known is None:
            return ()
        return progress.last[-new:] if (new := progress.batches - known) > 0 else ()
