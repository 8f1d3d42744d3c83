"""A checkpoint or savepoint of Flink, read without a JVM: its id, and where its Kafka sources stood.

`_metadata` begins with a magic number, the version of its form, and the checkpoint's id. The state of Kafka's source is
a list of its splits. Each stands as Flink's SimpleVersionedSerialization has it: int version, int length, then the
topic as writeUTF, int partition, long next offset, long stopping offset. State above a threshold (20 KiB for each
subtask, some 500 partitions) lies in files beside `_metadata`, written the same way, so all files of the folder are
looked through. A match has to fit in its length, so the enumerator's list of partitions is no match.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.stores.folders import open_folder

METADATA = "_metadata"
_MAGIC = 0x4960672D
_HEAD = struct.Struct(">iiq")
# Behind the topic: partition, next offset, stopping offset.
_SPLIT = struct.Struct(">iqq")
# Offsets that are no positions: begin at the earliest, the latest, the group's committed one.
_NOT_BEGUN = 0


class CheckpointUnreadable(LakestreamError, Terminal):
    """The folder is no complete checkpoint, or holds what can't be told apart."""

    def __init__(self, location: str, problem: str) -> None:
        super().__init__(f"Flink's checkpoint {location}: {problem}")


@dataclass(frozen=True, slots=True)
class FlinkCheckpoint:
    """A complete checkpoint: its id, and the next offset of each partition of the topic that was asked for."""

    location: str
    checkpoint_id: int
    ends: Mapping[int, int]


def read_flink_checkpoint(location: str, topic: str, properties: Mapping[str, str] | None = None) -> FlinkCheckpoint:
    """Read where the sources of a topic stood.

    :param location: the folder of a savepoint or of `chk-N`, or the `_metadata` in it.
    :param properties: opens its object store, see `open_folder`.

    Raises CheckpointUnreadable.
    """
    folder = location.removesuffix(METADATA).rstrip("/") or location
    store = open_folder(folder, properties)
    content = store.read(METADATA)
    if content is None:
        raise CheckpointUnreadable(folder, "there is no _metadata in it: it was never completed, or is another folder.")
    found = _splits(content, topic, folder)
    for name in store.names():
        if name != METADATA and (beside := store.read(name)) is not None:
            for partition, offset in _splits(beside, topic, folder).items():
                _put(found, partition, offset, topic, folder)
    return FlinkCheckpoint(folder, _checkpoint_id(content, folder), found)


def _checkpoint_id(content: bytes, folder: str) -> int:
    if len(content) < _HEAD.size:
        raise CheckpointUnreadable(folder, "its _metadata was written in part.")
    magic, _, number = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise CheckpointUnreadable(folder, "its _metadata is none of Flink's.")
    return int(number)


def _splits(content: bytes, topic: str, folder: str) -> dict[int, int]:
    name = topic.encode()
    head = struct.pack(">iiH", 0, 2 + len(name) + _SPLIT.size, len(name)) + name
    found: dict[int, int] = {}
    for match in re.finditer(re.escape(head), content):
        if len(content) < match.end() + _SPLIT.size:
            raise CheckpointUnreadable(folder, "a split of Kafka's source is cut off: it was written in part.")
        partition, offset, _ = _SPLIT.unpack_from(content, match.end())
        if offset < _NOT_BEGUN:
            raise CheckpointUnreadable(
                folder, f"{topic}[{partition}] had not been read yet: its place is {offset}, which is no offset."
            )
        _put(found, partition, offset, topic, folder)
    return found


def _put(found: dict[int, int], partition: int, offset: int, topic: str, folder: str) -> None:
    if found.setdefault(partition, offset) != offset:
        raise CheckpointUnreadable(
            folder,
            f"{topic}[{partition}] is at {found[partition]} and at {offset}: two sources of the job read the topic, "
            "and which of them fills the table can't be told.",
        )
