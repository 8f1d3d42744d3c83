"""YARN at the provider's boundary: what it submits, asks and kills, over HTTP where it speaks that."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.driver.backend import DriverHandle, SubmitFailed
from airflow_lakestream.driver.supervisor import BackendState
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.broker import poll_until
from tests.support.loopback import LoopbackHandler, LoopbackServer
from tests.support.spark_submit import backend, submit

__all__ = ["submit"]

APP = "application_1700000000000_0007"


@dataclass
class ResourceManager:
    """What YARN's REST API says, and what it was asked to do."""

    url: str
    answer: tuple[int, dict[str, Any]] = (200, {})
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def application(self, state: str, final: str) -> None:
        self.answer = (200, {"app": {"state": state, "finalStatus": final, "diagnostics": ""}})


@pytest.fixture
def yarn(monkeypatch: pytest.MonkeyPatch) -> Iterator[ResourceManager]:
    class Handler(LoopbackHandler):
        def respond(self, body: bytes) -> None:
            manager.asked.append((self.command, self.path, body.decode()))
            self.reply(*manager.answer)

    with LoopbackServer(Handler) as server:
        manager = ResourceManager(server.url)
        extra = {"deploy-mode": "cluster", "queue": "streams", "yarn_resourcemanager_webapp_address": manager.url}
        monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
        yield manager


def test_yarn_submits_and_returns_without_waiting_for_the_end(
    yarn: ResourceManager, submit: Any, tmp_path: Path
) -> None:
    submit(f"Submitted application {APP}")
    made, job = backend("yarn", tmp_path, conf={"spark.secret": "canary"}, env_vars={"PASSWORD": "canary"})
    handle = made.launch(job)
    assert handle == DriverHandle("yarn", APP)
    arguments = (tmp_path / "arguments.txt").read_text()
    assert "canary" not in arguments
    for expected in (
        "--master\nyarn\n",
        "--deploy-mode\ncluster\n",
        "--queue\nstreams\n",
        "spark.yarn.submit.waitAppCompletion=false\n",
        f"--files\n{tmp_path}/app.json\n",
        "/app.py\n--config\napp.json\n",
    ):
        assert expected in arguments
    properties = (tmp_path / "taken.properties").read_text().splitlines()
    # YARN starts no driver by itself: who counts restarts is the operator.
    assert properties == [
        "",
        "spark.secret=canary",
        "spark.yarn.appMasterEnv.PASSWORD=canary",
        "spark.yarn.maxAppAttempts=1",
    ]
    # What may hold secrets is the cluster's by now.
    assert not (tmp_path / "spark.properties").exists()
    assert not (tmp_path / "app.json").exists()


@pytest.mark.parametrize(
    ("state", "final", "seen"),
    [
        ("ACCEPTED", "UNDEFINED", BackendState.RUNNING),
        ("RUNNING", "UNDEFINED", BackendState.RUNNING),
        ("FINISHED", "SUCCEEDED", BackendState.FINISHED),
        ("FINISHED", "FAILED", BackendState.FAILED),
        ("KILLED", "KILLED", BackendState.FAILED),
    ],
)
def test_yarns_states(yarn: ResourceManager, tmp_path: Path, state: str, final: str, seen: BackendState) -> None:
    made, _ = backend("yarn", tmp_path)
    yarn.application(state, final)
    assert made.state(DriverHandle("yarn", APP)) is seen
    assert yarn.asked == [("GET", f"/ws/v1/cluster/apps/{APP}", "")]


@pytest.mark.parametrize(("code", "seen"), [(404, BackendState.VANISHED), (503, BackendState.UNKNOWN)])
def test_an_application_that_yarn_has_forgotten_is_told_from_a_yarn_that_is_away(
    yarn: ResourceManager, tmp_path: Path, code: int, seen: BackendState
) -> None:
    made, _ = backend("yarn", tmp_path)
    yarn.answer = (code, {})
    assert made.state(DriverHandle("yarn", APP)) is seen


def test_yarn_kills(yarn: ResourceManager, tmp_path: Path) -> None:
    made, _ = backend("yarn", tmp_path)
    made.kill(DriverHandle("yarn", APP))
    assert yarn.asked == [("PUT", f"/ws/v1/cluster/apps/{APP}/state", '{"state": "KILLED"}')]
    assert made.log_tail(DriverHandle("yarn", APP)) == [f"The driver's log: {yarn.url}/cluster/app/{APP}"]


def test_a_submit_that_fails_is_an_error_with_what_spark_said(
    yarn: ResourceManager, submit: Any, tmp_path: Path
) -> None:
    submit("the queue is full", 1)
    made, job = backend("yarn", tmp_path)
    with pytest.raises(SubmitFailed, match="the queue is full"):
        made.launch(job)


def test_standalone_has_no_cluster_mode_for_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "spark", "host": "spark://master:7077", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_STANDALONE", json.dumps(connection))
    with pytest.raises(InvalidArgument, match="no cluster mode for Python applications"):
        backend("standalone", tmp_path)
    made, _ = backend("standalone", tmp_path, deploy_mode="client")
    assert type(made).__name__ == "DetachedSpark"


def test_a_driver_beside_the_worker_has_its_settings_in_a_file_and_its_variables_to_itself(
    submit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit("$PASSWORD")
    monkeypatch.setenv("AIRFLOW_CONN_LOCAL", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    conf = {"spark.secret": "canary", "spark.pyspark.python": "/elsewhere/python"}
    made, job = backend("local", tmp_path, conf=conf, env_vars={"PASSWORD": "canary"})
    assert made.planned(job) is None
    handle = made.launch(job)
    poll_until(lambda: made.state(handle) is BackendState.FINISHED, "spark-submit to end", 180)
    arguments = (tmp_path / "arguments.txt").read_text()
    assert "canary" not in arguments
    assert arguments.startswith("--load-spark-defaults\n--master\nlocal[2]\n")
    assert arguments.endswith(f"/app.py\n--config\n{tmp_path}/app.json\n")
    assert (tmp_path / "taken.properties").read_text().splitlines() == [
        "",
        f"spark.driver.log.localDir={tmp_path}/jvm",
        f"spark.pyspark.driver.python={sys.executable}",
        "spark.pyspark.python=/elsewhere/python",
        "spark.secret=canary",
    ]
    made.works(handle)
    assert not [path for path in tmp_path.iterdir() if path.name in ("app.json", "spark.properties")]
