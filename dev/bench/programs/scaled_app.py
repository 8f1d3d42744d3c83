"""A bundled app at a cluster, first to get warm, then measured: CPU of the driver and of the workers apart."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import psutil
from pyspark.sql import DataFrame, SparkSession

from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.session import open_session
from airflow_lakestream.spark.stream import LandingQuery, kafka_to_iceberg
from dev.bench.process_tree import cpu_of_tree
from dev.bench.programs.measured import write_result

MIB = 2**20
# CPU seconds that it has taken to look at the processes: they are none of the driver's.
_measuring = 0.0


def main() -> None:
    """Run the configurations one after the other in one session; the first starts the executors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--configs", required=True, help="files of configurations, with commas")
    parser.add_argument("--workers", required=True, help="the workers' processes, with commas")
    args = parser.parse_args()
    configs = [AppConfig.read(path) for path in args.configs.split(",")]
    workers = [int(pid) for pid in args.workers.split(",")]
    spark = open_session(configs[0])
    spark.sparkContext.setLogLevel("WARN")
    start = psutil.Process().memory_info().rss
    runs = [batch for config in configs for batch in batches(workers, config, spark)]
    told = {"runs": runs, "python_peak_mib": (_peak_rss() - start) / MIB}
    spark.stop()
    write_result(args.result, told)


def batches(workers: Sequence[int], config: AppConfig, spark: SparkSession) -> list[dict[str, float]]:
    """Run a query; return for each batch what `measured` does: from its begin to the next one's.

    The query's start, which comes once for all of its batches, is in none of them.
    """
    begun, done = list[dict[str, float]](), list[dict[str, float]]()
    # No other place is called once a batch.
    land = LandingQuery._land

    def timed(stream: LandingQuery, frame: DataFrame, batch_id: int) -> None:
        begun.append(_spent(workers))
        land(stream, frame, batch_id)
        done.append(_spent(workers))

    with patch.object(LandingQuery, "_land", timed):
        kafka_to_iceberg(config, spark)
    ends = [*begun[1:], *done[-1:]]
    return [_between(before, after) for before, after in zip(begun, ends, strict=False)]


def measured(workers: Sequence[int], work: Callable[[], None]) -> dict[str, float]:
    """Do it; return its seconds, and the CPU seconds of the driver's Python, its JVM, and the workers.

    :param workers: the processes of the cluster's workers, whose children the executors are.
    """
    before = _spent(workers)
    work()
    return _between(before, _spent(workers))


def _between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {what: after[what] - before[what] for what in before}


def _spent(workers: Sequence[int]) -> dict[str, float]:
    global _measuring  # of this process, as the CPU seconds are
    python, now = time.process_time(), time.perf_counter()
    jvm, executors = cpu_of_tree() - python, sum(map(cpu_of_tree, workers))
    found = {"seconds": now, "python": python - _measuring, "jvm": jvm, "executors": executors}
    _measuring += time.process_time() - python
    return found


def _peak_rss() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


if __name__ == "__main__":
    main()
