"""Compaction of a table by the worker, by two processes of it, by `deltalake` or by Spark's `rewrite_data_files`.

Time and CPU are of the compaction alone. A smaller table is compacted before, so that Spark's JVM is warm.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from pyiceberg.table import Table

from airflow_lakestream.iceberg.replace.takeout import live_files
from airflow_lakestream.iceberg.upkeep.compaction import compact
from airflow_lakestream.iceberg.upkeep.rewrite_pool import PooledRewriting, serve
from airflow_lakestream.runtime.processes import ChildProcesses
from dev.bench.lake import CATALOG, Lake
from dev.bench.programs.measured import Work, write_result

OFFSET = "_kafka_offset"
TARGET_BYTES = 512 * 2**20


def main() -> None:
    """Compact the tables one after the other; the last one is measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--by", choices=("worker", "pool", "delta", "spark"), required=True)
    parser.add_argument("--tables", required=True, help="with commas; the last one is measured")
    parser.add_argument("--jars", type=Path)
    args = parser.parse_args()
    lake, tables = Lake(args.folder), args.tables.split(",")
    works = {"worker": by_worker, "pool": by_pool, "delta": by_delta, "spark": partial(by_spark, jars=args.jars)}
    one, end = works[args.by](lake)
    for table in tables:
        with Work() as work:
            one(table)
    end()
    files = delta_files(tables[-1]) if args.by == "delta" else iceberg_files(lake.catalog().load_table(tables[-1]))
    write_result(args.result, {**work.told(), **look_at(files)})


Compaction = tuple[Callable[[str], object], Callable[[], object]]


def by_worker(lake: Lake) -> Compaction:
    """Return the compaction of a table by the worker, and nothing to do at the end."""
    return lambda table: compact(lake.catalog(), table), lambda: None


def by_pool(lake: Lake) -> Compaction:
    """Fork two processes; return the compaction of a table by these, and their end."""
    processes = ExitStack()
    children = processes.enter_context(ChildProcesses(2, serve))
    rewrite = PooledRewriting(children).rewrite
    return lambda table: compact(lake.catalog(), table, rewrite=rewrite), processes.close


def by_delta(_: Lake) -> Compaction:
    """Return the compaction of a Delta table, and nothing to do at the end."""
    from deltalake import DeltaTable

    return lambda table: DeltaTable(table).optimize.compact(target_size=TARGET_BYTES), lambda: None


def by_spark(lake: Lake, jars: Path) -> Compaction:
    """Start Spark; return the compaction of a table, and the end of Spark."""
    from dev.bench.programs.spark_app import session

    spark = session(lake, jars, lake.folder / "commits.log")
    spark.sparkContext.setLogLevel("ERROR")

    def one(table: str) -> None:
        spark.sql(f"CALL {CATALOG}.system.rewrite_data_files('{table}')").collect()

    return one, spark.stop


def iceberg_files(table: Table) -> Iterator[Path]:
    """Yield the paths of the live files."""
    yield from (Path(task.file.file_path.removeprefix("file://").removeprefix("file:")) for task in live_files(table))


def delta_files(table: str) -> Iterator[Path]:
    """Yield the paths of the live files."""
    from deltalake import DeltaTable

    yield from (Path(one.removeprefix("file://")) for one in DeltaTable(table).file_uris())


def look_at(files: Iterator[Path]) -> dict[str, int]:
    """Return the files, their bytes and rows, and the sum of offsets."""
    found = {"files": 0, "rows": 0, "offsets": 0, "bytes": 0}
    for path in files:
        found["files"] += 1
        found["bytes"] += path.stat().st_size
        offsets = pq.read_table(path, columns=[OFFSET])[OFFSET].to_numpy()
        found["rows"] += len(offsets)
        found["offsets"] += int(offsets.sum())
    return found


if __name__ == "__main__":
    main()
