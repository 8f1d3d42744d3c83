"""A run of the lake that several workers share, each with a job and a catalog client of its own, handing over JSON."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_lakestream.core.job import Job
from airflow_lakestream.core.parallel import SharedPlan, folder_of, land_pieces, plan_shares, read_share
from airflow_lakestream.core.pieces import Piece, Share
from airflow_lakestream.core.report import LandingReport
from tests.support.lake import Lake

Change = Callable[[Job], Job]


def as_it_is(job: Job) -> Job:
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

    def job(self) -> Job:
        return self.lake.job(self.topic, self.run_id, **self.config)

    def plan(self, most: int = 4) -> SharedPlan:
        """Plan; shares of any width, so that few records are enough."""
        return plan_shares(self.job(), most, least_width=1)

    def read(self, share: Share, change: Change = as_it_is) -> list[Piece]:
        """Read one share, as a worker that was told of it by JSON; `change` puts faults into its job."""
        told = Share.from_dict(json.loads(json.dumps(share.to_dict(), allow_nan=False)))
        return read_share(change(self.job()), told, self.folder)

    def read_all(self, plan: SharedPlan) -> list[Piece]:
        """Read all shares, side by side."""
        with ThreadPoolExecutor(len(plan.shares) or 1) as pool:
            return [piece for pieces in pool.map(self.read, plan.shares) for piece in pieces]

    def commit(self, plan: SharedPlan, pieces: Sequence[Piece], change: Change = as_it_is) -> LandingReport:
        """Commit what was handed over, by JSON."""
        told = [Piece.from_dict(json.loads(json.dumps(piece.to_dict(), allow_nan=False))) for piece in pieces]
        return land_pieces(change(self.job()), told, plan.within, self.folder)

    def files(self) -> set[str]:
        """Return the files that are below the run's folder."""
        return {str(path) for path in (self.lake.folder / "warehouse").rglob(f"{self.folder}/**/*") if path.is_file()}


def live_files(lake: Lake) -> set[str]:
    """Return the paths of the table's live data files."""
    return {Path(task.file.file_path.removeprefix("file://")).as_posix() for task in lake.table().scan().plan_files()}
