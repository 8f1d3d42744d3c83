"""Supervises streams: each table is fresh, each consumer keeps up, and no record expires before its landing.

The form, or the Airflow variable `lakestream_streams`, lists the streams; each is a row of mapped tasks. A problem
fails the stream's task, with the reason, and calls `tell`; a run that is not done in time calls `tell_deadline`: put
notifiers of your own in their place. For the page of streams it also reports the content of each table.
"""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, Param, Variable, task
from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference
from airflow.timetables.interval import CronDataIntervalTimetable  # airflow.sdk has it after 3.1 only

from airflow_lakestream.alerts import tell, tell_deadline
from airflow_lakestream.operators.table_contents import TableContentsOperator
from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor
from airflow_lakestream.sensors.iceberg_snapshot_freshness import IcebergSnapshotFreshnessSensor
from airflow_lakestream.sensors.retention_risk import RetentionRiskSensor

log = logging.getLogger(__name__)

# Defaults for settings that a stream of the list leaves out.
DEFAULT_SETTINGS = {"max_age": "30m", "max_lag_seconds": "30m", "min_time_left": "6h", "samples": 3}

with DAG(
    dag_id="supervise_lakestream",
    schedule=CronDataIntervalTimetable("*/15 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"on_failure_callback": tell},
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(minutes=10),
        callback=AsyncCallback(tell_deadline),
    ),
    tags=["lakestream"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "streams": Param(
            [],
            type="array",
            items={"type": "object", "required": ["table", "consumer_group"]},
            title="Streams",
            description='Such as [{"table": "lake.clickstream", "consumer_group": "clickstream_to_lake"}]; where the '
            "usual does not do, also max_age, max_lag_seconds, min_time_left and samples of a stream. Empty for those "
            "of the Airflow variable lakestream_streams.",
        ),
    },
) as dag:

    @task
    def streams(params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return the streams of the form or of the variable, with default limits for missing settings."""
        listed = (params or {})["streams"] or Variable.get("lakestream_streams", default=[], deserialize_json=True)
        if not listed:
            form = [{"table": "lake.orders", "consumer_group": "orders_to_lake"}]
            log.warning("no streams: set the Airflow variable lakestream_streams to %s", json.dumps(form))
        # A stream with a wrong setting fails its own tasks, and no other stream's.
        settings = [stream if isinstance(stream, dict) else {"table": str(stream)} for stream in listed]
        return [{**DEFAULT_SETTINGS, **stream} for stream in settings]

    def limited_by(limit: str) -> Any:
        """Return, for each stream, the arguments of a mapped task: table, consumer group, and the named limit."""
        return all_streams.map(lambda stream: {name: stream.get(name) for name in ("table", "consumer_group", limit)})

    all_streams = streams()

    IcebergSnapshotFreshnessSensor.partial(
        task_id="is_fresh",
        kafka_conn_id="kafka_default",
        fail_when_stale=True,
        map_index_template="{{ task.table }}",
    ).expand_kwargs(limited_by("max_age"))

    CheckpointLagSensor.partial(
        task_id="keeps_up",
        fail_when_behind=True,
        map_index_template="{{ task.table }}",
    ).expand_kwargs(limited_by("max_lag_seconds"))

    RetentionRiskSensor.partial(
        task_id="loses_nothing",
        map_index_template="{{ task.table }}",
    ).expand_kwargs(limited_by("min_time_left"))

    # For the page of streams. A stream with "samples": 0 keeps the content of its rejected records out of Airflow.
    TableContentsOperator.partial(
        task_id="looks_inside",
        map_index_template="{{ task.table }}",
    ).expand_kwargs(limited_by("samples"))
