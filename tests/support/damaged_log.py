"""Damage to the log on a broker's disk: batches found in their segments, and bytes changed there."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from dev.services.kafka import Kafka
from tests.support.broker import Topics

# A batch's header, format 2: the offsets of its fields, the first ones not covered by the checksum.
LENGTH, MAGIC, CRC, ATTRIBUTES, LAST, FIRST_TIME, COUNT, RECORDS = 8, 16, 17, 21, 23, 27, 57, 61
PER_BATCH, BATCHES = 10, 6
ALL = PER_BATCH * BATCHES


@dataclass(frozen=True)
class StoredBatch:
    """One batch of records in a segment, with its offsets [first, end)."""

    segment: Path
    at: int
    size: int
    first: int
    end: int

    def read(self) -> bytearray:
        """Return its bytes."""
        with self.segment.open("rb") as file:
            file.seek(self.at)
            return bytearray(file.read(self.size))

    def write(self, content: bytes) -> None:
        """Put bytes into its place, which a broker that runs sees at once."""
        assert len(content) == self.size
        with self.segment.open("r+b") as file:
            file.seek(self.at)
            file.write(content)

    def change(self, how: Callable[[bytearray], None], *, sealed: bool) -> None:
        """Change its bytes.

        :param sealed: with the checksum that belongs to the new bytes, as if they had been produced so.
        """
        content = self.read()
        how(content)
        if sealed:
            struct.pack_into(">I", content, CRC, crc32c(bytes(content[ATTRIBUTES:])))
        self.write(content)

    def replace(self, old: bytes, new: bytes, *, sealed: bool = False) -> None:
        """Change bytes that it has once."""

        def change(content: bytearray) -> None:
            assert content.count(old) == 1
            assert len(old) == len(new)
            content[:] = content.replace(old, new)

        self.change(change, sealed=sealed)


def batches(folder: str | Path, topic: str, partition: int = 0) -> list[StoredBatch]:
    """Return the batches of a partition, in order.

    :param folder: the broker's, with its logs in `data`.
    """
    # No walk: the broker deletes the folders of other tests' topics meanwhile.
    log = Path(folder, "data", f"{topic}-{partition}")
    return [batch for segment in sorted(log.glob("*.log")) for batch in _in_segment(segment)]


def _in_segment(segment: Path) -> Iterator[StoredBatch]:
    content, at = segment.read_bytes(), 0
    while at + RECORDS <= len(content):
        first, length = struct.unpack_from(">qi", content, at)
        if length <= 0:
            return
        size = length + LENGTH + 4
        yield StoredBatch(segment, at, size, first, first + struct.unpack_from(">i", content, at + LAST)[0] + 1)
        at += size


def crc32c(content: bytes) -> int:
    """Return the checksum that Kafka's batches have (Castagnoli's polynomial)."""
    value = 0xFFFFFFFF
    for byte in content:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


Damage = Callable[[StoredBatch], None]


@dataclass
class DamagedTopics:
    """Makes topics of batches of ten records, of which the third is damaged."""

    kafka: Kafka
    topic: Topics

    def __call__(self, damage: Damage | None, codec: str = "none", which: int = 2) -> str:
        name = self.topic(1, retention_ms=-1)
        config = {**self.kafka.client_config(), "linger.ms": 1000, "enable.idempotence": True, "log_level": 2}
        producer = Producer({**config, "compression.type": codec})
        for batch in range(BATCHES):
            for number in range(batch * PER_BATCH, (batch + 1) * PER_BATCH):
                # Of one length, so that a change of one byte keeps it valid.
                value = json.dumps({"v": 1000 + number, "pad": "x" * 30})
                producer.produce(
                    name, value=value.encode(), key=f"k{number:03}", partition=0, timestamp=1_700_000_000_000
                )
            producer.flush()
        assert [batch.first for batch in self.stored(name)] == list(range(0, ALL, PER_BATCH))
        if damage is not None:
            self.damage(name, damage, which)
        return name

    def stored(self, name: str) -> list[StoredBatch]:
        return batches(self.kafka.folder, name)

    def damage(self, name: str, damage: Damage, which: int = 2) -> None:
        damage(self.stored(name)[which])


@pytest.fixture
def damaged(kafka: Kafka, topic: Topics) -> DamagedTopics:
    """Give the maker of topics with damage."""
    return DamagedTopics(kafka, topic)


def put(at: int, content: bytes, *, sealed: bool) -> Damage:
    def change(batch: bytearray) -> None:
        batch[at : at + len(content)] = content

    return lambda batch: batch.change(change, sealed=sealed)


def garble(batch: bytearray) -> None:
    for n in range(RECORDS + 1, len(batch)):
        batch[n] ^= 0x5A


# What keeps the format whole: without the checksum each of them lands.
CHANGES: dict[str, Damage] = {
    "value": lambda batch: batch.replace(b'"v": 1025', b'"v": 1725'),
    "key": lambda batch: batch.replace(b"k025", b"k725"),
    "timestamp": put(FIRST_TIME, struct.pack(">q", 1_600_000_000_000), sealed=False),
    "tombstone's flag": put(ATTRIBUTES, b"\x00\x08", sealed=False),
}
# What can't be read, whatever the checksum says: where it ends, how it was compressed.
BROKEN: dict[str, tuple[Damage, int, str]] = {
    **{
        f"{codec} does not decompress": (lambda batch: batch.change(garble, sealed=True), 30, codec)
        for codec in ("gzip", "snappy", "lz4", "zstd")
    },
    "length of a record": (put(RECORDS, b"\xfe\xff", sealed=True), 30, "none"),
    "unknown format": (put(MAGIC, b"\x09", sealed=False), 30, "none"),
    # The broker finds nothing behind it in the segment.
    "length of 0": (put(LENGTH, bytes(4), sealed=False), ALL, "none"),
    "negative length": (put(LENGTH, struct.pack(">i", -5), sealed=False), ALL, "none"),
}
