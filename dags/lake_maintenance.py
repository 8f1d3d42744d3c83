"""Keeps the lake's tables fast: merges small files, removes old snapshots and files without a table.

In the worker, table after table, as far as needed; the ledgers in the tables stay readable, and landings go on. A run
that ends early, by its budget or as failed, leaves nothing by halves: the next one goes on.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Param

from airflow_lakestream.operators.maintain import LakestreamMaintainOperator

with DAG(
    dag_id="lake_maintenance",
    schedule="0 3 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    # Lists and numbers of the form keep their types.
    render_template_as_native_obj=True,
    tags=["lakestream"],
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
        "budget": Param(
            "2h",
            type="string",
            pattern=r"^\d+(\.\d+)?[smhd]$",
            title="Budget",
            description="No work begins after this time; the next run goes on.",
        ),
    },
) as dag:
    LakestreamMaintainOperator(
        task_id="maintain",
        tables="{{ params.tables }}",
        expire={"older_than": "{{ params.expire_older_than }}"},
        remove_orphans={"older_than": "{{ params.orphans_older_than }}", "longest_run": "{{ params.longest_run }}"},
        budget="{{ params.budget }}",
        retries=2,
    )
