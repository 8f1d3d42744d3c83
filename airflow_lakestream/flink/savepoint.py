"""A savepoint or checkpoint of Flink by location: the number, and the offsets of the Kafka sources.

`_metadata` begins with a magic number, the version of its form, and the checkpoint's number. A cluster with its own
setting keeps larger state (20 KiB for each subtask, some 500 partitions) in other files of the folder, written the
same way: all files of the folder are searched.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.flink.checkpoints import METADATA, TwoSources, offsets_in
from airflow_lakestream.stores.folders import open_folder

# Iceberg's sink keeps its job's id, in Flink's form of texts: the length plus one, then the letters.
_JOB = re.compile(rb"\x21([0-9a-f]{32})(?![0-9a-f])")
_OF_CHECKPOINT = re.compile(r"/([0-9a-f]{32})/chk-\d+$")
_MAGIC = 0x4960672D
_HEAD = struct.Struct(">iiq")


class SavepointUnreadable(LakestreamError, Terminal):
    """Error of a folder without a complete savepoint, or with two offsets of a partition."""

    def __init__(self, location: str, problem: str) -> None:
        super().__init__(f"Flink's savepoint {location}: {problem}")


@dataclass(frozen=True, slots=True)
class SavepointOffsets:
    """A complete savepoint or checkpoint: number, and next offset of each read partition.

    `job` is the id of the job that made it; empty if no file names one.
    """

    location: str
    number: int
    ends: Mapping[int, int]
    job: str = ""


def read_savepoint(location: str, topic: str, properties: Mapping[str, str] | None = None) -> SavepointOffsets:
    """Read the offsets of a topic's sources from a savepoint.

    :param location: the folder of a savepoint or of `chk-N`, or the `_metadata` in it.
    :param properties: opens its object store, see `open_folder`.

    Raises SavepointUnreadable.
    """
    folder = location.removesuffix(METADATA).rstrip("/") or location
    store = open_folder(folder, properties)
    content = store.read(METADATA)
    if content is None:
        raise SavepointUnreadable(
            folder, "it has no _metadata: the savepoint was never completed, or this is another folder."
        )
    number = _number(content, folder)
    ends: dict[int, int] = {}
    states = (content, *filter(None, (store.read(name) for name in store.names() if name != METADATA)))
    try:
        for state in states:
            for partition, offset in offsets_in(state, topic).items():
                if ends.setdefault(partition, offset) != offset:
                    raise TwoSources(topic, partition, (ends[partition], offset))
    except TwoSources as e:
        problem = f"two sources of the job read {topic}, and it is unknown which of them fills the table."
        raise SavepointUnreadable(folder, f"{problem} Take --from rows, or ranges.") from e
    return SavepointOffsets(folder, number, ends, _job(folder, states))


def _job(folder: str, states: Sequence[bytes]) -> str:
    if match := _OF_CHECKPOINT.search(folder):
        return match[1]
    jobs = {name.decode() for state in states for name in _JOB.findall(state)}
    return jobs.pop() if len(jobs) == 1 else ""


def _number(content: bytes, folder: str) -> int:
    if len(content) < _HEAD.size:
        raise SavepointUnreadable(folder, "its _metadata is incomplete.")
    magic, _, number = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise SavepointUnreadable(folder, "its _metadata was not written by Flink.")
    return int(number)
