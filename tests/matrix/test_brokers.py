"""Three brokers: one is killed after the other, and leaders move, while landings run. Nothing is lost or doubled.

`make test-matrix` has the short run; `make soak-brokers LANDINGS=30 SEED=0` the long one, a kill each minute.
"""

from __future__ import annotations

import json
import os
import secrets
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.driver.supervisor import Action
from airflow_lakestream.driver.watch import Look
from airflow_lakestream.exceptions import LakestreamError, Transient
from dev.stack import Stack
from tests.support.broker import poll_until
from tests.support.brokers import PATIENCE, Cluster, Trouble
from tests.support.connecting import SCHEMA, Sinks
from tests.support.faults import InterposedReader
from tests.support.flink import FlinkLanding
from tests.support.flowing import flowing
from tests.support.lake import Lake, assert_landed_once
from tests.support.lake_reading import at
from tests.support.shared_run import SharedRun
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

SOAK = "LAKESTREAM_LANDINGS" in os.environ
LANDINGS, SEED = int(os.environ.get("LAKESTREAM_LANDINGS", "3")), int(os.environ.get("LAKESTREAM_SEED", "0"))
# In the long run a kill comes each minute, and a landing each ten seconds, so that there are five of them.
KILLS, PAUSE, GAP = (LANDINGS // 6, 60.0, 10.0) if SOAK else (1, 0.0, 0.0)
PARTITIONS = 4
# A task is tried again; with these pauses that is some minutes.
TRIES = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Give three brokers of this file's own."""
    with Stack.owned("tests-brokers") as stack:
        yield Cluster(stack)


class Engine(Protocol):
    """What lands: `land` returns once more of the topic is in the table, `finish` once these ends are."""

    tries: Counter[str]

    def land(self) -> None: ...
    def finish(self, counts: dict[int, int]) -> None: ...


class Tasks:
    """Engines that are one call: a landing that ends in an error that may pass is tried again, as a task is."""

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

    def finish(self, counts: dict[int, int]) -> None:
        self.land()


def by_extract(lake: Lake, topic: str, request: pytest.FixtureRequest) -> Engine:
    return Tasks(lambda run_id: lambda: lake.land(topic, run_id, schema=SCHEMA))


def by_group(lake: Lake, topic: str, request: pytest.FixtureRequest) -> Engine:
    def once(run_id: str) -> Callable[[], object]:
        run = SharedRun(lake, topic, {"schema": SCHEMA}, run_id)

        def steps() -> None:
            plan = run.plan()
            run.commit(plan, run.read_all(plan))

        return steps

    return Tasks(once)


def by_spark(lake: Lake, topic: str, request: pytest.FixtureRequest) -> Engine:
    run, spark = SparkRun(lake, topic, {"schema": SCHEMA}), request.getfixturevalue("spark")
    return Tasks(lambda _: lambda: run.run(spark))


class ByFlink:
    """A stream of Flink's: each publication is a landing; where its driver ends the next one starts, as by its task."""

    def __init__(self, landing: FlinkLanding) -> None:
        self._landing = landing
        self._driver = landing.start()
        self.tries: Counter[str] = Counter(drivers=1)

    def land(self) -> None:
        self._until(lambda before: len(self._landing.lake.snapshots()) > before, len(self._landing.lake.snapshots()))

    def finish(self, counts: dict[int, int]) -> None:
        wanted = {p: [(0, count)] for p, count in counts.items()}
        self._until(lambda _: self._landing.lake.landed(self._landing.topic) == wanted, 0)
        self._landing.stop()

    def _until(self, done: Callable[[int], bool], before: int) -> None:
        deadline = time.monotonic() + 3 * PATIENCE
        while not done(before):
            if self._driver.poll() is not None:
                self._driver = self._landing.start()
                self.tries["drivers"] += 1
            assert time.monotonic() < deadline, self._landing.log[-3000:]
            # Not for luck: between two looks at the table.
            time.sleep(0.5)


def by_flink(lake: Lake, topic: str, request: pytest.FixtureRequest) -> Engine:
    landing = FlinkLanding(lake, topic, request.getfixturevalue("flink"))
    request.addfinalizer(landing.end)
    return ByFlink(landing)


class _Done(Exception):
    """Ends a look after a connector, which runs on."""


class ByConnect:
    """Iceberg's sink on a Connect of these brokers: each publication is a landing; a task that fails is tried again."""

    def __init__(self, sinks: Sinks, topic: str) -> None:
        self._sinks, self._topic = sinks, topic
        self.tries: Counter[str] = Counter()

    def land(self) -> None:
        before = len(self._sinks.lake.snapshots())
        self._follow(lambda: len(self._sinks.lake.snapshots()) > before)

    def finish(self, counts: dict[int, int]) -> None:
        wanted = {p: [(0, count)] for p, count in counts.items()}
        self._follow(lambda: self._sinks.lake.landed(self._topic) == wanted)
        self._sinks.client.stop(self._sinks.name)

    def _follow(self, done: Callable[[], bool]) -> None:
        run_id, deadline = uuid.uuid4().hex, time.monotonic() + 3 * PATIENCE

        def tell(look: Look) -> None:
            if done():
                raise _Done
            assert time.monotonic() < deadline, look

        for _ in range(TRIES):
            self.tries["tasks"] += 1
            driving = self._sinks.driving(self._topic, run_id)
            try:
                driving.begin()
                decision = driving.follow(tell)
                while decision.action is Action.RESTART:
                    self.tries["restarts"] += 1
                    driving.pause(decision.at)
                    driving.begin(decision.history.restarted(time.time()))
                    decision = driving.follow(tell)
                self.tries[decision.reason] += 1
            except _Done:
                return
            except LakestreamError as e:
                if not isinstance(e, Transient):
                    raise
                self.tries[type(e).__name__] += 1
        raise AssertionError(f"given up: {self.tries}")


def by_connect(lake: Lake, topic: str, request: pytest.FixtureRequest) -> Engine:
    stack = request.getfixturevalue("cluster").stack
    # The extract makes the table: the sink begins where its group is.
    poll_until(lambda: lake.land(topic, schema=SCHEMA).counts.written > 0, "a first landing", PATIENCE)
    sinks = Sinks(lake, stack, stack.up_connect(lake.kafka["bootstrap.servers"]))
    request.addfinalizer(lambda: sinks.connect.release(sinks.name))
    return ByConnect(sinks, topic)


ENGINES: dict[str, Callable[[Lake, str, pytest.FixtureRequest], Engine]] = {
    "extract": by_extract,
    "group": by_group,
    "spark": by_spark,
    "flink": by_flink,
    "connect": by_connect,
}
# Their servers take half a minute to come up.
LONG = ("flink", "connect")
IN_A_SOAK = pytest.mark.skipif(not SOAK, reason="is a part of make soak-brokers")


@pytest.mark.parametrize("engine", [pytest.param(name, marks=[IN_A_SOAK] if name in LONG else []) for name in ENGINES])
def test_brokers_are_killed_and_leaders_move_while_landings_run(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest, engine: str
) -> None:
    topic, lake = cluster.topic(PARTITIONS), Lake(tmp_path, cluster.client_config())
    with flowing(cluster.produce, topic, partitions=PARTITIONS) as counts:
        made, done, started = ENGINES[engine](lake, topic, request), 0, time.monotonic()
        with Trouble(cluster, topic, SEED, PAUSE) as trouble:
            while done < LANDINGS or trouble.kills < KILLS:
                trouble.check()
                made.land()
                done += 1
                # The long run's landings are that far apart.
                time.sleep(GAP)
    made.finish(counts)
    told = f"{engine}: seed {SEED}, {done} landings, {trouble.kills} kills, {trouble.moves} leaders moved"
    print(f"{told}, {sum(counts.values())} records, {time.monotonic() - started:.0f} s, {dict(made.tries)}")
    assert trouble.moves > 0
    assert_landed_once(lake, topic, counts)
    assert_rows_are_the_topics(lake, cluster, topic)
    audit = lake.audit(topic=topic)
    assert audit.verdict is AuditVerdict.CLEAN, str(audit)


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


def test_a_read_follows_a_leader_that_dies_in_its_midst_and_one_that_moves(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.topic(1)
    lake = Lake(tmp_path, {**cluster.client_config(), **READS_LITTLE_AHEAD, "message.max.bytes": 2**20})
    cluster.produce(topic, 0, large(0))
    first = cluster.leaders(topic)[0]
    killed: list[int] = []

    def die() -> None:
        cluster.kill(first)
        killed.append(first)

    job = lake.job(topic)
    assert land(replace(job, reader=InterposedReader(job.reader, die))).counts.written == 3000
    cluster.await_led_by_others(topic, first)
    cluster.start(first)
    cluster.await_in_sync(topic)

    cluster.produce(topic, 0, large(3000))
    moved: list[int] = []
    job = lake.job(topic)
    read = InterposedReader(job.reader, lambda: moved.append(cluster.move_leaders_back(topic)))
    assert land(replace(job, reader=read)).counts.written == 3000

    assert (killed, moved, cluster.leaders(topic)) == ([first], [1], {0: first})

    # Shares that begin in the midst of what the new leader wrote: the ledger's epoch is of another one.
    cluster.produce(topic, 0, large(6000))
    shared = SharedRun(lake, topic)
    plan = shared.plan()
    assert len(plan.shares) == 4
    assert shared.commit(plan, shared.read_all(plan)).counts.written == 3000
    assert lake.offsets() == at(0, range(9000))
    assert lake.audit(topic=topic).verdict is AuditVerdict.CLEAN


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
