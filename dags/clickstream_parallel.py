"""Clickstream events from Kafka to the lake, each run read by several workers and landed in one snapshot.

For topics that are too large for one worker: a task plans, mapped tasks read and write, and one task commits.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, AssetAlias, Param
from airflow.timetables.interval import CronDataIntervalTimetable  # airflow.sdk has it after 3.1 only

from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group

with DAG(
    dag_id="clickstream_parallel",
    schedule=CronDataIntervalTimetable("*/15 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    # Runs of one group take turns: parallel runs would read the same records, and all except one would discard them.
    max_active_runs=1,
    tags=["lakestream"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "topic": Param("clickstream", type="string", minLength=1, title="Topic", description="Kafka topic to read."),
        "table": Param(
            "lake.clickstream_parallel",
            type="string",
            pattern=r"^[^.\s]+(\.[^.\s]+)+$",
            title="Table",
            description="Iceberg table to land in, as namespace.table; created when missing.",
        ),
        "max_records": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Record limit",
            description="Read at most so many offsets, and leave the rest to the next run; empty for all there are.",
        ),
    },
) as dag:
    kafka_extract_group(
        "land",
        tasks=4,
        topic="{{ params.topic }}",
        table="{{ params.table }}",
        max_records="{{ params.max_records }}",
        partition_by=["days(timestamp)"],
        outlets=[AssetAlias("clickstream_parallel")],
    )
