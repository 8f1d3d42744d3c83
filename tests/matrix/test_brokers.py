"""Three brokers: one is killed after the other, and leaders move, while landings run. Nothing is lost or doubled.

`make test SUITES=matrix` has the short run; `make soak-brokers LANDINGS=30 SEED=0` the long one, a kill each minute.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from dev.stack import Stack
from tests.support.broker import poll_until
from tests.support.brokers import Cluster, Trouble
from tests.support.connecting import SCHEMA, Sinks
from tests.support.flink import FlinkLanding
from tests.support.flowing import flowing
from tests.support.lake import Lake, assert_landed_once, events
from tests.support.lake_reading import at
from tests.support.shared_run import SharedRun
from tests.support.spark import SparkRun

pytestmark = [pytest.mark.integration, pytest.mark.own_parts]

SOAK = "LAKESTREAM_LANDINGS" in os.environ
LANDINGS, SEED = int(os.environ.get("LAKESTREAM_LANDINGS", "3")), int(os.environ.get("LAKESTREAM_SEED", "0"))
# In the long run a kill comes each minute, and a landing each ten seconds, so that there are five of them.
KILLS, PAUSE, GAP = (LANDINGS // 6, 60.0, 10.0) if SOAK else (1, 0.0, 0.0)
PARTITIONS = 4
IN_A_SOAK = pytest.mark.skipif(not SOAK, reason="is a part of make soak-brokers")
# A task is tried again; with these pauses that is some minutes.
TRIES = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Give three brokers of this file's own."""
    with Stack.owned("tests-brokers") as stack:
        yield Cluster(stack)


class Tasks:
    """Lands again and again: a landing that ends in an error that may pass is tried again, as a task is."""

    def __init__(self, once: Callable[[str], Callable[[], object]]) -> None:
        self._once = once
        self.tries: Counter[str] = Counter()

    def land(self) -> None:
        once = self._once(uuid.uuid4().hex)
        for _ in range(TRIES):
            self.tries["landings"] += 1
            try:
                once()
                return
            except LakestreamError as e:
                if not isinstance(e, Transient):
                    raise
                self.tries[type(e).__name__] += 1
        raise AssertionError(f"given up: {self.tries}")

    def end(self, counts: dict[int, int]) -> None:
        """Land what is left."""
        self.land()


class Stream:
    """A stream's driver. Where it ends in an error it is started again, as its operator does."""

    def __init__(self, lake: Lake, topic: str, start: Callable[[], subprocess.Popen[Any]]) -> None:
        self._lake, self._topic, self._start = lake, topic, start
        self.driver = start()
        self.tries: Counter[str] = Counter(drivers=1)

    def land(self) -> None:
        before = len(self._lake.snapshots())
        self._until(lambda: len(self._lake.snapshots()) > before, "a landing")

    def end(self, counts: dict[int, int]) -> None:
        """Wait until all is landed."""
        wanted = {p: [(0, count)] for p, count in counts.items()}
        self._until(lambda: self._lake.landed(self._topic) == wanted, f"{wanted} to be landed")

    def _until(self, done: Callable[[], bool], what: str) -> None:
        def so() -> bool:
            if self.driver.poll() is not None:
                self.tries["drivers"] += 1
                assert self.tries["drivers"] <= TRIES, f"given up: {self.tries}"
                self.driver = self._start()
            return done()

        poll_until(so, what, 300, every=0.2)


@contextmanager
def by_extract(lake: Lake, topic: str, stack: Stack) -> Iterator[Tasks]:
    yield Tasks(lambda run_id: lambda: lake.land(topic, run_id, schema=SCHEMA))


@contextmanager
def by_group(lake: Lake, topic: str, stack: Stack) -> Iterator[Tasks]:
    def once(run_id: str) -> Callable[[], object]:
        run = SharedRun(lake, topic, {"schema": SCHEMA}, run_id)

        def steps() -> None:
            plan = run.plan()
            run.commit(plan, run.read_all(plan))

        return steps

    yield Tasks(once)


class Followed:
    """A sink on Connect, which a task after the other looks after; an error that may pass begins the next one."""

    def __init__(self, sinks: Sinks, topic: str) -> None:
        self._sinks, self._topic = sinks, topic
        self.tries: Counter[str] = Counter()
        self.over = threading.Event()
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._follow, name="tasks", daemon=True)

    def land(self) -> None:
        before = len(self._sinks.lake.snapshots())
        self._until(lambda: len(self._sinks.lake.snapshots()) > before, "a landing")

    def end(self, counts: dict[int, int]) -> None:
        """Wait until all is landed."""
        wanted = {p: [(0, count)] for p, count in counts.items()}
        self._until(lambda: self._sinks.lake.landed(self._topic) == wanted, f"{wanted} to be landed")

    def _follow(self) -> None:
        try:
            while not self.over.is_set():
                self.tries["tasks"] += 1
                try:
                    driving = self._sinks.driving(self._topic)
                    driving.begin()
                    self._sinks.follow_until(driving, lambda _: self.over.is_set(), patience=math.inf)
                except LakestreamError as e:
                    if not isinstance(e, Transient) or self.tries["tasks"] >= TRIES:
                        raise
                    self.tries[type(e).__name__] += 1
        except BaseException as e:  # noqa: BLE001  # raised again in the test's own thread
            self._error = e

    def _until(self, done: Callable[[], bool], what: str) -> None:
        poll_until(lambda: done() or self._error is not None, what, 300, every=0.2)
        if self._error is not None:
            raise self._error


@contextmanager
def by_connect(lake: Lake, topic: str, stack: Stack) -> Iterator[Followed]:
    sinks = Sinks(lake, stack, stack.up_connect(lake.kafka["bootstrap.servers"]))
    # It makes the table.
    sinks.extract(topic)
    made = Followed(sinks, topic)
    made.thread.start()
    try:
        yield made
    finally:
        made.over.set()
        made.thread.join(300)
        sinks.end()


@contextmanager
def by_spark(lake: Lake, topic: str, stack: Stack) -> Iterator[Stream]:
    run = SparkRun(lake, topic, {"schema": SCHEMA})
    made = Stream(lake, topic, lambda: run.start(trigger="2 seconds"))
    try:
        yield made
    finally:
        os.killpg(made.driver.pid, signal.SIGKILL)
        made.driver.wait()


@contextmanager
def by_flink(lake: Lake, topic: str, stack: Stack) -> Iterator[Stream]:
    landing = FlinkLanding(lake, topic, stack.up_flink())
    try:
        yield Stream(lake, topic, landing.start)
        landing.stop()
    finally:
        landing.end()


ENGINES: dict[str, Callable[[Lake, str, Stack], AbstractContextManager[Tasks | Stream | Followed]]] = {
    "extract": by_extract,
    "group": by_group,
    "spark": by_spark,
    "flink": by_flink,
    "connect": by_connect,
}


@pytest.mark.parametrize(
    "engine", [pytest.param(one, marks=[] if one == "extract" else [IN_A_SOAK]) for one in ENGINES]
)
def test_brokers_are_killed_and_leaders_move_while_landings_run(cluster: Cluster, tmp_path: Path, engine: str) -> None:
    topic, lake = cluster.topic(PARTITIONS), Lake(tmp_path, cluster.client_config())
    done, started, counts = 0, time.monotonic(), dict.fromkeys(range(PARTITIONS), 5)
    for partition, count in counts.items():
        cluster.produce(topic, partition, events(partition, 0, count))
    with ENGINES[engine](lake, topic, cluster.stack) as made:
        with (
            flowing(cluster.produce, topic, counts),
            Trouble(cluster, topic, SEED, PAUSE) as trouble,
        ):
            while done < LANDINGS or trouble.kills < KILLS:
                trouble.check()
                made.land()
                done += 1
                # Only in a soak: 30 landings have to last as long as brokers are killed for.
                time.sleep(GAP)
        made.end(counts)
    told = f"{engine}: seed {SEED}, {done} landings, {trouble.kills} kills, {trouble.moves} leaders moved"
    print(f"{told}, {sum(counts.values())} records, {time.monotonic() - started:.0f} s, {dict(made.tries)}")
    assert trouble.moves > 0
    assert_landed_once(lake, topic, counts)
    assert_rows_are_the_topics(lake, cluster, topic)
    audit = lake.audit(topic=topic)
    assert audit.verdict is AuditVerdict.CLEAN, str(audit)


def test_a_source_that_is_kept_asks_anew_who_leads(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    cluster.produce(topic, 0, events(0, 0, 10))
    source = KafkaSource(cluster.client_config(), topic, "g", StartAt(), "the brokers")
    before = source.look().marks[0]
    leader = cluster.leaders(topic)[0]
    cluster.kill(leader)
    cluster.await_led_by_others(topic, leader)
    cluster.start(leader)
    cluster.await_in_sync(topic)
    assert cluster.move_leaders_back(topic)
    # The same broker leads, in another epoch. Before, this ended in KafkaUnavailable.
    after = source.look().marks[0]
    assert after.end == before.end == 10
    assert after.leader_epoch is not None
    assert before.leader_epoch is not None
    assert after.leader_epoch > before.leader_epoch


def assert_rows_are_the_topics(lake: Lake, cluster: Cluster, topic: str) -> None:
    """Assert that the table has what a plain client reads in the topic, record by record."""
    said = {place: json.loads(value) for place, value in cluster.records(topic).items()}
    rows = lake.rows(topic).to_pylist()
    found = {
        (row["_kafka_partition"], row["_kafka_offset"]): {name: row[name] for name in ("id", "name", "score")}
        for row in rows
    }
    assert len(found) == len(rows)
    assert found == said


def large(first: int, count: int = 3000) -> list[str]:
    """Return values that fill more answers of a broker than a client asks for ahead; random, so they stay large."""
    return [f'{{"n": {n}, "s": "{secrets.token_urlsafe(7500)}"}}' for n in range(first, first + count)]


# So that most of a topic is still on the brokers' side when the first chunk is there.
READS_LITTLE_AHEAD = {"queued.max.messages.kbytes": 1024, "max.partition.fetch.bytes": 2**20, "fetch.max.bytes": 2**20}


def test_a_client_that_says_its_rack_reads_from_the_copy_there(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.topic(1)
    cluster.produce(topic, 0, large(0))
    leader = cluster.leaders(topic)[0]
    near = next(broker for node, broker in cluster.brokers.items() if node != leader)

    def asked(**settings: str) -> set[int]:
        brokers: set[int] = set()

        def look(text: str) -> None:
            told = json.loads(text)["topics"].get(topic, {"partitions": {}})["partitions"]
            brokers.update(one["broker"] for p, one in told.items() if p == "0" and one["broker"] >= 0)

        watched: dict[str, Any] = {"statistics.interval.ms": 20, "stats_cb": look, "message.max.bytes": 2**20}
        lake = Lake(tmp_path / (settings.get("client.rack") or "none"), cluster.client_config())
        lake.folder.mkdir()
        lake.land(topic, kafka={**READS_LITTLE_AHEAD, **watched, **settings})
        assert lake.offsets() == at(0, range(3000))
        return brokers

    assert near.node in asked(**{"client.rack": near.rack})
    assert asked() == {leader}
