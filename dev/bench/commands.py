"""Cost of looks: CPU seconds of `lakestream` as a program, with its start, and seconds until its answer.

By itself: `make bench ONLY=commands`.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.run.job import ExtractConfig, build_job
from dev.bench.airflow_home import connections
from dev.bench.figures import Figure
from dev.bench.lake import NAMESPACE, Lake
from dev.bench.process_tree import Finished, run_measured
from dev.bench.topics import TOPICS, Topic, fill

if TYPE_CHECKING:
    from dev.bench.lab import Lab

STREAMS = 10
RECORDS = 10_000
LANDINGS = 10
TIMES = 5
GROUP = "bench"
HELP_S, STATUS_S, PLAN_S = 0.5, 2, 2
# Records that one stream has not read, in batches of a megabyte, and the seconds within which `status` answers.
FAR_BEHIND, ANSWER_S = 4 * 175_000, 5


def measure(lab: Lab) -> Iterator[Figure]:
    """Land in ten tables, look at them; then look at one that is far behind; yield the figures."""
    with lab.lake("commands") as lake:
        for number in range(STREAMS):
            _land(lab, lake, f"stream{number}", TOPICS["json"], RECORDS, LANDINGS)
        lab.say(f"{STREAMS} streams of {LANDINGS} landings are there")
        env = {**os.environ, "AIRFLOW_HOME": str(lake.folder / "airflow"), **connections(lab.kafka, lake)}
        stream = ["--table", f"{NAMESPACE}.stream0", "--group", GROUP, "--topic", "stream0"]
        for words, bound in (
            (["--help"], HELP_S),
            (["status", "--namespace", NAMESPACE], STATUS_S),
            (["plan", *stream], PLAN_S),
        ):
            seconds = statistics.median(run.cpu_seconds for run in _runs(words, env))
            what = f"lakestream {words[0]}" + (f", {STREAMS} streams" if words[0] == "status" else "")
            yield Figure(what, "CPU", seconds, "s", f"< {bound:g}", seconds < bound)
        _land(lab, lake, "behind", Topic("json", codec="none"), FAR_BEHIND, landings=1)
        lab.say(f"{FAR_BEHIND:,} records are there, nearly all unread")
        seconds = max(run.seconds for run in _runs(["status", "--table", f"{NAMESPACE}.behind"], env))
        what = f"lakestream status, {FAR_BEHIND:,} behind"
        yield Figure(what, "longest answer", seconds, "s", f"< {ANSWER_S:g}", seconds < ANSWER_S)


def _runs(words: Sequence[str], env: Mapping[str, str]) -> list[Finished]:
    command = [str(Path(sys.executable).with_name("lakestream")), *words]
    # The first one compiles and fills the system's caches.
    return [run_measured(command, env, watch=False) for _ in range(TIMES + 1)][1:]


def _land(lab: Lab, lake: Lake, name: str, topic: Topic, records: int, landings: int) -> None:
    """Fill a topic, and land its first records, the same number in each landing; the others stay unread."""
    fill(name, topic, records, lab.kafka, None)
    for number in range(landings):
        config = ExtractConfig(
            topic=name, table=f"{NAMESPACE}.{name}", consumer_group=GROUP, max_records=RECORDS // LANDINGS
        )
        land(build_job(config, lab.kafka.client_config(), lake.catalog(), run_id=f"run {number}"))
