"""Damage to the log on a broker's disk: batches found in their segments, and bytes changed there."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# A batch's header, format 2: the offsets of its fields, the first ones not covered by the checksum.
LENGTH, MAGIC, CRC, ATTRIBUTES, LAST, FIRST_TIME, COUNT, RECORDS = 8, 16, 17, 21, 23, 27, 57, 61


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

    :param folder: the broker's, of which one below has the logs.
    """
    found = [path for path in Path(folder).rglob(f"{topic}-{partition}") if path.is_dir()]
    (log,) = found
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
