"""A plain Spark app, `availableNow`, from Kafka to Iceberg: one run makes the rows for the cold JVM and the warm."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dev.bench.lab import Lab
from dev.bench.peers import LandedWrong
from dev.bench.peers.landing import sample_of
from dev.bench.results import Sample
from dev.bench.rows import Row
from dev.errors import DevError
from dev.jars import JarSet, fetch
from dev.java import find_jdk
from dev.stack import HOME

JARS = JarSet(
    "spark-4.0.0-iceberg-1.11.0",
    (
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0"),
        ("org.apache.iceberg", "iceberg-spark-runtime-4.0_2.13", "1.11.0"),
        ("org.xerial", "sqlite-jdbc", "3.49.1.0"),
    ),
    size="132 MB",
)


def missing(row: Row, lab: Lab) -> str | None:
    """Return what is not here that it needs."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed; make setup does it"
    try:
        fetch(JARS, HOME / "jars", find_jdk(), lab.say)
    except DevError as e:
        return str(e)
    return None


def run(rows: Sequence[Row], lab: Lab, number: int) -> Mapping[str, Sample]:
    """Land the topic twice in one Spark session."""
    topic = lab.topic(rows[0].topic)
    with lab.lake(f"{rows[0].group}-{number}") as lake:
        arguments = {
            "bootstrap": lab.kafka.bootstrap,
            "topic": topic.name,
            "jars": HOME / "jars" / JARS.name,
            "folder": lake.folder,
            **rows[0].options,
        }
        told, done = lab.run_program("spark_app", arguments, os.environ)
        found = {}
        for row in rows:
            name = "warm" if row.name.endswith("-warm") else "cold"
            landed = lake.landed(name)
            if landed.rows != topic.records:
                raise LandedWrong(row, topic.records, landed.rows)
            found[row.name] = sample_of(row, number, topic, topic.records, told[name], done, landed)
        if "spark-start" in found:
            found["spark-start"] = with_start(found["spark-start"], told)
        return found


def with_start(cold: Sample, told: Mapping[str, Mapping[str, float]]) -> Sample:
    """Return the cold query with the start of Python and JVM before it."""
    start, before = told["start"], told["cold"]["began_at"] - told["start"]["began_at"]
    assert cold.first_commit_seconds is not None
    return replace(
        cold,
        seconds=cold.seconds + before,
        cpu_seconds=cold.cpu_seconds + start["cpu_seconds"],
        first_commit_seconds=cold.first_commit_seconds + before,
    )
