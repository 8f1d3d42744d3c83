"""Ledger of a consumer group: the Kafka offsets in a table.

The rule: an offset is landed once the ledger holds it, and a landing may commit only while the ledger lacks all of
its offsets. The ledger is the sum of the landings in the history of the table's main branch, so it follows a
rollback; each landing commits its rows, its own change and the new sum in one transaction.

Pure values and arithmetic; the text form is `codec`, the search in a table's metadata is `lineage`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.ranges import Interval, RangeSet, coalesce
from airflow_lakestream.core.source_types import SourceType
from airflow_lakestream.exceptions import LakestreamError, Terminal


# The marker is part of the ledger: it is committed with the rows, and a rollback of main takes it back with them.
@dataclass(frozen=True, slots=True)
class PublicationMarker:
    """The newest published snapshot of a branch.

    :param sequence: the snapshot's sequence number. Numbers rise along a branch, so lower snapshots need no look, even
        after their expiry.
    :param ends: by partition, the offset up to which the engine had read by then.
    """

    snapshot_id: int
    sequence: int
    ends: Mapping[int, int] = field(default_factory=dict)


# The noted landings that a ledger keeps until a run settles the notes of the reject table.
MOST_NOTED = 64
# The number of ids in `NotedLandings.marks`.
MARKS = 8


class LandingEngine(StrEnum):
    """Engine of a landing."""

    EXTRACT = "extract"
    SPARK = "spark"
    FLINK = "flink"
    CONNECT = "connect"


@dataclass(frozen=True, slots=True, order=True)
class TopicIdentity:
    """An incarnation of a topic: a topic deleted and created again has another `topic_id` (KIP-516).

    Brokers before 2.8 have no topic ids: `topic_id` is then empty, and a topic created again is not noticed.
    """

    topic: str
    topic_id: str
    cluster_id: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of records by outcome. The invariant: read = written + rejected + skipped + filtered."""

    read: int = 0
    written: int = 0
    rejected: int = 0
    skipped: int = 0
    filtered: int = 0

    def __post_init__(self) -> None:
        if self.read != self.written + self.rejected + self.skipped + self.filtered:
            raise CountsDoNotAddUp(self)

    def __str__(self) -> str:
        outcomes = {"rejected": self.rejected, "skipped": self.skipped, "filtered": self.filtered}
        text = "".join(f" + {count} {name}" for name, count in outcomes.items() if count)
        return f"{self.read} records" + (f" = {self.written} written{text}" if text else "")

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(operator.add, self._all, other._all))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*map(operator.sub, self._all, other._all))

    @property
    def _all(self) -> tuple[int, ...]:
        return self.read, self.written, self.rejected, self.skipped, self.filtered


class CountsDoNotAddUp(LakestreamError, Terminal):
    """The counts of a batch do not add up, by a defect of airflow-lakestream."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        super().__init__(
            f"read {counts.read} records, but {counts.written} written + {counts.rejected} rejected + "
            f"{counts.skipped} skipped + {counts.filtered} filtered do not add up to that. Nothing was committed; "
            "this is a defect of airflow-lakestream: please report it."
        )


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """The last landed batch of a group's streaming query, to match the query's checkpoint.

    :param query_id: the id in Spark's checkpoint; another checkpoint has another id.
    :param watermark: the event time, in milliseconds since the epoch, with which the batch was made; 0 without one.
    """

    query_id: str
    batch_id: int
    watermark: int

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id}"


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """Ledger entry of a topic: in a landing the change, in a ledger the sum.

    `origin` is, by partition, the offset at which the group's first resume began; a partition added later begins
    at 0. `lost` are offsets that retention removed before they could be landed: their receipts. `epochs` is the last
    leader epoch seen, by partition. `covered` is the time, in milliseconds since the epoch, of the intervals that runs
    asked for: half open, coalesced; see `core.landing.modes.IntervalMode`.

    In a landing that replaces: `replaced` are the ranges taken out and put in again, which stay landed;
    `removed` counts the records taken out.

    `forgotten` is the receipt for offsets whose rows were deleted on purpose after they had landed. They stay
    landed and need no row. If a replace puts their rows back, only the counts show it. A landing that deletes on
    purpose counts the deleted rows in `removed`, too.

    `streamed` is None for a group whose rows no streaming query makes. `published` has, by branch, the marker of the
    last publication to main.

    `adopted` are landed offsets that another tool wrote as rows without topic, partition and offset: only that tool
    knows which of them the table has, and no audit can verify it.

    `unproven` are landed offsets whose rows another engine made, without a comparison of the values with the extract's.
    They stay unproven if a replace makes the rows again.
    """

    landed: RangeSet = RangeSet()
    lost: RangeSet = RangeSet()
    counts: Counts = Counts()
    origin: Mapping[int, int] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)
    covered: tuple[Interval, ...] = ()
    replaced: RangeSet = RangeSet()
    removed: Counts = Counts()
    forgotten: RangeSet = RangeSet()
    streamed: StreamBatch | None = None
    adopted: RangeSet = RangeSet()
    published: Mapping[str, PublicationMarker] = field(default_factory=dict)
    unproven: RangeSet = RangeSet()

    @property
    def held(self) -> RangeSet:
        """The union of the landed and the lost offsets: these need no landing."""
        return self.landed | self.lost

    def with_removed(self, rows: int, before: TopicEntry, rejects_gone: int = 0) -> TopicEntry:
        """Return a replace's change with the counts of the removed records.

        The ledger has no offsets for skipped, filtered and rejected records, only their number. So the records read
        again without a row to take out are explained in turn: skipped, filtered, deleted on purpose, rejected, or
        written and gone.

        :param rows: the number of rows taken out.
        :param before: the topic's entry in the ledger before the replace.
        :param rejects_gone: see `Landing`.
        """
        removed = self.removed + Counts(read=rows, written=rows)
        # The ledger has no offsets for skipped and filtered records, only their number.
        remaining = max(0, self.counts.read - removed.read)
        skipped = min(remaining, before.counts.skipped)
        filtered = min(remaining - skipped, before.counts.filtered)
        # The remaining records had a row that is gone; the counts already leave out rows deleted on purpose.
        forgotten = (self.replaced & before.forgotten).width
        unexplained = max(0, remaining - skipped - filtered - forgotten)
        rejected = min(unexplained, rejects_gone)
        gone = min(unexplained - rejected, max(0, before.counts.written - rows))
        read = skipped + filtered + rejected + gone
        counts = Counts(read, written=gone, skipped=skipped, filtered=filtered, rejected=rejected)
        return replace(self, removed=removed + counts)

    def __add__(self, later: TopicEntry) -> TopicEntry:
        return TopicEntry(
            landed=self.landed | later.landed,
            lost=self.lost | later.lost,
            counts=self.counts + later.counts - later.removed,
            # The first origin is kept: a later origin would move the beginning of the group's promise.
            origin={**later.origin, **self.origin},
            epochs={**self.epochs, **later.epochs},
            covered=coalesce([*self.covered, *later.covered]),
            # This sum applies the later landing's `removed`; this entry's own is still to be applied.
            replaced=self.replaced,
            removed=self.removed,
            forgotten=self.forgotten | later.forgotten,
            streamed=later.streamed or self.streamed,
            adopted=self.adopted | later.adopted,
            published={**self.published, **later.published},
            unproven=self.unproven | later.unproven,
        )


@dataclass(frozen=True, slots=True)
class NotedLandings:
    """The ids of the last landings with a note in the reject table, oldest first.

    The reject table asks which of its landings have landed, perhaps long after their snapshots expired.
    `complete`: no older id was left out.
    """

    ids: tuple[str, ...] = ()
    complete: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """The newest ids, for `has_all_since`: several, since the last landings may be rolled back."""
        return self.ids[-MARKS:]

    def add(self, landing_id: str) -> NotedLandings:
        """Return the ids with another id added."""
        return (
            self if landing_id in self.ids else NotedLandings((*self.ids, landing_id), self.complete).newest(MOST_NOTED)
        )

    def newest(self, most: int) -> NotedLandings:
        """Return the newest ids, at most `most`."""
        return self if len(self.ids) <= most else NotedLandings(self.ids[-most:], complete=False)

    def place(self, landing_id: str) -> int | None:
        """Return a landing's place, negative and growing along the history; None for an unknown landing."""
        return self.ids.index(landing_id) - len(self.ids) if landing_id in self.ids else None

    def has_all_since(self, marks: Collection[str]) -> bool:
        """Return whether the ids include all noted landings since a time with these newest marks."""
        return self.complete or any(mark in self.ids for mark in marks)


@dataclass(frozen=True, slots=True)
class FunctionRows:
    """Number of rows made by a function of a landing's records, without positions.

    The record of a row is not known. The records count as filtered, since no record has a row of its own.
    """

    function: str
    rows: int

    def __add__(self, other: FunctionRows) -> FunctionRows:
        return FunctionRows(other.function, self.rows + other.rows)


# The run ids of replays of rejected records, and of removals of old rows, begin with these. A stored format: histories
# of tables are read by them.
REPLAY, RETENTION_RUN = "replay ", "retention "


@dataclass(frozen=True, slots=True)
class Landing:
    """Net change of a group's ledger by a snapshot.

    `run_id` is the same in every try of one task run; `landing_id` is of this commit alone. `made` is None if each row
    is from one record. `noted`: the reject table has a note of the landing. `engine` is None if unknown: an older
    version, or no engine, wrote it. `bad` is None if only the number of rejected records is known. `adopted` names the
    tool whose rows the landing takes over, without rows of its own.
    """

    landing_id: str
    run_id: str
    topics: Mapping[TopicIdentity, TopicEntry]
    # The counts by partition, for the run's report; the ledger keeps only their sum.
    by_partition: Mapping[TopicIdentity, Mapping[int, Counts]] = field(default_factory=dict, compare=False)
    noted: bool = False
    # For sensors and `status`; only the snapshot's summary has it.
    engine: LandingEngine | None = field(default=None, compare=False)
    # The columns that got their first value from this group.
    filled: frozenset[str] = field(default=frozenset(), compare=False)
    # New and changed types of the source's columns. `replaces_types`: any change is allowed, since all rows are new.
    types: Mapping[str, SourceType] = field(default_factory=dict, compare=False)
    replaces_types: bool = field(default=False, compare=False)
    # The columns that should have got a value, see `core.column_use`; only the snapshot's summary has them.
    silent: Mapping[str, str] = field(default_factory=dict, compare=False)
    # For the limit of the whole run; the snapshot's summary keeps only the number of bad records.
    bad: BadRecords | None = field(default=None, compare=False)
    # The first offset of each partition of the topic when the batch was planned; not written to the table.
    lows: Mapping[int, int] = field(default_factory=dict, compare=False)
    # Only the snapshot's summary has it.
    made: FunctionRows | None = field(default=None, compare=False)
    # Only the snapshot's summary has it.
    adopted: str | None = field(default=None, compare=False)
    # For a replace: the number of rejected records in the ledger without a row in the reject table. A replace that was
    # rolled back has removed the rows.
    rejects_gone: int = field(default=0, compare=False)
    # Called before each commit attempt, after the table was loaded; raises `core.ports.Conflict`.
    precondition: Callable[[], None] | None = field(default=None, compare=False, repr=False)

    def check_precondition(self) -> None:
        """Raise `core.ports.Conflict` if the landing must not be committed any more."""
        if self.precondition is not None:
            self.precondition()

    @property
    def is_replay(self) -> bool:
        """Whether the landing is a replay of rejected records, which shows nothing about the topic's newest records.

        The same is true of a removal of old rows.
        """
        return self.run_id.startswith((REPLAY, RETENTION_RUN))

    @property
    def held(self) -> Mapping[TopicIdentity, RangeSet]:
        """The offsets added to the ledger, by topic."""
        return {identity: entry.held for identity, entry in self.topics.items()}

    @property
    def touched(self) -> RangeSet:
        """The offsets added to the ledger, or replaced."""
        return union(entry.held | entry.replaced for entry in self.topics.values())

    @property
    def counts(self) -> Counts:
        """The counts of all topics together."""
        return sum((entry.counts for entry in self.topics.values()), Counts())

    @property
    def rows(self) -> int:
        """The number of rows added to the table, as far as known."""
        return self.counts.written + (0 if self.made is None else self.made.rows)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Offsets of a consumer group in a table.

    `filled` are the columns that got values, `types` the types of the source's columns; see `core.source_types`.
    """

    consumer_group: str
    topics: Mapping[TopicIdentity, TopicEntry] = field(default_factory=dict)
    noted: NotedLandings = NotedLandings()
    # Not compared: landings of an older version lack it.
    filled: frozenset[str] = field(default=frozenset(), compare=False)
    types: Mapping[str, SourceType] = field(default_factory=dict, compare=False)

    def entry(self, identity: TopicIdentity) -> TopicEntry:
        """Return the entry of a topic, empty for an unknown topic."""
        return self.topics.get(identity, TopicEntry())

    def add(self, landing: Landing) -> Ledger:
        """Return the ledger after `landing`; the landing's new facts are added to the sums."""
        topics = dict(self.topics)
        for identity, change in landing.topics.items():
            topics[identity] = self.entry(identity) + change
        noted = self.noted.add(landing.landing_id) if landing.noted else self.noted
        filled, types = self.filled | landing.filled, {**self.types, **landing.types}
        return replace(self, topics=topics, noted=noted, filled=filled, types=types)

    def overlap(self, landing: Landing) -> RangeSet:
        """Return the offsets of `landing` already in this ledger; a commit requires an empty set."""
        overlaps = (self.entry(identity).held & ranges for identity, ranges in landing.held.items())
        return union(overlaps)

    def other_incarnations(self, topic: str, identity: TopicIdentity) -> tuple[TopicIdentity, ...]:
        """Return further landed incarnations of a topic's name."""
        return tuple(other for other in self.topics if other.topic == topic and other != identity)


def add_counts(first: Mapping[int, Counts], second: Mapping[int, Counts]) -> dict[int, Counts]:
    """Return the sum of counts by partition, in the order of the partitions."""
    return {p: first.get(p, Counts()) + second.get(p, Counts()) for p in sorted({*first, *second})}


def union(sets: Iterable[RangeSet]) -> RangeSet:
    """Return the union of any number of range sets."""
    total = RangeSet()
    for ranges in sets:
        total |= ranges
    return total
