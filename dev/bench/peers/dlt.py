"""dlt, from Kafka to an Iceberg table, in an environment of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from dev.bench.lab import PEERS_PYTHON, Installation, Lab
from dev.bench.lake import Lake, look_at
from dev.bench.peers import LandedWrong
from dev.bench.peers.landing import sample_of
from dev.bench.programs.upserting import table_in
from dev.bench.results import Sample
from dev.bench.rows import Row

INSTALLED = Installation(PEERS_PYTHON)


def missing(row: Row, lab: Lab) -> str | None:
    """Return what is not here that it needs."""
    return INSTALLED.missing()


def environment(lake: Lake) -> dict[str, str]:
    """Return the environment of a process of the peers, whose files stay in a lake's folder."""
    return {**os.environ, "RUNTIME__DLTHUB_TELEMETRY": "false", "DLT_DATA_DIR": str(lake.folder / "home")}


def run(rows: Sequence[Row], lab: Lab, number: int) -> Mapping[str, Sample]:
    """Land the topic's first records."""
    (row,) = rows
    topic = lab.topic(row.topic)
    records = min(topic.records, row.most or topic.records)
    with lab.lake(f"{row.name}-{number}") as lake:
        env = environment(lake)
        arguments = {"bootstrap": lab.kafka.bootstrap, "topic": topic.name, "records": records, "folder": lake.folder}
        told, done = lab.run_program("dlt_pipeline", arguments, env, INSTALLED)
        landed = look_at(table_in(lake.folder / "warehouse" / "bench" / "clicks"))
        if landed.rows != records:
            raise LandedWrong(row, records, landed.rows)
        return {row.name: sample_of(row, number, topic, records, told, done, landed)}
