"""Keeps the lake's tables fast: merges small files, removes old snapshots and files without a table.

By Spark and Iceberg's own procedures, table after table; the ledgers in the tables stay readable. If a worker dies,
the driver keeps running, and the retry finds it again; marked as failed, the run ends after its current step.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Param

from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

with DAG(
    dag_id="lake_maintenance",
    schedule="0 3 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    # Lists and numbers of the form keep their types.
    render_template_as_native_obj=True,
    tags=["lakestream", "spark"],
    description=__doc__.partition("\n")[0],
    doc_md=__doc__,
    params={
        "tables": Param(
            ["lake.*"],
            type="array",
            items={"type": "string", "pattern": r"^[^.\s]+(\.[^.\s]+)+$"},
            minItems=1,
            title="Tables",
            description="Names of tables, or patterns such as lake.clicks*, which takes in lake.clicks__rejected.",
        ),
        "expire_older_than": Param(
            "5d",
            type="string",
            pattern=r"^\d+(\.\d+)?[smhd]$",
            title="Age of snapshots",
            description="Older ones are removed, but for those that a tag or a branch names.",
        ),
        "longest_run": Param(
            "1d",
            type="string",
            pattern=r"^\d+(\.\d+)?[smhd]$",
            title="Longest run",
            description="How long the longest run takes that lands in these tables, its retries included.",
        ),
        "orphans_older_than": Param(
            "3d",
            type="string",
            pattern=r"^\d+(\.\d+)?[smhd]$",
            title="Age of orphans",
            description="Older files that no snapshot has are deleted; it has to be beyond the longest run.",
        ),
    },
) as dag:
    SparkStreamingSubmitOperator(
        task_id="maintain",
        app="maintain_iceberg",
        app_config={
            "tables": "{{ params.tables }}",
            "compact": True,
            "rewrite_manifests": True,
            "expire": {"older_than": "{{ params.expire_older_than }}"},
            "remove_orphans": {
                "older_than": "{{ params.orphans_older_than }}",
                "longest_run": "{{ params.longest_run }}",
            },
        },
        kafka_conn_id=None,
        # A table that failed is tried once more, when the other tables are done.
        max_restarts=1,
        retries=2,
    )
