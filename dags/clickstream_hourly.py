"""Counts each hour of the clickstream, once the table has the complete hour.

Downstream of `clickstream_to_lake`, or of another DAG that lands under its consumer group. The sensor asks the ledger,
not a clock: late runs make this DAG late, and never wrong.
"""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.sdk import DAG, Param, task
from airflow.timetables.interval import CronDataIntervalTimetable  # airflow.sdk has it after 3.1 only

from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.sensors.iceberg_snapshot_freshness import IcebergSnapshotFreshnessSensor

with DAG(
    dag_id="clickstream_hourly",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["lakestream"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "table": Param(
            "lake.clickstream",
            type="string",
            pattern=r"^[^.\s]+(\.[^.\s]+)+$",
            title="Table",
            description="Iceberg table that the clickstream is landed in, as namespace.table.",
        ),
        "consumer_group": Param(
            "clickstream_to_lake",
            type="string",
            minLength=1,
            title="Consumer group",
            description="Whose ledger says what is landed: the id of the DAG that lands, unless it has another.",
        ),
    },
) as dag:
    is_complete = IcebergSnapshotFreshnessSensor(
        task_id="is_complete",
        table="{{ params.table }}",
        consumer_group="{{ params.consumer_group }}",
        complete_through="{{ data_interval_end }}",
        # At night nobody clicks: without a later record, an hour is done when it ended that long ago.
        idle_after="20m",
        kafka_conn_id="kafka_default",
        missing="wait",
        deferrable=True,
        timeout=6 * 3600,
    )

    @task
    def count(params: dict[str, Any] | None = None, **context: Any) -> int:
        """Return the number of events whose Kafka timestamp is in the run's hour."""
        table = IcebergHook("iceberg_default").open_catalog().load_table((params or {})["table"])
        start, end = context["data_interval_start"].isoformat(), context["data_interval_end"].isoformat()
        return table.scan(f"_kafka_timestamp >= '{start}' and _kafka_timestamp < '{end}'").count()

    is_complete >> count()
