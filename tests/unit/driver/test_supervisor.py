"""What is done about a driver, by what is seen of it: each limit tested by what happens when it is ignored."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.driver.lease_record import DriverOutcome, LeaseRecord, ProcessIdentity
from airflow_lakestream.driver.supervisor import (
    BackendState,
    DriverSight,
    DriverState,
    SupervisionHistory,
    SupervisionLimits,
    SupervisorAction,
    decide,
    sight_of,
)

LIMITS = SupervisionLimits(
    max_restarts=3,
    backoff=10,
    max_backoff=25,
    healthy_after=600,
    stall_timeout=100,
    start_timeout=50,
    unknown_timeout=70,
)
AWAY = ProcessIdentity(1, 1, 1, "elsewhere", "another machine")
LEASE = LeaseRecord(generation=4, fingerprint="f", holder="h", process=AWAY, beat_at=1000.0, ttl=60)
RUNNING, UNKNOWN = BackendState.RUNNING, BackendState.UNKNOWN


def test_a_driver_that_is_done_ends_the_task() -> None:
    assert decide(SupervisionHistory(0), LIMITS, DriverSight(DriverState.DONE), 1).action is SupervisorAction.FINISH


@pytest.mark.parametrize(
    ("driver", "error", "reason"),
    [
        (DriverState.FAILED, "no such topic", "failed: no such topic"),
        (DriverState.FAILED, "", "failed"),
        (DriverState.VANISHED, "", "vanished without a word"),
    ],
)
def test_failures_restart_with_growing_pauses_and_then_give_up(driver: DriverState, error: str, reason: str) -> None:
    history, pauses = SupervisionHistory(0), []
    for n in itertools.count():
        decision = decide(history, LIMITS, DriverSight(driver, 0, error), 1000.0 * n)
        assert decision.reason == reason
        if decision.action is not SupervisorAction.RESTART:
            break
        pauses.append(decision.at - 1000.0 * n)
        history = decision.history.restarted(decision.at)
    assert decision.action is SupervisorAction.GIVE_UP
    assert pauses == [10, 20, 25]


@pytest.mark.parametrize(("healthy_for", "pause"), [(599, 20), (600, 10)])
def test_a_healthy_period_resets_the_restarts(healthy_for: float, pause: float) -> None:
    history = SupervisionHistory(submitted_at=0, restarts=1)
    for now in (100, healthy_for):
        history = decide(history, LIMITS, DriverSight(DriverState.RUNNING, int(now)), now).history
    decision = decide(history, LIMITS, DriverSight(DriverState.FAILED), healthy_for + 1)
    assert decision.at - (healthy_for + 1) == pause


def test_a_driver_that_only_sits_there_is_not_healthy() -> None:
    limits = replace(LIMITS, stall_timeout=None)
    history = SupervisionHistory(submitted_at=0, restarts=1)
    for now in (1, 10_000):
        history = decide(history, limits, DriverSight(DriverState.RUNNING, 5), now).history
    assert history.restarts == 1


def test_a_query_that_does_not_move_is_restarted_and_one_that_moves_is_not() -> None:
    history = SupervisionHistory(submitted_at=0)
    for moves, now in ((1, 90), (2, 180), (3, 270)):
        decision = decide(history, LIMITS, DriverSight(DriverState.RUNNING, moves), now)
        assert decision.action is SupervisorAction.WAIT
        history = decision.history
    assert decide(history, LIMITS, DriverSight(DriverState.RUNNING, 3), 369).action is SupervisorAction.WAIT
    stalled = decide(history, LIMITS, DriverSight(DriverState.RUNNING, 3), 370)
    assert (stalled.action, stalled.reason) == (SupervisorAction.RESTART, "made no progress for 100 s")
    patient = replace(LIMITS, stall_timeout=None)
    assert decide(history, patient, DriverSight(DriverState.RUNNING, 3), 10_000).action is SupervisorAction.WAIT


def test_a_driver_that_never_begins_is_restarted() -> None:
    assert decide(SupervisionHistory(0), LIMITS, DriverSight(DriverState.STARTING), 49).action is SupervisorAction.WAIT
    late = decide(SupervisionHistory(0), LIMITS, DriverSight(DriverState.STARTING), 50)
    assert (late.action, late.reason) == (SupervisorAction.RESTART, "did not begin to work within 50 s")


def test_an_unknown_state_is_borne_for_a_time_that_begins_anew_when_the_driver_is_seen() -> None:
    history = SupervisionHistory(0)
    for driver, now, action in (
        (DriverState.UNKNOWN, 10, SupervisorAction.WAIT),
        (DriverState.UNKNOWN, 79, SupervisorAction.WAIT),
        (DriverState.RUNNING, 79.5, SupervisorAction.WAIT),
        (DriverState.UNKNOWN, 80, SupervisorAction.WAIT),
        (DriverState.UNKNOWN, 149, SupervisorAction.WAIT),
        (DriverState.UNKNOWN, 150, SupervisorAction.RESTART),
    ):
        decision = decide(history, replace(LIMITS, stall_timeout=None), DriverSight(driver), now)
        assert decision.action is action
        history = decision.history


@pytest.mark.parametrize(
    ("changes", "job", "now", "seen"),
    [
        ({}, RUNNING, 1059, DriverState.RUNNING),
        # A master or API that is away says nothing about a driver that beats.
        ({}, UNKNOWN, 1059, DriverState.RUNNING),
        ({}, BackendState.FAILED, 1059, DriverState.VANISHED),
        # Airflow's provider takes a pod that is gone for a success.
        ({}, BackendState.VANISHED, 1059, DriverState.VANISHED),
        ({}, RUNNING, 1061, DriverState.UNKNOWN),
        ({}, UNKNOWN, 1061, DriverState.UNKNOWN),
        ({}, BackendState.FINISHED, 1061, DriverState.VANISHED),
        ({"outcome": DriverOutcome.DONE}, UNKNOWN, 9999, DriverState.DONE),
        ({"outcome": DriverOutcome.STOPPED}, BackendState.VANISHED, 9999, DriverState.DONE),
        ({"outcome": DriverOutcome.FAILED}, BackendState.FINISHED, 1001, DriverState.FAILED),
        # A lease of an earlier driver says nothing of this one.
        ({"generation": 3, "outcome": DriverOutcome.DONE}, RUNNING, 1001, DriverState.STARTING),
        ({"generation": 3}, UNKNOWN, 9999, DriverState.STARTING),
        ({"generation": 3}, BackendState.FINISHED, 1001, DriverState.FAILED),
        ({"generation": 3}, BackendState.VANISHED, 1001, DriverState.FAILED),
    ],
)
def test_what_lease_and_cluster_say_together(changes: dict, job: BackendState, now: float, seen: DriverState) -> None:
    assert sight_of(replace(LEASE, **changes), 4, job, 0, now).driver is seen


def test_without_any_lease_the_driver_starts() -> None:
    assert sight_of(None, 1, BackendState.UNKNOWN, 0, 0).driver is DriverState.STARTING


def test_an_error_that_would_come_again_is_not_tried_again() -> None:
    failed = replace(LEASE, outcome=DriverOutcome.FAILED, error="no such table", terminal=True)
    decision = decide(SupervisionHistory(0), LIMITS, sight_of(failed, 4, BackendState.UNKNOWN, 0, 0), 1)
    assert (decision.action, decision.terminal, decision.reason) == (
        SupervisorAction.GIVE_UP,
        True,
        "failed: no such table",
    )


def test_what_a_driver_said_is_the_reason() -> None:
    failed = replace(LEASE, outcome=DriverOutcome.FAILED, error="topic 'x' is gone")
    sight = sight_of(failed, 4, BackendState.UNKNOWN, 0, 0)
    assert decide(SupervisionHistory(0), LIMITS, sight, 1).reason == "failed: topic 'x' is gone"


@given(st.lists(st.tuples(st.sampled_from(DriverState), st.integers(0, 5), st.integers(1, 400)), max_size=30))
def test_restarts_never_exceed_the_limit_and_a_history_survives_being_handed_on(looks: list) -> None:
    history, now = SupervisionHistory(submitted_at=0), 0.0
    for driver, moves, later in looks:
        now += later
        decision = decide(
            SupervisionHistory.parse({**history.to_dict(), "new": 1}), LIMITS, DriverSight(driver, moves), now
        )
        assert decision == decide(history, LIMITS, DriverSight(driver, moves), now)
        history = decision.history.restarted(now) if decision.action is SupervisorAction.RESTART else decision.history
        assert history.restarts <= LIMITS.max_restarts
