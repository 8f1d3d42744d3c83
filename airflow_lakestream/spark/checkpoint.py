"""A checkpoint of Spark Structured Streaming, read without Spark: the planned and the committed batches.

Spark writes `metadata` (the query's id), `sources/<n>/0` (where the source began), `offsets/<batch>` before a batch and
`commits/<batch>` after it. It deletes old entries of the two logs, 100 batches back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_lakestream.core.ranges import PartitionKey
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.stores.folders import FolderStore, open_folder

Offsets = dict[PartitionKey, int]

# First line of an offset file.
_VERSION = "v1"
# Spark's text for a source without offsets.
_NO_OFFSET = "-"
# Hadoop's checksum of a file, in the same folder.
_CHECKSUM = re.compile(r"\.(\d+)\.crc")
# The commit log has a version of its own, which newer versions of Spark raise.
_COMMIT_VERSION = re.compile(r"v[1-9]\d*")


class CheckpointDamaged(LakestreamError, Terminal):
    """Error of a checkpoint with a file missing, or written in part."""

    def __init__(self, location: str, file: str, problem: str) -> None:
        self.file = file
        super().__init__(
            f"checkpoint {location}: {file} {problem}. Delete the checkpoint. Nothing is lost or landed "
            "twice: the query then starts from what the table's ledger lacks. But with stream_transform its state is "
            "in there: then put a copy of the file, or of the whole checkpoint, back."
        )


class ForeignCheckpoint(LakestreamError, Terminal):
    """Error of a folder without a checkpoint, or with a checkpoint of another source or topic."""

    def __init__(self, location: str, problem: str) -> None:
        super().__init__(f"checkpoint {location}: {problem}. Give this stream a checkpoint_location of its own.")


@dataclass(frozen=True)
class QueryCheckpoint:
    """An existing checkpoint. `planned` and `committed` are the batches of the two logs, in order."""

    location: str
    query_id: str
    planned: tuple[int, ...]
    committed: tuple[int, ...]
    store: FolderStore

    @property
    def replayed(self) -> int | None:
        """The batch that Spark repeats at the next start; None if all planned batches are committed."""
        last_committed = self.committed[-1] if self.committed else -1
        return self.planned[-1] if self.planned and self.planned[-1] > last_committed else None

    @cached_property
    def start(self) -> Offsets | None:
        """The start of the source, by (topic, partition); None until the source has written its start."""
        content = self._text("sources/0/0")
        # Spark writes a zero byte before the version, for its own readers before 2.1.
        return None if content is None else self._parsed("sources/0/0", content.lstrip("\0"), skip=1)

    def ends(self, batch_id: int) -> Offsets:
        """Return the end of a batch, by (topic, partition): the offsets read by all sources.

        Raises CheckpointDamaged if the batch's entry is missing or cut, ForeignCheckpoint if its source is not Kafka.
        """
        file = f"offsets/{batch_id}"
        content = self._text(file)
        if content is None:
            is_deleted = self.planned and batch_id < self.planned[0]
            reason = f": Spark has deleted entries before {self.planned[0]}" if is_deleted else ""
            raise CheckpointDamaged(self.location, file, f"is missing{reason}")
        return self._parsed(file, content, skip=2)

    def started_at(self, batch_id: int) -> float | None:
        """Return the time when Spark began a batch, in seconds since the epoch; None if the entry has no time."""
        try:
            return float(self._head(batch_id)["batchTimestampMs"]) / 1000
        except (ValueError, KeyError, TypeError):
            return None

    def watermark(self, batch_id: int) -> int:
        """Return the watermark of event time of a batch, in milliseconds since the epoch; 0 if unknown."""
        return int(self._head(batch_id).get("batchWatermarkMs", 0))

    def setting(self, batch_id: int, key: str) -> str | None:
        """Return a Spark setting of a batch's plan, kept by the query; None if unknown."""
        value = self._head(batch_id).get("conf", {}).get(key)
        return None if value is None else str(value)

    def _head(self, batch_id: int) -> dict[str, Any]:
        """Return the JSON line of a batch's entry before the offsets; empty if the entry is missing, or damaged."""
        lines = _lines(self._text(f"offsets/{batch_id}"))
        return json.loads(lines[1]) if len(lines) > 1 and _is_document(lines[1]) else {}

    def starts(self, batch_id: int) -> Offsets:
        """Return the start of a batch: the end of the batch before, or the start of the source.

        Partitions new in the batch are left out. Raises as `ends` does.
        """
        if batch_id > 0:
            return self.ends(batch_id - 1)
        if self.start is None:
            raise CheckpointDamaged(self.location, "sources/0/0", "is missing, though batches were planned")
        return self.start

    def check_topics(self, topics: Iterable[str]) -> None:
        """Raise ForeignCheckpoint if the checkpoint has a topic not in `topics`.

        The checkpoint's topics are in the last planned batch, or else in the start. Raises as `ends` does, too.
        """
        offsets = self.ends(self.planned[-1]) if self.planned else self.start or {}
        wanted = set(topics)
        if other := sorted({topic for topic, _ in offsets} - wanted):
            raise ForeignCheckpoint(
                self.location,
                f"it is of topic {', '.join(map(repr, other))}, not of {', '.join(map(repr, sorted(wanted)))}",
            )

    def check_complete(self) -> None:
        """Check the files with which Spark continues. Raises CheckpointDamaged, ForeignCheckpoint (see `ends`)."""
        _ = self.start
        # Spark begins with the last planned batch, which starts at the end of the batch before.
        needed = set(self.committed[-1:])
        if self.planned:
            last = self.planned[-1]
            needed |= {last, last - 1} if last else {last}
        for batch in sorted(needed):
            self.ends(batch)
        self._check_checksums()
        for batch in self.committed[-1:]:
            lines = _lines(self._text(file := f"commits/{batch}"))
            if len(lines) < 2 or not _COMMIT_VERSION.fullmatch(lines[0]) or not _is_document(lines[1]):
                raise CheckpointDamaged(self.location, file, "was written in part, or damaged")

    def _check_checksums(self) -> None:
        """Raise CheckpointDamaged for a checksum of a file that Spark is going to write.

        Such a checksum remains if only the file was deleted. Spark would fail on the checksum at each start.
        """
        for folder, written in (("offsets", self.planned), ("commits", self.committed), ("sources/0", ())):
            names = self.store.names(folder)
            for name in sorted(names):
                checksum = _CHECKSUM.fullmatch(name)
                if checksum and checksum[1] not in names and int(checksum[1]) > max(written, default=-1):
                    problem = f"is missing, and its checksum {name} is left"
                    raise CheckpointDamaged(self.location, f"{folder}/{checksum[1]}", problem)

    def _text(self, file: str) -> str | None:
        return _text(self.store, file)

    def _parsed(self, file: str, content: str, skip: int) -> Offsets:
        """Return the offsets in a file's content. Raises CheckpointDamaged, ForeignCheckpoint.

        :param file: path in the checkpoint, for errors.
        :param skip: number of lines before the offsets.
        """
        lines = _lines(content)
        if not lines or lines[0] != _VERSION:
            raise CheckpointDamaged(self.location, file, f"does not begin with {_VERSION}: it was written in part")
        sources = lines[skip:]
        if not sources:
            raise CheckpointDamaged(self.location, file, "ends before its offsets: it was written in part")
        if not all(map(_is_document, lines[1:skip])):
            raise CheckpointDamaged(self.location, file, "has a damaged head: it was written in part")
        try:
            by_source = [{} if line == _NO_OFFSET else _kafka_offsets(json.loads(line)) for line in sources]
        except ValueError as e:
            raise CheckpointDamaged(self.location, file, "holds no offsets: it was written in part") from e
        except TypeError as e:
            raise ForeignCheckpoint(self.location, "it is of a query whose source is not Kafka") from e
        # A query that joins a topic with itself reads the topic by two sources.
        topics = sorted({topic for offsets in by_source for topic, _ in offsets})
        if len(by_source) > 1 and len(topics) > 1:
            raise ForeignCheckpoint(self.location, f"it is of a query of several topics: {', '.join(topics)}")
        # All sources have read up to the lowest of their offsets. A partition that a source has not begun is left out.
        begun_by_all = [key for key in by_source[0] if all(key in offsets for offsets in by_source)]
        return {key: min(offsets[key] for offsets in by_source) for key in begun_by_all}


def read_checkpoint(location: str, properties: Mapping[str, str] | None = None) -> QueryCheckpoint | None:
    """Read a checkpoint; return None if the folder has no checkpoint yet.

    :param properties: properties of the checkpoint's object store, see `open_folder`.

    Raises ForeignCheckpoint for a folder with other content, CheckpointDamaged for a checkpoint without a query id.
    """
    store = open_folder(location, properties)
    names = _names(store)
    # A checksum of `metadata` without the file is left by a damaged checkpoint.
    if not names and ".metadata.crc" not in store.names(""):
        return None
    if names and not names & {"metadata", "offsets", "commits"}:
        raise ForeignCheckpoint(location, f"there is something else in it: {', '.join(sorted(names)[:3])}")
    content = _text(store, "metadata")
    if content is None:
        raise CheckpointDamaged(location, "metadata", "is missing")
    try:
        query_id = str(json.loads(content)["id"])
    except (ValueError, KeyError, TypeError) as e:
        raise CheckpointDamaged(location, "metadata", "was written in part") from e
    planned, committed = (_batches(store, log) for log in ("offsets", "commits"))
    return QueryCheckpoint(location, query_id, planned, committed, store)


def _batches(store: FolderStore, folder: str) -> tuple[int, ...]:
    # The folders also hold checksums (.3.crc) and unfinished files (.3.<id>.tmp).
    return tuple(sorted(int(name) for name in _names(store, folder) if name.isdigit()))


def _names(store: FolderStore, folder: str = "") -> set[str]:
    return {name for name in store.names(folder) if not name.startswith(".")}


def _text(store: FolderStore, path: str) -> str | None:
    content = store.read(path)
    # Content that is not text is reported as damaged by its parser.
    return None if content is None else content.decode(errors="replace")


def _lines(text: str | None) -> list[str]:
    # Not by splitlines(): JSON may have characters that Unicode takes for the end of a line.
    return text.removesuffix("\n").split("\n") if text else []


def _is_document(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _kafka_offsets(value: Any) -> Offsets:
    if not isinstance(value, dict) or not all(isinstance(partitions, dict) for partitions in value.values()):
        raise TypeError("not what Kafka's source writes")
    return {(topic, int(p)): int(offset) for topic, partitions in value.items() for p, offset in partitions.items()}
