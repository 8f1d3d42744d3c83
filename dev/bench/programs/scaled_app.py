"""A bundled app at a cluster, first to get warm, then measured: CPU of the driver and of the workers apart."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil

from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.session import open_session
from airflow_lakestream.spark.stream import kafka_to_iceberg
from dev.bench.process_tree import cpu_of_tree
from dev.bench.programs.measured import write_result

MIB = 2**20


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
    runs = [measured(workers, partial(kafka_to_iceberg, config, spark)) for config in configs]
    told = {"runs": runs, "python_peak_mib": (_peak_rss() - start) / MIB}
    spark.stop()
    write_result(args.result, told)


def measured(workers: Sequence[int], work: Callable[[], None]) -> dict[str, float]:
    """Do it; return its seconds, and the CPU seconds of the driver's Python, its JVM, and the workers.

    :param workers: the processes of the cluster's workers, whose children the executors are.
    """
    before, began = _cpu(workers), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    return {"seconds": seconds, **{who: now - before[who] for who, now in _cpu(workers).items()}}


def _cpu(workers: Sequence[int]) -> dict[str, float]:
    own = psutil.Process().cpu_times()
    python = own.user + own.system
    return {"python": python, "jvm": cpu_of_tree() - python, "executors": sum(map(cpu_of_tree, workers))}


def _peak_rss() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


if __name__ == "__main__":
    main()
