"""Windows of five minutes and sessions of the clickstream by Spark: a row for each final window or session.

Functions of the stream, in clickstream_frames/streams.py next to this file, define a window; Spark keeps the open
windows in the checkpoint, and each batch lands in one commit with the offsets it read.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Param
from airflow.timetables.interval import CronDataIntervalTimetable  # airflow.sdk has it after 3.1 only

from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

# The default folder is on one machine; a cluster needs a shared path.
CHECKPOINTS = "{{ params.checkpoint or var.value.get('lakestream_checkpoints', '/tmp/lakestream') ~ '/' ~ dag.dag_id }}"

# Input of the functions: the columns of the decoded records.
SCHEMA = "timestamp timestamp, event string, user_id string, site_id string"
TABLE = r"^[^.\s]+(\.[^.\s]+)+$"

with DAG(
    dag_id="clickstream_windows",
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
            "lake.clickstream_windows",
            type="string",
            pattern=TABLE,
            title="Table of windows",
            description="Iceberg table of the windows, as namespace.table; created when missing.",
        ),
        "sessions": Param(
            "lake.clickstream_sessions",
            type="string",
            pattern=TABLE,
            title="Table of sessions",
            description="Iceberg table of the sessions, as namespace.table; created when missing.",
        ),
        "checkpoint": Param(
            None,
            type=["null", "string"],
            title="Checkpoints",
            description="Where the queries keep their state: a path that all workers share, or s3a://...; empty: a "
            "folder of the Airflow variable lakestream_checkpoints. Keep it: a table without it is refused.",
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
    for task_id, table, function in (
        ("windows", "{{ params.table }}", "five_minutes"),
        ("sessions", "{{ params.sessions }}", "sessions"),
    ):
        SparkStreamingSubmitOperator(
            task_id=task_id,
            app="kafka_to_iceberg",
            app_config={
                "topic": "{{ params.topic }}",
                "table": table,
                "consumer_group": f"clickstream_{task_id}",
                "schema": SCHEMA,
                "stream_transform": f"clickstream_frames.streams:{function}",
            },
            trigger="available_now",
            checkpoint_location=f"{CHECKPOINTS}/{task_id}",
            # Spark keeps the state of each query in this number of parts; it can't change for the life of a checkpoint.
            conf={"spark.sql.shuffle.partitions": "2"},
            max_offsets_per_trigger="{{ params.max_offsets_per_trigger }}",
            retries=2,
        )
