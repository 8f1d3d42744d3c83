"""The real broker of the test session, and what a test does to it before the code under test comes."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from dev.services.kafka import Kafka
from dev.stack import Stack

Headers = Sequence[tuple[str, bytes | None]]

# Retention, the deletion of segments and compaction within a second.
QUICK_CLEANUP = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.backoff.ms": "200",
}


@pytest.fixture(scope="session")
def kafka(stack: Stack) -> Kafka:
    """Give the broker of this test run, started when the first test asks for it."""
    return stack.up_kafka(overrides=QUICK_CLEANUP)


class Topics:
    """Makes and changes topics: `topic(partitions=4, **config)` makes one and returns its unique name."""

    def __init__(self, admin: AdminClient, copies: int = 1) -> None:
        self._admin = admin
        self._copies = copies

    def __call__(self, partitions: int = 4, *, name: str | None = None, **config: object) -> str:
        """Make a topic; settings are written as Python words: `topic(cleanup_policy="compact", retention_ms=-1)`."""
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        made = NewTopic(name, num_partitions=partitions, replication_factor=self._copies, config=settings)
        self._admin.create_topics([made])[name].result(timeout=30)
        self._await_leaders(name, partitions)
        return name

    def add_partitions(self, name: str, total: int) -> None:
        """Let the topic have `total` partitions."""
        self._admin.create_partitions([NewPartitions(name, total)])[name].result(timeout=30)
        self._await_leaders(name, total)

    def delete(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete the topic, and return when the broker knows it no more."""
        if missing_ok and name not in self._admin.list_topics(timeout=10).topics:
            return
        self._admin.delete_topics([name])[name].result(timeout=30)
        poll_until(lambda: name not in self._admin.list_topics(timeout=10).topics, f"{name} to be deleted")

    def _await_leaders(self, name: str, partitions: int) -> None:
        def led() -> bool:
            found = self._admin.list_topics(name, timeout=10).topics[name]
            return len(found.partitions) == partitions and all(p.leader >= 0 for p in found.partitions.values())

        poll_until(led, f"{name} to have {partitions} partitions with leaders")


def poll_until(done: Callable[[], bool], what: str, seconds: float = 30, *, every: float = 0.05) -> None:
    """Return once `done()`, asked again after `every` seconds or more; TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if done():
            return
        if (now := time.monotonic()) > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        # Not for luck: between two questions. A dear question is seldom asked, so that the answer gets the processors.
        time.sleep(max(every, min(2 * (now - began), 1)))


@pytest.fixture(scope="session")
def admin(kafka: Kafka) -> AdminClient:
    """Give an admin client of the session's broker."""
    return AdminClient({**kafka.client_config(), "log_level": 2})


@pytest.fixture(scope="session")
def topic(admin: AdminClient) -> Topics:
    """Give the maker of topics."""
    return Topics(admin)


class Producing:
    """Writes records: `produce(topic, partition, values)` returns the offsets they got, in the order of the values."""

    def __init__(self, config: dict[str, str]) -> None:
        settings = {"linger.ms": 5, "compression.type": "lz4", "batch.size": 1_000_000, "enable.idempotence": True}
        # One request at a time: with more, a broker that has just started may lose the first batch, which librdkafka
        # reports as delivered, without offsets.
        settings |= {"max.in.flight": 1, "queue.buffering.max.messages": 1_000_000}
        self._producer = Producer({**config, **settings, "log_level": 2})

    def __call__(
        self,
        topic: str,
        partition: int,
        values: Iterable[bytes | str | None],
        *,
        keys: Iterable[bytes | str | None] | None = None,
        headers: Headers | Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
    ) -> list[int]:
        """Produce the values to one partition and wait until the broker has them.

        :param keys: one for each value (default: none).
        :param headers: one list of headers for all, or one for each value.
        :param timestamps: milliseconds since the epoch, one for each value (default: now).
        """
        offsets: list[int] = []
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            offsets.append(message.offset()) if error is None else failed.append(error)

        each_headers = _for_each(headers)
        for value, key, header, timestamp in zip(
            values, keys or itertools.repeat(None), each_headers, timestamps or itertools.repeat(0), strict=False
        ):
            record = {"value": value, "key": key, "headers": header, "timestamp": timestamp, "partition": partition}
            while True:
                try:
                    self._producer.produce(topic, **record, on_delivery=delivered)
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self._producer.poll(0)
        unsent = self._producer.flush(60)
        if failed or unsent:
            raise RuntimeError(f"{len(failed)} failed, {unsent} unsent, first: {failed[0] if failed else 'no answer'}")
        if None in offsets:
            raise RuntimeError(f"{topic}[{partition}]: records without an offset, which the broker does not have")
        return offsets


def _for_each(headers: Headers | Iterable[Headers] | None) -> Iterable[Headers | None]:
    """Tell one list of headers, meant for all values, from a list of such lists."""
    if headers is None:
        return itertools.repeat(None)
    given = list(headers)
    is_one_list = all(isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) for item in given)
    return itertools.repeat(given) if is_one_list else given  # type: ignore[return-value]


@pytest.fixture(scope="session")
def produce(kafka: Kafka) -> Producing:
    """Give the writer of records."""
    return Producing(kafka.client_config())


TopicOf = Callable[..., str]


@pytest.fixture(scope="session")
def topic_of(topic: Topics, produce: Producing) -> TopicOf:
    """Give the maker of topics that have records: `topic_of(values, values)` returns the name of one of two partitions.

    Keys, headers and timestamps are those of `Producing`, for each partition; all else are settings of the topic.
    """

    def make(
        *partitions: Iterable[bytes | str | None],
        keys: Any = None,
        headers: Any = None,
        timestamps: Any = None,
        **settings: Any,
    ) -> str:
        name = topic(len(partitions), **settings)
        for number, values in enumerate(partitions):
            produce(name, number, values, keys=keys, headers=headers, timestamps=timestamps)
        return name

    return make
