"""Clickstream events to the lake by Spark, every ten minutes all new records.

The same ledger as any other landing: after a missed, cleared or killed run nothing is lost or doubled.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Param
from airflow.timetables.interval import CronDataIntervalTimetable  # airflow.sdk has it after 3.1 only

from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

# The default folder is on one machine; a cluster needs a shared path.
CHECKPOINT = "{{ params.checkpoint or var.value.get('lakestream_checkpoints', '/tmp/lakestream') ~ '/' ~ dag.dag_id }}"

with DAG(
    dag_id="clickstream_spark_micro_batch",
    schedule=CronDataIntervalTimetable("*/10 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["lakestream", "spark"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "topic": Param("clickstream", type="string", minLength=1, title="Topic", description="Kafka topic to read."),
        "table": Param(
            "lake.clickstream_spark",
            type="string",
            pattern=r"^[^.\s]+(\.[^.\s]+)+$",
            title="Table",
            description="Iceberg table to land in, as namespace.table; created when missing.",
        ),
        "checkpoint": Param(
            None,
            type=["null", "string"],
            title="Checkpoint",
            description="Where the query keeps its place: a path that all workers share, or s3a://...; empty: a folder "
            "of the Airflow variable lakestream_checkpoints.",
        ),
        "max_offsets_per_trigger": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Offsets in a batch",
            description="Land in batches of at most so many offsets; empty for all in one.",
        ),
    },
) as dag:
    SparkStreamingSubmitOperator(
        task_id="land",
        app="kafka_to_iceberg",
        app_config={
            "topic": "{{ params.topic }}",
            "table": "{{ params.table }}",
            "partition_by": ["days(timestamp)"],
        },
        trigger="available_now",
        checkpoint_location=CHECKPOINT,
        max_offsets_per_trigger="{{ params.max_offsets_per_trigger }}",
        retries=2,
    )
