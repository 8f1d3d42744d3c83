"""What the demo looks at: one table of the stack's catalog, and how it stands to the topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from airflow_lakestream.core.codec import SUMMARY_RUN_ID
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg.ledger_store import read_ledger


@dataclass(frozen=True)
class Partition:
    """One partition of the topic: what the table holds of it, and where the topic ends."""

    number: int
    landed: RangeSet
    end: int

    @property
    def lag(self) -> int:
        """Records up to the end of the topic that are not in the table."""
        return self.end - max((r.until_offset for r in self.landed), default=0)


def open_table(catalog: Catalog, name: str) -> Table | None:
    """Open the table, as it is now; None before the first landing made it."""
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None


def landings(table: Table) -> list[Snapshot]:
    """Return the snapshots that landed rows, oldest first."""
    return [snapshot for snapshot in table.snapshots() if SUMMARY_RUN_ID in _summary(snapshot) and rows_of(snapshot)]


def runs_landed(table: Table) -> list[str]:
    """Return the ids of the task runs that landed rows, oldest first."""
    return list(dict.fromkeys(map(run_of, landings(table))))


def run_of(snapshot: Snapshot) -> str:
    """Return the id of the task run that made a landing."""
    return _summary(snapshot)[SUMMARY_RUN_ID]


def rows_of(snapshot: Snapshot) -> int:
    """Return how many rows a snapshot added."""
    return int(_summary(snapshot).get("added-records", 0))


def partitions(table: Table, group: str, topic: str, client_config: Mapping[str, str]) -> list[Partition]:
    """Compare the table's ledger with the topic's ends."""
    landed = RangeSet()
    for identity, entry in read_ledger(table, group).topics.items():
        if identity.topic == topic:
            landed |= entry.landed
    return [
        Partition(number, landed.of_partition(topic, number), end)
        for number, end in sorted(_ends(topic, client_config).items())
    ]


def last_rows(table: Table, per_partition: Iterable[Partition], count: int) -> pa.Table:
    """Return the last `count` rows of the partition that has landed furthest, newest last."""
    furthest = max(per_partition, key=lambda partition: max((r.until_offset for r in partition.landed), default=0))
    until = max((r.until_offset for r in furthest.landed), default=0)
    tail = f"_kafka_partition = {furthest.number} and _kafka_offset >= {max(0, until - count)}"
    return table.scan(row_filter=tail).to_arrow().sort_by("_kafka_offset")


def _ends(topic: str, client_config: Mapping[str, str]) -> dict[int, int]:
    consumer = Consumer({**client_config, "group.id": "dev-demo", "enable.auto.commit": False, "log_level": 2})
    try:
        known = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1] for number in known
        }
    finally:
        consumer.close()


def _summary(snapshot: Snapshot) -> dict[str, str]:
    return dict(snapshot.summary.additional_properties) if snapshot.summary else {}
