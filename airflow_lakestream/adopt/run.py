"""Adoption of a table filled by another tool: a decision by claim, rows and log, and then a ledger without rows."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from airflow_lakestream.adopt.claim import CannotAdopt, PositionClaim, StillRunning, ToolPosition
from airflow_lakestream.adopt.filled import FilledTable, open_filled
from airflow_lakestream.audit.log import CannotRebuild, rebuild_topic
from airflow_lakestream.audit.rows import RowPositions
from airflow_lakestream.core.codec import encode_ranges
from airflow_lakestream.core.landing.plan import TopicState, check_identity, leader_epochs
from airflow_lakestream.core.landing.report import triples
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ports import HeadMoved, RecordReader, TopicSource
from airflow_lakestream.core.ranges import OffsetRange, RangeSet, shown
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.tables.positions import OWN_COLUMNS, AdoptionReceipt, PositionColumns, noted


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionDecision:
    """New ledger entry of a topic.

    :param left: offsets without a row, for the next run to land.
    :param by_rows: whether each row has its own position.
    :param proved: sentences for people: evidence for the entry.
    :param trusted: sentences for people: open assumptions.
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
        """The positions of the topic's rows, without the offsets that a ledger holds already."""
        tallies = {key: tally for key, tally in self._positions.rows.tallies.items() if key[0] == self._topic}
        all_rows = RangeSet(
            OffsetRange(*key, *interval) for key, tally in tallies.items() for interval in tally.intervals()
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
        possible = self._claim.may_have_rows(self._state)
        if possible is not None and (beyond := self._own_rows - possible):
            some = shown([*map(str, beyond)], 10)
            raise CannotAdopt(
                f"the table has rows at {some}, beyond the position of {self._claim.source}: it wrote more "
                "than its position says, the position is of another table, or another tool wrote them. The next run "
                "would land these records a second time. Nothing was written. If each row has its position: --from "
                "rows; else let the tool commit its position, and stop it again."
            )

    def _by_rows(self, claimed: RangeSet) -> AdoptionDecision:
        """Return the decision by rows with positions; the next run lands Kafka's records without a row.

        Offsets up to the tool's position count as landed if Kafka has no record there.

        :param claimed: the offsets that the tool claims.
        """
        claim, stop = self._claim, threading.Event()
        rebuilt = rebuild_topic(
            self._topic, self._positions.rows, self._held, self._source, self._reader, stop, claimed - self._held
        )
        entry, rows = rebuilt.entry, self._own_rows
        row_count = sum(
            len(tally.window(start, end))
            for key, tally in self._positions.rows.tallies.items()
            if key[0] == self._topic
            for start, end in rows.intervals(*key)
        )
        proved = [
            f"{row_count} rows by partition and offset ({self._positions.text}), at {rows.width} offsets; every other "
            "offset up to the position was looked up in Kafka"
        ]
        if row_count > rows.width:
            proved.append(f"{row_count - rows.width} rows too many: the other tool doubled them; an audit names them")
        if not self._positions.in_own_columns:
            # Audits read only the columns that landings write, so the entry must not count these rows.
            entry = TopicEntry(entry.landed, entry.lost, adopted=entry.landed)
        return self._decision(entry, rebuilt.left, (*claim.proved, *proved), claim.trusted)

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
            comparison = "fewer" if total < landed.width else "more"
            trusted.append(
                f"that {abs(total - landed.width)} {comparison} rows than offsets are right: "
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
            starts = [start for start, _ in landed.intervals(self._topic, partition)[:1]]
            if (end := (self._claim.ends or {}).get(partition)) is not None:
                starts.append(min(self._claim.starts.get(partition, marks.low), end))
            origin[partition] = min(starts, default=marks.low)
        return origin

    def _decision(
        self, entry: TopicEntry, left: RangeSet, proved: tuple[str, ...], trusted: tuple[str, ...]
    ) -> AdoptionDecision:
        """Return the decision with the entry's origin and all assumptions. Raises CannotAdopt for an empty entry."""
        if not entry.landed and not entry.lost:
            raise CannotAdopt(
                f"there is nothing to adopt of {self._topic}: {self._claim.source} has no offset that no ledger of the "
                "table holds."
            )
        assumptions = [*trusted, f"that {self._topic} was not deleted and created again since: offsets do not show it"]
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
    without_position = sorted(set(marks) - {*claim.ends, *claim.maybe})
    sentences = [f"{topic}[{p}] has no position: the next run lands it from its beginning" for p in without_position]
    return sentences + [
        f"{topic}[{p}]: the position {end} is below the log's start {marks[p].low}: retention has removed the records "
        "between, and the next run's on_data_loss decides"
        for p, end in sorted(claim.ends.items())
        if p in marks and end < marks[p].low
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionResult:
    """Result of an adoption, planned or written; a written adoption has a `snapshot_id`."""

    table: str
    consumer_group: str
    claim: PositionClaim
    decision: AdoptionDecision
    snapshot_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; ranges as [partition, from, until]."""
        entry = self.decision.entry
        return {
            "table": self.table,
            "consumer_group": self.consumer_group,
            "from": self.claim.source,
            "topic": self.decision.identity.topic,
            "topic_id": self.decision.identity.topic_id,
            "landed": triples(entry.landed),
            "not_verifiable": triples(entry.adopted),
            "lost": triples(entry.lost),
            "left": triples(self.decision.left),
            "origin": {str(partition): offset for partition, offset in sorted(entry.origin.items())},
            "rows": entry.counts.written,
            "proved": list(self.decision.proved),
            "on_trust": list(self.decision.trusted),
            "written": self.snapshot_id is not None,
            "snapshot_id": None if self.snapshot_id is None else str(self.snapshot_id),
        }


@dataclass(frozen=True, kw_only=True)
class TableAdoption:
    """Settings of an adoption.

    :param consumer_group: the group whose ledger gets the tool's offsets.
    :param kafka: librdkafka's configuration.
    :param where: name of the Kafka connection for errors.
    :param columns: the columns with the position of each row.
    :param watch: how long the table and the position must not change before the write, in seconds, if the tool gives no
        sign of life.
    :param poll_timeout: seconds without records from Kafka until a stall.
    :param stop: ends the wait and the reading.
    """

    table: str
    consumer_group: str
    topic: str
    kafka: Mapping[str, Any]
    where: str = "the Kafka connection"
    columns: PositionColumns = OWN_COLUMNS
    watch: float = 10.0
    poll_timeout: float = 30.0
    stop: threading.Event = field(default_factory=threading.Event)

    def look(self, lake: Any, tool: ToolPosition, filled: FilledTable | None = None) -> AdoptionResult:
        """Return the planned adoption, without a write.

        Raises StillRunning, CannotAdopt, InvalidArgument for missing columns, CannotRebuild for rows at impossible
        positions, and the errors of the table and of Kafka.

        :param lake: the catalog for an Iceberg table, or the storage for a Delta table.
        :param tool: the position of the other tool.
        :param filled: the table, if opened already.
        """
        filled = filled or open_filled(lake, self.table, self.consumer_group)
        claim = tool.read(self.topic)
        positions = self._positions(filled)
        if positions.rows.impossible:
            raise CannotRebuild(
                f"{self.table} has rows at positions that no record can have: "
                f"{', '.join(rows.text for rows in positions.rows.impossible[:10])}. Delete them, or move them to "
                "another table, first."
            )
        held = union(
            entry.held
            for ledger in filled.ledgers.values()
            for identity, entry in ledger.topics.items()
            if identity.topic == self.topic
        )
        source = KafkaSource(self.kafka, self.topic, self.consumer_group, StartAt(), self.where)
        check_identity(filled.ledgers[self.consumer_group], source.identity(), self.table)
        reader = KafkaReader(self.kafka, self.consumer_group, poll_timeout=self.poll_timeout, where=self.where)
        decision = TopicAdoption(claim, positions, held, source, reader).decide()
        return AdoptionResult(table=self.table, consumer_group=self.consumer_group, claim=claim, decision=decision)

    def write(self, lake: Any, tool: ToolPosition) -> AdoptionResult:
        """Check, and write the ledger in a single commit on the checked head.

        The position is read a second time, after a wait if the tool gives no sign of life. Raises StillRunning if the
        table or the position changed meanwhile, and the errors of `look` and of a landing.
        """
        filled = open_filled(lake, self.table, self.consumer_group)
        adoption = self.look(lake, tool, filled)
        if not tool.has_sign_of_life:
            self.stop.wait(self.watch)
        if tool.read(self.topic).place != adoption.claim.place:
            raise StillRunning(adoption.claim.source, "its position changed while it was looked at")
        landing_id = f"adopt {uuid.uuid4().hex}"
        decision, source = adoption.decision, adoption.claim.source
        landing = Landing(landing_id, landing_id, {decision.identity: decision.entry}, adopted=source)
        # Audits know these columns only from the receipt, if all rows have positions in other columns than landings'.
        names_columns = not self.columns.is_own and decision.by_rows
        receipt = AdoptionReceipt(
            source=source,
            topic=self.topic,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            landing_id=landing_id,
            columns=dict(self.columns.paths) if names_columns else None,
            ranges=encode_ranges(decision.entry.adopted, self.topic) if names_columns else "",
        )
        notes = noted(filled.properties, self.consumer_group, receipt)
        try:
            snapshot_id = filled.write(self.consumer_group, landing, notes)
        except HeadMoved as e:
            raise StillRunning(source, f"{self.table} was changed while it was looked at") from e
        return replace(adoption, snapshot_id=snapshot_id)

    def _positions(self, filled: FilledTable) -> TableRowPositions:
        """Return the positions in the rows. Raises InvalidArgument if the table lacks the given columns.

        If no columns are given, and the table lacks those of landings, no row has a position.
        """
        missing = self.columns.missing(filled.columns)
        if missing and not self.columns.is_own:
            raise InvalidArgument("--columns", f"{self.table} has no column {', '.join(missing)}.")
        total = filled.rows()
        rows_text = "an unknown number of rows" if total is None else f"{total} rows"
        if missing:
            text = f"{self.table} has {rows_text}, and no column {', '.join(missing)}"
            return TableRowPositions(
                rows=RowPositions(), all_have_positions=False, in_own_columns=True, text=text, total=total
            )
        rows = filled.count(self.columns)
        lacking, names = rows.without_position, ", ".join(self.columns.paths.values())
        text = f"{lacking} rows of {self.table} have no {names}" if lacking else f"each has {names}"
        is_own = self.columns.is_own
        return TableRowPositions(
            rows=rows, all_have_positions=not lacking, in_own_columns=is_own, text=text, total=total
        )
