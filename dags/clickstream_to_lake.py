"""Clickstream events from Kafka to the lake, every minute.

Each run lands the records that the table lacks, so a missed or a cleared run loses and doubles nothing. Triggered by
hand it asks for topic, table and limits.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, AssetAlias, Param
from airflow.timetables.interval import CronDataIntervalTimetable  # airflow.sdk has it after 3.1 only

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

with DAG(
    dag_id="clickstream_to_lake",
    schedule=CronDataIntervalTimetable("* * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    # Runs of one group take turns: parallel runs would read the same records, and all except one would discard them.
    max_active_runs=1,
    tags=["lakestream", "start here"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "topic": Param("clickstream", type="string", minLength=1, title="Topic", description="Kafka topic to read."),
        "table": Param(
            "lake.clickstream",
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
            description="Stop after so many records, and leave the rest to the next run; empty for all there are.",
        ),
        "max_batch_bytes": Param(
            "256MiB",
            enum=["16MiB", "64MiB", "256MiB", "1GiB"],
            title="Bytes per commit",
            description="Commit at the latest after so many bytes: small commits show sooner, large ones read faster.",
        ),
        "on_data_loss": Param(
            "fail",
            enum=["fail", "record"],
            values_display={"fail": "Fail the run", "record": "Land what is left, and record what is lost"},
            title="When records are gone",
            description="What to do when Kafka's retention removed records before they were landed.",
        ),
    },
) as dag:
    KafkaExtractOperator(
        task_id="land",
        topic="{{ params.topic }}",
        table="{{ params.table }}",
        max_records="{{ params.max_records }}",
        max_batch_bytes="{{ params.max_batch_bytes }}",
        on_data_loss="{{ params.on_data_loss }}",
        partition_by=["days(timestamp)"],
        # The alias becomes the table that was really written, for any input in the form.
        outlets=[AssetAlias("clickstream")],
    )
