"""Each way of waiting comes to the same: in a worker, rescheduled, deferred, and begun in the triggerer."""

from __future__ import annotations

import json
import threading
import uuid
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.airflow_home import Connections, Run
from tests.support.broker import TopicOf
from tests.support.sensing import TASK, Sensing, commit

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

FROM_TRIGGER = "start_from_trigger"
IN_LINE = {"poke": {}, "reschedule": {"mode": "reschedule"}, "deferred": {"deferrable": True}}


class Consumer:
    """A consumer group that stands at the beginning of a topic with two records, in each of two partitions."""

    def __init__(self, admin: AdminClient, topic: str) -> None:
        self._admin = admin
        self.topic, self.group = topic, f"g-{uuid.uuid4().hex[:8]}"
        self.commit(0)

    def commit(self, offset: int) -> None:
        commit(self._admin, self.group, self.topic, {0: offset, 1: offset})

    @property
    def arguments(self) -> dict[str, Any]:
        return {"group_id": self.group, "topic": self.topic}


@pytest.fixture
def consumer(connections: Connections, admin: AdminClient, topic_of: TopicOf) -> Consumer:
    return Consumer(admin, topic_of(["a", "b"], ["a", "b"]))


@pytest.fixture
def dag_id() -> str:
    return f"sense_{uuid.uuid4().hex[:8]}"


def task(run: Run) -> tuple[str, Any]:
    found = run.task(TASK)
    return found.state, found.xcom


@pytest.mark.parametrize("mode", IN_LINE)
def test_it_waits_until_the_consumer_has_caught_up(
    sensing: Sensing, consumer: Consumer, dag_id: str, mode: str
) -> None:
    later = threading.Timer(6, consumer.commit, [2])
    later.start()
    run = sensing.run(dag_id, **IN_LINE[mode], **consumer.arguments)
    later.join()
    state, xcom = task(run)
    assert (state, run.errors) == ("success", [])
    assert (xcom["lag"], xcom["worst"]) == (0, None)
    assert xcom["partitions"] == {consumer.topic: {"0": 0, "1": 0}}


@pytest.mark.parametrize("mode", IN_LINE)
@pytest.mark.parametrize("soft_fail", [False, True])
def test_a_time_out_says_why_or_skips(
    sensing: Sensing, consumer: Consumer, dag_id: str, mode: str, soft_fail: bool
) -> None:
    run = sensing.run(dag_id, **IN_LINE[mode], **consumer.arguments, timeout=2, soft_fail=soft_fail, retries=2)
    state, xcom = task(run)
    assert state == ("skipped" if soft_fail else "failed")
    assert run.task(TASK).tries == 1
    if not soft_fail:
        assert "stopped consumer" in str(run.errors[0])
        assert f"{consumer.topic}[" in str(run.errors[0])
        assert xcom["lag"] == 4


@pytest.mark.parametrize("mode", IN_LINE)
@pytest.mark.parametrize("soft_fail", [False, True])
def test_a_check_fails_where_the_consumer_is_behind(
    sensing: Sensing, consumer: Consumer, dag_id: str, mode: str, soft_fail: bool
) -> None:
    run = sensing.run(dag_id, **IN_LINE[mode], **consumer.arguments, fail_when_behind=True, soft_fail=soft_fail)
    state, xcom = task(run)
    assert state == ("skipped" if soft_fail else "failed")
    assert xcom["lag"] == 4
    if not soft_fail:
        assert "4 records behind in 2 of 2 partitions" in str(run.errors[0])


WRONG = {
    "connection": ({"kafka_conn_id": "nowhere"}, "there is no connection 'nowhere'"),
    "topic": ({"topic": "nothing-here"}, "nothing-here"),
    "group": ({"group_id": "nobody"}, "has committed no offset"),
    "table": ({"group_id": None, "table": "lake.none"}, "there is no table 'lake.none'"),
}


@pytest.mark.parametrize(
    ("mode", "what"), [*((mode, "connection") for mode in IN_LINE), *(("poke", what) for what in WRONG)]
)
@pytest.mark.parametrize("missing", ["fail", "wait"])
def test_what_is_missing_fails_it_or_is_awaited_with_its_name(
    sensing: Sensing, consumer: Consumer, dag_id: str, mode: str, missing: str, what: str
) -> None:
    wrong, text = WRONG[what]
    given = {**IN_LINE[mode], **consumer.arguments, "missing": missing, "timeout": 1, "retries": 1, **wrong}
    run = sensing.run(dag_id, **given)
    assert task(run)[0] == "failed"
    assert run.task(TASK).tries == 1
    assert text in str(run.errors[0])
    assert ("timed out" in str(run.errors[0])) is (missing == "wait")


def test_it_waits_in_a_real_triggerer(sensing: Sensing, consumer: Consumer, dag_id: str) -> None:
    # Rendered by the worker, or by the triggerer where it begins there.
    given = {**consumer.arguments, "topic": "{{ params.topic }}", "params": {"topic": consumer.topic}}
    written = [sensing.write(f"{dag_id}_{begin}", **{begin: True}, **given) for begin in ("deferrable", FROM_TRIGGER)]
    sensing.triggerer.start()
    for run, file in written:
        sensing.defer(run, file)
    consumer.commit(2)
    for run, file in written:
        sensing.await_state(run, "scheduled")
        sensing.work(run, file)
        state, xcom = task(run)
        assert state == "success", sensing.triggerer.log.read_text()
        assert xcom["partitions"] == {consumer.topic: {"0": 0, "1": 0}}


# Each takes a process of a worker, seconds long: the ends that differ.
ENDS: list[tuple[dict[str, Any], str, str]] = [
    ({"timeout": 3, "soft_fail": True}, "skipped", "Sensor has timed out after 3 seconds. stopped consumer"),
    ({"fail_when_behind": True}, "failed", "4 records behind"),
    ({"kafka_conn_id": "nowhere", "missing": "wait", "timeout": 3}, "failed", "there is no connection 'nowhere'"),
]


def test_those_that_begin_in_the_triggerer_end_as_the_others(sensing: Sensing, consumer: Consumer, dag_id: str) -> None:
    written = [
        sensing.write(f"{dag_id}_{n}", start_from_trigger=True, **{**consumer.arguments, **given})
        for n, (given, _, _) in enumerate(ENDS)
    ]
    assert [sensing.schedule(run) for run, _ in written] == ["deferred"] * len(ENDS)
    sensing.triggerer.start()
    for (run, file), (given, state, text) in zip(written, ENDS, strict=True):
        sensing.await_state(run, "scheduled")
        log = sensing.work(run, file)
        assert task(run)[0] == state, given
        assert text in log


def test_no_secret_is_kept_with_a_deferred_task(
    sensing: Sensing, consumer: Consumer, dag_id: str, connections: Connections, kafka: Any
) -> None:
    connections.kafka(kafka.secure_client_config())
    run, file = sensing.write(dag_id, deferrable=True, **consumer.arguments)
    sensing.work(run, file)
    assert sensing.state(run) == "deferred"
    assert kafka.password not in json.dumps(_triggers())


def _triggers() -> list[Any]:
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = [
            (one.classpath, {key: str(value) for key, value in one.kwargs.items()})
            for one in session.scalars(select(Trigger))
        ]
    assert any(path.endswith("LookTrigger") for path, _ in found)
    return found
