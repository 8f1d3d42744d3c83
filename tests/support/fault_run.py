"""One run of the package, or of its maintenance, under the fault harness, with a boundary at each step.

`fault_ports` are its ports.

At a boundary the run's fate is asked: it goes on, gives the turn to others (it may be gone on with later, as the zombie
of a try that everybody took for dead), fails, or is killed. A killed run has no effect any more: neither on the
catalog nor on files, not even by cleaning up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.exceptions import LakestreamError, Transient
from tests.support.fault_turns import Killed, Turn

PAUSE, KILL, FAIL = "pause", "kill", "fail"
TRIM, LOST = "retention meanwhile", "not written"
REFUSED, TIMED_OUT = "refused", "timed out"
APPLIED_REFUSED, APPLIED_TIMED_OUT = "applied, reported as refused", "applied, timed out"
LATE, DOWN, APPLIED_DOWN = "timed out, applied later", "catalog down", "applied, catalog down"
COMMIT_FAULTS = (REFUSED, TIMED_OUT, APPLIED_REFUSED, APPLIED_TIMED_OUT, LATE, DOWN, APPLIED_DOWN)
# What can happen at which boundary.
POINTS: Mapping[str, Sequence[str]] = {
    "load": (PAUSE, KILL, FAIL),
    "look": (PAUSE, KILL, FAIL),
    "boundaries": (PAUSE, KILL, FAIL),
    "read": (PAUSE, PAUSE, KILL, FAIL, TRIM),
    "decode": (FAIL,),
    "write": (PAUSE, KILL, FAIL),
    "data file": (KILL, FAIL),
    "manifest": (KILL, FAIL),
    "identity": (PAUSE, KILL, FAIL),
    "commit": (PAUSE, PAUSE, PAUSE, KILL, *COMMIT_FAULTS),
    "committed": (PAUSE, KILL),
    "mirror": (PAUSE, KILL, LOST),
}


class InjectedFault(LakestreamError, Transient):
    """What a port raises when its boundary is told to fail."""


class InjectedDiskFault(OSError):
    """What a file system raises when its boundary is told to fail."""


@dataclass
class Fate:
    """What happens to a run, and when: at the `count`-th time that it comes to `point`."""

    point: str = ""
    count: int = 1
    what: str = ""

    def at(self, point: str) -> str:
        """Return what happens at a boundary: nothing, most of the time."""
        if point != self.point:
            return ""
        self.count -= 1
        return self.what if self.count == 0 else ""

    def __str__(self) -> str:
        return f"{self.what} at {self.point} {self.count}" if self.what else "goes through"


class PausesEverywhere(Fate):
    """A run among others that are gone on with in turns; now and then, as `chance` says, it gives the turn away."""

    def __init__(self, chance: Callable[[], bool]) -> None:
        super().__init__()
        self._chance = chance

    def at(self, point: str) -> str:
        return PAUSE if PAUSE in POINTS[point] and self._chance() else ""


@dataclass(frozen=True)
class Asked:
    """What a run was asked to do; clearing or retrying it asks the same again."""

    run_id: str
    topic: str
    config: Mapping[str, Any]

    @property
    def mode(self) -> str:
        return str(self.config["mode"])

    def __str__(self) -> str:
        told = {k: v for k, v in self.config.items() if k not in ("mode", "schema", "table_properties")}
        return f"{self.run_id} {self.topic} {self.mode} {told}"


class Run:
    """One try of a run. `go_on` lets it run to its next pause or to its end."""

    def __init__(
        self,
        number: int,
        asked: Asked,
        fate: Fate,
        trim: Callable[[], object],
        work: Callable[[], object] | None = None,
    ) -> None:
        self.number, self.asked, self.fate = number, asked, fate
        self.job: LandingJob | None = None
        self.report: LandingReport | None = None
        self.error: BaseException | None = None
        self.dead = self.down = False
        # How many other runs were alive at some time while this one was.
        self.beside = 0
        self.met_commit_fault = self.trims_midway = False
        # A request that the catalog was sent, and has not decided upon yet.
        self.pending: Callable[[], object] | None = None
        # The files that it has written, so far.
        self.files: list[str] = []
        self._trim, self._work = trim, work
        self._turn = Turn(self._land)

    @property
    def is_over(self) -> bool:
        return self._turn.is_over

    def go_on(self) -> None:
        self._turn.go_on()

    def at(self, point: str) -> str:
        """Meet a boundary: return what is to happen there, if that is for the caller to do. May pause or raise."""
        if self.dead:
            raise Killed
        what = self.fate.at(point)
        if what == PAUSE:
            assert self._turn.is_this_thread(), point
            self._turn.pause()
            return self.at(point) if self.fate.point == point else ""
        if what == KILL:
            self.dead = True
            raise Killed
        if what == FAIL:
            if point in ("data file", "manifest"):
                raise InjectedDiskFault(f"{point}: no space left")
            raise InjectedFault(f"{point} failed")
        if what == TRIM:
            self.trims_midway = True
        return what

    def midway(self) -> None:
        """Do what happens in the middle of a read."""
        if self.trims_midway:
            self.trims_midway = False
            self._trim()

    def _land(self) -> None:
        try:
            if self._work is not None:
                self._work()
                return
            assert self.job is not None
            self.report = land(self.job)
        except BaseException as e:  # noqa: BLE001  # judged by whoever has the turn next
            self.error = e

    def __str__(self) -> str:
        return f"#{self.number} ({self.asked})"
