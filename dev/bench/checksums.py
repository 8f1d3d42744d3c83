"""What checking the batches' checksums costs, as a share of a landing's CPU time.

By itself: `make bench ONLY=checksums`. The share is smaller than what CPU times of whole landings vary by. So two
things are measured: large records read by a bare client that checks, and by one that does not, in turn, which gives
the time for a byte; and landings of small ones. Of each the least time counts: what else the machine does takes
nothing away.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.kafka.client import ClientErrors, consumer_config
from airflow_lakestream.run.job import build_job
from dev.bench.figures import Figure
from dev.bench.lake import NAMESPACE

if TYPE_CHECKING:
    from dev.bench.lab import Lab
    from dev.bench.topics import Filled

READ = "json-1mib-plain"
READINGS, LANDINGS = 12, 5
RECORDS = 300_000
# The format, and the topic; none of the batches is counted as compressed, which is the most that there is to check.
LANDED = {"JSON": ("json", "json"), "Avro": ("avro", "avro"), "raw": ("raw", "json")}
GIB = 2**30
BOUND = 3.0


def measure(lab: Lab) -> Iterator[Figure]:
    """Read, and land; yield the figures."""
    per_byte = _per_byte(lab)
    yield Figure("check.crcs", "CPU of a GiB in batches", per_byte * GIB, "s")
    for what, (kind, topic) in LANDED.items():
        filled = lab.topic(topic)
        records = min(filled.records, RECORDS)
        seconds = min(_landed(lab, kind, filled, records) for _ in range(LANDINGS))
        share = 100 * per_byte * filled.bytes_of(records) / seconds
        lab.say(f"{what}: {seconds:.2f} s for {records:,} records; load {os.getloadavg()[0]:.1f}")
        yield Figure(f"check.crcs, {what} 200 B", "of a landing's CPU", share, "%", f"< {BOUND:g}", share < BOUND)


def _per_byte(lab: Lab) -> float:
    """Return the CPU seconds that checking costs for a byte."""
    topic = lab.topic(READ)
    used: dict[bool, list[float]] = {True: [], False: []}
    for number in range(READINGS):
        for checks in (number % 2 == 0, number % 2 == 1):
            used[checks].append(_read(lab, topic, checks))
    told = " and ".join(", ".join(f"{one:.3f}" for one in used[checks]) for checks in (True, False))
    lab.say(f"reading {topic.value_bytes / 2**20:.0f} MiB: {told} s with checks and without")
    return max(0.0, min(used[True]) - min(used[False])) / topic.value_bytes


def _read(lab: Lab, topic: Filled, checks: bool) -> float:
    connection = {**lab.kafka.client_config(), "check.crcs": checks}
    began = time.process_time()
    consumer = Consumer(consumer_config(connection, "bench", ClientErrors()))
    try:
        partitions = consumer.list_topics(topic.name).topics[topic.name].partitions
        consumer.assign([TopicPartition(topic.name, p, 0) for p in partitions])
        left = topic.records
        while left:
            left -= sum(message.error() is None for message in consumer.consume(min(left, 10), 1.0))
    finally:
        consumer.close()
    return time.process_time() - began


def _landed(lab: Lab, kind: str, topic: Filled, records: int) -> float:
    with lab.lake("checksums") as lake:
        config = ExtractConfig(
            topic=topic.name,
            table=f"{NAMESPACE}.checked",
            consumer_group="bench",
            format=kind,
            schema_registry=lab.registry.url if kind == "avro" else None,
            max_records=records,
            parallelism=1,
        )
        job = build_job(config, lab.kafka.client_config(), lake.catalog(), run_id="checksums")
        began = time.process_time()
        report = land(job)
        seconds = time.process_time() - began
        assert report.rows == records, f"{report.rows} rows of {records} records"
    return seconds
