"""What a run did: the value it returns, for XCom, the asset event and the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry
from airflow_lakestream.core.ranges import RangeSet


@dataclass
class LandingReport:
    """What all tries of one task run landed together, and what is left.

    `remaining_lag` counts offsets up to the ends that were fixed at the start; holes in the log count as records.
    """

    topic: str
    table: str
    consumer_group: str
    snapshot_ids: list[int] = field(default_factory=list)
    entry: TopicEntry = TopicEntry()
    remaining_lag: int = 0
    recovered: int = 0
    _counted: set[str] = field(default_factory=set, repr=False)

    @property
    def counts(self) -> Counts:
        """Records by what became of them."""
        return self.entry.counts

    def add(self, snapshot_id: int, landing: Landing) -> None:
        """Count a landing of this run, once."""
        if landing.landing_id in self._counted:
            return
        self._counted.add(landing.landing_id)
        self.snapshot_ids.append(snapshot_id)
        for identity, change in landing.topics.items():
            if identity.topic == self.topic:
                self.entry = self.entry + change

    def recover(self, landings: Iterable[tuple[int, Landing]]) -> None:
        """Count what earlier tries of this run landed."""
        for snapshot_id, landing in landings:
            if landing.landing_id not in self._counted:
                self.recovered += 1
                self.add(snapshot_id, landing)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values; ranges as [partition, from, until], snapshot ids as text."""
        counts = self.counts
        # Browsers read JSON numbers as doubles: Airflow's UI would round 64-bit ids, and show wrong ones.
        ids = [str(snapshot_id) for snapshot_id in self.snapshot_ids]
        return {
            "topic": self.topic,
            "table": self.table,
            "consumer_group": self.consumer_group,
            "snapshot_ids": ids,
            "snapshot_id": ids[-1] if ids else None,
            "read": counts.read,
            "rows": counts.written,
            "rejected": counts.rejected,
            "skipped": counts.skipped,
            "filtered": counts.filtered,
            "ranges": _triples(self.entry.landed),
            "lost": _triples(self.entry.lost),
            "remaining_lag": self.remaining_lag,
        }


def _triples(ranges: RangeSet) -> list[list[int]]:
    return [[r.partition, r.from_offset, r.until_offset] for r in ranges]
