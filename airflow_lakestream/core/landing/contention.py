"""Conflicts between runs: the limit in a row, and the random pauses."""

from __future__ import annotations

import random
import threading

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.ports import Conflict
from airflow_lakestream.exceptions import LakestreamError, Transient

# Each conflict means that another run made progress; this many in a row mean another fault.
MAX_CONFLICTS = 20
# From the third conflict in a row on, a run waits up to this many seconds per conflict.
GIVE_WAY = 0.05


class Contention(LakestreamError, Transient):
    """Concurrent writers changed the table first, MAX_CONFLICTS times in a row."""

    def __init__(self, table: str, last: Conflict) -> None:
        super().__init__(
            f"{MAX_CONFLICTS} times in a row another writer changed {table} between plan and commit (last: {last}) "
            "No record was doubled or lost. Run fewer runs of the same group at once: max_active_runs=1."
        )


def give_way(job: LandingJob, conflicts: int) -> None:
    """Wait at random after `conflicts` conflicts in a row; a stop of the job ends the wait.

    Two tries of a run go in step: without the wait the slower try would lose each time.
    """
    pause(job.stop, conflicts)


def pause(stop: threading.Event, conflicts: int) -> None:
    """Wait for a random time, from the third conflict in a row on; a set `stop` ends the wait."""
    if conflicts > 2:
        stop.wait(random.uniform(0, GIVE_WAY * conflicts))  # noqa: S311  # no secret hangs on it
