"""A pipeline whose engine is changed while records come, Spark and Flink among them: each record is landed once."""

from __future__ import annotations

import json

import pytest

from airflow_lakestream.driver.lease import request_stop
from tests.support.airflow_home import AirflowHome
from tests.support.broker import Producing, Topics, poll_until
from tests.support.flink import COLUMNS, PATIENCE, FlinkLanding
from tests.support.lake import GROUP, TABLE, events
from tests.support.pipelines import Pipelines, pipelines, switch_engines

__all__ = ["pipelines"]

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

# Flink reads records by its own decoder, so there is no SQL in it.
PLAIN = """\
metadata: {{name: plain}}
sources: {{events: {{type: kafka, topic: {topic}, consumer_group: {group}}}}}
sinks: {{lake: {{type: iceberg, table: {table}, schema: "{columns}"}}}}
orchestration:
  engine: {engine}
  schedule: never
  checkpoint_interval: 1s
  flink: {{checkpoint_location: {location}}}
"""


def test_the_engine_is_changed_five_times(pipelines: Pipelines, topic: Topics, produce: Producing) -> None:
    switch_engines(pipelines, produce, topic(2), ["extract", "spark", "group", "spark", "extract", "group"])


def test_flink_goes_on_after_the_extract_and_the_extract_after_flink(
    pipelines: Pipelines,
    landing: FlinkLanding,
    airflow: AirflowHome,
    produce: Producing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = {"jobmanager_url": landing.flink.manager.url}
    flink = {"conn_type": "http", "host": landing.flink.gateway.url, "extra": where}
    monkeypatch.setenv("AIRFLOW_CONN_FLINK_DEFAULT", json.dumps(flink))
    told = {"topic": landing.topic, "group": GROUP, "table": TABLE, "columns": COLUMNS, "location": landing.location}

    wanted = {0: [(0, 200)], 1: [(0, 200)]}

    def by(engine: str) -> None:
        (pipelines.folder / "plain.yaml").write_text(PLAIN.format(engine=engine, **told))

    for turn, engine in enumerate(["extract", "flink", "extract"]):
        for partition in (0, 1):
            produce(landing.topic, partition, events(partition, 100 * turn, 100))
        by(engine)
        if engine == "extract":
            run = pipelines.run("plain")
            assert (run.state, run.errors) == ("success", [])
            continue
        started = airflow.start(pipelines.bag().dags["plain"])
        with airflow.process(started, pipelines.file, "land") as process:
            try:
                poll_until(lambda: landing.lake.landed(landing.topic) == wanted, "Flink to land", PATIENCE, every=0.3)
            except TimeoutError as e:
                raise AssertionError(process.log) from e
            assert request_stop(landing.location, "the test")
            process.wait(PATIENCE)
        assert started.task("land").state == "success", process.log
    landing.assert_once({0: [*range(300)], 1: [*range(300)]})
