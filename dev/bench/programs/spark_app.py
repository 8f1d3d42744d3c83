"""A plain Spark app from Kafka to Iceberg: Spark's own `from_json` and writer, `availableNow`, twice in one session.

The first query meets a cold JVM, the second a warm one; each lands the whole topic in a table of its own.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

from dev.bench.lake import CATALOG, NAMESPACE, Lake
from dev.bench.programs.measured import Work, write_result
from dev.bench.rows import DDL

# Iceberg tells the time of each commit in its log only; all else of the log is left out.
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %p %c: %m%n
appender.commits.type = File
appender.commits.name = commits
appender.commits.fileName = {file}
appender.commits.layout.type = PatternLayout
appender.commits.layout.pattern = %m%n
logger.commits.name = org.apache.iceberg.metrics.LoggingMetricsReporter
logger.commits.level = info
logger.commits.appenderRef.commits.ref = commits
"""
_COMMIT = re.compile(r"CommitReport\{.*?totalDuration=TimerResult\{timeUnit=\w+, totalDuration=PT([\d.]+)S")


def main() -> None:
    """Start Spark, land the topic cold, then warm."""
    started = time.time()
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--jars", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--transform", help="module:function, of the rows and the session")
    args = parser.parse_args()
    transform = resolve_name(args.transform) if args.transform else None
    lake = Lake(args.folder)
    commits = args.folder / "commits.log"
    with Work() as start:
        spark = session(lake, args.jars, commits)
    told: dict[str, Any] = {"start": start.told() | {"began_at": started}}
    for name in ("cold", "warm"):
        seen = commits.stat().st_size if commits.exists() else 0
        with Work() as work:
            land(spark, args.bootstrap, args.topic, name, args.folder / f"checkpoint-{name}", transform)
        durations = [float(seconds) for seconds in _COMMIT.findall(commits.read_text()[seen:])]
        told[name] = {**work.told(), "commits": durations}
    spark.stop()
    write_result(args.result, told)


def session(lake: Lake, jars: Path, commits: Path) -> SparkSession:
    """Start Spark on all cores, with a catalog that is PyIceberg's."""
    log4j = lake.folder / "log4j2.properties"
    log4j.write_text(_LOG4J.format(file=commits))
    catalog = f"spark.sql.catalog.{CATALOG}"
    settings = {
        "spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar"))),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j} -Djava.io.tmpdir={lake.folder}",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(lake.folder / "local"),
        "spark.sql.warehouse.dir": str(lake.folder / "spark-warehouse"),
        "spark.sql.session.timeZone": "UTC",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{lake.database}",
        f"{catalog}.warehouse": lake.uri,
        f"{catalog}.jdbc.schema-version": "V1",
    }
    builder = SparkSession.builder.master("local[*]").appName("bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def land(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    table: str,
    checkpoint: Path,
    transform: Callable[[DataFrame, SparkSession], DataFrame] | None,
) -> None:
    """Run one query to its end."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    landed = rows(records)
    query = (
        (transform(landed, spark) if transform else landed)
        .writeStream.format("iceberg")
        .outputMode("append")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(checkpoint))
        .toTable(f"{CATALOG}.{NAMESPACE}.{table}")
    )
    query.awaitTermination()


def rows(records: DataFrame) -> DataFrame:
    """Return the payload's columns, and the record's place."""
    return records.select(
        from_json(col("value").cast("string"), DDL).alias("payload"),
        col("topic").alias("_kafka_topic"),
        col("partition").alias("_kafka_partition"),
        col("offset").alias("_kafka_offset"),
        col("timestamp").alias("_kafka_timestamp"),
    ).select("payload.*", "_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")


if __name__ == "__main__":
    main()
