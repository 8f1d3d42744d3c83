"""Random histories of a stream by another engine, and what has to hold after each step, whatever has happened.

Records come and leave Kafka, the branch is damaged, columns change, main goes back, the stream is stopped or dies. An
error's remedy is followed to the letter; at the end of it the ledger has to reach the topic's end.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg.types import DoubleType, StringType

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.lease import request_stop
from airflow_lakestream.driver.supervisor import SupervisorAction
from airflow_lakestream.exceptions import LakestreamError
from tests.support.broker import Producing, poll_until
from tests.support.connecting import PATIENCE, SCHEMA, Sinks
from tests.support.engine_kills.deal import dealt
from tests.support.flink import FlinkLanding
from tests.support.lake import Lake, events

# A run that ends so often without a landing does not come to one.
_TRIES = 8
# How long unpublished rows are waited for; a history goes on without them.
_ROWS_WITHIN = 20.0


class EndedBadly(Exception):
    """The stream has ended with an error, which is its text."""


class Stream(ABC):
    """One engine's stream; `landing` is what the extract is told that lands the same."""

    lake: Lake
    topic: str
    branch: str
    landing: Mapping[str, Any]

    @abstractmethod
    def run(self, done: Callable[[], bool]) -> None:
        """Run the stream, which goes on if it is there, until something is so. Raises EndedBadly."""

    @abstractmethod
    def leave(self) -> None:
        """Let nobody look after the engine's job, which goes on."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the stream as a person does."""

    @abstractmethod
    def end_job(self) -> None:
        """End the engine's job alone."""

    @abstractmethod
    def record_losses(self) -> None:
        """Run once with on_data_loss="record"."""


class ByFlink(Stream):
    """A landing of FlinkSqlOperator."""

    def __init__(self, flink: FlinkLanding, landing: Mapping[str, Any]) -> None:
        self.flink, self.landing = flink, landing
        self.lake, self.topic, self.branch = flink.lake, flink.topic, flink.configured().on_branch
        self._driver: Any = None
        self._once: dict[str, Any] = {}

    def run(self, done: Callable[[], bool]) -> None:
        if self._driver is None or self._driver.poll() is not None:
            self._driver = self.flink.start(**self._once)
            self._once = {}
        driver = self._driver
        poll_until(lambda: driver.poll() is not None or done(), "a landing", PATIENCE, every=0.5)
        if not done():
            lease = self.flink.lease
            raise EndedBadly((lease.error if lease is not None else "") or self.flink.log[-3000:])

    def leave(self) -> None:
        if self._driver is not None and self._driver.poll() is None:
            self.flink.kill_driver()

    def stop(self) -> None:
        driver = self._driver
        if driver is None or driver.poll() is not None:
            return
        poll_until(lambda: driver.poll() is not None or _asked(self.flink), "a lease", PATIENCE, every=0.2)
        driver.wait(PATIENCE)

    def end_job(self) -> None:
        self.leave()
        if (note := self.flink.note) is not None and not note.savepoint:
            self.flink.jobs.cancel(note.job)

    def record_losses(self) -> None:
        self.stop()
        self._once = {"on_data_loss": "record"}


def _asked(flink: FlinkLanding) -> bool:
    return request_stop(flink.location, "the history", flink.properties)


class ByConnect(Stream):
    """A sink that KafkaConnectOperator looks after."""

    landing: Mapping[str, Any] = {"schema": SCHEMA, "tombstones": "skip"}

    def __init__(self, sinks: Sinks, topic: str) -> None:
        self.sinks, self.lake, self.topic = sinks, sinks.lake, topic
        self.branch = sinks.sink(topic).branch

    def run(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE

        class Enough(Exception):
            """It is so."""

        def tell(_: object) -> None:
            if done():
                raise Enough
            if time.monotonic() > deadline:
                raise TimeoutError("waited for a landing")

        driving = self.sinks.driving(self.topic)
        try:
            driving.begin()
            decision = driving.follow(tell)
            while decision.action is SupervisorAction.RESTART:
                driving.pause(decision.at)
                driving.begin(decision.history.restarted(time.time()))
                decision = driving.follow(tell)
        except Enough:
            return
        except LakestreamError as e:
            raise EndedBadly(str(e)) from e
        if not done():
            raise EndedBadly(decision.reason)

    def leave(self) -> None:
        """Do nothing: the task has ended."""

    def stop(self) -> None:
        if self.sinks.client.config(self.sinks.name) is not None:
            self.sinks.client.stop(self.sinks.name)

    def end_job(self) -> None:
        if self.sinks.client.config(self.sinks.name) is not None:
            self.sinks.connect.release(self.sinks.name)

    def record_losses(self) -> None:
        raise AssertionError("KafkaConnectOperator has no on_data_loss")


@dataclass
class History:
    """The history of one seed.

    :param keeps: whether the statement keeps a record of this id; None where there is no statement.
    """

    stream: Stream
    produce: Producing
    admin: AdminClient
    seed: int
    keeps: Callable[[int], bool] | None = None
    counts: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    # By partition, what has left Kafka; by column, since which offsets it has been as it is.
    low: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    changed: dict[str, dict[int, int]] = field(default_factory=dict)

    def play(self, steps: int) -> None:
        """Play so many steps. Each comes once before one comes again."""
        acts: dict[str, Callable[[], None]] = {
            "records": self._records,
            "retention": self._retention,
            "branch dropped": lambda: self._damage(self._drop),
            "branch set to main": lambda: self._damage(self._set_to_main),
            "branch set back": lambda: self._damage(self._set_back),
            "column dropped and added": self._drop_and_add,
            "column renamed, and its name given to another": self._rename,
            "main rolled back": self._roll_back,
            "extract": lambda: self._extract(on_data_loss="record"),
            "job ended": self.stream.end_job,
        }
        self._records()
        self.settle()
        for number in range(steps):
            what = dealt([*acts], self.seed, number)
            self._chance = Random(f"{self.seed}/{number}")
            how = self._chance.choice(("goes on", "is left alone", "is stopped"))
            print(f"step {number}: the stream {how}; {what}", flush=True)
            {"goes on": lambda: None, "is left alone": self.stream.leave, "is stopped": self.stream.stop}[how]()
            acts[what]()
            self._records()
            self.settle()
        self.stream.stop()
        self._check()

    def settle(self) -> None:
        """Run the stream, and follow what its errors say, until the ledger reaches the topic's end; check the table."""
        told = []
        for _ in range(_TRIES):
            try:
                self.stream.run(self._is_landed)
            except EndedBadly as e:
                told.append(str(e))
                print(f"  {e}", flush=True)
                self._follow(str(e))
            else:
                self._check()
                return
        raise AssertionError("\n".join(["no landing comes of what these errors say:", *told]))

    def _follow(self, error: str) -> None:
        """Do what an error says."""
        if re.search(r"[Rr]un KafkaExtractOperator once", error):
            self._extract(**({"on_data_loss": "record"} if 'on_data_loss="record"' in error else {}))
        elif re.search(r'[Rr]un once with on_data_loss="record"|or on_data_loss="record" of Flink', error):
            self.stream.record_losses()
        elif "drop the branch (ALTER TABLE ... DROP BRANCH)" in error:
            self.stream.stop()
            self.stream.end_job()
            self._drop()
        # All others: run the task again.

    def _is_landed(self) -> bool:
        return self._held() == self._all()

    def _held(self) -> RangeSet:
        return self.stream.lake.entry(self.stream.topic).held

    def _all(self) -> RangeSet:
        return union(RangeSet.of(self.stream.topic, p, 0, count) for p, count in self.counts.items())

    def _check(self) -> None:
        """Assert that nothing is lost, doubled, or called filtered that was not left out; that values are right."""
        lake, topic = self.stream.lake, self.stream.topic
        entry, found = lake.entry(topic), lake.records()
        at = [(row["_kafka_partition"], row["_kafka_offset"]) for row in found]
        assert len(at) == len(set(at)), "doubled"
        gone = union(RangeSet.of(topic, p, 0, low) for p, low in self.low.items())
        assert not entry.lost - gone, f"called lost: {entry.lost - gone}"
        wanted = {
            (p, n)
            for p, count in self.counts.items()
            for n in range(count)
            if not entry.lost & RangeSet.of(topic, p, n, n + 1) and (self.keeps is None or self.keeps(n))
        }
        assert sorted(wanted - set(at)) == [], "rows that are missing"
        assert sorted(set(at) - wanted) == [], "rows that nobody wants"
        counts = entry.counts
        left_out = entry.landed.width - len(wanted)
        assert (counts.written, counts.filtered, counts.rejected) == (len(found), left_out, 0)
        for row, (p, n) in zip(found, at, strict=True):
            values = {"id": p * 10_000_000 + n, "name": f"p{p}-{n}", "score": n + 0.5}
            for name, value in values.items():
                may_be_null = n < self.changed.get(name, {}).get(p, 0)
                assert row[name] == value or (may_be_null and row[name] is None), (name, row)
        audit = lake.audit(topic=topic)
        assert audit.verdict is AuditVerdict.CLEAN, str(audit)

    def _records(self) -> None:
        for p in self.counts:
            count = 20 + 5 * p
            self.produce(self.stream.topic, p, events(p, self.counts[p], count))
            self.counts[p] += count

    def _extract(self, **config: str) -> None:
        self.stream.lake.land(self.stream.topic, **self.stream.landing, **config)

    def _retention(self) -> None:
        """Let records leave Kafka, of which some are not landed."""
        self._records()
        for p in self.counts:
            self.low[p] = max(self.low[p], self.counts[p] - self._chance.randrange(30))
            where = TopicPartition(self.stream.topic, p, self.low[p])
            self.admin.delete_records([where])[where].result(30)

    def _damage(self, how: Callable[[], None]) -> None:
        """Do something to the branch, once it has rows that nobody has published, if any come."""
        before = self._head()
        self._records()
        try:
            poll_until(lambda: self._head() != before, "rows in the branch", _ROWS_WITHIN, every=0.5)
        except TimeoutError:
            print("  no rows came", flush=True)
        how()

    def _head(self) -> int | None:
        found = self.stream.lake.table().refs().get(self.stream.branch)
        return None if found is None else found.snapshot_id

    def _drop(self) -> None:
        if self._head() is not None:
            self.stream.lake.table().manage_snapshots().remove_branch(self.stream.branch).commit()

    def _set(self, snapshot_id: int) -> None:
        self._drop()
        with self.stream.lake.table().manage_snapshots() as changed:
            changed.create_branch(snapshot_id, self.stream.branch)

    def _set_to_main(self) -> None:
        main = self.stream.lake.table().current_snapshot()
        assert main is not None
        self._set(main.snapshot_id)

    def _set_back(self) -> None:
        """Set the branch to an older one of its own snapshots."""
        table, head = self.stream.lake.table(), self._head()
        found = table.metadata.snapshot_by_id(head) if head is not None else None
        for _ in range(self._chance.randint(1, 3)):
            parent = None if found is None else found.parent_snapshot_id
            found = (table.metadata.snapshot_by_id(parent) if parent is not None else None) or found
        if found is not None:
            self._set(found.snapshot_id)

    def _roll_back(self) -> None:
        table = self.stream.lake.table()
        found = table.current_snapshot()
        assert found is not None
        for _ in range(self._chance.randint(1, 3)):
            parent = found.parent_snapshot_id
            found = (table.metadata.snapshot_by_id(parent) if parent is not None else None) or found
        self.stream.lake.roll_back(found.snapshot_id)

    def _drop_and_add(self) -> None:
        with self.stream.lake.table().update_schema() as change:
            change.delete_column("name")
        with self.stream.lake.table().update_schema() as change:
            change.add_column("name", StringType())
        self.changed["name"] = dict(self.counts)

    def _rename(self) -> None:
        with self.stream.lake.table().update_schema() as change:
            change.rename_column("score", f"score_{sum(self.counts.values())}")
        with self.stream.lake.table().update_schema() as change:
            change.add_column("score", DoubleType())
        self.changed["score"] = dict(self.counts)
