"""A driver that its place calls gone, while its lease counts: one restart is spent on it, never on its corpse."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.driver.backend import DriverBackend, DriverHandle
from airflow_lakestream.driver.driver_folder import DriverFolder
from airflow_lakestream.driver.driving import DriverSupervision, StreamSpec
from airflow_lakestream.driver.lease_record import DriverOutcome, LeaseRecord, ProcessIdentity
from airflow_lakestream.driver.supervisor import BackendState, SupervisionDecision, SupervisionLimits, SupervisorAction

ELSEWHERE = ProcessIdentity(7, 7, 7, "pod", "another machine")
TTL = 1.0


class WorkerDied(BaseException):
    """What a worker that is killed does: nothing more."""


@dataclass
class Cluster:
    """Drivers elsewhere: each takes the next lease when it is launched, unless it `dies_first`, and never beats."""

    location: str
    states: dict[str, BackendState] = field(default_factory=dict)
    dies_first: int = 0
    names_first: bool = True
    # Ends the worker at a launch, before or after the cluster has taken it.
    loses_worker: str = ""

    def planned(self, job: Any) -> DriverHandle | None:
        return DriverHandle("cluster", str(job), is_planned=True) if self.names_first else None

    def launch(self, job: Any) -> DriverHandle:
        loses, self.loses_worker = self.loses_worker, ""
        if loses == "before":
            raise WorkerDied
        name = str(job)
        self.states[name] = BackendState.FAILED if self.dies_first else BackendState.RUNNING
        if self.dies_first:
            self.dies_first -= 1
        else:
            self.lease(len([*self._leases()]) + 1)
        if loses:
            raise WorkerDied
        return DriverHandle("cluster", name)

    def lease(self, generation: int, **changes: Any) -> None:
        now = time.time()
        record = LeaseRecord(generation, "f", "driver", ELSEWHERE, taken_at=now, beat_at=now, ttl=TTL)
        DriverFolder(self.location).write(f"lease-{generation:08d}.json", {**asdict(record), **changes})

    def _leases(self) -> list[str]:
        return [name for name in DriverFolder(self.location).names() if name.startswith("lease-")]

    def state(self, handle: DriverHandle) -> BackendState:
        return self.states.get(handle.job_id, BackendState.UNKNOWN if handle.is_planned else BackendState.VANISHED)

    def kill(self, handle: DriverHandle) -> None:
        self.states[handle.job_id] = BackendState.VANISHED

    def log_tail(self, handle: DriverHandle) -> list[str]:
        return []

    def works(self, handle: DriverHandle) -> None: ...

    def ended(self, handle: DriverHandle) -> None: ...


def driving(cluster: DriverBackend, location: str, prepare: Callable[[], Any], **limits: Any) -> DriverSupervision:
    spec = StreamSpec(location, "f", {}, SupervisionLimits(backoff=0, **limits), 0.05, "task")
    return DriverSupervision(
        spec, cluster, prepare, lambda seconds: time.sleep(min(seconds, 0.05))
    )  # as the task waits


def follow(made: DriverSupervision, until_started: bool = False) -> SupervisionDecision:
    return made.follow(lambda look: None, until_started)


def restart(made: DriverSupervision, decision: SupervisionDecision) -> None:
    """Do what an operator does when a driver is to be restarted."""
    assert decision.action is SupervisorAction.RESTART
    made.clear_away()
    made.begin(decision.history.restarted(time.time()))


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def names() -> Callable[[], str]:
    found = iter(("one", "two", "three"))
    return lambda: next(found)


@pytest.mark.parametrize("seen_as", [BackendState.VANISHED, BackendState.FAILED, BackendState.FINISHED])
def test_a_driver_that_is_gone_costs_one_restart_and_the_next_is_launched_when_its_lease_is_over(
    location: str, names: Callable[[], str], seen_as: BackendState
) -> None:
    cluster = Cluster(location)
    made = driving(cluster, location, names, max_restarts=1, unknown_timeout=0.5)
    made.begin()
    assert follow(made, until_started=True).action is SupervisorAction.WAIT
    cluster.states["one"] = seen_as
    decision = follow(made)
    restart(made, decision)
    assert cluster.states["two"] is BackendState.RUNNING
    assert made.handle == DriverHandle("cluster", "two")
    assert follow(made, until_started=True).history.restarts == 1


def test_a_lease_that_a_driver_gave_back_is_not_waited_for(location: str, names: Callable[[], str]) -> None:
    cluster = Cluster(location)
    made = driving(cluster, location, names)
    made.begin()
    cluster.lease(1, ttl=3600, outcome=DriverOutcome.FAILED, error="ended by SIGTERM")
    decision = follow(made)
    assert decision.reason == "failed: ended by SIGTERM"
    restart(made, decision)
    assert cluster.states["two"] is BackendState.RUNNING


def test_a_driver_that_died_before_it_had_a_lease_is_not_found_again(location: str, names: Callable[[], str]) -> None:
    cluster = Cluster(location, dies_first=1)
    made = driving(cluster, location, names, max_restarts=1)
    made.begin()
    decision = follow(made)
    assert decision.reason == "failed: ended before it took the checkpoint's lease"
    restart(made, decision)
    assert cluster.states["two"] is BackendState.RUNNING


def test_a_lease_that_still_beats_is_another_drivers_and_is_adopted(location: str, names: Callable[[], str]) -> None:
    cluster = Cluster(location)
    driving(cluster, location, names).begin()
    cluster.states["one"] = BackendState.FAILED
    beats = iter(range(1, 100))
    spec = StreamSpec(location, "f", {}, SupervisionLimits(), 0.05, "task")
    made = DriverSupervision(
        spec, cluster, names, lambda seconds: cluster.lease(1, beat_at=time.time() + next(beats) / 1000)
    )
    made.begin()
    assert (made.generation, made.handle) == (1, None)
    assert [*cluster.states] == ["one"]


@pytest.mark.parametrize("loses_worker", ["before", "after"])
def test_a_worker_that_dies_between_submit_and_answer_leaves_its_driver_to_the_next(
    location: str, names: Callable[[], str], loses_worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(location, loses_worker=loses_worker)
    made = driving(cluster, location, names)
    # A worker that is killed gives nothing up.
    monkeypatch.setattr(made._submissions, "failed", lambda claimed: None)
    with pytest.raises(WorkerDied):
        made.begin()
    again = driving(cluster, location, names, start_timeout=0.5)
    again.begin()
    assert again.handle == DriverHandle("cluster", "one", is_planned=True)
    if loses_worker == "after":
        assert follow(again, until_started=True).action is SupervisorAction.WAIT
        assert [*cluster.states] == ["one"]
    else:
        decision = follow(again)
        assert decision.reason == "did not begin to work within 0.5 s"
        restart(again, decision)
        assert cluster.states == {"one": BackendState.VANISHED, "two": BackendState.RUNNING}
