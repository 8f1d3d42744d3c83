"""Drivers, executors, workers and the API server killed while a topic flows: each record once, no secret, nothing left.

`make soak-kubernetes KILLS=30 SEED=0`
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dev.services.kafka import Kafka
from dev.services.kubernetes import Kubernetes
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, TopicOf
from tests.support.engine_kills.by_kubernetes import OPERATOR, PodsUnderKills
from tests.support.engine_kills.play import Play
from tests.support.engine_kills.stream_task import StreamTask
from tests.support.lake import GROUP, TABLE, Lake, events
from tests.support.pod_streams import PodStream, arguments_of
from tests.support.pods import make_namespace
from tests.support.sensing import triggerer_of

# A play of its own is as long as it has kills.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.airflow,
    pytest.mark.timeout(0 if "LAKESTREAM_KILLS" in os.environ else 1_500),
]

# The short play of this seed kills a worker between submit and answer, and a driver's process.
SEED = int(os.environ.get("LAKESTREAM_SEED", "6"))
KILLS = int(os.environ.get("LAKESTREAM_KILLS", "2"))
_FIRST = 5
_SCHEMA = "id bigint not null, name string, score double"


def test_each_record_is_landed_once_and_nothing_is_left_whatever_is_killed(
    airflow: AirflowHome,
    connected: Connections,
    node: Kubernetes,
    kafka: Kafka,
    topic_of: TopicOf,
    produce: Producing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def begin(number: int) -> Iterator[PodsUnderKills]:
        folder = tmp_path / f"from-{number}"
        folder.mkdir()
        connected.lake_in(folder)
        namespace = make_namespace(node, folder)
        namespace.connect(monkeypatch)
        topic = topic_of(*(events(p, 0, _FIRST) for p in (0, 1)))
        landing = {"topic": topic, "table": TABLE, "consumer_group": GROUP, "schema": _SCHEMA}
        arguments = arguments_of(namespace) | {"app": "kafka_to_iceberg", "app_config": landing, "trigger": "1 second"}
        with (
            triggerer_of(tmp_path) as triggerer,
            StreamTask(airflow, triggerer, f"killed_pods_{number}", OPERATOR, folder, arguments) as task,
        ):
            lake, pods = Lake(folder, kafka.client_config()), PodStream(airflow, connected, namespace)
            try:
                yield PodsUnderKills(lake, topic, {0: _FIRST, 1: _FIRST}, task, pods)
            finally:
                node.core.delete_collection_namespaced_pod(namespace.name, grace_period_seconds=1)

    Play("kubernetes", SEED, KILLS, produce, begin, "make soak-kubernetes").run()
