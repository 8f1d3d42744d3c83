"""Adoption of a table filled by another tool: a check, and then a landing of the ledger without rows."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_lakestream.adopt.claim import PositionClaim, StillRunning, ToolPosition
from airflow_lakestream.adopt.decide import AdoptionDecision, TableRowPositions, TopicAdoption
from airflow_lakestream.adopt.filled import FilledTable, open_filled
from airflow_lakestream.audit.rebuild import CannotRebuild
from airflow_lakestream.audit.rows import RowPositions
from airflow_lakestream.core.codec import encode_ranges
from airflow_lakestream.core.landing.plan import check_identity
from airflow_lakestream.core.ledger import Landing, union
from airflow_lakestream.core.ports import HeadMoved
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.tables.positions import OWN_COLUMNS, AdoptionReceipt, PositionColumns, noted


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionResult:
    """Result of an adoption, planned or written; a written adoption has a `snapshot_id`."""

    table: str
    consumer_group: str
    claim: PositionClaim
    decision: AdoptionDecision
    head: int | None
    snapshot_id: int | None = None

    @property
    def proved(self) -> tuple[str, ...]:
        """Evidence for the ledger."""
        return self.decision.proved

    @property
    def trusted(self) -> tuple[str, ...]:
        """Assumptions without evidence."""
        return self.decision.trusted

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; ranges as [partition, from, until]."""
        entry = self.decision.entry
        return {
            "table": self.table,
            "consumer_group": self.consumer_group,
            "from": self.claim.source,
            "topic": self.decision.identity.topic,
            "topic_id": self.decision.identity.topic_id,
            "landed": _triples(entry.landed),
            "not_verifiable": _triples(entry.adopted),
            "lost": _triples(entry.lost),
            "left": _triples(self.decision.left),
            "origin": {str(p): offset for p, offset in sorted(entry.origin.items())},
            "rows": entry.counts.written,
            "proved": list(self.proved),
            "on_trust": list(self.trusted),
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
                f"{', '.join(one.text for one in positions.rows.impossible[:10])}. Delete them, or move them to "
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
        return AdoptionResult(
            table=self.table, consumer_group=self.consumer_group, claim=claim, decision=decision, head=filled.head
        )

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
        this = f"adopt {uuid.uuid4().hex}"
        decision, source = adoption.decision, adoption.claim.source
        landing = Landing(this, this, {decision.identity: decision.entry}, adopted=source)
        # All rows have their positions, in columns that audits must be configured with.
        by_own = not self.columns.is_own and decision.by_rows
        receipt = AdoptionReceipt(
            source=source,
            topic=self.topic,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            landing_id=this,
            columns=dict(self.columns.paths) if by_own else None,
            ranges=encode_ranges(decision.entry.adopted, self.topic) if by_own else "",
        )
        notes = noted(filled.properties, self.consumer_group, receipt)
        try:
            snapshot_id = filled.write(self.consumer_group, landing, notes)
        except HeadMoved as e:
            raise StillRunning(source, f"{self.table} was changed while it was looked at") from e
        return AdoptionResult(
            table=self.table,
            consumer_group=self.consumer_group,
            claim=adoption.claim,
            decision=decision,
            head=adoption.head,
            snapshot_id=snapshot_id,
        )

    def _positions(self, filled: FilledTable) -> TableRowPositions:
        # The table may lack the columns of landings, if no columns are given: then no row has a position.
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
        rows = filled.count(self.columns, self.topic)
        lacking, of = rows.without_position, ", ".join(self.columns.paths.values())
        text = f"{lacking} rows of {self.table} have no {of}" if lacking else f"each has {of}"
        own = self.columns.is_own
        return TableRowPositions(rows=rows, all_have_positions=not lacking, in_own_columns=own, text=text, total=total)


def _triples(ranges: RangeSet) -> list[list[int]]:
    return [[one.partition, one.from_offset, one.until_offset] for one in ranges]
