"""Proposals of changes for a person's approval: the exact offsets, and the consequences in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_lakestream.config import arguments
from airflow_lakestream.core.landing.plan import RangesGone
from airflow_lakestream.core.landing.report import triples
from airflow_lakestream.core.ledger import Ledger, union
from airflow_lakestream.core.policies import choose
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.tables.coordinates import iso
from airflow_lakestream.watching.asking import LookConnections, Step, run_now
from airflow_lakestream.watching.causes import format_ranges
from airflow_lakestream.watching.completeness import CompletenessQuestions
from airflow_lakestream.watching.source import ConsumerSource, ask_kafka


class ProposedChange(StrEnum):
    """Kind of change. LOSS: a receipt for lost records. REPLACE: the landed rows of a time are landed again."""

    LOSS = "loss"
    REPLACE = "replace"


@dataclass(frozen=True)
class ChangeProposal:
    """The offsets to change, and the consequences in words."""

    ranges: RangeSet
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; the ranges in the form of `mode="ranges"`."""
        return {"ranges": triples(self.ranges), "text": self.text}


@dataclass(frozen=True)
class Proposing:
    """A change of a topic's records in an Iceberg table, to be proposed.

    :param change: `"loss"` or `"replace"`, see `ProposedChange`.
    :param start: begin of the time to replace. `"replace"` needs `start` and `end`; `"loss"` ignores both.
    :param end: end of the time to replace, which is not included.
    """

    change: str
    topic: str
    table: str
    consumer_group: str
    start: Any = None
    end: Any = None
    kafka_conn_id: str = "kafka_default"
    iceberg_conn_id: str = "iceberg_default"

    def propose(self, connections: LookConnections) -> ChangeProposal:
        """Look at the ledger and at Kafka, and return the proposal.

        The proposal has no ranges if no record is lost, or if no record of the time is landed. Raises InvalidArgument
        for impossible arguments, RangesGone if Kafka no longer has the records to land again, NotThere, and the errors
        of a look.
        """
        change = choose(ProposedChange, "change", self.change)
        propose = self._propose_loss if change is ProposedChange.LOSS else self._propose_replace
        proposal: ChangeProposal = run_now(propose(connections))
        return proposal

    @property
    def _source(self) -> ConsumerSource:
        return ConsumerSource(
            topic=(self.topic,),
            table=self.table,
            consumer_group=self.consumer_group,
            kafka_conn_id=self.kafka_conn_id,
            iceberg_conn_id=self.iceberg_conn_id,
        )

    def _propose_loss(self, connections: LookConnections) -> Step:
        progress = yield from self._source.read_progress(connections)
        [(_, _, lost)] = yield from self._source.unread_ranges(connections, progress)
        text = (
            f"Kafka has removed {lost.width} offsets of {self.topic} that {self.table} does not hold: "
            f"{format_ranges(lost)}. Shall the ledger of {self.consumer_group} note that they are lost? The stream "
            "then goes on without them, and no run looks for them again. If there is a copy of these records, land it "
            "first."
        )
        return ChangeProposal(lost, text)

    def _propose_replace(self, connections: LookConnections) -> Step:
        start, end = (arguments.milliseconds(name, getattr(self, name)) for name in ("start", "end"))
        progress = yield from self._source.read_progress(connections)
        ledger: Ledger = progress.ledger
        watch = yield ask_kafka(connections, self.kafka_conn_id)
        completing = CompletenessQuestions(watch, self.kafka_conn_id, self.table)
        backlog = yield from completing.backlog(ledger, self.topic)
        lows = yield completing.boundaries(backlog, start)
        highs = yield completing.boundaries(backlog, end)
        of_time = union(RangeSet.of(self.topic, p, low.offset, highs[p].offset) for p, low in lows.items())
        landed = backlog.entry.landed & of_time
        below_log = union(RangeSet.of(self.topic, p, 0, marks.low) for p, marks in backlog.state.marks.items())
        if removed := landed & below_log:
            raise RangesGone(removed, self.table)
        text = (
            f"{self.table} holds {landed.width} offsets of {self.topic} from {iso(start)} to {iso(end)}: "
            f"{format_ranges(landed)}. Shall their rows be taken out, and the records be read and decoded again? It is "
            "one snapshot, which a rollback takes back."
        )
        return ChangeProposal(landed, text)
