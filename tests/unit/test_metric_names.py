"""Metrics of odd names, sent by Airflow's own StatsD client in InfluxDB's style of tags."""

from __future__ import annotations

import string
from typing import Any

import pytest
from airflow.sdk._shared.observability.metrics.statsd_logger import SafeStatsdLogger
from airflow.sdk._shared.observability.metrics.validators import PatternAllowListValidator
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream import metrics

SAFE = frozenset(string.ascii_letters + string.digits + "_./-")


class Sent:
    """Stands for the socket's end of StatsD's client: it keeps what would be sent."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def incr(self, name: str, *_: Any) -> None:
        self.names.append(name)

    gauge = timing = incr


def sent(tags: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return the tags of each metric that Airflow's client has let through."""
    client = Sent()
    logger = SafeStatsdLogger(
        client,  # type: ignore[arg-type]  # what is sent is looked at, and nothing is sent
        influxdb_tags_enabled=True,
        metric_tags_validator=PatternAllowListValidator(),
        statsd_influxdb_enabled=True,
    )
    monkeypatch.setattr(metrics, "Stats", logger)
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    metrics.measure_lag(5, tags)
    metrics.measure_alert("failed run", tags)
    metrics.measure_look("retention_risk", {"time_left": 5}, tags)
    return [dict(tag.split("=", 1) for tag in name.split(",")[1:]) for name in client.names]


ODD = [
    "s3://bucket/lake/orders",
    "abfss://container@account.dfs.core.windows.net/lake/orders",
    "gs://bucket/orders",
    "/lake/my orders",
    "lake.größe",
    "lake.bestellungen,neu=1",
    "lake." + "x" * 240,
    "\ud800",
]


@pytest.mark.parametrize("table", ODD)
def test_a_table_of_any_name_has_its_metrics(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tags = {"dag_id": "d" * 100, "task_id": "land", "table": table, "topic": "t" * 249, "consumer_group": "g" * 200}
    found = sent(tags, monkeypatch)
    assert len(found) == 3
    assert all(one["table"][:4] == table[:4].replace(":", "_") for one in found if table != "\ud800")


def test_names_that_can_be_sent_are_sent_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = {"dag_id": "d", "task_id": "land", "table": "lake.orders", "topic": "orders", "consumer_group": "g"}
    assert sent(tags, monkeypatch)[0] == tags
    assert sent({"table": "s3://b/t"}, monkeypatch)[0] == {"table": "s3_//b/t"}
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "False")
    assert metrics._sent("lag", {"table": "s3://b/t"}) == {"table": "s3://b/t"}


@given(st.lists(st.text(max_size=300), min_size=2, max_size=2, unique=True), st.text(max_size=300))
def test_any_names_are_sent_and_two_stay_two(tables: list[str], topic: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        told = [sent({"table": table, "topic": topic}, monkeypatch) for table in tables]
    assert [len(one) for one in told] == [3, 3]
    assert all(set(value) <= SAFE for one in told for tags in one for value in tags.values())
    if not any(":" in table for table in tables):
        assert told[0] != told[1]
