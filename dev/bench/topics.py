"""The topics that are read: a table of them, and how they are filled."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle, islice

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs lack NewTopic

from dev.bench.payloads import ENCODERS, Encoder, Register
from dev.services.kafka import Kafka
from dev.services.registry import Registry
from dev.sources.clickstream import make_event
from dev.sources.sending import Sender

PARTITIONS = 4
# Topics that one regular expression matches.
MANY = 50
MIB = 2**20
# Rendering costs more than sending: records are drawn from pre-rendered ones, each with the time put in.
_POOL, _POOL_BYTES = 20_000, 32 * MIB
_BLOCK = 1_000
# Above the broker's own 1 MiB, for the topics whose records are large.
_LARGEST = 16 * MIB


@dataclass(frozen=True)
class Topic:
    """What a topic holds.

    :param records: how many; None for as many as the run is told.
    :param size: about how many bytes a value has; None for the events as they are, some 200.
    :param bad_every: each how many records one can't become a row.
    :param partitions: how many it has.
    :param codec: how its batches are compressed.
    """

    format: str
    records: int | None = None
    size: int | None = None
    bad_every: int | None = None
    partitions: int = PARTITIONS
    codec: str = "lz4"


@dataclass(frozen=True)
class Filled:
    """A topic that is there."""

    name: str
    records: int
    value_bytes: int
    """Of all values together."""

    def bytes_of(self, records: int) -> int:
        """Return how many bytes so many of its records have, on average."""
        return self.value_bytes * records // self.records


TOPICS: Mapping[str, Topic] = {
    "json": Topic("json"),
    "avro": Topic("avro"),
    "protobuf": Topic("protobuf"),
    "json-bad": Topic("json", bad_every=100),
    "json-1k": Topic("json", 500_000, 1_000),
    "avro-1k": Topic("avro", 500_000, 1_000),
    "protobuf-1k": Topic("protobuf", 500_000, 1_000),
    "json-1mib": Topic("json", 1_000, MIB),
    "json-10mib": Topic("json", 60, 10 * MIB),
    "json-1mib-plain": Topic("json", 300, MIB, codec="none"),
    "json-short": Topic("json", 20_000),
    "json-wide": Topic("json", 200_000, partitions=1_000),
    **{f"json-many-{number:02}": Topic("json", 4_000) for number in range(MANY)},
}


def fill(name: str, topic: Topic, records: int, kafka: Kafka, registry: Registry | None) -> Filled:
    """Make the topic and send its records, keyed by user."""
    rng = random.Random(7)
    encoder, pool = render(topic, rng, _register_at(registry, name))
    config = {**kafka.client_config(), "message.max.bytes": str(_LARGEST), "compression.type": topic.codec}
    limits = {"max.message.bytes": str(_LARGEST)}
    new = NewTopic(name, num_partitions=topic.partitions, replication_factor=1, config=limits)
    admin = AdminClient({**kafka.client_config(), "log_level": 3})
    admin.create_topics([new])[name].result(30)
    sender = Sender(config, name, topic.partitions)
    sent = value_bytes = 0
    tails = cycle(pool)
    try:
        while sent < records:
            head = encoder.head(datetime.now(UTC))
            for key, tail in islice(tails, min(_BLOCK, records - sent)):
                sender.send(head + tail, key)
                value_bytes += len(head) + len(tail)
            sent = min(sent + _BLOCK, records)
            sender.poll()
    finally:
        sender.close()
    return Filled(name, records, value_bytes)


def render(topic: Topic, rng: random.Random, register: Register) -> tuple[Encoder, list[tuple[bytes, bytes]]]:
    """Render (key, all of the record behind its time), and the encoder that renders what is in front of it."""
    now = datetime.now(UTC)
    names = [name for name in make_event(rng, now) if name != "timestamp"]
    encoder = ENCODERS[topic.format](register, [*names, "text"] if topic.size else names)
    pool = []
    for number in range(min(_POOL, _POOL_BYTES // (topic.size or 200))):
        event = make_event(rng, now)
        del event["timestamp"]
        if topic.size:
            event["text"] = _text(rng, topic.size - 200)
        # A text where a number stands, and a document that ends too early, in turn.
        is_bad = topic.bad_every is not None and number % topic.bad_every == 0
        ends_early = is_bad and number // topic.bad_every % 2 == 0
        if is_bad and not ends_early:
            event["on_site_seconds"] = "many"
        tail = encoder.tail(event)
        if ends_early:
            tail = tail[: len(tail) // 2]
        pool.append((str(event["user_id"]).encode(), tail))
    return encoder, pool


def _text(rng: random.Random, size: int) -> str:
    """Return a text that compresses to about half, as hexadecimal digits do, whatever the codec."""
    return rng.randbytes(size // 2).hex()


def _register_at(registry: Registry | None, topic: str) -> Register:
    def register(text: str, kind: str) -> int:
        if registry is None:
            raise AssertionError(f"{topic} needs a registry")
        return registry.register(f"{topic}-value", text, kind)

    return register
