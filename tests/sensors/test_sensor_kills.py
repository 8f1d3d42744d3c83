"""The triggerer is killed again and again while sensors wait: each ends as it should, as if nothing had been.

LAKESTREAM_KILLS=20 pytest tests/sensors/test_sensor_kills.py
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

KILLS = int(os.environ.get("LAKESTREAM_KILLS", "2"))
# The others wait alike; what they say without a kill is in `test_sensor_modes.py`.
KINDS = None if "LAKESTREAM_KILLS" in os.environ else {"caught_up", "timed_out_at_once"}
SEED = int(os.environ.get("LAKESTREAM_KILLS_SEED", "7"))
# Between coming up, which takes seconds, and long after the first looks.
UP_TO = 15.0
TIMED_OUT = "Sensor has timed out after 20 seconds. stopped consumer"
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
        if KINDS is None or kind in KINDS
    }
    for run, file in waiting.values():
        sensing.defer(run, file)
    chance = random.Random(SEED)
    for _ in range(KILLS):
        sensing.triggerer.start()
        time.sleep(chance.uniform(0, UP_TO))  # the kill comes at any moment of its life
        sensing.triggerer.kill()
        assert {sensing.state(run) for kind, (run, _) in waiting.items() if "caught_up" in kind} == {"deferred"}

    commit(admin, group, name, {0: 2, 1: 0})
    sensing.triggerer.start()
    logs = {}
    for kind, (run, file) in waiting.items():
        sensing.await_state(run, "scheduled")
        logs[kind] = sensing.work(run, file)
    ends = {
        "caught_up": ("success", ""),
        "caught_up_at_once": ("success", ""),
        "timed_out": ("failed", TIMED_OUT),
        "timed_out_at_once": ("failed", TIMED_OUT),
        "skipped": ("skipped", TIMED_OUT),
        "missing": ("failed", "has committed no offset"),
    }
    for kind, (run, _) in waiting.items():
        state, said = ends[kind]
        assert run.task(TASK).state == state, kind
        assert said in logs[kind], kind
    assert waiting["caught_up"][0].task(TASK).xcom["lag"] == 0
