"""Metrics of a commit: which numbers are sent with which tags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream import metrics
from airflow_lakestream.core.landing.job import CommittedLanding
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.metrics import LandingMeter
from tests.support.given_records import FORMATS, GivenLake


class Sent:
    """Stands for Airflow's client, and keeps what is sent, as (metric, topic, number)."""

    def __init__(self) -> None:
        self.metrics: list[tuple[str, str, float]] = []

    def incr(self, name: str, number: float, tags: Mapping[str, Any]) -> None:
        assert {**tags, "topic": "", "table": ""} == {"dag_id": "d", "table": "", "topic": ""}
        assert str(tags["table"]).endswith(("lake.t", "events"))
        self.metrics.append((name.removeprefix("lakestream."), tags["topic"], number))

    timing = gauge = incr


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    given = Sent()
    monkeypatch.setattr(metrics, "Stats", given)
    return given


def committed(**counts: Counts) -> CommittedLanding:
    topics = {TopicIdentity(topic, "id", "cluster"): TopicEntry(counts=one) for topic, one in counts.items()}
    return CommittedLanding("lake.t", 1, Landing("l", "r", topics), 0.5)


def test_a_commit_of_several_topics_counts_the_rows_of_each(sent: Sent) -> None:
    LandingMeter({"dag_id": "d"})(committed(orders=Counts(5, 4, rejected=1), clicks=Counts(3, 3)))
    assert sorted(sent.metrics) == [
        ("commit", "clicks,orders", 500.0),
        ("landings", "clicks,orders", 1),
        ("rejected", "clicks", 0),
        ("rejected", "orders", 1),
        ("rows", "clicks", 3),
        ("rows", "orders", 4),
    ]


def test_a_commit_of_one_topic_has_its_name_everywhere(sent: Sent) -> None:
    LandingMeter({"dag_id": "d"})(committed(orders=Counts(5, 4, rejected=1)))
    assert sorted(sent.metrics) == [
        ("commit", "orders", 500.0),
        ("landings", "orders", 1),
        ("rejected", "orders", 1),
        ("rows", "orders", 4),
    ]


@pytest.mark.parametrize("table_format", FORMATS)
def test_files_after_a_commit_are_measured_by_the_table(sent: Sent, tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    reports = [lake.land([b'{"n": 1}'] * runs, schema="n bigint") for runs in (1, 2, 3)]
    landing = committed(orders=Counts(1, 1)).landing
    LandingMeter({"dag_id": "d"}, lake.catalog() if table_format == "iceberg" else DeltaStorage())(
        CommittedLanding(lake.name, reports[-1].snapshot_ids[-1], landing, 0.5)
    )
    found = {name: number for name, _, number in sent.metrics}
    assert (found["small_files"], found["delete_files"]) == (3, 0)
    # A Delta table has no sums of a commit.
    assert found.get("bytes", 0) > 0 or table_format == "delta"
