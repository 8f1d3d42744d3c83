"""The operator of this package, in a real Airflow task run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from dev.bench.airflow_home import task_env
from dev.bench.lab import Lab
from dev.bench.lake import NAMESPACE
from dev.bench.peers import LandedWrong
from dev.bench.peers.landing import sample_of
from dev.bench.results import Sample
from dev.bench.rows import Row
from dev.bench.topics import TOPICS

OPERATOR = "airflow_lakestream.operators.kafka_extract:KafkaExtractOperator"
TABLE = "landed"


def missing(row: Row, lab: Lab) -> str | None:
    """Return what is not here that it needs, or what the operator does not do yet."""
    from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

    known = inspect.signature(KafkaExtractOperator.__init__).parameters
    unknown = sorted(set(row.options) - set(known))
    return f"the operator has no {', '.join(unknown)}" if unknown else lab.user.missing()


def run(rows: Sequence[Row], lab: Lab, number: int) -> Mapping[str, Sample]:
    """Land the topic in an empty lake."""
    (row,) = rows
    topic = lab.topic(row.topic)
    records = min(topic.records, row.most or topic.records)
    arguments: dict[str, Any] = {"topic": topic.name, "table": f"{NAMESPACE}.{TABLE}", **row.options}
    if row.most:
        arguments["max_records"] = row.most
    if row.options.get("format") in ("avro", "protobuf"):
        arguments["schema_registry"] = lab.registry.url
    with lab.lake(f"{row.name}-{number}") as lake:
        env = {**lab.airflow, **task_env(lab.kafka, lake, OPERATOR, arguments)}
        told, done = lab.run_program("airflow_task", {}, env, lab.user)
        landed = lake.landed(TABLE)
        report = told["report"]
        # Good and bad records together have to be all that there were.
        if report["rows"] != landed.rows or report["rows"] + report["rejected"] != records:
            raise LandedWrong(row, records, landed.rows)
        _check_rejects(row, report)
        return {row.name: sample_of(row, number, topic, records, told, done, landed)}


def _check_rejects(row: Row, report: Mapping[str, Any]) -> None:
    bad_every = TOPICS[row.topic].bad_every
    expected = report["read"] / bad_every if bad_every else 0
    if abs(report["rejected"] - expected) > 0.001 * report["read"]:
        raise LandedWrong(row, round(expected), report["rejected"], "bad records", "were rejected")
