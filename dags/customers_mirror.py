"""A mirror of a small table of a database in the lake, every minute, in the worker, without Spark.

Debezium sends the table's changes to the topic. Each run applies the changes that the mirror lacks, so a missed or a
cleared run loses and doubles nothing. A large table, or one that must follow within seconds, is for orders_cdc.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, AssetAlias, Param
from airflow.timetables.interval import CronDataIntervalTimetable  # airflow.sdk has it after 3.1 only

from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator

with DAG(
    dag_id="customers_mirror",
    schedule=CronDataIntervalTimetable("* * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    # Runs of one group take turns: parallel runs would merge the same events, and all except one would discard the
    # work.
    max_active_runs=1,
    tags=["lakestream", "cdc"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "topic": Param(
            "shop.public.customers",
            type="string",
            minLength=1,
            title="Topic",
            description="Topic of Debezium's events.",
        ),
        "table": Param(
            "lake.customers",
            type="string",
            pattern=r"^[^.\s]+(\.[^.\s]+)+$",
            title="Table",
            description="Iceberg table to mirror into, as namespace.table; created when missing.",
        ),
        "max_records": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Event limit",
            description="Stop after so many events, and leave the rest to the next run; empty for all there are.",
        ),
    },
) as dag:
    KafkaMirrorOperator(
        task_id="mirror",
        topic="{{ params.topic }}",
        table="{{ params.table }}",
        key=["id"],
        max_records="{{ params.max_records }}",
        retries=3,
        retry_delay=timedelta(seconds=30),
        # The alias becomes the table that was really written, for any input in the form.
        outlets=[AssetAlias("customers")],
    )
