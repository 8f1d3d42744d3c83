"""A driver's pod on a real Kubernetes: launched, found, looked at, killed, refused; and what is left of it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from airflow_lakestream.driver.backend import DriverBackend, DriverHandle, SubmitFailed
from airflow_lakestream.driver.driver_folder import DriverConfig
from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import DriverOutcome
from airflow_lakestream.driver.supervisor import BackendState
from airflow_lakestream.hooks.kubernetes import ClusterAway, ClusterRefuses
from airflow_lakestream.hooks.spark import DriverSubmission
from dev.services.kubernetes import Kubernetes
from tests.support.broker import poll_until
from tests.support.pods import PATIENCE, Namespace, make_namespace

CANARY = "canary-4711"
_PROGRAM = """
import json, os, sys, time
from pyspark.sql import SparkSession

config = json.loads(open(sys.argv[-1]).read())
spark = SparkSession.builder.getOrCreate()
from airflow_lakestream.spark.lease import Lease

told = {"conf": spark.conf.get("spark.a.password"), "env": os.environ["A_PASSWORD"], "config": config["password"]}
executors = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("os").environ["B_PASSWORD"]).collect()
assert all(value == CANARY for value in [*told.values(), *executors]), (told, executors)
with Lease.take(config["location"], "f", "test"):
    time.sleep(config["seconds"])  # as a stream works on
spark.stop()
"""


def launched(namespace: Namespace, seconds: float = 600, **conf: str) -> tuple[DriverBackend, DriverSubmission]:
    """Return the place of the namespace's drivers, and a launch there that takes a lease and looks for its secrets."""
    from airflow_lakestream.hooks.spark import SparkHook
    from airflow_lakestream.hooks.spark_cluster import backend_of
    from airflow_lakestream.spark.apps import package_zip

    secret = {"spark.a.password": CANARY, "spark.executorEnv.B_PASSWORD": CANARY}
    hook = SparkHook(
        "spark_default", name="test", conf={**namespace.conf(), **secret, **conf}, env_vars={"A_PASSWORD": CANARY}
    )
    folder = namespace.folder / f"launch-{uuid.uuid4().hex[:6]}"
    folder.mkdir()
    (folder / "program.py").write_text(_PROGRAM.replace("CANARY", 'json.loads(open(sys.argv[-1]).read())["password"]'))
    config = {"password": CANARY, "location": location(namespace), "seconds": seconds}
    job = DriverSubmission(
        str(folder / "program.py"),
        folder,
        DriverConfig(config, "", {}),
        location(namespace),
        hook.settings,
        hook.variables,
        [package_zip(folder)],
    )
    return backend_of(hook), job


def location(namespace: Namespace) -> str:
    return str(namespace.folder / "checkpoint")


def name_of(handle: DriverHandle) -> str:
    return handle.job_id.partition(":")[2]


def await_state(made: DriverBackend, handle: DriverHandle, state: BackendState) -> None:
    poll_until(lambda: made.state(handle) is state, f"the pod to be {state}", PATIENCE)


def await_lease(namespace: Namespace) -> None:
    poll_until(lambda: read_lease(location(namespace)) is not None, "the driver to take its lease", PATIENCE)


def test_a_driver_has_its_secrets_and_nobody_else_and_nothing_is_left(namespace: Namespace) -> None:
    made, job = launched(namespace)
    planned = made.planned(job)
    assert planned is not None
    assert made.state(planned) is BackendState.UNKNOWN
    handle = made.launch(job)
    assert handle.job_id == planned.job_id == f"{namespace.name}:{name_of(handle)}"
    await_lease(namespace)
    namespace.await_pods(1, "executor")
    assert made.state(handle) is BackendState.RUNNING
    assert [*namespace.secrets()] == [name_of(handle)]
    assert namespace.shown(CANARY) == []
    made.kill(handle)
    assert made.state(handle) is BackendState.VANISHED
    assert [*(namespace.folder / "uploads").iterdir()] == []
    poll_until(lambda: namespace.left() == [], "all that the pod owned to go", PATIENCE)


def test_a_completed_pod_is_removed_with_all_that_it_owned(namespace: Namespace) -> None:
    made, job = launched(namespace, seconds=0)
    handle = made.launch(job)
    await_state(made, handle, BackendState.FINISHED)
    made.ended(handle)
    poll_until(lambda: namespace.left() == [], "all that the pod owned to go", PATIENCE)
    lease = read_lease(location(namespace))
    assert lease is not None
    assert lease.outcome is DriverOutcome.DONE


def test_a_deleted_pod_gives_its_lease_back(namespace: Namespace) -> None:
    made, job = launched(namespace)
    handle = made.launch(job)
    await_lease(namespace)
    namespace.delete(name_of(handle))
    await_state(made, handle, BackendState.VANISHED)
    lease = read_lease(location(namespace))
    assert lease is not None
    assert (lease.outcome, lease.error[:16]) == (DriverOutcome.FAILED, "ended by SIGTERM")
    poll_until(lambda: namespace.left() == [], "its secret, owned by it, to go as well", PATIENCE)


def test_the_next_launch_clears_away_what_a_dead_worker_left(namespace: Namespace) -> None:
    made, job = launched(namespace, seconds=0)
    stray = made.launch(job)
    await_state(made, stray, BackendState.FINISHED)
    made, job = launched(namespace, seconds=0)
    handle = made.launch(job)
    assert [*namespace.pods()] == [name_of(handle)]
    assert [*namespace.secrets()] == [name_of(handle)]


def test_a_quota_without_room_refuses_the_submit_and_leaves_nothing(namespace: Namespace) -> None:
    namespace.limit(pods=0)
    made, job = launched(namespace)
    with pytest.raises(SubmitFailed, match="exceeded quota"):
        made.launch(job)
    assert namespace.left() == []


def test_an_image_that_is_missing_is_said(namespace: Namespace) -> None:
    made, job = launched(namespace, **{"spark.kubernetes.container.image": "localhost/none:1"})
    handle = made.launch(job)
    assert made.state(handle) is BackendState.RUNNING
    poll_until(
        lambda: any("ErrImageNeverPull" in line for line in made.log_tail(handle)), "the image to be missed", PATIENCE
    )
    made.kill(handle)
    poll_until(lambda: namespace.left() == [], "all to go", PATIENCE)


def test_a_driver_without_memory_is_said(namespace: Namespace, tmp_path: Path) -> None:
    made, job = launched(namespace, **{"spark.kubernetes.memoryOverheadFactor": "0.1", "spark.driver.memory": "450m"})
    Path(job.application).write_text("x = bytearray(3_000_000_000)\nfor n in range(0, len(x), 4096): x[n] = 1\n")
    handle = made.launch(job)
    await_state(made, handle, BackendState.FAILED)
    assert any("OOMKilled" in line or "137" in line for line in made.log_tail(handle)), made.log_tail(handle)
    made.kill(handle)
    poll_until(lambda: namespace.left() == [], "all to go", PATIENCE)


def test_a_worker_without_rights_is_refused_before_the_submit(
    node: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = make_namespace(node, tmp_path, without="patch secrets")
    namespace.connect(monkeypatch)
    made, job = launched(namespace)
    with pytest.raises(ClusterRefuses, match="it may not patch secrets"):
        made.launch(job)
    assert namespace.left() == []


def test_a_namespace_that_is_not_there_is_said(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    Namespace(namespace.node, "nowhere", namespace.folder).connect(monkeypatch)
    made, job = launched(namespace)
    with pytest.raises(ClusterRefuses, match="nowhere"):
        made.launch(job)


def test_an_api_server_that_is_away_is_borne_and_its_driver_goes_on(namespace: Namespace) -> None:
    made, job = launched(namespace)
    handle = made.launch(job)
    await_lease(namespace)
    namespace.node.stop("api-server")
    try:
        assert made.state(handle) is BackendState.UNKNOWN
        for ask in (lambda: made.kill(handle), lambda: made.launch(launched(namespace)[1])):
            with pytest.raises(ClusterAway, match="can't be used right now"):
                ask()
    finally:
        namespace.node.start("api-server")
    await_state(made, handle, BackendState.RUNNING)
    lease = read_lease(location(namespace))
    assert lease is not None
    assert lease.outcome is None
    made.kill(handle)
    poll_until(lambda: namespace.left() == [], "all to go", PATIENCE)
