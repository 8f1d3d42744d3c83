"""Handover of a topic from a ledger to another tool: the tool's position is set to the ledger's end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_lakestream.adopt.claim import CannotAdopt, StillRunning
from airflow_lakestream.adopt.filled import open_filled
from airflow_lakestream.audit.books import NoLedger
from airflow_lakestream.core.landing.plan import check_identity, check_log, first_hole
from airflow_lakestream.core.ledger import TopicEntry, union
from airflow_lakestream.core.ranges import RangeSet, shown
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.kafka.groups import KafkaGroups
from airflow_lakestream.kafka.source import KafkaSource, StartAt


class HolesBelow(LakestreamError, Terminal):
    """A ledger with holes, for a tool with a single offset per partition: records would be skipped or doubled."""

    def __init__(self, table: str, group: str, holes: RangeSet) -> None:
        self.holes = holes
        super().__init__(
            f"{table}: the ledger of {group!r} has holes below what it holds: {shown([*map(str, holes)], 10)}. "
            "Another tool knows one offset for each partition: it would leave the holes out, or land the records "
            'above them a second time. Nothing was set. Land the holes first, by a run with mode="resume".'
        )


class NotSet(LakestreamError, Terminal):
    """The tool shows another position than was set."""

    def __init__(
        self, name: str, topic: str, wanted: Mapping[int, int], offsets_after: Mapping[int, int | None]
    ) -> None:
        texts = [
            f"{topic}[{partition}] is at {offset} instead of {wanted[partition]}"
            for partition, offset in sorted(offsets_after.items())
        ]
        super().__init__(f"{name}: {shown(texts, 10, 'partitions')}. Does something use it? Run it again.")


class PositionTarget(Protocol):
    """A tool with a settable position."""

    @property
    def name(self) -> str:
        """The tool in words."""

    def check_at_rest(self) -> None:
        """Raise StillRunning while the tool runs."""

    def set(self, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Set the tool's position; return the position shown by the tool afterwards."""


@dataclass(frozen=True)
class GroupTarget:
    """A tool starting at the committed offsets of a consumer group."""

    groups: KafkaGroups
    group: str

    @property
    def name(self) -> str:
        """The tool in words."""
        return f"group {self.group}"

    def check_at_rest(self) -> None:
        """Raise StillRunning while a consumer is in the group."""
        if members := self.groups.watch.group(self.group).members:
            raise StillRunning(self.name, f"it has {members} members")

    def set(self, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Commit the offsets; return the group's committed offsets afterwards. Raises GroupInUse."""
        self.groups.set_committed(self.group, topic, offsets)
        return self.groups.committed(self.group, topic)


@dataclass(frozen=True, slots=True)
class LedgerHandoverResult:
    """New offsets of the tool, by partition.

    :param to: the tool in words.
    :param done: whether the offsets were set.
    """

    table: str
    to: str
    topic: str
    offsets: Mapping[int, int]
    done: bool

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        offsets = {str(partition): offset for partition, offset in sorted(self.offsets.items())}
        return {"table": self.table, "to": self.to, "topic": self.topic, "offsets": offsets, "written": self.done}


@dataclass(frozen=True, kw_only=True)
class LedgerHandover:
    """Handover of the end of a ledger to a tool.

    :param consumer_group: the group of the ledger.
    :param kafka: librdkafka's configuration.
    :param where: the name of the Kafka connection, for errors.
    """

    table: str
    consumer_group: str
    topic: str
    kafka: Mapping[str, Any]
    where: str = "the Kafka connection"

    def run(self, lake: Any, to: PositionTarget, *, write: bool) -> LedgerHandoverResult:
        """Return the tool's new offsets; set the offsets only if `write` is true.

        Raises HolesBelow, StillRunning, NotSet, NoLedger, TopicReplaced, LogTruncated, and the errors of Kafka and of
        the tool. Raises CannotAdopt if the table is empty, or if the log begins above the ledger's end.

        :param lake: the catalog for an Iceberg table, or the storage for a Delta table.
        :param to: the tool.
        """
        filled = open_filled(lake, self.table, self.consumer_group)
        source = KafkaSource(self.kafka, self.topic, self.consumer_group, StartAt(), self.where)
        state = source.look()
        ledger = filled.ledgers[self.consumer_group]
        check_identity(ledger, state.identity, self.table)
        entry = ledger.entry(state.identity)
        if not entry.held and not entry.origin:
            groups = tuple(name for name, other in filled.ledgers.items() if other.topics)
            raise NoLedger(self.table, self.consumer_group, groups, self.topic)
        check_log(entry, state, self.table)
        if holes := holes_below(entry, self.topic, tuple(state.marks)):
            raise HolesBelow(self.table, self.consumer_group, holes)
        offsets = {p: max(first_hole(entry, state.identity, p), entry.origin.get(p, 0)) for p in state.marks}
        if cut := {p: state.marks[p].low for p, offset in offsets.items() if offset < state.marks[p].low}:
            raise CannotAdopt(
                f"{self.topic}: the log begins above where the ledger ends, in partitions {sorted(cut)}: {to.name} "
                'would continue by its own reset policy. Nothing was set. Run with on_data_loss="record" first.'
            )
        to.check_at_rest()
        if write:
            offsets_after = to.set(self.topic, offsets)
            if different := {
                p: offsets_after.get(p) for p, offset in offsets.items() if offsets_after.get(p) != offset
            }:
                raise NotSet(to.name, self.topic, offsets, different)
        return LedgerHandoverResult(self.table, to.name, self.topic, offsets, write)


def holes_below(entry: TopicEntry, topic: str, partitions: tuple[int, ...]) -> RangeSet:
    """Return the ledger's holes between the group's origin and the last held offset of each partition."""
    up_to_last = []
    for partition in partitions:
        intervals = entry.held.intervals(topic, partition)
        if intervals:
            up_to_last.append(RangeSet.of(topic, partition, entry.origin.get(partition, 0), intervals[-1][1]))
    return union(up_to_last) - entry.held
