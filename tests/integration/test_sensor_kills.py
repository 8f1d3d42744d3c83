"""The triggerer is killed again and again while sensors wait: each ends as it should, as if nothing had been.

LAKESTREAM_KILLS=20 pytest tests/integration/test_sensor_kills.py
"""

from __future__ import annotations

import os
import random
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.airflow_home import Connections, Run
from tests.support.broker import Producing, Topics
from tests.support.sensing import TASK, Sensing, commit

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

KILLS = int(os.environ.get("LAKESTREAM_KILLS", "3"))
SEED = int(os.environ.get("LAKESTREAM_KILLS_SEED", "7"))
# Between coming up, which takes seconds, and long after the first looks.
UP_TO = 15.0
DEFERRED = {"deferrable": True}
AT_ONCE = {"start_from_trigger": True}


def test_sensors_outlive_their_triggerers(
    sensing: Sensing, connections: Connections, admin: AdminClient, topic: Topics, produce: Producing
) -> None:
    name, group = topic(2), f"g-{uuid.uuid4().hex[:8]}"
    produce(name, 0, ["a", "b"])
    commit(admin, group, name, {0: 0, 1: 0})
    # One that never catches up: when its sensors are looked at again is up to the kills.
    commit(admin, f"{group}-never", name, {0: 0, 1: 0})
    own = {"group_id": group, "topic": name}
    never = {"group_id": f"{group}-never", "topic": name, "timeout": 20}
    waiting: dict[str, tuple[Run, Path]] = {
        kind: sensing.write(f"outlives_{kind}_{uuid.uuid4().hex[:6]}", **arguments)
        for kind, arguments in {
            "caught_up": {**own, **DEFERRED},
            "caught_up_at_once": {**own, **AT_ONCE},
            "timed_out": {**never, **DEFERRED},
            "timed_out_at_once": {**never, **AT_ONCE},
            "skipped": {**never, **DEFERRED, "soft_fail": True},
            "missing": {**DEFERRED, "group_id": "nobody", "topic": name, "missing": "wait", "timeout": 20},
        }.items()
    }
    for run, file in waiting.values():
        sensing.defer(run, file)
    chance = random.Random(SEED)
    for _ in range(KILLS):
        sensing.triggerer.start()
        time.sleep(chance.uniform(0, UP_TO))  # the kill comes at any moment of its life
        sensing.triggerer.kill()
        assert {sensing.state(waiting[kind][0]) for kind in ("caught_up", "caught_up_at_once")} == {"deferred"}

    commit(admin, group, name, {0: 2, 1: 0})
    sensing.triggerer.start()
    logs = {}
    for kind, (run, file) in waiting.items():
        sensing.await_state(run, "scheduled")
        logs[kind] = sensing.work(run, file)
    states = {kind: run.task(TASK).state for kind, (run, _) in waiting.items()}
    assert states == {
        "caught_up": "success",
        "caught_up_at_once": "success",
        "timed_out": "failed",
        "timed_out_at_once": "failed",
        "skipped": "skipped",
        "missing": "failed",
    }
    assert waiting["caught_up"][0].task(TASK).xcom["lag"] == 0
    for kind in ("timed_out", "timed_out_at_once", "skipped"):
        assert "Sensor has timed out after 20 seconds. stopped consumer" in logs[kind]
    assert "has committed no offset" in logs["missing"]
