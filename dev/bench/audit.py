"""What an audit costs: quick and full over a table of ten million rows, next to the landing of the same records.

By itself: `make bench ONLY=audit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dev.bench.airflow_home import task_env
from dev.bench.figures import Figure
from dev.bench.lake import NAMESPACE
from dev.bench.peers.extract import OPERATOR
from dev.bench.topics import TOPICS, fill

if TYPE_CHECKING:
    from dev.bench.lab import Lab

RECORDS = 10_000_000
MIB = 2**20
TOPIC = "audited"
TABLE = f"{NAMESPACE}.audited"
# "Takes seconds", whatever the size of the table.
QUICK_SECONDS = 10


def measure(lab: Lab, records: int) -> Iterator[Figure]:
    """Land a topic of so many records, audit the table; yield the figures."""
    lab.say(f"topic {TOPIC}: producing {records:,} records")
    fill(TOPIC, TOPICS["json"], records, lab.kafka, None)
    with lab.lake(TOPIC) as lake:
        env = {**lab.airflow, **task_env(lab.kafka, lake, OPERATOR, {"topic": TOPIC, "table": TABLE})}
        landed, _ = lab.run_program("airflow_task", {}, env)
        if landed["report"]["rows"] != records:
            raise AssertionError(f"{landed['report']['rows']} rows of {records} records landed")
        extract = records / landed["seconds"]
        lab.say(f"extract {extract:,.0f} records/s")
        audited, done = lab.run_program("auditing", {"table": TABLE}, env)
    if audited["rows"] != records or {audited["quick_verdict"], audited["full_verdict"]} != {"clean"}:
        raise AssertionError(f"{records} records were landed, and the audit says {audited}")
    quick, full, peak = audited["quick"], records / audited["full"], done.peak_pss / MIB
    lab.say(f"audit: quick {quick:.2f} s, full {full:,.0f} rows/s, {peak:,.0f} MiB")
    case = f"audit of {records:,} rows"
    yield Figure(case, "extract in the same run", extract, "records/s")
    yield Figure(case, "quick", quick, "s", f"< {QUICK_SECONDS}", quick < QUICK_SECONDS)
    yield Figure(case, "full", full, "rows/s")
    yield Figure(case, "full / extract", full / extract, "ratio", ">= 1", full >= extract)
    yield Figure(case, "peak PSS of the process", peak, "MiB", "< 1024", peak < 1024)
