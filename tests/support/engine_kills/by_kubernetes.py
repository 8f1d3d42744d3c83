"""A landing by Spark on Kubernetes of which everything is killed: drivers, executors, workers, the API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random

from airflow_lakestream.driver.lease import request_stop
from tests.support.engine_kills.killed_stream import Blow, KilledStream
from tests.support.engine_kills.stream_task import StreamTask
from tests.support.lake import Lake
from tests.support.pod_streams import PodStream

OPERATOR = "airflow_lakestream.operators.spark_streaming_submit.SparkStreamingSubmitOperator"
# How long the API server is away, in seconds.
_AWAY = 15.0


class PodsUnderKills(KilledStream):
    """A stream of SparkStreamingSubmitOperator on a real Kubernetes."""

    def __init__(self, lake: Lake, topic: str, counts: dict[int, int], task: StreamTask, pods: PodStream) -> None:
        super().__init__(lake, topic, counts, task)
        self._pods = pods
        self._namespace = pods.namespace

    @property
    def blows(self) -> Mapping[str, Blow]:
        return {
            "driver's pod": lambda _: self._delete("driver"),
            "driver's process": lambda _: self._kill("driver"),
            "executor": lambda chance: self._delete("executor") if chance.random() < 0.5 else self._kill("executor"),
            "worker": self.kill_task,
            "worker, between submit and answer": lambda _: self._kill_between(),
            "API server": self._kill_api_server,
        }

    def mend(self) -> None:
        if not self._namespace.node.is_up("api-server"):
            self._namespace.start("api-server")

    def ask_to_stop(self) -> None:
        request_stop(self._pods.checkpoint, "the play")

    def assert_quiet(self) -> None:
        assert self._pods.shown() == []

    def assert_ended(self) -> None:
        self._pods.assert_nothing_left()

    def _one(self, role: str) -> str:
        self.task.until(lambda: bool(self._namespace.running(role)), f"a pod of the {role}")
        return self._namespace.running(role)[0]

    def _delete(self, role: str) -> bool:
        self._namespace.delete(self._one(role))
        return True

    def _kill(self, role: str) -> bool:
        self._namespace.kill(self._one(role))
        return True

    def _kill_between(self) -> bool:
        """Let a driver be launched, and kill the worker once its pod is there: `spark-submit` has not answered then."""
        self.task.defer_next(False)
        known = {*self._namespace.pods()}
        self._delete("driver")
        self.task.until(lambda: bool({*self._namespace.pods()} - known), "the next driver's pod", every=0.02)
        return self.task.kill() and self._newest_handle().get("is_planned", False)

    def _newest_handle(self) -> dict[str, bool]:
        submits = sorted(Path(f"{self._pods.checkpoint}.lakestream").glob("submit-*.json"))
        return dict(json.loads(submits[-1].read_text())["handle"] or {})

    def _kill_api_server(self, chance: Random) -> bool:
        self._namespace.node.stop("api-server")
        self.task.go_on(chance.uniform(1, _AWAY))
        return True
