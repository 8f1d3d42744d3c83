"""Decision about a new ledger, from a tool's claim, the table's rows and the log."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_lakestream.adopt.claim import CannotAdopt, PositionClaim
from airflow_lakestream.audit.rebuild import rebuild_topic
from airflow_lakestream.audit.rows import RowPositions
from airflow_lakestream.core.landing.plan import PartitionWatermarks, TopicState, leader_epochs
from airflow_lakestream.core.ledger import Counts, TopicEntry, TopicIdentity
from airflow_lakestream.core.ports import RecordReader, TopicSource
from airflow_lakestream.core.ranges import OffsetRange, RangeSet, shown

_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionDecision:
    """New ledger entry of a topic.

    :param left: offsets without a row, for the next run to land.
    :param by_rows: whether each row has its own position.
    :param proved: sentences for people: evidence for the entry, and `trusted` open assumptions.
    """

    identity: TopicIdentity
    entry: TopicEntry
    left: RangeSet = RangeSet()
    by_rows: bool = False
    proved: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRowPositions:
    """Positions found in the rows.

    :param rows: the rows by position.
    :param all_have_positions: whether each row has topic, partition and offset.
    :param in_own_columns: whether the positions are in the columns that landings write, which audits read.
    :param text: the finding about the rows in words.
    :param total: the table's number of rows, or None if unknown.
    """

    rows: RowPositions
    all_have_positions: bool
    in_own_columns: bool
    text: str
    total: int | None = None


class TopicAdoption:
    """Decision about a topic, from the claim, the rows and the log.

    :param held: offsets of the topic that any ledger of the table holds already.
    """

    def __init__(
        self,
        claim: PositionClaim,
        positions: TableRowPositions,
        held: RangeSet,
        source: TopicSource,
        reader: RecordReader,
    ) -> None:
        self._claim, self._positions, self._held = claim, positions, held
        self._source, self._reader = source, reader
        self._state = source.look()
        self._topic = self._state.identity.topic

    def decide(self) -> AdoptionDecision:
        """Return the decision about the ledger entry. Raises CannotAdopt, CannotRebuild, and Kafka's errors.

        If all rows have positions, the rows decide, and Kafka shows which offsets have no record. Else the claim
        decides, unless it has an open end or no offsets.
        """
        claimed = self._claim.claimed(self._state)
        self._check_log(claimed)
        self._check_rows()
        if self._positions.all_have_positions:
            return self._by_rows(claimed)
        if self._claim.is_by_rows:
            raise CannotAdopt(
                f"{self._positions.text}. The rows do not show which records the table has. Name the columns "
                "(--columns), or take the position of the tool that wrote them (--from group, connect, "
                "spark-checkpoint, flink-savepoint or ranges)."
            )
        if self._claim.open_end:
            raise CannotAdopt(f"{self._claim.open_end}. ({self._positions.text}.)")
        return self._by_claim(claimed)

    @property
    def _own_rows(self) -> RangeSet:
        # The positions of the topic's rows, without the offsets that a ledger holds already.
        found = {key: tally for key, tally in self._positions.rows.tallies.items() if key[0] == self._topic}
        all_rows = RangeSet(
            OffsetRange(*key, *interval) for key, tally in found.items() for interval in tally.intervals()
        )
        return all_rows - self._held

    def _check_log(self, claimed: RangeSet) -> None:
        """Refuse a position in an unknown partition, or above the log's end. Raises CannotAdopt."""
        ends = self._claim.ends or {p: claimed.intervals(self._topic, p)[-1][1] for _, p in claimed.partitions}
        for partition, end in sorted(ends.items()):
            marks = self._state.marks.get(partition)
            if marks is None:
                raise CannotAdopt(
                    f"{self._topic}[{partition}]: {self._claim.source} is at offset {end}, but the topic has no such "
                    f"partition. {_ANOTHER}"
                )
            if end > marks.end:
                raise CannotAdopt(
                    f"{self._topic}[{partition}]: {self._claim.source} is at offset {end}, ahead of the log, which "
                    f"ends at {marks.end}. The next {end - marks.end} records would never be landed. {_ANOTHER}"
                )

    def _check_rows(self) -> None:
        """Refuse a position behind the rows: the table then has rows at offsets beyond the position."""
        known = self._claim.may_have_rows(self._state)
        if known is not None and (beyond := self._own_rows - known):
            raise CannotAdopt(
                f"the table has rows at {_some(beyond)}, beyond the position of {self._claim.source}: it wrote more "
                "than its position says, the position is of another table, or another tool wrote them. The next run "
                "would land these records a second time. Nothing was written. If each row has its position: --from "
                "rows; else let the tool commit its position, and stop it again."
            )

    def _by_rows(self, claimed: RangeSet) -> AdoptionDecision:
        """Return the decision by rows with positions; Kafka's offsets without a row are left to the next run.

        Offsets up to the tool's position count as landed if Kafka has no record there.

        :param claimed: the offsets that the tool claims.
        """
        claim, stop = self._claim, threading.Event()
        made = rebuild_topic(
            self._topic, self._positions.rows, self._held, self._source, self._reader, stop, claimed - self._held
        )
        entry, rows = made.entry, self._own_rows
        counted = sum(
            len(tally.window(start, end))
            for key, tally in self._positions.rows.tallies.items()
            if key[0] == self._topic
            for start, end in rows.intervals(*key)
        )
        proved = [
            f"{counted} rows by partition and offset ({self._positions.text}), at {rows.width} offsets; every other "
            "offset up to the position was looked up in Kafka"
        ]
        if counted > rows.width:
            proved.append(f"{counted - rows.width} rows too many: the other tool doubled them; an audit names them")
        if not self._positions.in_own_columns:
            # Audits read the columns that landings write, so the counts have no row of these.
            entry = TopicEntry(entry.landed, entry.lost, adopted=entry.landed)
        return self._decision(entry, made.left, (*claim.proved, *proved), claim.trusted)

    def _by_claim(self, claimed: RangeSet) -> AdoptionDecision:
        """Return the decision by the tool's claim, for rows without positions."""
        rows = self._own_rows
        landed = (claimed - self._held) | rows
        entry = TopicEntry(landed, counts=Counts(rows.width, rows.width), adopted=landed - rows)
        trusted = [
            *self._claim.trusted,
            f"that the table has a row of each record at the {entry.adopted.width} offsets up to the position: "
            f"{self._positions.text}",
        ]
        total, proved = self._positions.total, self._claim.proved
        if total == landed.width:
            proved = (*proved, f"the table has {total} rows, as many as there are offsets up to the position")
        elif total is not None:
            than = "fewer" if total < landed.width else "more"
            trusted.append(
                f"that {abs(total - landed.width)} {than} rows than offsets are right: "
                + (
                    "markers and compacted, filtered and lost records have no row"
                    if total < landed.width
                    else "they are of other topics, of earlier offsets, or doubled"
                )
            )
        return self._decision(entry, RangeSet(), proved, tuple(trusted))

    def _origin(self, landed: RangeSet) -> dict[int, int]:
        """Return the group's first offset by partition: the first claimed or landed offset, or else the log's start."""
        origin = {}
        for partition, marks in self._state.marks.items():
            begins = [start for start, _ in landed.intervals(self._topic, partition)[:1]]
            if (end := (self._claim.ends or {}).get(partition)) is not None:
                begins.append(min(self._claim.starts.get(partition, marks.low), end))
            origin[partition] = min(begins, default=marks.low)
        return origin

    def _decision(
        self, entry: TopicEntry, left: RangeSet, proved: tuple[str, ...], trusted: tuple[str, ...]
    ) -> AdoptionDecision:
        if not entry.landed and not entry.lost:
            raise CannotAdopt(
                f"there is nothing to adopt of {self._topic}: {self._claim.source} has no offset that no ledger of the "
                "table holds."
            )
        assumptions = [
            *trusted,
            f"that {self._topic} was not deleted and created again since: offsets do not show it",
        ]
        assumptions += _by_partition(self._claim, self._state)
        entry = replace(entry, origin=self._origin(entry.landed), epochs=leader_epochs(self._state))
        return AdoptionDecision(
            identity=self._state.identity,
            entry=entry,
            left=left,
            by_rows=self._positions.all_have_positions,
            proved=proved,
            trusted=tuple(assumptions),
        )


_ANOTHER = (
    "The position is of another topic or cluster, or the topic was created again, or cut short. Nothing was written."
)


def _by_partition(claim: PositionClaim, state: TopicState) -> list[str]:
    """Return sentences on partitions without a position, or with a position before the log's start."""
    if claim.ends is None:
        return []
    topic, marks = state.identity.topic, state.marks
    named = [f"{topic}[{p}] has no position: the next run lands it from its beginning" for p in _without(claim, marks)]
    return named + [
        f"{topic}[{p}]: the position {end} is below the log's start {marks[p].low}: retention has removed the records "
        "between, and the next run's on_data_loss decides"
        for p, end in sorted(claim.ends.items())
        if p in marks and end < marks[p].low
    ]


def _without(claim: PositionClaim, marks: Mapping[int, PartitionWatermarks]) -> list[int]:
    return sorted(set(marks) - {*(claim.ends or {}), *claim.maybe})


def _some(ranges: RangeSet) -> str:
    return shown([str(one) for one in ranges], _NAMED)
