"""docs/maintenance.md, "Old rows": on a real broker, whose records are all still there."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from airflow_lakestream.cli.app import run
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.run.job import build_job
from dev.services.kafka import Kafka
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, TopicOf

pytestmark = pytest.mark.integration


def test_audits_repairs_and_replaces_leave_removed_rows_away(
    connections: Connections,
    kafka: Kafka,
    topic_of: TopicOf,
    produce: Producing,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = datetime.now(UTC)

    def record(n: int, days: int) -> str:
        return json.dumps({"n": n, "at": (now - timedelta(days=days)).isoformat()})

    name = topic_of([record(n, 100) for n in range(20)])

    def landed(run_id: str, **more: object) -> LandingReport:
        given = {"schema": "n bigint, at timestamp", "consumer_group": "g", **more}
        config = ExtractConfig(topic=name, table="lake.old", **given)
        return land(build_job(config, kafka.client_config(), connections.catalog, run_id=run_id))

    def numbers() -> list[int]:
        return sorted(connections.catalog.load_table("lake.old").scan().to_arrow()["n"].to_pylist())

    landed("r")
    produce(name, 0, [record(n, 100 if n % 5 == 0 else 1) for n in range(20, 40)])
    landed("s")
    assert run(["maintain", "lake.old", "--keep", "90 days of at"]) == 0
    assert numbers() == [*range(20, 40)]
    assert run(["maintain", "lake.old", "--keep", "90 days of at, exactly"]) == 0
    left = [n for n in range(20, 40) if n % 5]
    assert numbers() == left

    audit = ["audit", "--table", "lake.old", "--group", "g", "--full"]
    assert run(audit) == 0
    said = capsys.readouterr().out
    assert "deleted on purpose, by receipt" in said
    assert "rows with at before" in said
    assert run([*audit, "--repair"]) == 0
    assert landed("t").counts.read == 0
    landed("u", mode="ranges", ranges=[[0, 0, 40]], replace=True)
    assert numbers() == left
    assert run(audit) == 0

    # A row that is lost in another way is still found, and it alone comes back.
    connections.catalog.load_table("lake.old").delete("n = 21 or n = 39")
    assert run(audit) == 1
    assert run([*audit, "--repair"]) == 0
    assert numbers() == left
    assert run(audit) == 0
    # A late record lands, and goes.
    produce(name, 0, [record(40, 200), record(41, 1)])
    assert landed("v").counts.written == 2
    assert run(["maintain", "lake.old", "--keep", "90 days of at, exactly", "--compact"]) == 0
    assert numbers() == [*left, 41]
    assert run(audit) == 0
