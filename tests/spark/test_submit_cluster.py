"""YARN and Kubernetes at the provider's boundary: what it submits, asks and kills, over HTTP where it speaks that."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.driver.backend import Handle, SubmitFailed
from airflow_lakestream.driver.detached import Job
from airflow_lakestream.driver.supervisor import JobState
from airflow_lakestream.exceptions import InvalidArgument

APP = "application_1700000000000_0007"


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let `spark-submit` say something, and end with a code."""
    binary = tmp_path / "bin" / "spark-submit"
    binary.parent.mkdir()
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")

    def says(text: str, code: int = 0) -> None:
        takes = "printf '%s\\n' \"$@\" > arguments.txt\ncp spark.properties taken.properties"
        binary.write_text(f"#!/bin/sh\n{takes}\necho '{text}'\nexit {code}\n")
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR)

    return says


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
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            manager.asked.append((self.command, self.path, body))
            code, content = manager.answer
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def do_GET(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    manager = ResourceManager(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    extra = {"deploy-mode": "cluster", "queue": "streams", "yarn_resourcemanager_webapp_address": manager.url}
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
    yield manager
    server.shutdown()
    server.server_close()


def backend(conn_id: str, folder: Path, **options: Any) -> tuple[Any, Job]:
    from airflow_lakestream.hooks.spark import SparkHook
    from airflow_lakestream.hooks.spark_cluster import backend_of

    hook = SparkHook(conn_id, **options)
    (folder / "app.json").write_text("{}")
    hook.add_file(str(folder / "app.json"))
    command = hook.command("/app.py", folder, ["--config", "app.json"])
    return backend_of(hook, "/app.py"), Job(command, hook.environment(), folder)


def test_yarn_submits_and_returns_without_waiting_for_the_end(
    yarn: ResourceManager, submit: Any, tmp_path: Path
) -> None:
    submit(f"Submitted application {APP}")
    made, job = backend("yarn", tmp_path, conf={"spark.secret": "canary"}, env_vars={"PASSWORD": "canary"})
    handle = made.launch(job)
    assert handle == Handle("yarn", APP)
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
        ("ACCEPTED", "UNDEFINED", JobState.RUNNING),
        ("RUNNING", "UNDEFINED", JobState.RUNNING),
        ("FINISHED", "SUCCEEDED", JobState.FINISHED),
        ("FINISHED", "FAILED", JobState.FAILED),
        ("KILLED", "KILLED", JobState.FAILED),
    ],
)
def test_yarns_states(yarn: ResourceManager, tmp_path: Path, state: str, final: str, seen: JobState) -> None:
    made, _ = backend("yarn", tmp_path)
    yarn.application(state, final)
    assert made.state(Handle("yarn", APP)) is seen
    assert yarn.asked == [("GET", f"/ws/v1/cluster/apps/{APP}", "")]


@pytest.mark.parametrize(("code", "seen"), [(404, JobState.VANISHED), (503, JobState.UNKNOWN)])
def test_an_application_that_yarn_has_forgotten_is_told_from_a_yarn_that_is_away(
    yarn: ResourceManager, tmp_path: Path, code: int, seen: JobState
) -> None:
    made, _ = backend("yarn", tmp_path)
    yarn.answer = (code, {})
    assert made.state(Handle("yarn", APP)) is seen


def test_yarn_kills(yarn: ResourceManager, tmp_path: Path) -> None:
    made, _ = backend("yarn", tmp_path)
    made.kill(Handle("yarn", APP))
    assert yarn.asked == [("PUT", f"/ws/v1/cluster/apps/{APP}/state", '{"state": "KILLED"}')]
    assert made.log_tail(Handle("yarn", APP)) == [f"The driver's log: {yarn.url}/cluster/app/{APP}"]


def test_a_submit_that_fails_is_an_error_with_what_spark_said(
    yarn: ResourceManager, submit: Any, tmp_path: Path
) -> None:
    submit("the queue is full", 1)
    made, job = backend("yarn", tmp_path)
    with pytest.raises(SubmitFailed, match="the queue is full"):
        made.launch(job)


class ApiException(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


@dataclass
class Cluster:
    """What Kubernetes' API says of pods, and what it was asked to delete."""

    phase: str | None = "Running"
    error: Exception | None = None
    deleted: list[tuple[str, str]] = field(default_factory=list)

    def read_namespaced_pod(self, name: str, namespace: str) -> Any:
        assert (name, namespace) == ("stream-driver", "lake")
        if self.error is not None:
            raise self.error
        return types.SimpleNamespace(status=types.SimpleNamespace(phase=self.phase))

    def delete_namespaced_pod(self, name: str, namespace: str, **_: Any) -> None:
        self.deleted.append((name, namespace))


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Stand in for the Kubernetes provider, which the tests do without."""
    from airflow.providers.apache.spark.hooks import spark_submit

    cluster = Cluster()
    client = types.SimpleNamespace(get_kube_client=lambda: cluster, ApiException=ApiException)
    package = types.ModuleType("airflow.providers.cncf.kubernetes")
    package.kube_client = client  # type: ignore[attr-defined]  # a module that is made here
    monkeypatch.setitem(sys.modules, "airflow.providers.cncf", types.ModuleType("airflow.providers.cncf"))
    monkeypatch.setitem(sys.modules, "airflow.providers.cncf.kubernetes", package)
    api = types.ModuleType("kubernetes")
    api.client = types.SimpleNamespace(V1DeleteOptions=lambda: None)  # type: ignore[attr-defined]  # made here, too
    monkeypatch.setitem(sys.modules, "kubernetes", api)
    monkeypatch.setattr(spark_submit, "kube_client", client, raising=False)
    extra = {"deploy-mode": "cluster", "namespace": "lake"}
    connection = {"conn_type": "spark", "host": "k8s://https://cluster:6443", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES", json.dumps(connection))
    return cluster


POD = Handle("kubernetes", "lake:stream-driver")


def test_kubernetes_submits_and_finds_its_pod(kubernetes: Cluster, submit: Any, tmp_path: Path) -> None:
    submit("submission ID spark:stream-driver")
    made, job = backend("kubernetes", tmp_path, env_vars={"PASSWORD": "canary"})
    assert made.launch(job) == POD
    arguments = (tmp_path / "arguments.txt").read_text()
    assert "spark.kubernetes.submission.waitAppCompletion=false" in arguments
    assert "canary" not in arguments
    assert "spark.kubernetes.driverEnv.PASSWORD=canary" in (tmp_path / "taken.properties").read_text()


def test_a_submit_that_names_no_pod_is_an_error(kubernetes: Cluster, submit: Any, tmp_path: Path) -> None:
    submit("hello")
    made, job = backend("kubernetes", tmp_path)
    with pytest.raises(SubmitFailed, match="named no driver pod"):
        made.launch(job)


@pytest.mark.parametrize(
    ("phase", "error", "seen"),
    [
        ("Pending", None, JobState.RUNNING),
        (None, None, JobState.RUNNING),
        ("Running", None, JobState.RUNNING),
        ("Succeeded", None, JobState.FINISHED),
        ("Failed", None, JobState.FAILED),
        ("Unknown", None, JobState.UNKNOWN),
        # A pod that is gone; the official operator takes it for a success.
        (None, ApiException(404), JobState.VANISHED),
        (None, ApiException(500), JobState.UNKNOWN),
        (None, ConnectionError(), JobState.UNKNOWN),
    ],
)
def test_phases_of_a_pod(
    kubernetes: Cluster, tmp_path: Path, phase: str | None, error: Exception | None, seen: JobState
) -> None:
    made, _ = backend("kubernetes", tmp_path)
    kubernetes.phase, kubernetes.error = phase, error
    assert made.state(POD) is seen


def test_kubernetes_kills(kubernetes: Cluster, tmp_path: Path) -> None:
    made, _ = backend("kubernetes", tmp_path)
    made.kill(POD)
    assert kubernetes.deleted == [("stream-driver", "lake")]


def test_standalone_has_no_cluster_mode_for_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "spark", "host": "spark://master:7077", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_STANDALONE", json.dumps(connection))
    with pytest.raises(InvalidArgument, match="no cluster mode for Python applications"):
        backend("standalone", tmp_path)
    made, _ = backend("standalone", tmp_path, deploy_mode="client")
    assert type(made).__name__ == "DetachedBackend"
