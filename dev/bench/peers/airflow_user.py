"""What an Airflow user does today: the official consumer with a function that appends each batch by PyIceberg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dev.bench.airflow_home import task_env
from dev.bench.lab import Lab
from dev.bench.lake import NAMESPACE
from dev.bench.peers import LandedWrong
from dev.bench.peers.landing import sample_of
from dev.bench.results import Sample
from dev.bench.rows import Row

OPERATOR = "airflow.providers.apache.kafka.operators.consume:ConsumeFromTopicOperator"
TABLE = "appended"


def missing(row: Row, lab: Lab) -> str | None:
    """Return what is not here that it needs."""
    return lab.user.missing()


def run(rows: Sequence[Row], lab: Lab, number: int) -> Mapping[str, Sample]:
    """Append the topic's first records to an empty lake."""
    (row,) = rows
    topic = lab.topic(row.topic)
    records = min(topic.records, row.most or topic.records)
    arguments = {
        "topics": [topic.name],
        "kafka_config_id": "kafka_consumer",
        "apply_function_batch": "dev.bench.programs.appending.append_batch",
        "apply_function_kwargs": {"table": f"{NAMESPACE}.{TABLE}"},
        # A number to stop at spares it the wait for a message more, a minute by default.
        "max_messages": records,
        **row.options,
    }
    with lab.lake(f"{row.name}-{number}") as lake:
        env = {**lab.airflow, **task_env(lab.kafka, lake, OPERATOR, arguments)}
        told, done = lab.run_program("airflow_task", {}, env, lab.user)
        landed = lake.landed(TABLE)
        if landed.rows != records:
            raise LandedWrong(row, records, landed.rows)
        return {row.name: sample_of(row, number, topic, records, told, done, landed)}
