"""A Kafka of three brokers, and what befalls it while landings run: brokers are killed, and leaders move."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from dev.services.brokers import Broker
from dev.stack import Stack
from tests.support.broker import Producing, Topics, poll_until

# A machine that does many things at once: what takes seconds may take minutes.
PATIENCE = 120.0


class Cluster:
    """The three brokers of a stack."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.brokers: dict[int, Broker] = {broker.node: broker for broker in stack.up_brokers()}
        # A broker that is gone is no news.
        self.admin = AdminClient({**self.client_config(), "log_level": 2})
        self.topic = Topics(self.admin, copies=len(self.brokers))
        self.produce = Producing(self.client_config())

    def client_config(self) -> dict[str, str]:
        """Return the settings of a client, which knows all of them."""
        return next(iter(self.brokers.values())).client_config()

    def leaders(self, topic: str) -> dict[int, int]:
        """Return who leads each partition; nobody is -1."""
        return {p: found.leader for p, found in self._partitions(topic).items()}

    def await_in_sync(self, topic: str) -> None:
        """Wait until each partition has all of its copies."""

        def whole() -> bool:
            found = self._partitions(topic).values()
            return bool(found) and all(len(one.isrs) == len(one.replicas) for one in found)

        poll_until(whole, f"all copies of {topic}", PATIENCE, every=0.2)

    def await_led_by_others(self, topic: str, node: int) -> None:
        """Wait until each partition is led by another broker."""

        def led() -> bool:
            found = self.leaders(topic).values()
            return bool(found) and not {-1, node} & set(found)

        poll_until(led, f"others to lead {topic} than broker {node}", PATIENCE, every=0.1)

    def kill(self, node: int) -> None:
        """Kill a broker, which has no time to say anything."""
        process = self.brokers[node].service.process("service")
        assert process is not None, f"broker {node} was never up"
        process.signal(signal.SIGKILL)
        assert process.wait_gone(PATIENCE), f"broker {node} does not end"

    def start(self, node: int) -> None:
        """Start a broker again that was killed, with the data that it had."""
        self.brokers[node] = self.stack.restart_broker(self.brokers[node])

    def move_leaders_back(self, topic: str) -> int:
        """Let each partition be led by its first copy again; return how many leaders that has moved."""
        before = self.leaders(topic)
        wanted = {p: one.replicas[0] for p, one in self._partitions(topic).items()}
        parts = [TopicPartition(topic, p) for p, first in wanted.items() if before[p] != first]
        if parts:
            self.admin.elect_leaders(ElectionType.PREFERRED, parts).result(PATIENCE)
        poll_until(lambda: self.leaders(topic) == wanted, f"the leaders of {topic} to be back", PATIENCE, every=0.1)
        return len(parts)

    def _partitions(self, topic: str) -> Mapping[int, Any]:
        try:
            return self.admin.list_topics(topic, timeout=5).topics[topic].partitions
        except KafkaException:
            # The one that was asked has just died.
            return {}

    def records(self, topic: str) -> dict[tuple[int, int], bytes]:
        """Return the value of each record in the topic, by partition and offset, as a plain client reads them."""
        found: dict[tuple[int, int], bytes] = {}
        settings = {"group.id": "comparing", "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer({**self.client_config(), **settings, "log_level": 2})
        try:
            parts = [TopicPartition(topic, p, 0) for p in self.leaders(topic)]
            left = {}
            for part in parts:
                _, end = consumer.get_watermark_offsets(part, timeout=30)
                left[part.partition] = end
            consumer.assign(parts)

            def read_all() -> bool:
                for message in consumer.consume(10_000, 1.0):
                    assert message.error() is None, message.error()
                    found[message.partition(), message.offset()] = message.value()
                return len(found) >= sum(left.values())

            poll_until(read_all, f"the records of {topic}", PATIENCE, every=0)
        finally:
            consumer.close()
        return found


@dataclass
class Trouble:
    """What befalls the brokers while it is entered: one after the other is killed; leaders move, and move back.

    :param pause: seconds from one kill to the next; the next one comes at once if the last took longer.
    """

    cluster: Cluster
    topic: str
    seed: int
    pause: float = 0.0
    kills: int = 0
    moves: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="trouble", daemon=True)

    def __enter__(self) -> Trouble:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise what has gone wrong with it."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                started = time.monotonic()
                self._befall()
                self._over.wait(max(0.0, self.pause - (time.monotonic() - started)))
        except BaseException as e:  # noqa: BLE001  # raised again in the test's own thread
            self._error = e

    def _befall(self) -> None:
        """Kill one broker, wait until others lead, start it again, and let it lead what it has led."""
        node = self._dice.choice(sorted(self.cluster.brokers))
        led = sum(leader == node for leader in self.cluster.leaders(self.topic).values())
        self.cluster.kill(node)
        self.cluster.await_led_by_others(self.topic, node)
        # The landings have two brokers for a while.
        self._over.wait(self._dice.uniform(0, 2))
        self.cluster.start(node)
        self.cluster.await_in_sync(self.topic)
        self.moves += led + self.cluster.move_leaders_back(self.topic)
        self.kills += 1
