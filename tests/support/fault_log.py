"""Kafka as the fault harness needs it: topics whose every offset is known, and the two ports that look at them.

A topic here is the truth that tables are compared with. The ports give of it what `kafka.source` and `kafka.reader`
give of a real one; on the real broker (`fault_broker`) the same topics are kept beside it, and only the ports differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from airflow_lakestream.core.landing.plan import DamagedBatch, PartitionWatermarks, Plan, TopicState
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import OffsetsGone, RecordChunk, TimeBoundary
from airflow_lakestream.core.ranges import OffsetRange
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.metadata import metadata_schema

# Long ago, and the same for every run.
EPOCH_MS = 1_700_000_000_000
# No clock of ours comes there: a record dated so is no boundary of any time.
FUTURE_MS = 4_000_000_000_000
# The years 1 to 9999, which a column of timestamps holds.
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
# What producers write by mistake, or to do harm. -1 says "no timestamp"; -2 and -3 are commands in some requests.
HOSTILE_MS = (-1, -2, -3, -5_000, FIRST_MS, FIRST_MS - 1, FUTURE_MS, LAST_MS, LAST_MS + 1, 2**63 - 1)


class Shape(StrEnum):
    """What is wrong with a value, if anything."""

    GOOD = "good"
    BAD = "bad"  # fits no row, whatever the run is told
    STRANGE = "strange"  # has a field without a column: a row, or rejected, as the run is told


class Kind(StrEnum):
    """What stands at an offset."""

    DATA = "data"
    TOMBSTONE = "tombstone"
    OPEN = "open"  # of a transaction that is still under way
    ABORTED = "aborted"
    MARKER = "marker"  # the end of a transaction
    HOLE = "hole"  # compacted away


READABLE = frozenset({Kind.DATA, Kind.TOMBSTONE})


@dataclass
class Entry:
    """One offset. `number` is the value's, unique in its table; None for a tombstone."""

    kind: Kind
    at_ms: int
    number: int | None = None
    shape: Shape = Shape.GOOD

    @property
    def value(self) -> bytes | None:
        if self.number is None:
            return None
        values = _VALUES[self.shape]
        return values[self.number % len(values)].replace(b"#", b"%d" % self.number)

    @property
    def row(self) -> tuple[int | None, dict[str, int] | None]:
        """What a row of it holds: the columns n and s."""
        has_struct = self.value is not None and b'"a"' in self.value
        return self.number, {"a": self.number} if has_struct and self.number is not None else None

    @property
    def has_a_place_in_time(self) -> bool:
        """Whether a column of timestamps holds its timestamp."""
        return FIRST_MS <= self.at_ms <= LAST_MS


# The table's columns: n bigint, s struct<a: bigint not null>.
_VALUES = {
    Shape.GOOD: (b'{"n":#}', b'{"n":#,"s":null}', b'{"n":#,"s":{"a":#}}'),
    Shape.BAD: (b'{"n":"x#"}', b'{"n":#,"s":{}}', b'{"n":#,"s":{"a":null}}'),
    Shape.STRANGE: (b'{"n":#,"x":1}',),
}


@dataclass
class PartitionLog:
    """One partition: entries by offset, of which those below `low` are gone, and batches that can't be read any more.

    `damaged` has their first offsets with their ends, and whether the broker itself refuses them.
    """

    entries: list[Entry] = field(default_factory=list)
    low: int = 0
    damaged: dict[int, tuple[int, bool]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The last stable offset."""
        return next((o for o, entry in enumerate(self.entries) if entry.kind is Kind.OPEN), len(self.entries))

    def damage_at(self, offset: int, until: int) -> tuple[int, int, bool] | None:
        """Return the first damaged batch that has some of these offsets, as `damaged` does."""
        there = ((first, *told) for first, told in sorted(self.damaged.items()))
        return next((one for one in there if one[0] < until and offset < one[1]), None)

    def first_at(self, at_ms: int) -> int | None:
        """Return the first offset at or after a time, below the last stable one.

        Kafka answers by all that is in the log. Where that is dated beyond now, the records are read on from there.
        """
        kinds = frozenset(Kind) - {Kind.HOLE}
        for offset in range(self.low, self.end):
            entry = self.entries[offset]
            if entry.kind not in kinds or entry.at_ms < at_ms:
                continue
            if entry.at_ms < FUTURE_MS:
                return offset
            kinds = READABLE
        return None


@dataclass
class TopicLog:
    """One topic. `trims` and `compactions` count what moves the boundaries of times that were settled."""

    name: str
    identity: TopicIdentity
    partitions: list[PartitionLog]
    changes: int = 0
    committed: dict[int, int] = field(default_factory=dict)

    def state(self) -> TopicState:
        """Return the topic as a source sees it."""
        return TopicState(
            self.identity, {p: PartitionWatermarks(log.low, log.end) for p, log in enumerate(self.partitions)}
        )

    def boundaries(self, state: TopicState, at_ms: int) -> dict[int, TimeBoundary]:
        """Return where a time stands; see `core.ports.Source`."""
        found = {}
        for p, marks in state.marks.items():
            offset = marks.low if at_ms <= 0 else self.partitions[p].first_at(at_ms)
            is_open = offset is None or (offset >= marks.end and at_ms > 0)
            found[p] = TimeBoundary(marks.end if is_open or offset is None else offset, is_open)
        return found

    def trim(self, partition: int, low: int) -> None:
        """Let retention take what is below `low`."""
        log = self.partitions[partition]
        log.low = max(log.low, low)
        self.changes += 1


class ModelSource:
    """`core.ports.Source` on a `TopicLog`."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log

    def look(self) -> TopicState:
        return self._log.state()

    def identity(self) -> TopicIdentity:
        return self._log.identity

    def starts(self, state: TopicState) -> Mapping[int, int]:
        return {}

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, TimeBoundary]:
        return self._log.boundaries(state, at_ms)

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        self._log.committed.update(offsets)


class ModelReader:
    """`core.ports.Reader` on a `TopicLog`, in chunks of a few records.

    All is read at once, before the first chunk is handed on: the reading thread must not race with what the sequence
    does to the topic. `midway`, if given, is done after the first chunk, as retention does its work during a read.
    """

    def __init__(self, log: TopicLog, records: int, midway: Callable[[], object] | None = None) -> None:
        self._log, self._records, self._midway = log, records, midway

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        chunks: list[RecordChunk] = []
        error: OffsetsGone | DamagedBatch | None = None
        try:
            for number, chunk in enumerate(self._read(plan)):
                chunks.append(chunk)
                if number == 0 and self._midway is not None:
                    self._midway()
        except (OffsetsGone, DamagedBatch) as e:
            error = e
        yield from chunks
        if error is not None:
            raise error

    def _read(self, plan: Plan) -> Iterator[RecordChunk]:
        for r in plan.ranges:
            log, at = self._log.partitions[r.partition], r.from_offset
            while at < r.until_offset:
                if at < log.low:
                    raise OffsetsGone(r.topic, r.partition, at)
                first, end, is_refused = log.damage_at(at, r.until_offset) or (r.until_offset, 0, False)
                if first <= at:
                    end = min(end, r.until_offset)
                    raise DamagedBatch(
                        r.topic, r.partition, first, end, "its checksum is wrong", is_unreadable_by_broker=is_refused
                    )
                offsets: list[int] = []
                until = at
                while until < first and len(offsets) < self._records:
                    if log.entries[until].kind in READABLE:
                        offsets.append(until)
                    until += 1
                yield self._chunk(OffsetRange(r.topic, r.partition, at, until), log, offsets)
                at = until

    def _chunk(self, covers: OffsetRange, log: PartitionLog, offsets: list[int]) -> RecordChunk:
        entries = [log.entries[offset] for offset in offsets]
        values = pa.array([entry.value for entry in entries], pa.binary())
        stamps = [entry.at_ms for entry in entries]
        keys, headers = (pa.nulls(len(offsets), field.type) for field in metadata_schema(("key", "headers")))
        batch = RawBatch(covers.topic, covers.partition, offsets, stamps, values, keys=keys, headers=headers)
        return RecordChunk(covers, batch, len(offsets))
