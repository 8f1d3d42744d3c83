"""What pipelines in YAML cost where Airflow parses: the CPU seconds of a folder, new and known, imports aside.

By itself: `make bench ONLY=pipelines`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from dev.bench.figures import Figure
from dev.bench.process_tree import run_measured

COUNT = 500
TIMES = 5
COLD_S, WARM_S = 5, 1
ENGINES = ("extract", "group", "spark")
_FILE = """\
metadata: {{name: p{n}, owner: team, tags: [bench]}}
sources:
  events: {{type: kafka, connection: "${{KAFKA_CONNECTION}}", topic: topic{n}}}
transformations:
  - name: parse
    type: sql_transform
    input: events
    sql: "SELECT JSON_VALUE(value, '$.id') AS id, event_timestamp FROM {{{{ input }}}}"
sinks:
  lake: {{type: iceberg, table: lake.table{n}, partition_by: ["day(event_timestamp)"]}}
orchestration: {{engine: {engine}, checkpoint_interval: 60s, parallelism: 4}}
"""


def measure(folder: Path) -> Iterator[Figure]:
    """Write the files, load them in new processes; yield the figures."""
    pipes, home = folder / "pipes", folder / "airflow"
    pipes.mkdir(parents=True)
    for n in range(COUNT):
        (pipes / f"p{n}.yaml").write_text(_FILE.format(n=n, engine=ENGINES[n % len(ENGINES)]))
    env = {**os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW_VAR_KAFKA_CONNECTION": "kafka_default"}
    cold, warm = [], []
    # The first one compiles and fills the system's caches.
    for turn in range(TIMES + 1):
        shutil.rmtree(home / "lakestream", ignore_errors=True)
        first, second = _load(pipes, env), _load(pipes, env)
        if turn:
            cold.append(first)
            warm.append(second)
    for what, found, bound in (("new", cold, COLD_S), ("known", warm, WARM_S)):
        seconds = statistics.median(found)
        yield Figure(f"{COUNT} pipelines, {what}", "CPU", seconds, "s", f"< {bound:g}", seconds < bound)


def _load(pipes: Path, env: dict[str, str]) -> float:
    done = run_measured([sys.executable, "-m", "dev.bench.programs.loading", str(pipes)], env, watch=False)
    count, seconds = done.output.strip().splitlines()[-1].split()
    assert int(count) == COUNT, done.output
    return float(seconds)
