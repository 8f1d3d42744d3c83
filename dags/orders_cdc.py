"""A mirror of a database's table in the lake, by Debezium and Spark: a supervised stream, a merge each minute.

Debezium sends the table's changes to the topic; the mirror has the table's rows as they are. Unpause it, and the
stream runs. To stop it for good, first pause the DAG, and then mark its task failed: the stream ends after its current
batch. Without the pause the next run begins at once, as after a failure.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, Param

from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

# The default folder is on one machine; a cluster needs a shared path.
CHECKPOINT = "{{ params.checkpoint or var.value.get('lakestream_checkpoints', '/tmp/lakestream') ~ '/' ~ dag.dag_id }}"

with DAG(
    dag_id="orders_cdc",
    schedule="@continuous",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["lakestream", "spark", "cdc"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "topic": Param(
            "shop.public.orders", type="string", minLength=1, title="Topic", description="Topic of Debezium's events."
        ),
        "table": Param(
            "lake.orders",
            type="string",
            pattern=r"^[^.\s]+(\.[^.\s]+)+$",
            title="Table",
            description="Iceberg table to mirror into, as namespace.table; created when missing.",
        ),
        "checkpoint": Param(
            None,
            type=["null", "string"],
            title="Checkpoint",
            description="Where the query keeps its place: a path that all workers share, or s3a://...; empty: a folder "
            "of the Airflow variable lakestream_checkpoints.",
        ),
        "max_batches": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Batch limit",
            description="End after so many batches; empty for a stream without an end.",
        ),
    },
) as dag:
    SparkStreamingSubmitOperator(
        task_id="mirror",
        app="cdc_to_iceberg",
        app_config={"topic": "{{ params.topic }}", "table": "{{ params.table }}", "key": ["id"]},
        trigger="1 minute",
        checkpoint_location=CHECKPOINT,
        max_batches="{{ params.max_batches }}",
        deferrable=True,
        retries=10,
        retry_delay=timedelta(seconds=30),
    )
