"""Each price of a product with the time in which it was valid, every five minutes: a history, or SCD type 2.

A version of a row begins when the price or the currency changes; other fields have the values of the newest record. The
column `changed_at` is the time, so that late records get the interval that they belong to.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, AssetAlias, Param
from airflow.timetables.interval import CronDataIntervalTimetable  # airflow.sdk has it after 3.1 only

from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator

with DAG(
    dag_id="prices_history",
    schedule=CronDataIntervalTimetable("*/5 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["lakestream", "upsert"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "topic": Param("prices", type="string", minLength=1, title="Topic", description="Topic of JSON records."),
        "table": Param(
            "lake.prices_history",
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
        key=["product"],
        schema="product string, price decimal(12,2), currency string, changed_at timestamptz",
        sequence_by=["changed_at"],
        history=True,
        history_columns=["price", "currency"],
        # A record without a value has no time.
        tombstones="skip",
        # Readers of the current prices skip the files of all others.
        partition_by=["_is_current"],
        retries=3,
        retry_delay=timedelta(seconds=30),
        outlets=[AssetAlias("prices_history")],
    )
