"""A run that is killed by SIGKILL at a chosen point, in a process of its own.

The points are set by wrappers around what the job is made of; the package knows nothing of them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from threading import Event, Semaphore
from typing import Any

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import RecordChunk, RecordReader, Sink
from tests.support.faults import InterposedReader, SmallChunks, WatchedFileIO, WrappedSource, after, before, passed
from tests.support.lake import Lake


def kill() -> None:
    """Die at once: no handler, no cleanup."""
    os.kill(os.getpid(), signal.SIGKILL)


class KilledBeforeReading:
    """A reader that is never reached by more than the plan."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader

    def read(self, plan: Plan, cancelled: Event) -> Iterator[RecordChunk]:
        kill()
        return self._reader.read(plan, cancelled)


class KilledBeforeMirror(WrappedSource):
    """A source that never gets to write the group's offsets."""

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        kill()


def _after_plan(job: LandingJob, number: int) -> LandingJob:
    return replace(job, reader=KilledBeforeReading(job.reader))


class SinkThatTellsOfCommits:
    """Hands everything on to the real sink, and lets others wait for its commits."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.commits = Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def commit(self, landing: Landing) -> int:
        snapshot_id = self._sink.commit(landing)
        self.commits.release()
        return snapshot_id


def _while_reading(job: LandingJob, number: int) -> LandingJob:
    # Reading runs ahead of the commits by some chunks: those before are waited for.
    sink = SinkThatTellsOfCommits(job.sink)

    def kill_after_the_commits_before() -> None:
        for _ in range(number - 1):
            sink.commits.acquire()
        kill()

    return replace(job, sink=sink, reader=InterposedReader(job.reader, kill_after_the_commits_before, 4 * number - 1))


def _after_data_files(job: LandingJob, number: int) -> LandingJob:
    # The first manifest of a commit is opened when all of its data files are written.
    manifests: list[str] = []

    def watch(path: str) -> None:
        if path.endswith(".avro") and "/snap-" not in path:
            manifests.append(path)
            if len(manifests) == number:
                kill()

    WatchedFileIO.watcher = watch
    return job


def _before_mirror(job: LandingJob, number: int) -> LandingJob:
    return replace(job, source=KilledBeforeMirror(job.source))


def _as_it_is(job: LandingJob, number: int) -> LandingJob:
    return job


POINTS: dict[str, Callable[[LandingJob, int], LandingJob]] = {
    "after the plan": _after_plan,
    "while reading": _while_reading,
    "after the data files": _after_data_files,
    "just before the commit": _as_it_is,
    "just after the commit": _as_it_is,
    "before the mirror": _before_mirror,
}

# Commits that are the last that the process does.
DEADLY = {"just before the commit": before(kill), "just after the commit": after(kill)}


def run_until_killed(lake: Lake, **request: Any) -> None:
    """Run `main` in a process of its own, which has to die of its SIGKILL."""
    # Forked from a server that has imported everything and started nothing: seconds less than a new interpreter.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=main, args=(lake, request))
    process.start()
    try:
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, f"not killed at {request['point']!r}: exit code {process.exitcode}"
    finally:
        process.kill()


def main(lake: Lake, request: Mapping[str, Any]) -> None:
    """Run until the kill: the process must not come to its end."""
    point, number = request["point"], request["number"]
    if point in DEADLY:
        catalog = lake.failing(*[passed] * (number - 1), DEADLY[point])
    else:
        catalog = lake.catalog(**{"py-io-impl": "tests.support.faults.WatchedFileIO"})
    job = lake.job(request["topic"], request["run_id"], catalog=catalog, **request["config"])
    job = replace(job, reader=SmallChunks(job.reader, request["chunk"]))
    land(POINTS[point](job, number))
