"""Drivers in Kubernetes, by the real client, over HTTP: what is checked, created, asked and deleted."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_lakestream.driver.backend import DriverHandle, SubmitFailed
from airflow_lakestream.driver.supervisor import BackendState
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.kubernetes import ClusterAway, ClusterRefuses
from tests.support.loopback import LoopbackHandler, LoopbackServer
from tests.support.spark_submit import backend, submit

__all__ = ["submit"]

POD = DriverHandle("kubernetes", "lake:stream-driver")
UPLOADS = {"spark.kubernetes.file.upload.path": "s3a://lake/uploads"}


@dataclass
class ApiServer:
    """The part of Kubernetes' API that a worker uses: pods that Spark made, secrets, and rights."""

    url: str = ""
    phase: str | None = "Running"
    status: int = 200
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    strays: list[str] = field(default_factory=list)
    secrets: dict[str, dict[str, Any]] = field(default_factory=dict)
    # How often a pod is still there after it was deleted; without a number it was never made.
    lingers: int | None = 2
    # When a pod was to be gone.
    to_end: str | None = None
    deleted: list[tuple[str, str]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        address = urlsplit(path)
        self.asked.append((method, address.path))
        if self.status != 200:
            return self.status, {"message": "no"}
        kind, _, name = address.path.rpartition("/namespaces/lake/")[2].partition("/")
        if address.path.endswith("selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            assert asked["namespace"] == "lake"
            return 201, {**body, "status": {"allowed": (asked["verb"], asked["resource"]) not in self.forbidden}}
        if method == "GET" and not name:
            assert parse_qs(address.query)["labelSelector"][0].startswith("lakestream-stream=")
            names = self.strays if kind == "pods" else [*self.secrets]
            return 200, {"items": [{"metadata": {"name": name}} for name in names if name not in self._gone]}
        return self._pod(method, name) if kind == "pods" else self._secret(method, name, body)

    def secret(self) -> dict[str, str]:
        """Return the content of the only secret."""
        (found,) = self.secrets.values()
        return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}

    @property
    def _gone(self) -> set[str]:
        return {name for _, name in self.deleted}

    def _pod(self, method: str, name: str) -> tuple[int, dict[str, Any]]:
        if method == "DELETE":
            self.deleted.append(("pods", name))
        if self.lingers is None:
            return 404, {"message": "no such pod"}
        if method == "GET" and name in self._gone:
            self.lingers -= 1
            if self.lingers < 0:
                return 404, {"message": "no such pod"}
        of_pod = {"name": name, "uid": "uid-7", "deletionTimestamp": self.to_end}
        return 200, {"metadata": of_pod, "status": {"phase": self.phase}}

    def _secret(self, method: str, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if method == "POST":
            self.secrets[body["metadata"]["name"]] = body
        elif name not in self.secrets:
            return 404, {"message": "no such secret"}
        elif method == "PATCH":
            self.secrets[name]["metadata"] |= body["metadata"]
        else:
            del self.secrets[name]
            self.deleted.append(("secrets", name))
        return 200, body


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    class Handler(LoopbackHandler):
        def respond(self, body: bytes) -> None:
            code, answer = api.answer(self.command, self.path, json.loads(body or b"{}"))
            self.reply(code, answer, Content_Type="application/json")

    server = LoopbackServer(Handler)
    api = ApiServer(server.url)
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    # It leads elsewhere: the address is the connection's, as it is for Spark.
    clusters = [{"name": "c", "cluster": {"server": "https://elsewhere:6443"}}]
    users = [{"name": "u", "user": {"token": "t"}}]
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps({"clusters": clusters, "users": users, "contexts": [context], "current-context": "c"}))
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(file))
    extra = {"deploy-mode": "cluster", "namespace": "lake"}
    connection = {"conn_type": "spark", "host": f"k8s://{api.url}", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES", json.dumps(connection))
    with server:
        yield api


def settings_of(folder: Path) -> dict[str, str]:
    lines = (folder / "taken.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line)


def test_a_launch_has_a_pod_of_its_own_name_and_its_secrets_are_in_a_secret_that_the_pod_owns(
    kubernetes: ApiServer, submit: Any, tmp_path: Path
) -> None:
    # What Spark 4 prints, which names no pod that anybody could read.
    submit("LoggingPodStatusWatcherImpl: Deployed Spark application with submission ID lake:whatever into Kubernetes")
    conf = {
        **UPLOADS,
        "spark.hadoop.fs.s3a.secret.key": 'canary "1"\\n',
        "spark.hadoop.fs.s3a.endpoint": "http://s3",
        "spark.executorEnv.TOKEN": "canary-2",
        "spark.driver.extraJavaOptions": "-Xss4m -Dkey.password=canary-3",
    }
    made, job = backend("kubernetes", tmp_path, conf=conf, env_vars={"A": "canary-4", "JDK_JAVA_OPTIONS": "-Xmx1g"})
    planned = made.planned(job)
    handle = made.launch(job)
    assert planned == replace(handle, is_planned=True)
    name = handle.job_id.removeprefix("lake:")
    settings, arguments = settings_of(tmp_path), (tmp_path / "arguments.txt").read_text()
    assert "canary" not in f"{settings} {arguments}"
    assert "spark.kubernetes.submission.waitAppCompletion=false" in arguments
    assert "--load-spark-defaults\n" in arguments
    assert arguments.endswith("/app.py\n--config\n/etc/lakestream/app.json\n")
    label = settings.pop("spark.kubernetes.driver.label.lakestream-stream")
    assert settings == {
        "spark.hadoop.fs.s3a.endpoint": "http://s3",
        "spark.kubernetes.driver.pod.name": name,
        f"spark.kubernetes.driver.secrets.{name}": "/etc/lakestream",
        "spark.kubernetes.driver.secretKeyRef.A": f"{name}:driver.A",
        "spark.kubernetes.driver.secretKeyRef.JDK_JAVA_OPTIONS": f"{name}:driver.JDK_JAVA_OPTIONS",
        "spark.kubernetes.executor.secretKeyRef.TOKEN": f"{name}:executor.TOKEN",
        "spark.kubernetes.file.upload.path": f"s3a://lake/uploads/{name}",
    }
    assert kubernetes.secret() == {
        "app.json": '{"password": "canary"}',
        "driver.A": "canary-4",
        "driver.JDK_JAVA_OPTIONS": "-Xmx1g @/etc/lakestream/jvm.args",
        "executor.TOKEN": "canary-2",
        "jvm.args": '"-Dspark.hadoop.fs.s3a.secret.key=canary \\"1\\"\\\\n"\n-Xss4m -Dkey.password=canary-3',
    }
    metadata = kubernetes.secrets[name]["metadata"]
    assert metadata["labels"] == {"lakestream-stream": label}
    assert metadata["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "uid-7"}]
    assert not [path for path in tmp_path.iterdir() if path.name in ("app.json", "spark.properties")]
    # Not for a moment: a worker that is killed meanwhile can delete nothing.
    assert "app.json" not in (tmp_path / "files.txt").read_text().split()


def test_each_launch_has_another_name(kubernetes: ApiServer, tmp_path: Path) -> None:
    made, job = backend("kubernetes", tmp_path)
    assert made.planned(job) == made.planned(job)
    assert made.planned(job) != made.planned(replace(job, folder=tmp_path / "again"))


def test_what_is_left_of_the_streams_earlier_drivers_is_deleted_before_a_launch(
    kubernetes: ApiServer, submit: Any, tmp_path: Path
) -> None:
    submit("")
    kubernetes.strays, kubernetes.secrets = ["completed", "late"], {"orphan": {"metadata": {}}}
    made, job = backend("kubernetes", tmp_path, conf=UPLOADS)
    handle = made.launch(job)
    assert ("secrets", "orphan") in kubernetes.deleted
    assert {name for kind, name in kubernetes.deleted if kind == "pods"} == {"completed", "late", "orphan"}
    assert [*kubernetes.secrets] == [handle.job_id.removeprefix("lake:")]


def test_a_submit_that_fails_leaves_nothing(kubernetes: ApiServer, submit: Any, tmp_path: Path) -> None:
    submit("exceeded quota: pods", 1)
    kubernetes.lingers = None
    made, job = backend("kubernetes", tmp_path, conf=UPLOADS)
    with pytest.raises(SubmitFailed, match="exceeded quota: pods"):
        made.launch(job)
    assert kubernetes.secrets == {}
    assert not (tmp_path / "app.json").exists()


@pytest.mark.parametrize(
    ("conf", "problem"),
    [
        ({}, r"conf: spark.kubernetes.file.upload.path is missing, by which Spark hands app.py to the driver"),
        (
            {**UPLOADS, "spark.executor.extraJavaOptions": "-Dkey.password=x"},
            "holds a secret, and Spark would",
        ),
    ],
)
def test_what_can_not_work_is_refused_before_the_submit(
    kubernetes: ApiServer, submit: Any, tmp_path: Path, conf: dict[str, str], problem: str
) -> None:
    submit("")
    made, job = backend("kubernetes", tmp_path, conf=conf)
    with pytest.raises(InvalidArgument, match=problem):
        made.launch(job)
    assert not (tmp_path / "arguments.txt").exists()
    assert kubernetes.secrets == {}


def test_a_pod_name_of_the_users_is_refused(kubernetes: ApiServer, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="each launch has a name of its own"):
        backend("kubernetes", tmp_path, conf={"spark.kubernetes.driver.pod.name": "mine"})


def test_rights_are_checked_before_the_submit(kubernetes: ApiServer, submit: Any, tmp_path: Path) -> None:
    submit("")
    kubernetes.forbidden = {("create", "secrets"), ("delete", "pods")}
    made, job = backend("kubernetes", tmp_path, conf=UPLOADS)
    with pytest.raises(ClusterRefuses, match="namespace lake: it may not delete pods, create secrets"):
        made.launch(job)
    assert not (tmp_path / "arguments.txt").exists()


def test_credentials_of_the_cluster_are_refused_outside_of_it(
    kubernetes: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "True")
    with pytest.raises(InvalidArgument, match="in_cluster = False, and config_file or KUBECONFIG"):
        backend("kubernetes", tmp_path)


def test_spark_submit_gets_the_file_that_airflow_uses(
    kubernetes: ApiServer, submit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit("$KUBECONFIG", code=1)
    (tmp_path / "bin" / "spark-submit").write_text('#!/bin/sh\necho "takes $KUBECONFIG"\nexit 1\n')
    made, job = backend("kubernetes", tmp_path, conf=UPLOADS)
    with pytest.raises(SubmitFailed, match=f"takes {tmp_path}/kubeconfig"):
        made.launch(job)


@pytest.mark.parametrize(
    ("phase", "status", "seen"),
    [
        ("Pending", 200, BackendState.RUNNING),
        (None, 200, BackendState.RUNNING),
        ("Running", 200, BackendState.RUNNING),
        ("Succeeded", 200, BackendState.FINISHED),
        ("Failed", 200, BackendState.FAILED),
        ("Unknown", 200, BackendState.UNKNOWN),
        # A pod that is gone; the official operator takes it for a success.
        ("Running", 404, BackendState.VANISHED),
        ("Running", 401, BackendState.UNKNOWN),
        ("Running", 500, BackendState.UNKNOWN),
    ],
)
def test_phases_of_a_pod(
    kubernetes: ApiServer, tmp_path: Path, phase: str | None, status: int, seen: BackendState
) -> None:
    made, _ = backend("kubernetes", tmp_path)
    kubernetes.phase, kubernetes.status = phase, status
    assert made.state(POD) is seen
    assert kubernetes.asked == [("GET", "/api/v1/namespaces/lake/pods/stream-driver")]


def test_a_pod_that_is_planned_may_come_yet(kubernetes: ApiServer, tmp_path: Path) -> None:
    made, _ = backend("kubernetes", tmp_path)
    kubernetes.lingers = None
    assert made.state(replace(POD, is_planned=True)) is BackendState.UNKNOWN
    assert made.state(DriverHandle.parse(replace(POD, is_planned=True).to_dict())) is BackendState.UNKNOWN
    assert made.state(POD) is BackendState.VANISHED


def test_a_kill_waits_until_the_pod_is_gone(kubernetes: ApiServer, tmp_path: Path) -> None:
    uploads = tmp_path / "uploads" / "stream-driver"
    (uploads / "spark-upload-1").mkdir(parents=True)
    kubernetes.secrets["stream-driver"] = {"metadata": {}}
    made, _ = backend("kubernetes", tmp_path, conf={"spark.kubernetes.file.upload.path": uploads.parent.as_uri()})
    made.kill(POD)
    assert kubernetes.deleted == [("pods", "stream-driver"), ("secrets", "stream-driver")]
    assert made.state(POD) is BackendState.VANISHED
    assert not uploads.exists()
    # Nobody minds that there is nothing left.
    made.kill(POD)
    made.ended(POD)


def test_a_pod_that_was_to_be_gone_long_ago_is_waited_for_once(kubernetes: ApiServer, tmp_path: Path) -> None:
    made, _ = backend("kubernetes", tmp_path)
    # Its node is away, and nobody reports its end.
    kubernetes.lingers, kubernetes.to_end = 1_000_000, "2026-01-01T00:00:00Z"
    made.kill(POD)
    assert [method for method, _ in kubernetes.asked].count("GET") == 1


def test_an_api_server_that_is_away_is_a_state_and_an_error_with_a_name(
    kubernetes: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"deploy-mode": "cluster", "namespace": "lake"}
    connection = {"conn_type": "spark", "host": "k8s://http://127.0.0.1:1", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES", json.dumps(connection))
    made, job = backend("kubernetes", tmp_path, conf=UPLOADS)
    assert made.state(POD) is BackendState.UNKNOWN
    for ask in (lambda: made.kill(POD), lambda: made.launch(job)):
        with pytest.raises(ClusterAway, match=r"Kubernetes at http://127.0.0.1:1 can't be used right now"):
            ask()
    # These have nobody whom an error would help.
    made.works(POD)
    made.ended(POD)
    assert made.log_tail(POD) == ["The driver's log: kubectl logs -n lake stream-driver"]
