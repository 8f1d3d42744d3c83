"""`python -m dev.bench`: land what kcat reads too, commit to long-lived tables, audit one; say which bounds hold.

Writes `.bench/latest.json`: a list of {"case", "metric", "value", "unit", "bound", "holds"}.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from dev.bench import audit, commits
from dev.bench.airflow_home import airflow_env
from dev.bench.figures import Figure
from dev.bench.process_tree import run_measured
from dev.progress import Clock, Say
from dev.service import CHECKOUT
from dev.services.kafka import Kafka
from dev.sources.clickstream import produce_clickstream
from dev.stack import Stack

RECORDS = 2_000_000
PARTITIONS = 4
TOPIC = "clickstream-bench"
RESULT = CHECKOUT / ".bench" / "latest.json"
MIB = 2**20
EXTRACT = "extract JSON 200 B"


def main() -> int:
    """Measure, print, write; 1 when a bound does not hold."""
    parser = argparse.ArgumentParser(prog="python -m dev.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of each case, in turn; medians are reported")
    parser.add_argument("--records", type=int, default=RECORDS, help="how many records the topic holds")
    parser.add_argument("--audited", type=int, default=audit.RECORDS, help="how many the audited table has in the end")
    args = parser.parse_args()
    say = Clock().say
    with Stack.owned("bench", say=say) as stack:
        kafka = stack.up_kafka()
        say(f"producing {args.records:,} clickstream records")
        produce_clickstream(kafka.client_config(), TOPIC, rate=0, count=args.records, partitions=PARTITIONS)
        env = airflow_env(kafka, stack.folder / "bench")
        figures = list(measure(kafka, env, args.records, args.runs, say))
        figures += commits.measure(stack.folder / "bench" / "commits", say)
        # Last, since it makes the topic longer than the others read it.
        figures += audit.measure(kafka, env, TOPIC, args.records, args.audited, say)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps([asdict(f) for f in figures], indent=1) + "\n")
    print("\n".join(map(str, figures)))
    broken = [f for f in figures if f.holds is False]
    print(f"{len(broken)} bounds do not hold." if broken else "All bounds hold.")
    return 1 if broken else 0


def measure(kafka: Kafka, env: Mapping[str, str], records: int, runs: int, say: Say) -> Iterator[Figure]:
    """Run kcat and the extract path in turn, so that both see the same machine; yield the medians."""
    kcat = shutil.which("kcat")
    kcat_rates, rates, peaks = [], [], []
    for run in range(runs):
        if kcat:
            kcat_rates.append(records / kcat_seconds(kcat, kafka.bootstrap))
            say(f"run {run + 1}: kcat {kcat_rates[-1]:,.0f} records/s")
        command = [sys.executable, "-m", "dev.bench.landing", "--topic", TOPIC, "--table", f"bench.run{run}"]
        done = run_measured(command, env)
        result = json.loads(done.output.strip().splitlines()[-1])
        if result["rows"] != records:
            raise AssertionError(f"{result['rows']} rows of {records} records landed")
        rates.append(records / result["seconds"])
        peaks.append(done.peak_pss / MIB)
        say(f"run {run + 1}: extract {rates[-1]:,.0f} records/s, {peaks[-1]:,.0f} MiB")
    rate, peak = statistics.median(rates), max(peaks)
    if kcat_rates:
        reading = statistics.median(kcat_rates)
        yield Figure("kcat to nowhere", "rate", reading, "records/s")
        yield Figure(EXTRACT, "rate / kcat", rate / reading, "ratio")
    else:
        say("kcat is not installed: no ratio")
    yield Figure(EXTRACT, "rate", rate, "records/s", ">= 300000", rate >= 300_000)
    yield Figure(EXTRACT, "spread of the rate", (max(rates) - min(rates)) / rate, "of the median")
    yield Figure(EXTRACT, "peak PSS of the process tree", peak, "MiB", "< 1024", peak < 1024)


def kcat_seconds(kcat: str, bootstrap: str) -> float:
    """Time kcat reading the whole topic to nowhere: the limit of reading on this machine."""
    began = time.perf_counter()
    subprocess.run(
        [kcat, "-b", bootstrap, "-t", TOPIC, "-C", "-e", "-q", "-f", ""], check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
