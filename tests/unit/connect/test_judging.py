"""What looks at a connector mean: by examples, and against a model of a connector over random histories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.connect.client import ConnectorState, ConnectorStatus, TaskStatus
from airflow_lakestream.connect.judging import ConnectorLook, ConnectorMemory, judge
from airflow_lakestream.driver.supervisor import (
    DriverState,
    SupervisionHistory,
    SupervisionLimits,
    SupervisorAction,
    decide,
)

LIMITS = SupervisionLimits(max_restarts=5, backoff=1, stall_timeout=100, unknown_timeout=70, start_timeout=50)


def status(*tasks: ConnectorState, state: ConnectorState = ConnectorState.RUNNING, trace: str = "") -> ConnectorStatus:
    made = (TaskStatus(n, one, trace=trace if one is ConnectorState.FAILED else "") for n, one in enumerate(tasks))
    return ConnectorStatus(state, tuple(made))


RUNS = status(ConnectorState.RUNNING, ConnectorState.RUNNING)
FAILS = status(
    ConnectorState.RUNNING, ConnectorState.FAILED, trace="a.B: outer\n\tat x\nCaused by: c.D: no such table\n\tat y"
)
POISON = "DataException: An error occurred converting record, topic: orders, partition, 3, offset: 55"


@pytest.mark.parametrize(
    ("seen", "driver"),
    [
        (ConnectorLook(RUNS), DriverState.RUNNING),
        # The connector's own state says nothing.
        (ConnectorLook(FAILS), DriverState.FAILED),
        (ConnectorLook(status(state=ConnectorState.FAILED)), DriverState.FAILED),
        (ConnectorLook(status(ConnectorState.PAUSED, state=ConnectorState.PAUSED)), DriverState.RUNNING),
        (ConnectorLook(status(state=ConnectorState.STOPPED)), DriverState.DONE),
        (ConnectorLook(status()), DriverState.STARTING),
        (ConnectorLook(status(ConnectorState.RUNNING, ConnectorState.UNASSIGNED)), DriverState.STARTING),
        (ConnectorLook(status(ConnectorState.OTHER)), DriverState.STARTING),
        (ConnectorLook(problem="no answer"), DriverState.UNKNOWN),
        (ConnectorLook(is_gone=True), DriverState.FAILED),
    ],
)
def test_a_connector_is_judged_by_its_tasks(seen: ConnectorLook, driver: DriverState) -> None:
    assert judge(seen, ConnectorMemory())[0].driver is driver


def test_the_innermost_cause_is_told() -> None:
    assert judge(ConnectorLook(FAILS), ConnectorMemory())[0].error == "task 1 failed: c.D: no such table"


def test_a_rebalance_of_a_connector_that_has_run_is_no_new_start() -> None:
    _, memory = judge(ConnectorLook(RUNS), ConnectorMemory())
    rebalances = ConnectorLook(status(ConnectorState.UNASSIGNED, ConnectorState.RESTARTING))
    assert judge(rebalances, memory)[0].driver is DriverState.RUNNING


def test_the_same_record_in_two_traces_is_poison_and_in_one_it_is_not() -> None:
    fails = ConnectorLook(status(ConnectorState.FAILED, trace=POISON))
    sight, memory = judge(fails, ConnectorMemory())
    assert not sight.terminal
    sight, memory = judge(fails, memory.restarted(fails))
    assert sight.terminal
    assert "orders[3] offset 55" in sight.error
    assert "move the connector's offset behind it" in sight.error
    # A sink with a ledger begins where that ends, wherever its offset was moved to.
    own, _ = judge(replace(fails, has_ledger=True), memory)
    assert "Run KafkaExtractOperator once with the same group" in own.error
    assert "move" not in own.error
    # Another record is another matter.
    other = ConnectorLook(status(ConnectorState.FAILED, trace=POISON.replace("55", "56")))
    assert not judge(other, memory)[0].terminal


def test_a_record_without_a_place_is_the_same_while_its_group_stands_still() -> None:
    trace = "ConnectException: Tolerance exceeded in error handler\nCaused by: DataException: bad bytes"
    fails = ConnectorLook(status(ConnectorState.FAILED, trace=trace), committed={"orders[0]": 17})
    memory = ConnectorMemory().restarted(fails)
    assert "at or behind orders[0] 17 (DataException: bad bytes)" in judge(fails, memory)[0].error
    assert judge(fails, memory)[0].terminal
    assert not judge(replace(fails, committed={"orders[0]": 18}), memory)[0].terminal
    # A look into the topic has found which one it is.
    found = replace(fails, unreadable="orders[0] offset 21")
    assert "orders[0] offset 21." in judge(found, ConnectorMemory().restarted(found))[0].error


@pytest.mark.parametrize(
    "trace",
    [
        "ConnectException: Tolerance exceeded in error handler\nCaused by: java.net.SocketTimeoutException: timed out",
        "ConnectException: Exiting WorkerSinkTask\nCaused by: CommitFailedException: the table is away",
    ],
)
def test_what_passes_by_itself_is_never_poison(trace: str) -> None:
    fails = ConnectorLook(status(ConnectorState.FAILED, trace=trace))
    assert not judge(fails, ConnectorMemory().restarted(fails).restarted(fails))[0].terminal


def after(seconds: int, *looks: ConnectorLook) -> tuple[SupervisorAction, str]:
    """Return what is done, with a look each ten seconds, the last one again and again."""
    history, memory = SupervisionHistory(submitted_at=0), ConnectorMemory()
    for at in range(0, seconds + 1, 10):
        sight, memory = judge(looks[min(at // 10, len(looks) - 1)], memory)
        decision = decide(history, LIMITS, sight, at)
        if decision.action is not SupervisorAction.WAIT:
            return decision.action, decision.reason
        history = decision.history
    return SupervisorAction.WAIT, ""


def test_lag_that_stands_is_a_stall_and_idleness_is_none() -> None:
    behind = ConnectorLook(RUNS, committed={"orders[0]": 5}, lag=10, commits="1")
    assert after(90, behind)[0] is SupervisorAction.WAIT
    assert after(100, behind) == (
        SupervisorAction.RESTART,
        "made no progress for 100 s (last: running, tasks: 2 running; 10 behind)",
    )
    assert after(10_000, replace(behind, lag=0))[0] is SupervisorAction.WAIT
    # Nobody can tell: a source, or a topic by a regular expression.
    assert after(10_000, replace(behind, lag=None))[0] is SupervisorAction.WAIT
    # It commits to its table, although no source offset has moved; or the other way round.
    for name, values in (("commits", "12345678901234567890"), ("committed", [{"orders[0]": n} for n in range(20)])):
        moving = [replace(behind, **{name: one}) for one in values]  # type: ignore[arg-type]  # of either kind
        assert after(190, *moving)[0] is SupervisorAction.WAIT


def test_a_worker_that_does_not_answer_is_borne_for_a_while() -> None:
    away = ConnectorLook(problem="no answer")
    assert after(60, ConnectorLook(RUNS, lag=0), away)[0] is SupervisorAction.WAIT
    assert after(90, ConnectorLook(RUNS, lag=0), away) == (SupervisorAction.RESTART, "was not heard of for 70 s")


LOOKS = st.lists(
    st.builds(
        ConnectorLook,
        st.sampled_from([RUNS, FAILS, status(ConnectorState.FAILED, trace=POISON), status(), None]),
        committed=st.dictionaries(st.just("orders[0]"), st.integers(0, 3)),
        lag=st.sampled_from([None, 0, 7]),
        commits=st.sampled_from(["", "1", "2"]),
        coordinators=st.integers(0, 2),
    ),
    max_size=30,
)


@given(LOOKS)
def test_over_any_history_memory_is_json_and_only_a_repeated_record_is_terminal(looks: list[ConnectorLook]) -> None:
    memory, restarts = ConnectorMemory(), 0
    for seen in looks:
        sight, memory = judge(seen, memory)
        assert ConnectorMemory.parse({**memory.to_dict(), "of_a_later_version": 1}) == memory
        is_poison = seen.status is not None and any(task.trace == POISON for task in seen.status.tasks)
        assert sight.terminal == (is_poison and restarts > 0)
        if sight.driver is DriverState.FAILED:
            restarts += is_poison
            memory = memory.restarted(seen)


@given(LOOKS)
def test_moves_never_fall_and_rise_only_with_a_sign_of_life(looks: list[ConnectorLook]) -> None:
    memory = ConnectorMemory()
    for seen in looks:
        before = memory
        _, memory = judge(seen, memory)
        assert memory.moves - before.moves in (0, 1)
        if seen.status is None or seen.status.failed:
            assert memory.moves == before.moves
        elif not seen.lag:
            assert memory.moves == before.moves + 1
