"""RetentionRiskSensor on real topics that keep little: it fires while every record is still there."""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.watching.asking import LookOutcome, Verdict
from airflow_lakestream.watching.causes import StreamCause
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, TopicOf, Topics, poll_until
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import GROUP, Lake, events
from tests.support.sensing import TASK, Sensing, commit, look

pytestmark = pytest.mark.integration

RISK = ("retention_risk", "RetentionRiskSensor")
# Kafka keeps it so long at least; the sensor is to say so before half of it is over.
KEPT_MS = 30_000


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


def risk(lake: Lake, **arguments: Any) -> Verdict:
    return look(lake, "retention_risk", **arguments)


def lowest(lake: Lake, name: str) -> int:
    return KafkaWatch(lake.kafka, "the test's broker").topic(name).marks[0].low


def test_it_fires_before_a_real_topic_loses_the_first_record(
    lake: Lake, topic_of: TopicOf, admin: AdminClient, group: str
) -> None:
    name = topic_of(events(0, 0, 50), retention_ms=KEPT_MS)
    commit(admin, group, name, {0: 10})
    verdicts: list[Verdict] = []

    def fires() -> bool:
        verdicts.append(risk(lake, group_id=group, min_time_left=KEPT_MS / 2000))
        return verdicts[-1].outcome is LookOutcome.FAILED

    poll_until(fires, "the sensor to fire", 120, every=0.5)
    assert len(verdicts) > 1, "it fired at once"
    fired = verdicts[-1]
    assert fired.reasons[0].cause is StreamCause.EXPIRING_RECORDS
    assert fired.value is not None
    assert (fired.value["unread"], fired.value["lost"]) == (40, 0)
    assert 0 < fired.value["time_left"] <= KEPT_MS / 2000
    assert lowest(lake, name) == 0
    poll_until(lambda: lowest(lake, name) == 50, "Kafka to remove the records", 120)
    gone = risk(lake, group_id=group, min_time_left="1s")
    assert (gone.outcome, gone.reasons[0].cause) == (LookOutcome.FAILED, StreamCause.LOST_RECORDS)
    assert f"{name}[0] [10,50)" in gone.text


def test_who_has_read_all_has_nothing_to_lose(lake: Lake, topic_of: TopicOf, admin: AdminClient, group: str) -> None:
    name = topic_of(events(0, 0, 50), retention_ms=KEPT_MS)
    commit(admin, group, name, {0: 50})
    verdict = risk(lake, group_id=group, min_time_left="1h")
    assert verdict.outcome is LookOutcome.DONE
    assert verdict.value is not None
    assert (verdict.value["time_left"], verdict.value["max_records"]) == (None, None)


@pytest.mark.parametrize("config", [{"retention_ms": -1}, {"cleanup_policy": "compact"}])
def test_a_topic_that_keeps_all_has_no_risk(
    lake: Lake, topic_of: TopicOf, admin: AdminClient, group: str, config: dict[str, Any]
) -> None:
    name = topic_of(["a"], keys=["k"], timestamps=[1_000_000_000_000], **config)
    commit(admin, group, name, {0: 0})
    assert risk(lake, group_id=group, min_time_left="1h").outcome is LookOutcome.DONE


def test_a_limit_by_size_is_a_limit_of_time_at_the_rate_of_today(
    lake: Lake, topic_of: TopicOf, admin: AdminClient, group: str
) -> None:
    name = topic_of([os.urandom(1000) for _ in range(3000)], retention_bytes=4 * 2**20, segment_bytes=2**20)
    commit(admin, group, name, {0: 0})
    # 3 of 4 MiB came within the last 15 minutes: the rest is full within another 5.
    assert risk(lake, group_id=group, min_time_left="10m").outcome is LookOutcome.FAILED
    near = risk(lake, group_id=group, min_time_left="1m")
    assert near.outcome is LookOutcome.DONE
    assert near.value is not None
    assert 200 < near.value["time_left"] < 400


@EACH_FORMAT
def test_it_says_how_large_a_run_would_have_to_be(lake: Lake, topic: Topics, produce: Producing) -> None:
    table, table_format = lake.name, lake_of(lake.name).format
    name = topic(1, retention_ms=3_600_000)
    half_an_hour_ago = int((time.time() - 1800) * 1000)
    produce(name, 0, events(0, 0, 2000), timestamps=[half_an_hour_ago] * 2000)
    lake.land(name, max_records=100)
    lake.land(name, max_records=100)
    arguments = {"table": table, "table_format": table_format, "consumer_group": GROUP, "run_interval": "15m"}
    verdict = risk(lake, **arguments, min_time_left="45m")
    assert verdict.outcome is LookOutcome.FAILED
    assert verdict.value is not None
    # 1,800 unread, half an hour left: read within half of that, a quarter of an hour, which is one run.
    assert verdict.value["max_records"] == pytest.approx(1800, rel=0.05)
    assert f"max_records={verdict.value['max_records']}" in verdict.text
    assert "is not known" not in verdict.text
    assert risk(lake, **arguments, min_time_left="5m").outcome is LookOutcome.DONE


@pytest.mark.airflow
@pytest.mark.parametrize("mode", [{}, {"mode": "reschedule"}, {"deferrable": True}])
def test_it_watches_for_a_while_in_each_way_of_waiting(
    sensing: Sensing, connections: Connections, topic_of: TopicOf, admin: AdminClient, group: str, mode: dict[str, Any]
) -> None:
    name = topic_of(events(0, 0, 5), retention_ms=KEPT_MS)
    commit(admin, group, name, {0: 5})
    given = {"group_id": group, "watch_for": "3s", "min_time_left": "10s", **mode}
    calm = sensing.run(f"calm_{group.replace('-', '_')}", RISK, **given)
    assert calm.task(TASK).state == "success"
    commit(admin, group, name, {0: 0})
    fired = sensing.run(f"fires_{group.replace('-', '_')}", RISK, **{**given, "watch_for": "5m"})
    assert fired.task(TASK).state == "failed"
    assert "expiring records" in str(fired.errors[0])
    assert fired.task(TASK).xcom["lost"] == 0
