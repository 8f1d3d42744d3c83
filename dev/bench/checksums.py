"""What checking the batches' checksums costs: the CPU time of landings with `check.crcs` and without, in turn.

By itself: `make bench ONLY=checksums`. Of many landings, one after the other in this process, the least of each
kind counts: what else the machine does adds to CPU times, and takes nothing away.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.run.job import build_job
from dev.bench.figures import Figure
from dev.bench.lake import NAMESPACE

if TYPE_CHECKING:
    from dev.bench.lab import Lab
    from dev.bench.topics import Filled

# By what is landed, format and topic: a checksum is of a batch as it is stored, and costs most where that is plain.
LANDINGS = {
    "JSON 200 B": ("json", "json"),
    "Avro 200 B": ("avro", "avro"),
    "raw 200 B": ("raw", "json"),
    "JSON 200 B, not compressed": ("json", "json-plain"),
    "raw 200 B, not compressed": ("raw", "json-plain"),
}
RECORDS = 500_000
PAIRS = 8
BOUND = 3.0


def measure(lab: Lab) -> Iterator[Figure]:
    """Land each topic again and again; yield the figures."""
    for what, (kind, topic) in LANDINGS.items():
        filled = lab.topic(topic)
        # The first ones compile, and fill the system's caches.
        pairs = [_pair(lab, kind, filled, number) for number in range(PAIRS + 1)][1:]
        checked, seconds = (min(used) for used in zip(*pairs, strict=True))
        cost = 100 * (checked / seconds - 1)
        told = ", ".join(f"{one:.2f} and {other:.2f}" for one, other in pairs)
        lab.say(f"{what}: {told} s with and without; load {os.getloadavg()[0]:.1f}")
        yield Figure(f"check.crcs, {what}", "CPU of a landing without", seconds, "s")
        yield Figure(f"check.crcs, {what}", "CPU more", cost, "%", f"< {BOUND:g}", cost < BOUND)


def _pair(lab: Lab, kind: str, topic: Filled, number: int) -> tuple[float, float]:
    """Return the CPU seconds of a landing that checks, and of one that does not; the order alternates."""
    used = {checks: _landed(lab, kind, topic, checks) for checks in (number % 2 == 0, number % 2 == 1)}
    return used[True], used[False]


def _landed(lab: Lab, kind: str, topic: Filled, checks: bool) -> float:
    records = min(topic.records, RECORDS)
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
        kafka = {**lab.kafka.client_config(), "check.crcs": checks}
        job = build_job(config, kafka, lake.catalog(), run_id="checksums")
        began = time.process_time()
        report = land(job)
        seconds = time.process_time() - began
        assert report.rows == records, f"{report.rows} rows of {records} records"
    return seconds
