"""What an audit costs: quick and full over a table of ten million rows, next to the landing of the same records.

Also run by itself: `python -m dev.bench.audit --records 100000`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from dev.bench.airflow_home import airflow_env
from dev.bench.figures import Figure
from dev.bench.process_tree import run_measured
from dev.progress import Clock, Say
from dev.services.kafka import Kafka
from dev.sources.clickstream import produce_clickstream
from dev.stack import Stack

RECORDS = 10_000_000
PARTITIONS = 4
MIB = 2**20
TABLE = "bench.audited"
# "Takes seconds", whatever the size of the table.
QUICK_SECONDS = 10
# Landing ten million records, and reading them again, on a machine that others use, too.
LONGEST_S = 3600


def measure(kafka: Kafka, env: Mapping[str, str], topic: str, there: int, records: int, say: Say) -> Iterator[Figure]:
    """Let the topic have so many records, land it, audit the table; yield the figures.

    :param there: how many records the topic holds already.
    """
    if records > there:
        say(f"producing {records - there:,} clickstream records, so that there are {records:,}")
        produce_clickstream(kafka.client_config(), topic, rate=0, count=records - there, partitions=PARTITIONS)
    records = max(records, there)
    landing = [sys.executable, "-m", "dev.bench.landing", "--topic", topic, "--table", TABLE]
    landed, _ = _run(landing, env)
    if landed["rows"] != records:
        raise AssertionError(f"{landed['rows']} rows of {records} records landed")
    extract = records / landed["seconds"]
    say(f"extract {extract:,.0f} records/s")
    audited, peak = _run([sys.executable, "-m", "dev.bench.auditing", "--table", TABLE], env)
    if audited["rows"] != records or {audited["quick_verdict"], audited["full_verdict"]} != {"clean"}:
        raise AssertionError(f"{records} records were landed, and the audit says {audited}")
    quick, full = audited["quick"], records / audited["full"]
    say(f"audit: quick {quick:.2f} s, full {full:,.0f} rows/s, {peak:,.0f} MiB")
    case = f"audit of {records:,} rows"
    yield Figure(case, "extract in the same run", extract, "records/s")
    yield Figure(case, "quick", quick, "s", f"< {QUICK_SECONDS}", quick < QUICK_SECONDS)
    yield Figure(case, "full", full, "rows/s")
    yield Figure(case, "full / extract", full / extract, "ratio", ">= 1", full >= extract)
    yield Figure(case, "peak PSS of the process", peak, "MiB", "< 1024", peak < 1024)


def _run(command: list[str], env: Mapping[str, str]) -> tuple[dict[str, Any], float]:
    """Run a command that prints a line of JSON last; return that, and its peak memory in MiB."""
    done = run_measured(command, env, timeout=LONGEST_S)
    return json.loads(done.output.strip().splitlines()[-1]), done.peak_pss / MIB


def main() -> int:
    """Measure and print; 1 when a bound does not hold."""
    parser = argparse.ArgumentParser(prog="python -m dev.bench.audit", description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=RECORDS, help="how many rows the audited table has")
    args = parser.parse_args()
    say = Clock().say
    with Stack.owned("bench", say=say) as stack:
        kafka = stack.up_kafka()
        env = airflow_env(kafka, stack.folder / "bench")
        figures = list(measure(kafka, env, "clickstream-audit", 0, args.records, say))
    print("\n".join(map(str, figures)))
    return 1 if any(f.holds is False for f in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
