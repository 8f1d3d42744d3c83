"""Several coordinators of a sink: those that a restart leaves behind are nothing, and those that stay are told once."""

from __future__ import annotations

import pytest

from airflow_lakestream.connect import judging
from airflow_lakestream.connect.client import ConnectorState, ConnectorStatus, TaskStatus
from airflow_lakestream.connect.judging import ConnectorLook, ConnectorMemory, ConnectorWatch
from airflow_lakestream.driver.supervisor import SupervisionHistory, SupervisionLimits

RUNS = ConnectorStatus(ConnectorState.RUNNING, (TaskStatus(0, ConnectorState.RUNNING),))
SESSION = 45.0


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        # One look in half a minute: an ordinary restart, and one whose old coordinator is missed after its session.
        ([1, 2, 1, 1], 0),
        ([1, 2, 2, 2, 1, 2, 2, 2, 1], 0),
        # Nobody answers for a while.
        ([2, 0, 2, 0, 2], 0),
        # A frozen worker's goes on.
        ([1, 2, 2, 2, 2, 2, 2, 2, 2], 1),
        ([2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2], 2),
    ],
)
def test_two_coordinators_are_told_once_where_none_of_them_can_be_the_last_life_of_a_restarted_one(
    counts: list[int], told: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1_000.0
    monkeypatch.setattr(judging.time, "time", lambda: now)
    looks = iter(counts)
    memory = ConnectorMemory()
    for _ in counts:
        # The memory goes from process to process.
        given = ConnectorMemory.parse(memory.to_dict())
        one = ConnectorWatch(
            lambda: ConnectorLook(RUNS, coordinators=next(looks)),
            SupervisionLimits(),
            SupervisionHistory(now),
            given,
            SESSION,
        )
        one.look()
        memory = one.memory
        now += 30
    assert caplog.text.count("coordinators of the sink are at work at once") == told
