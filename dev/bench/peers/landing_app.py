"""`kafka_to_iceberg` of this package, `availableNow`: one run makes the rows for the cold JVM and the warm."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_lakestream.spark.app_config import AppConfig
from dev.bench.lab import Lab
from dev.bench.lake import CATALOG, NAMESPACE, Lake
from dev.bench.peers import LandedWrong
from dev.bench.peers import spark as plain
from dev.bench.peers.landing import sample_of
from dev.bench.results import Sample
from dev.bench.rows import Row
from dev.bench.topics import Filled
from dev.stack import HOME

# What the plain app is told, too.
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def missing(row: Row, lab: Lab) -> str | None:
    """Return what is not here that it needs."""
    return plain.missing(row, lab)


def run(rows: Sequence[Row], lab: Lab, number: int) -> Mapping[str, Sample]:
    """Land the topic twice in one Spark session."""
    topic, group = lab.topic(rows[0].topic), rows[0].group
    with lab.lake(f"{group}-{number}") as lake:
        config = configuration(lab, lake, topic, {**rows[0].options, "table": f"{NAMESPACE}.landed"})
        path = config.write(lake.folder / "app.json")
        told, done = lab.run_program("landing_app", {"config": path}, os.environ)
        found = {}
        for row in rows:
            name = row.name.rpartition("-")[2]
            landed = lake.landed("warm" if name == "warm" else "cold")
            if landed.rows != topic.records:
                raise LandedWrong(row, topic.records, landed.rows)
            seen = told["warm" if name == "warm" else "cold"]
            found[row.name] = sample_of(row, number, topic, topic.records, seen, done, landed)
            if name == "start":
                found[row.name] = plain.with_start(found[row.name], told)
        return found


def configuration(
    lab: Lab, lake: Lake, topic: Filled, landing: Mapping[str, Any], app: str = "kafka_to_iceberg", **more: Any
) -> AppConfig:
    """Return what lands a topic in a lake, by a query of this app."""
    if landing.get("format") in ("avro", "protobuf"):
        landing = {**landing, "schema_registry": lab.registry.url}
    catalog = {"type": "sql", "uri": f"sqlite:///{lake.database}", "warehouse": lake.uri}
    jars = ",".join(str(jar) for jar in sorted((HOME / "jars" / plain.JARS.name).glob("*.jar")))
    return AppConfig(
        app=app,
        kafka=lab.kafka.client_config(),
        catalog={"name": CATALOG, "properties": catalog},
        checkpoint_location=str(lake.folder / "checkpoint"),
        landing={"topic": topic.name, "consumer_group": "bench", **landing},
        spark={
            "spark.master": "local[*]",
            "spark.jars": jars,
            "spark.local.dir": str(lake.folder / "local"),
            "spark.sql.warehouse.dir": str(lake.folder / "spark-warehouse"),
            **SETTINGS,
        },
        **more,
    )
