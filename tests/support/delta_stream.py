"""A plain stream from Kafka into a Delta table by Delta's own Spark sink, as a program: it has a session of its own.

python -m tests.support.delta_stream BROKERS TOPIC TABLE CHECKPOINT
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from airflow_lakestream.spark.packages import kafka_packages, resolve

_DELTA = "io.delta:delta-spark_2.13:4.0.0"
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "768m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def main(brokers: str, topic: str, table: str, checkpoint: str) -> None:
    """Write all that the topic has, 20 records in each batch."""
    builder = SparkSession.builder.appName("plain stream")
    for key, value in {**_SETTINGS, "spark.jars": ",".join(resolve((*kafka_packages(), _DELTA)))}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 20)
        .load()
        .selectExpr("from_json(CAST(value AS STRING), 'id BIGINT, name STRING, score DOUBLE') v")
        .select("v.*")
    )
    writer = records.writeStream.format("delta").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start(table).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
