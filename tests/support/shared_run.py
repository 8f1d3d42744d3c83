"""A run of the lake that several workers share, each with a job and a catalog client of its own, handing over JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.sharing.parallel import SharedPlan, folder_of, land_pieces, plan_shares, read_share
from airflow_lakestream.core.sharing.pieces import PlanShare, SharePiece
from airflow_lakestream.tables import row_buffer
from tests.support.faults import InterposedReader, SmallChunks
from tests.support.lake import Lake

Change = Callable[[LandingJob], LandingJob]


def as_it_is(job: LandingJob) -> LandingJob:
    return job


@dataclass
class SharedRun:
    """Plan, read and commit, in steps or at once; `config` are the arguments of the operator."""

    lake: Lake
    topic: str
    config: dict[str, Any] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def folder(self) -> str:
        return folder_of(self.run_id)

    def job(self) -> LandingJob:
        return self.lake.job(self.topic, self.run_id, **self.config)

    def plan(self, most: int = 4) -> SharedPlan:
        """Plan; shares of any width, so that few records are enough."""
        return plan_shares(self.job(), most, least_width=1)

    def read(self, share: PlanShare, change: Change = as_it_is) -> list[SharePiece]:
        """Read one share, as a worker that was told of it by JSON; `change` puts faults into its job."""
        told = PlanShare.from_dict(json.loads(json.dumps(share.to_dict(), allow_nan=False)))
        return read_share(change(self.job()), told, self.folder)

    def read_all(self, plan: SharedPlan) -> list[SharePiece]:
        """Read all shares, side by side."""
        with ThreadPoolExecutor(len(plan.shares) or 1) as pool:
            return [piece for pieces in pool.map(self.read, plan.shares) for piece in pieces]

    def commit(self, plan: SharedPlan, pieces: Sequence[SharePiece], change: Change = as_it_is) -> LandingReport:
        """Commit what was handed over, by JSON."""
        told = [SharePiece.from_dict(json.loads(json.dumps(piece.to_dict(), allow_nan=False))) for piece in pieces]
        return land_pieces(change(self.job()), told, plan.within, self.folder)

    def files(self) -> set[str]:
        """Return the files that are below the run's folder."""
        return {str(path) for path in self.lake.folder.rglob(f"{self.folder}/**/*") if path.is_file()}


def read(run: SharedRun, most: int) -> tuple[SharedRun, SharedPlan, list[SharePiece]]:
    """Plan a run for so many workers, and let them read it; return the run, its plan and what was handed over."""
    plan = run.plan(most)
    return run, plan, run.read_all(plan)


def read_until_killed(run: SharedRun, share: PlanShare) -> None:
    """Read a share in a process of its own, which dies of a SIGKILL when it has written some of its files."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_die_reading, args=(run, share.to_dict()))
    process.start()
    try:
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
    finally:
        process.kill()


def _die_reading(run: SharedRun, share: dict[str, Any]) -> None:
    row_buffer.FILE_BYTES = 1

    def die(job: LandingJob) -> LandingJob:
        kill = InterposedReader(SmallChunks(job.reader, 5), lambda: os.kill(os.getpid(), signal.SIGKILL), 12)
        return replace(job, reader=kill)

    run.read(PlanShare.from_dict(share), die)
