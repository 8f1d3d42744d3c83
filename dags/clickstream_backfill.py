r"""Clickstream events of past hours: one run for each hour, by backfill.

    airflow backfill create --dag-id clickstream_backfill --max-active-runs 4 \
        --from-date 2026-11-20 --to-date 2026-11-21

or the backfill form in Airflow's UI. It shares the ledger of `clickstream_to_lake`, so records that the live runs have
landed are not landed again, in any order and for any number of runs at a time. To read hours again, after a change of
the schema for instance, backfill with reprocessing, and with `{"replace": true}` as configuration.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, AssetAlias, Param
from airflow.timetables.interval import CronDataIntervalTimetable  # airflow.sdk has it after 3.1 only

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

with DAG(
    dag_id="clickstream_backfill",
    # A plain cron string would give runs without a width: no hour to take records of.
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["lakestream"],
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
        "replace": Param(
            False,
            type="boolean",
            title="Replace",
            description="Read again what is landed of the hour, and put it in the place of its rows.",
        ),
        "interval_start": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="From",
            description="Begin of the time to land; empty for the hour of the run.",
        ),
        "interval_end": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Until",
            description="End of the time to land, exclusive; empty for the hour of the run.",
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
        # The ledger of the live DAG: each of the two DAGs skips offsets that the other DAG has landed.
        consumer_group="clickstream_to_lake",
        mode="interval",
        replace="{{ params.replace }}",
        on_data_loss="{{ params.on_data_loss }}",
        partition_by=["days(timestamp)"],
        # The alias of the live DAG: Airflow fails tasks if several of them are the first to report an asset for an
        # alias.
        outlets=[AssetAlias("clickstream")],
    )
