"""Report of a run: the return value, for XCom, the asset event and the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.column_use import in_both, silent_texts
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, add_counts
from airflow_lakestream.core.ranges import Interval, RangeSet
from airflow_lakestream.core.source_types import LedgerTypes

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class LandingReport:
    """Landings by all tries of a task run, and the offsets left.

    `remaining_lag` counts the offsets that the group still lacks, holes in the log included; for a group that never
    resumed, the offsets that the run left. `schema_changes` describes the changes of the table's schema. `interval` is
    in milliseconds since the epoch; `completes`: all its records are landed and no more can come. `bad` are the records
    rejected or skipped as bad. `foreign_rows` counts the rows of other tools that the first landing found and did not
    double. `lacks_columns`: no table exists, and no record read shows its columns. `made` counts rows that a function
    made of records, which count as filtered. `silent` are the columns without a value in any landing of the run that
    should have got one, see `core.column_use`; None before a landing with rows. `types` are the source's columns by the
    ledger.
    """

    topic: str
    table: str
    consumer_group: str
    interval: Interval | None = None
    snapshot_ids: list[int] = field(default_factory=list)
    entry: TopicEntry = TopicEntry()
    bad: BadRecords = BadRecords()
    remaining_lag: int = 0
    completes: bool = False
    recovered: int = 0
    by_partition: dict[int, Counts] = field(default_factory=dict)
    schema_changes: list[str] = field(default_factory=list)
    foreign_rows: int = 0
    lacks_columns: bool = False
    made: int = 0
    silent: Mapping[str, str] | None = None
    # The columns that got values of the group, by its ledger and in this run; and whether nothing had landed before.
    known: frozenset[str] = frozenset()
    is_first: bool = True
    types: LedgerTypes = LedgerTypes()
    _counted: set[str] = field(default_factory=set, repr=False)

    @property
    def counts(self) -> Counts:
        """Counts of the records by outcome."""
        return self.entry.counts

    @property
    def rows(self) -> int:
        """The number of rows added to the table."""
        return self.counts.written + self.made

    def add(self, snapshot_id: int, landing: Landing) -> None:
        """Count a landing of this run; a landing counted before is ignored."""
        if landing.landing_id in self._counted:
            return
        self._counted.add(landing.landing_id)
        self.snapshot_ids.append(snapshot_id)
        self.made += 0 if landing.made is None else landing.made.rows
        self.known |= landing.filled
        self.types = self.types.add(landing.types)
        self.is_first = False
        if landing.rows:
            self.silent = in_both(self.silent, landing.silent)
        for identity, change in landing.topics.items():
            if identity.topic == self.topic:
                # Rows that were taken out and put in again count as landed by this run.
                landed = change.landed | change.replaced
                self.entry = self.entry + replace(change, landed=landed, replaced=RangeSet(), removed=Counts())
                self.bad += landing.bad or BadRecords(change.counts.rejected)
                self.by_partition = add_counts(self.by_partition, landing.by_partition.get(identity, {}))

    def recover(self, landings: Iterable[tuple[int, Landing]]) -> None:
        """Count landings of earlier tries of this run, except replaces: this try replaces again.

        Landings that this try made, or counted before, are ignored.
        """
        for snapshot_id, landing in landings:
            if any(change.replaced for change in landing.topics.values()):
                continue
            if landing.landing_id not in self._counted:
                self.recovered += 1
                self.add(snapshot_id, landing)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values; ranges as [partition, from, until], snapshot ids as text."""
        counts = self.counts
        # As text: browsers read JSON numbers as doubles, so Airflow's UI would round 64-bit ids.
        ids = [str(snapshot_id) for snapshot_id in self.snapshot_ids]
        return {
            "topic": self.topic,
            "table": self.table,
            "consumer_group": self.consumer_group,
            "snapshot_ids": ids,
            "snapshot_id": ids[-1] if ids else None,
            **counts_to_dict(counts),
            "rows": self.rows,
            "bad": self.bad.count,
            "partitions": self._partitions(),
            "ranges": triples(self.entry.landed),
            "lost": triples(self.entry.lost),
            "remaining_lag": self.remaining_lag,
            "interval": self.interval and [iso(time_ms) for time_ms in self.interval],
            "complete": self.completes,
            "schema_changes": list(self.schema_changes),
            "rows_beside": self.foreign_rows,
            "silent_columns": silent_texts(self.silent or {}),
            "stale_columns": self.types.stale,
        }

    def _partitions(self) -> dict[str, dict[str, int]] | None:
        """Return the counts by partition, or None if the counts of an earlier try are unknown.

        They are unknown if they were too long for the snapshot's summary: then the sums differ.
        """
        if sum(self.by_partition.values(), Counts()) != self.counts:
            return None
        return {str(partition): counts_to_dict(counts) for partition, counts in self.by_partition.items()}


def counts_to_dict(counts: Counts) -> dict[str, int]:
    """Return counts as JSON-ready values, under the reports' names."""
    return {
        "read": counts.read,
        "rows": counts.written,
        "rejected": counts.rejected,
        "skipped": counts.skipped,
        "filtered": counts.filtered,
    }


def iso(at_ms: int) -> str:
    """Return a time as ISO 8601, in UTC; `at_ms` is in milliseconds since the epoch."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat()


def triples(ranges: RangeSet) -> list[list[int]]:
    """Return ranges as [partition, from, until]."""
    return [[r.partition, r.from_offset, r.until_offset] for r in ranges]
