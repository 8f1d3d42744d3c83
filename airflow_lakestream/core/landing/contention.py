"""Runs that get in each other's way: how often one plans anew, and how it gives way."""

from __future__ import annotations

import random

from airflow_lakestream.core.landing.job import Job
from airflow_lakestream.core.ports import Conflict
from airflow_lakestream.exceptions import LakestreamError, Transient

# Every conflict means that another run got on; so many in a row mean that something else is wrong.
MAX_CONFLICTS = 20
# From the third conflict in a row on, a run waits up to so many seconds for each of them.
GIVE_WAY = 0.05


class Contention(LakestreamError, Transient):
    """Other runs kept getting in first."""

    def __init__(self, table: str, last: Conflict) -> None:
        super().__init__(
            f"{MAX_CONFLICTS} times in a row another writer changed {table} between plan and commit (last: {last}) "
            "Nothing was doubled or lost. Let fewer runs of the same group go at once: max_active_runs=1."
        )


def give_way(job: Job, conflicts: int) -> None:
    """Let others get on. Two tries of one run go in step, and the slower one would lose each time."""
    if conflicts > 2:
        job.stop.wait(random.uniform(0, GIVE_WAY * conflicts))  # noqa: S311  # no secret hangs on it
