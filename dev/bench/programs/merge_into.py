"""Spark's own `MERGE INTO`, merge on read, of decoded change events into a twin of a mirror: the peer of its merge."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_lakestream.cdc.columns import VERSION
from dev.bench.lake import CATALOG
from dev.bench.programs.measured import write_result
from dev.bench.programs.scaled_app import measured

_MODE = "'write.merge.mode'='merge-on-read', 'write.merge.isolation-level'='serializable'"


def main() -> None:
    """Merge one file of events after the other in one session."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--settings", type=Path, required=True, help="a JSON file of Spark's settings")
    parser.add_argument("--workers", required=True, help="the workers' processes, with commas")
    parser.add_argument("--table", required=True)
    parser.add_argument("--events", required=True, help="Parquet files of decoded events, with commas")
    args = parser.parse_args()
    builder = SparkSession.builder.appName("merge into")
    for key, value in json.loads(args.settings.read_text()).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    table, workers = f"{CATALOG}.{args.table}", [int(pid) for pid in args.workers.split(",")]
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({_MODE})")
    runs = [measured(workers, partial(merge, spark, table, path)) for path in args.events.split(",")]
    spark.stop()
    write_result(args.result, {"runs": runs})


def merge(spark: SparkSession, table: str, path: str) -> None:
    """Merge the newest event of each key, if it is newer than the row."""
    events = spark.read.parquet(path)
    events.createOrReplaceTempView("events")
    columns = spark.table(table).columns
    newest = ", ".join(f"{name} DESC" for name in VERSION)
    spark.sql(
        "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY "
        f"{newest}) AS place FROM events) WHERE place = 1"
    ).createOrReplaceTempView("newest")
    ours, theirs = (f"struct({', '.join(f'{side}.{name}' for name in VERSION)})" for side in ("s", "t"))
    later = f"{ours} > {theirs}"
    sets = ", ".join(f"t.{name} = s.{name}" for name in columns)
    values = ", ".join(f"s.{name}" for name in columns)
    spark.sql(
        f"MERGE INTO {table} t USING newest s ON t.id = s.id "
        f"WHEN MATCHED AND s._op = 'd' AND {later} THEN DELETE WHEN MATCHED AND {later} THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED AND s._op <> 'd' THEN INSERT ({', '.join(columns)}) VALUES ({values})"
    )


if __name__ == "__main__":
    main()
