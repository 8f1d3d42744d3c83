"""Kafka offsets in Flink's checkpoints, read without a JVM: the next offset of each partition.

A checkpoint's `_metadata` holds the splits of Kafka's source as `SimpleVersionedSerialization` writes them: the
version (int 0), the length (int), the topic (`writeUTF`), the partition (int), the next offset (long), and where the
split stops (long; the least value: nowhere). A match has to fit in all of these; the enumerator's list of partitions
has another length. State above `execution.checkpointing.data-inline-threshold` is in other files of the folder: a
landing sets the threshold to 1 MB, which is room for some ten thousand partitions of one subtask.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow_lakestream.core.publishing.branch import BranchSnapshot, EngineJobLine
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.stores.folders import FolderStore, open_folder

# Keys of Flink's sink in a snapshot's summary.
JOB, CHECKPOINT = "flink.job-id", "flink.max-committed-checkpoint-id"
METADATA = "_metadata"
_NO_STOP = -(2**63)


class TwoSources(LakestreamError, Terminal):
    """Error of a job with two sources of the same topic, and so with two offsets of a partition in a checkpoint."""

    def __init__(self, topic: str, partition: int, offsets: tuple[int, int]) -> None:
        super().__init__(
            f"{topic}[{partition}]: the checkpoint has two offsets, {offsets[0]} and {offsets[1]}: the job reads the "
            "topic twice. Its rows can't be published: give each table a job of its own."
        )


def offsets_in(metadata: bytes, topic: str) -> dict[int, int]:
    """Return the next offsets by partition in a checkpoint's `_metadata`, without partitions that were not read yet.

    Raises TwoSources.
    """
    name = topic.encode()
    head = struct.pack(">iiH", 0, 2 + len(name) + 20, len(name)) + name
    offsets: dict[int, int] = {}
    for match in re.finditer(re.escape(head), metadata):
        if match.end() + 20 > len(metadata):
            continue
        partition, offset, stop = struct.unpack_from(">iqq", metadata, match.end())
        # Other bytes may look like the head of a split.
        if partition < 0 or (stop != _NO_STOP and stop < 0):
            continue
        if offsets.setdefault(partition, offset) != offset:
            raise TwoSources(topic, partition, (offsets[partition], offset))
    # Numbers below 0 are commands, such as "the earliest", of a partition that was not read yet.
    return {partition: offset for partition, offset in offsets.items() if offset >= 0}


@dataclass
class CheckpointFolder:
    """The checkpoints below a folder, in Flink's layout: `<job>/chk-<number>/_metadata`."""

    location: str
    properties: Mapping[str, str] | None = None

    def newest(self, job: str) -> str | None:
        """Return the location of a job's newest complete checkpoint; None without a complete checkpoint."""
        store, numbers = self._store(), []
        for name in store.names(job):
            # A checkpoint without metadata was not completed, or is being removed.
            if (match := re.fullmatch(r"chk-(\d+)", name)) and METADATA in store.names(f"{job}/{name}"):
                numbers.append(int(match[1]))
        return f"{self.location.rstrip('/')}/{job}/chk-{max(numbers)}" if numbers else None

    def offsets(self, job: str, number: int, topic: str) -> dict[int, int] | None:
        """Return a checkpoint's next offsets by partition; None if the checkpoint is gone. Raises TwoSources."""
        content = self._store().read(f"{job}/chk-{number}/{METADATA}")
        return None if content is None else offsets_in(content, topic)

    def offsets_at(self, location: str, topic: str) -> dict[int, int] | None:
        """Return the next offsets by partition of the checkpoint or savepoint at a location; None if it is gone.

        Raises TwoSources.
        """
        content = open_folder(location, self.properties).read(METADATA)
        return None if content is None else offsets_in(content, topic)

    def _store(self) -> FolderStore:
        return open_folder(self.location, self.properties)


@dataclass
class FlinkPositions:
    """Offsets that Flink had read at each snapshot of the branch; see `core.publishing.branch.EnginePositions`.

    :param savepoint: location of the savepoint by which the newest job was stopped in order, if no job was started
        since: the branch then has all records read by the job. With the savepoint Flink removes the job's checkpoints.
    :param line: the jobs that have written to the branch, each continuing from the state of the job before; None if
        unknown.
    :param jobs: the ids of these jobs.
    """

    checkpoints: CheckpointFolder
    topic: str
    savepoint: str | None = None
    line: EngineJobLine | None = None
    jobs: Collection[str] = ()

    def is_own(self, summary: Mapping[str, str]) -> bool:
        """Return whether Flink's sink has made a snapshot."""
        return JOB in summary

    def is_of_line(self, summary: Mapping[str, str]) -> bool:
        """Return whether a job of the line has made a snapshot."""
        return summary.get(JOB) in self.jobs

    def at(self, snapshot: BranchSnapshot) -> Mapping[int, int] | None:
        """Return the next offsets of the snapshot's checkpoint; None if the checkpoint is gone. Raises TwoSources."""
        return self.checkpoints.offsets(snapshot.summary[JOB], int(snapshot.summary.get(CHECKPOINT, -1)), self.topic)

    def beyond(self) -> Mapping[int, int] | None:
        """Return the next offsets of the savepoint; None without a savepoint."""
        return None if self.savepoint is None else self.checkpoints.offsets_at(self.savepoint, self.topic)


# Iceberg's sink keeps its job's id, in Flink's form of texts: the length plus one, then the letters.
_JOB_ID_STATE = re.compile(rb"\x21([0-9a-f]{32})(?![0-9a-f])")
_CHECKPOINT_FOLDER = re.compile(r"/([0-9a-f]{32})/chk-\d+$")
_METADATA_MAGIC = 0x4960672D
_METADATA_HEAD = struct.Struct(">iiq")


class SavepointUnreadable(LakestreamError, Terminal):
    """Error of a folder without a complete savepoint, or with two offsets of a partition."""

    def __init__(self, location: str, problem: str) -> None:
        super().__init__(f"Flink's savepoint {location}: {problem}")


@dataclass(frozen=True, slots=True)
class SavepointOffsets:
    """A complete savepoint or checkpoint.

    :param ends: by partition, the next offset to read.
    :param job: id of the job that made the savepoint; empty if no file names the job.
    """

    location: str
    number: int
    ends: Mapping[int, int]
    job: str = ""


def read_savepoint(location: str, topic: str, properties: Mapping[str, str] | None = None) -> SavepointOffsets:
    """Read the offsets of a topic's sources from a savepoint.

    :param location: the folder of a savepoint or of `chk-N`, or the `_metadata` in it.
    :param properties: properties of the savepoint's object store, see `open_folder`.

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
    """Return the id of the job that made a savepoint, from its path or its state; empty if unknown."""
    if match := _CHECKPOINT_FOLDER.search(folder):
        return match[1]
    jobs = {name.decode() for state in states for name in _JOB_ID_STATE.findall(state)}
    return jobs.pop() if len(jobs) == 1 else ""


def _number(content: bytes, folder: str) -> int:
    """Return the checkpoint's number in the head of a `_metadata`. Raises SavepointUnreadable."""
    if len(content) < _METADATA_HEAD.size:
        raise SavepointUnreadable(folder, "its _metadata is incomplete.")
    magic, _, number = _METADATA_HEAD.unpack_from(content)
    if magic != _METADATA_MAGIC:
        raise SavepointUnreadable(folder, "its _metadata was not written by Flink.")
    return int(number)
