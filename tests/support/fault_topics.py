"""The topics of a sequence: what is done to them, and the ports by which runs see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import RecordReader, TopicSource
from tests.support.fault_log import Entry, Kind, ModelReader, ModelSource, PartitionLog, TopicLog
from tests.support.fault_run import Run


class Topic:
    """One topic: `log` is the truth. Subclasses do the same to a real one."""

    can_compact = can_damage = True

    def __init__(self, log: TopicLog, index: int) -> None:
        self.log = log
        self.transaction: int | None = None
        self._next = index * 1_000_000

    def number(self) -> int:
        """Return the next value; no two topics of a table have one in common."""
        self._next += 1
        return self._next

    def end(self, partition: int) -> int:
        return len(self.log.partitions[partition].entries)

    def append(self, partition: int, entries: Sequence[Entry]) -> None:
        self.log.partitions[partition].entries += entries

    def begin_transaction(self, partition: int, entries: Sequence[Entry]) -> None:
        """Write entries in a transaction that stays open; only one is open in a topic at a time."""
        self.transaction = partition
        self.log.partitions[partition].entries += entries

    def end_transaction(self, commits: bool, at_ms: int) -> None:
        """Decide what became of the open transaction's entries, and write its marker."""
        assert self.transaction is not None
        entries = self.log.partitions[self.transaction].entries
        for entry in entries:
            if entry.kind is Kind.OPEN:
                entry.kind = Kind.DATA if commits else Kind.ABORTED
        entries.append(Entry(Kind.MARKER, at_ms))
        self.transaction = None

    def add_partition(self) -> None:
        self.log.partitions.append(PartitionLog())

    def trim(self, partition: int, low: int) -> None:
        """Let retention take what is below `low`."""
        self.log.trim(partition, low)

    def compact(self, partition: int, offsets: Collection[int]) -> None:
        """Let compaction take some records."""
        for offset in offsets:
            self.log.partitions[partition].entries[offset].kind = Kind.HOLE
        self.log.changes += 1

    def damage(self, partition: int, first: int, end: int, is_refused: bool) -> None:
        """Let a disk damage a batch."""
        self.log.partitions[partition].damaged[first] = end, is_refused

    def client_config(self) -> Mapping[str, Any]:
        return {}

    def ports(self, job: LandingJob, run: Run, records: int) -> tuple[TopicSource, RecordReader]:
        """Return source and reader of a run; chunks have at most so many records."""
        return ModelSource(self.log), ModelReader(self.log, records, run.midway)

    def committed(self, group: str) -> Mapping[int, int]:
        """Return the group's committed offsets."""
        return self.log.committed


class ModelKafka:
    """Makes topics that are models only."""

    def topic(self, name: str, index: int, partitions: int) -> Topic:
        log = TopicLog(name, TopicIdentity(name, f"id-{name}", "model"), [PartitionLog() for _ in range(partitions)])
        return Topic(log, index)
