"""What looking costs: the CPU seconds of `lakestream` as a program, its own start included.

By itself: `make bench ONLY=commands`.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.run.job import ExtractConfig, build_job
from dev.bench.airflow_home import connections
from dev.bench.figures import Figure
from dev.bench.lake import NAMESPACE, Lake
from dev.bench.process_tree import run_measured
from dev.bench.topics import TOPICS, fill

if TYPE_CHECKING:
    from dev.bench.lab import Lab

STREAMS = 10
RECORDS = 10_000
LANDINGS = 10
TIMES = 5
GROUP = "bench"
HELP_S, STATUS_S, PLAN_S = 0.5, 2, 2


def measure(lab: Lab) -> Iterator[Figure]:
    """Land in ten tables, look at them; yield the figures."""
    with lab.lake("commands") as lake:
        for number in range(STREAMS):
            _stream(lab, lake, f"stream{number}")
        lab.say(f"{STREAMS} streams of {LANDINGS} landings are there")
        env = {**os.environ, "AIRFLOW_HOME": str(lake.folder / "airflow"), **connections(lab.kafka, lake)}
        stream = ["--table", f"{NAMESPACE}.stream0", "--group", GROUP, "--topic", "stream0"]
        for words, bound in (
            (["--help"], HELP_S),
            (["status", "--namespace", NAMESPACE], STATUS_S),
            (["plan", *stream], PLAN_S),
        ):
            command = [str(Path(sys.executable).with_name("lakestream")), *words]
            # The first one compiles and fills the system's caches.
            used = [run_measured(command, env, watch=False).cpu_seconds for _ in range(TIMES + 1)][1:]
            seconds = statistics.median(used)
            what = f"lakestream {words[0]}" + (f", {STREAMS} streams" if words[0] == "status" else "")
            yield Figure(what, "CPU", seconds, "s", f"< {bound:g}", seconds < bound)


def _stream(lab: Lab, lake: Lake, name: str) -> None:
    fill(name, TOPICS["json"], RECORDS, lab.kafka, None)
    for number in range(LANDINGS):
        config = ExtractConfig(
            topic=name, table=f"{NAMESPACE}.{name}", consumer_group=GROUP, max_records=RECORDS // LANDINGS
        )
        land(build_job(config, lab.kafka.client_config(), lake.catalog(), run_id=f"run {number}"))
