"""The stack itself: it comes up, it goes down, and it leaves nothing behind, however its owner ends."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from dev.errors import ServiceConflict
from dev.processes import ProcessId
from dev.service import CHECKOUT
from dev.sources.clickstream import produce_clickstream
from dev.stack import HOME, Stack

pytestmark = pytest.mark.integration

OWNER = """
import json, os, sys
from dev.stack import Stack
stack = Stack.owned("doomed")
kafka = stack.up_kafka()
print(json.dumps([str(stack.folder), kafka.pid, stack._service("kafka").process("leash").pid]), flush=True)
sys.stdin.readline()
"""


def until(done: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)


def dev(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dev", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=180, check=False)


def row_of(name: str) -> str:
    return next((line for line in dev("status").stdout.splitlines() if line.startswith(name)), "")


def brokers(config: dict[str, str]) -> int:
    return len(AdminClient({**config, "log_level": 0}).list_topics(timeout=15).brokers)


@pytest.fixture
def name() -> Iterator[str]:
    """Give the name of a stack that the command line may use; it is down afterwards."""
    name = f"cli-{uuid.uuid4().hex[:8]}"
    yield name
    Stack(name).down()


def test_up_status_logs_down_by_the_command_line(name):
    assert "kafka: up at 127.0.0.1:" in dev("up", "kafka", "--stack", name).stdout
    kafka = Stack(name).kafka()
    row = row_of(name)
    assert " healthy " in row
    assert f"pid {kafka.pid}" in row
    assert f"plain={kafka.ports['plain']} sasl_ssl={kafka.ports['sasl_ssl']}" in row
    assert brokers(kafka.client_config()) == 1

    again = dev("up", "kafka", "--stack", name)
    assert f"kafka: already up at {kafka.bootstrap}" in again.stdout
    assert Stack(name).kafka() == kafka

    log = dev("logs", "kafka", "-n", "3", "--stack", name).stdout
    assert len(log.splitlines()) == 3

    down = dev("down", "--stack", name)
    assert f"{name} is down: kafka" in down.stdout
    assert not psutil.pid_exists(kafka.pid)
    assert not Path(kafka.folder).parent.exists()
    assert (HOME / "jars" / "kafka-4.1.0").is_dir()
    assert f"nothing was up in stack {name}" in dev("down", "--stack", name).stdout


def test_two_stacks_do_not_meet(kafka, topic):
    here = topic(partitions=2)
    with Stack.owned("other") as other:
        other_kafka = other.up_kafka()
        assert not set(kafka.ports.values()) & set(other_kafka.ports.values())
        assert here in AdminClient(kafka.client_config()).list_topics(timeout=15).topics
        assert here not in AdminClient(other_kafka.client_config()).list_topics(timeout=15).topics
    assert not other.folder.exists()
    assert brokers(kafka.client_config()) == 1


def test_two_that_ask_at_once_get_the_same_broker(name):
    with ThreadPoolExecutor(2) as both:
        one, other = both.map(lambda _: Stack(name).up_kafka(), range(2))
    assert one == other


def test_an_owner_that_is_killed_takes_broker_and_data_along():
    with subprocess.Popen([sys.executable, "-c", OWNER], cwd=CHECKOUT, stdin=-1, stdout=-1, text=True) as owner:
        folder, broker, leash = json.loads(owner.stdout.readline())
        left = [ProcessId.of(broker), ProcessId.of(leash)]
        assert Path(folder).is_dir()
        owner.kill()
    until(lambda: not any(process.alive for process in left), "the broker and its leash to go")
    until(lambda: not Path(folder).exists(), "the data to go")


def test_a_broker_that_was_killed_is_started_anew(name):
    stack = Stack(name)
    first = stack.up_kafka()
    killed = ProcessId.of(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: not killed.alive, "the broker to die")
    assert " not up " in row_of(name)
    second = stack.up_kafka()
    assert second.pid != first.pid
    assert brokers(second.client_config()) == 1


def test_other_settings_are_a_conflict_that_says_so(kafka, stack):
    with pytest.raises(ServiceConflict, match="take it down first"):
        stack.up_kafka(overrides={"log.retention.ms": "1"})


def test_the_secure_listener_takes_its_user(kafka, topic):
    name = topic(partitions=1)
    producer = Producer(kafka.secure_client_config())
    producer.produce(name, b"by a known user")
    assert producer.flush(30) == 0
    consumer = Consumer({**kafka.secure_client_config(), "group.id": "secure", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(name, 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.value() == b"by a known user"


def test_the_secure_listener_refuses_a_wrong_password(kafka):
    errors: list[str] = []
    config = {**kafka.secure_client_config(), "sasl.password": "guessed", "log_level": 0}
    client = AdminClient({**config, "error_cb": lambda error: errors.append(error.str())})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=5)
    until(lambda: client.poll(0.1) is not None and any("uthentication" in error for error in errors), "the reason")


def test_the_secure_listener_is_not_trusted_without_its_certificate(kafka):
    config = {name: value for name, value in kafka.secure_client_config().items() if name != "ssl.ca.location"}
    with pytest.raises(KafkaException):
        AdminClient({**config, "log_level": 0}).list_topics(timeout=5)


def test_topics_are_not_made_by_asking_for_them(kafka):
    producer = Producer({**kafka.client_config(), "message.timeout.ms": 3000, "log_level": 0})
    failures: list[object] = []
    producer.produce("never-made", b"x", on_delivery=lambda error, _: failures.append(error))
    producer.flush(30)
    assert failures[0] is not None
    assert "never-made" not in AdminClient(kafka.client_config()).list_topics(timeout=15).topics


def test_transactions_work(kafka, topic):
    name = topic(partitions=1)
    producer = Producer({**kafka.client_config(), "transactional.id": f"x-{name}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"committed")
    producer.commit_transaction(30)
    consumer = Consumer({**kafka.client_config(), "group.id": "tx"})
    # The record, and the marker of its transaction, which is written a little after the commit was acknowledged.
    where = TopicPartition(name, 0)
    until(lambda: consumer.get_watermark_offsets(where, timeout=15) == (0, 2), "the marker of the transaction")
    consumer.close()


def test_the_clickstream_arrives_in_full(kafka, topic):
    name = topic(partitions=4)
    assert produce_clickstream(kafka.client_config(), name, rate=0, count=10_000) == 10_000
    consumer = Consumer({**kafka.client_config(), "group.id": "count"})
    ends = [consumer.get_watermark_offsets(TopicPartition(name, p), timeout=15)[1] for p in range(4)]
    consumer.close()
    assert sum(ends) == 10_000
    assert min(ends) > 0


def test_a_missing_jdk_is_one_line_with_the_remedy(tmp_path, name):
    done = dev("up", "kafka", "--stack", name, PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 1
    assert done.stderr.startswith("error: No Java found: install a JDK 17 to 21")
    assert len(done.stderr.splitlines()) == 1


def test_changes_in_postgres_come_out_of_debezium(name):
    # As below a checkout that is its owner's alone: PostgreSQL is not run by root.
    Stack(name).folder.mkdir(mode=0o700, parents=True)
    assert "connect: up at http://127.0.0.1:" in dev("up", "postgres", "connect", "--stack", name).stdout
    stack = Stack(name)
    postgres, connect = stack.up_postgres(), stack.up_connect()
    with postgres.connect() as sql:
        assert sql.execute("show wal_level").fetchone() == ("logical",)
        sql.execute("create table pets (id bigint primary key, name text); insert into pets values (1, 'Rex')")
        connect.capture(postgres, "zoo", "public.pets")
        consumer = Consumer({**stack.kafka().client_config(), "group.id": "pets", "log_level": 0})
        where = TopicPartition("zoo.public.pets", 0, 0)
        until(lambda: where.topic in consumer.list_topics(timeout=10).topics, "the topic of the table")
        sql.execute("delete from pets; truncate pets")
    consumer.assign([where])
    # Read, deleted, its tombstone, truncated.
    until(lambda: consumer.get_watermark_offsets(where, timeout=15) == (0, 4), "all four records")
    values = [json.loads(message.value() or b"null") for message in consumer.consume(4, 30)]
    consumer.close()
    assert [value and value["payload"]["op"] for value in values] == ["r", "d", None, "t"]
    assert connect.state("zoo") == "RUNNING"


def test_a_spark_master_has_a_worker_that_is_alive():
    with Stack.owned("spark") as stack:
        master = stack.up_spark()
        assert stack.up_spark() == master
        assert [found.health for found in stack.status()] == ["healthy", "healthy"]

        def workers() -> list[tuple[str, str]]:
            with urllib.request.urlopen(f"{master.ui}/json/", timeout=30) as answer:
                return [(worker["host"], worker["state"]) for worker in json.loads(answer.read())["workers"]]

        until(lambda: workers() == [("127.0.0.1", "ALIVE")], "the worker to be known to its master")
    assert not stack.folder.exists()
