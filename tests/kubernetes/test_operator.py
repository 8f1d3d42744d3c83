"""The operator on a real Kubernetes: to its end, deleted pods, dead workers, a node that is away, a person."""

from __future__ import annotations

import pytest

from tests.support.broker import Producing, TopicOf, poll_until
from tests.support.lake import events
from tests.support.pod_streams import PodStream
from tests.support.pods import PATIENCE, Namespace
from tests.support.spark_stream import kill_the_worker, mark

pytestmark = [pytest.mark.integration, pytest.mark.airflow, pytest.mark.timeout(1_500)]

_FOREVER = {"trigger": "1 second", "on_kill_action": "kill", "restart_backoff": "100ms"}


def test_a_topic_lands_by_a_driver_in_a_pod_and_nothing_is_left(stream: PodStream, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 20), events(1, 0, 20))
    run = stream.airflow.run(stream.airflow.dag(stream.dag("pods_land", name)))
    assert (run.state, run.errors) == ("success", [])
    report = run.task().xcom
    assert (report["read"], report["rows"], report["lag"], report["restarts"]) == (40, 40, 0, 0)
    assert stream.landed == [(partition, offset) for partition in (0, 1) for offset in range(20)]
    stream.assert_nothing_left()


def test_deleted_pods_cost_one_restart_and_a_person_ends_the_driver(
    stream: PodStream, topic_of: TopicOf, produce: Producing
) -> None:
    name, namespace = topic_of(events(0, 0, 10)), stream.namespace
    file = stream.dag("pods_are_deleted", name, max_restarts=1, retries=0, **_FOREVER)
    run = stream.airflow.start(stream.airflow.dag(file))
    with stream.airflow.process(run, file) as process:
        stream.await_rows(10, process)
        assert stream.shown() == []
        (first,) = namespace.running()
        # An executor first: Spark itself makes another.
        for executor in namespace.running("executor"):
            namespace.delete(executor)
        produce(name, 0, events(0, 10, 10))
        stream.await_rows(20, process)
        assert namespace.running() == [first]
        namespace.delete(first)
        produce(name, 0, events(0, 20, 10))
        stream.await_rows(30, process)
        assert stream.generation == 2
        assert first not in namespace.pods()
        assert stream.shown() == []
        # The API server goes and comes, the stream goes on.
        namespace.node.stop("api-server")
        produce(name, 0, events(0, 30, 10))
        stream.await_rows(40, process)
        namespace.start("api-server")
        mark(run, "failed", "land")
        process.wait(PATIENCE)
    stream.assert_nothing_left()
    assert stream.landed == [(0, offset) for offset in range(40)]


def test_a_worker_that_dies_between_submit_and_answer_leaves_a_pod_that_other_workers_find(
    stream: PodStream, topic_of: TopicOf, produce: Producing
) -> None:
    name, namespace = topic_of(events(0, 0, 10)), stream.namespace
    file = stream.dag("pods_are_found", name, retries=3, **_FOREVER)
    run = stream.airflow.start(stream.airflow.dag(file))
    with stream.airflow.process(run, file) as process:
        # Before `spark-submit` has ended.
        poll_until(lambda: bool(namespace.pods()), "the pod", PATIENCE)
        kill_the_worker(process)
    (first,) = namespace.pods()
    # Another worker knows nothing of this one's folder.
    file = stream.dag("pods_are_found", name, retries=3, driver_folder=str(namespace.folder / "other"), **_FOREVER)
    mark(run, "cleared", "land")
    with stream.airflow.process(run, file) as process:
        stream.await_rows(10, process)
        assert [*namespace.pods()] == [first]
        poll_until(lambda: _owner(namespace, first) == first, "the secret to be the pod's", PATIENCE)
        # And one that dies while all is well.
        kill_the_worker(process)
    mark(run, "cleared", "land")
    with stream.airflow.process(run, file) as process:
        produce(name, 0, events(0, 10, 10))
        stream.await_rows(20, process)
        stream.await_text("Found the driver", process)
        assert [*namespace.pods()] == [first]
        mark(run, "failed", "land")
        process.wait(PATIENCE)
    stream.assert_nothing_left()
    assert stream.generation == 1
    assert stream.landed == [(0, offset) for offset in range(20)]


def test_a_node_that_is_away_is_borne_and_a_driver_that_died_on_it_is_replaced(
    stream: PodStream, topic_of: TopicOf, produce: Producing
) -> None:
    name, namespace = topic_of(events(0, 0, 10)), stream.namespace
    file = stream.dag("pods_are_away", name, max_restarts=1, retries=0, unknown_timeout="3s", **_FOREVER)
    run = stream.airflow.start(stream.airflow.dag(file))
    with stream.airflow.process(run, file) as process:
        stream.await_rows(10, process)
        (first,) = namespace.running()
        namespace.node.stop("kubelet")
        poll_until(lambda: not namespace.node.is_ready(), "the node to be NotReady", PATIENCE)
        produce(name, 0, events(0, 10, 10))
        stream.await_rows(20, process)
        namespace.kill(first)
        # Its pod stays as it was, since nobody reports its end: the heartbeats tell of it.
        stream.await_text("was not heard of for 3 s", process)
        poll_until(lambda: {*namespace.pods()} - {first} != set(), "the next driver's pod", PATIENCE)
        produce(name, 0, events(0, 20, 10))
        namespace.start("kubelet")
        stream.await_rows(30, process)
        poll_until(lambda: first not in namespace.pods(), "the first pod to go", PATIENCE)
        assert stream.generation == 2
        mark(run, "failed", "land")
        process.wait(PATIENCE)
    stream.assert_nothing_left()
    assert stream.landed == [(0, offset) for offset in range(30)]


def test_a_quota_without_room_fails_the_try_and_the_next_one_lands(stream: PodStream, topic_of: TopicOf) -> None:
    file = stream.dag("pods_have_a_quota", topic_of(events(0, 0, 10)), retries=0)
    stream.namespace.limit(pods=0)
    refused = stream.airflow.run(stream.airflow.dag(file))
    assert refused.state == "failed"
    assert "exceeded quota" in str(refused.errors)
    stream.assert_nothing_left()
    stream.namespace.limit(pods=5)
    assert stream.airflow.run(stream.airflow.dag(file)).state == "success"
    assert stream.landed == [(0, offset) for offset in range(10)]
    stream.assert_nothing_left()


def test_an_image_that_is_missing_is_in_the_tasks_log(stream: PodStream, topic_of: TopicOf) -> None:
    name, conf = topic_of(events(0, 0, 10)), {"spark.kubernetes.container.image": "localhost/none:1"}
    file = stream.dag("pods_lack_an_image", name, conf, start_timeout="20s", max_restarts=0, retries=0)
    run = stream.airflow.start(stream.airflow.dag(file))
    with stream.airflow.process(run, file) as process:
        process.wait(PATIENCE)
    assert run.task().state == "failed"
    for text in ("ErrImageNeverPull", "did not begin to work within 20 s"):
        assert text in process.log
    stream.assert_nothing_left()


def test_a_driver_that_takes_too_much_memory_is_restarted_and_given_up_with_the_reason(stream: PodStream) -> None:
    program = stream.namespace.folder / "program.py"
    program.write_text("x = bytearray(3_000_000_000)\nfor n in range(0, len(x), 4096): x[n] = 1\n")
    small = {"spark.kubernetes.memoryOverheadFactor": "0.1", "spark.driver.memory": "450m"}
    own = {"application": str(program), "app_config": {}, "kafka_conn_id": None, "iceberg_conn_id": None}
    file = stream.write("pods_are_small", small, **own, max_restarts=1, retries=0, restart_backoff="100ms")
    run = stream.airflow.start(stream.airflow.dag(file))
    with stream.airflow.process(run, file) as process:
        process.wait(PATIENCE)
    assert run.task().state == "failed"
    assert "the driver was restarted 1 times and failed: ended before it took the checkpoint's lease" in process.log
    assert "OOMKilled, exit code" in process.log
    stream.assert_nothing_left()


def _owner(namespace: Namespace, name: str) -> str:
    owners = namespace.node.core.read_namespaced_secret(name, namespace.name).metadata.owner_references or []
    return owners[0].name if owners else ""
