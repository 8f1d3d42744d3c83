"""The newest record of each customer as a table, every five minutes, from a topic of plain records: upserts by key.

A tombstone deletes the row of its key. Each run lands the records that the table lacks, so a missed or a cleared run
loses and doubles nothing. Changes of a database's table, from Debezium, are for customers_mirror.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, AssetAlias, Param
from airflow.timetables.interval import CronDataIntervalTimetable  # airflow.sdk has it after 3.1 only

from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator

with DAG(
    dag_id="customers_by_id",
    schedule=CronDataIntervalTimetable("*/5 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["lakestream", "upsert"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "topic": Param("customers", type="string", minLength=1, title="Topic", description="Topic of JSON records."),
        "table": Param(
            "lake.customers_by_id",
            type="string",
            pattern=r"^[^.\s]+(\.[^.\s]+)+$",
            title="Table",
            description="Iceberg table to land into, as namespace.table; created when missing.",
        ),
    },
) as dag:
    KafkaMirrorOperator(
        task_id="land",
        topic="{{ params.topic }}",
        table="{{ params.table }}",
        envelope=None,
        key=["id"],
        retries=3,
        retry_delay=timedelta(seconds=30),
        outlets=[AssetAlias("customers_by_id")],
    )
