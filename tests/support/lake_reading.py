"""A lake for records of any shape: what is in the table row by row, and in the books of one topic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import TopicEntry
from dev.services.kafka import Kafka
from tests.support.broker import Topics
from tests.support.lake import GROUP, Lake

Position = tuple[int, int]


class OpenLake(Lake):
    """`land(topic, kafka={...}, schema=...)` is one run; `kafka` adds to the client's configuration."""

    def land(self, topic: str, run_id: str = "", *, kafka: Mapping[str, Any] | None = None, **config: Any) -> Any:
        lake = OpenLake(self.folder, {**self.kafka, **(kafka or {})})
        report: LandingReport = land(lake.job(topic, run_id, **config))
        return report

    def records(self) -> list[dict[str, Any]]:
        """Return the table's rows, in order of partition and offset."""
        return sorted(self.table().scan().to_arrow().to_pylist(), key=_position)

    def offsets(self) -> list[Position]:
        """Return (partition, offset) of every row, sorted; a row that is there twice stands twice."""
        return [_position(row) for row in self.records()]

    def column(self, name: str) -> list[Any]:
        """Return one column, in order of partition and offset."""
        return [row[name] for row in self.records()]

    def entry(self, topic: str, consumer_group: str = GROUP) -> TopicEntry:
        """Return the ledger's books of the topic's only incarnation; empty ones without a table."""
        try:
            ledger = self.ledger(consumer_group)
        except NoSuchTableError:
            return TopicEntry()
        entries = [entry for identity, entry in ledger.topics.items() if identity.topic == topic]
        assert len(entries) <= 1, f"{topic} stands in the ledger under {len(entries)} ids"
        return entries[0] if entries else TopicEntry()


@pytest.fixture
def open_lake(tmp_path: Path, kafka: Kafka) -> OpenLake:
    """Give an empty lake of this test's."""
    return OpenLake(tmp_path, kafka.client_config())


@pytest.fixture
def one_partition(topic: Topics) -> str:
    """Give a new topic of one partition."""
    return topic(partitions=1)


def at(partition: int, offsets: Any) -> list[Position]:
    """Return the positions of some offsets of a partition."""
    return [(partition, offset) for offset in offsets]


def numbers(count: int, start: int = 0) -> list[str]:
    """Return values {"n": start}, {"n": start + 1}, ..."""
    return [f'{{"n": {n}}}' for n in range(start, start + count)]


def _position(row: Mapping[str, Any]) -> Position:
    return row["_kafka_partition"], row["_kafka_offset"]
