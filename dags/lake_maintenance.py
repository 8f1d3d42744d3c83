"""Keeps the lake's tables fast: small files into large ones, old snapshots and files that no table has removed.

By Spark and Iceberg's own procedures, table after table; what the tables know of Kafka's offsets stays readable. Not
for runs whose Spark driver is on another machine than the worker (deploy mode cluster): the configuration, which holds
what the connection holds, is a file beside the worker.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pendulum
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param

from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.operators.base import airflow_errors
from airflow_lakestream.spark.apps import app_path
from airflow_lakestream.spark.catalog_options import catalog_packages
from airflow_lakestream.spark.maintenance_config import MaintenanceConfig
from airflow_lakestream.spark.packages import resolve


class MaintainIcebergOperator(SparkSubmitOperator):
    """Submit `maintain_iceberg`; its configuration is a file that only its owner can read, and is gone afterwards.

    :param maintenance: the section `maintenance` of the app's configuration (templated)
    :param iceberg_conn_id: connection of type `iceberg`
    """

    template_fields = (*SparkSubmitOperator.template_fields, "maintenance")

    def __init__(self, *, maintenance: dict[str, Any], iceberg_conn_id: str = "iceberg_default", **kwargs: Any) -> None:
        super().__init__(application=app_path("maintain_iceberg"), **kwargs)
        self.maintenance = maintenance
        self.iceberg_conn_id = iceberg_conn_id

    def execute(self, context: Any) -> None:
        """Check the configuration, write it, and run the app."""
        with airflow_errors():
            properties = IcebergHook(self.iceberg_conn_id).properties()
            catalog = {"name": self.iceberg_conn_id, "properties": properties}
            config = MaintenanceConfig(catalog=catalog, maintenance=self.maintenance)
            self.jars = self.jars or ",".join(resolve(catalog_packages(properties)))
        # The driver needs this Python's packages, and the worker may have been started by its full path.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        self.env_vars = {"PATH": path, "PYSPARK_PYTHON": sys.executable, **(self.env_vars or {})}
        with TemporaryDirectory() as folder:
            self.application_args = ["--config", str(config.write(Path(folder) / "app.json"))]
            super().execute(context)


with DAG(
    dag_id="lake_maintenance",
    schedule="0 3 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    # Lists and numbers of the form stay what they are.
    render_template_as_native_obj=True,
    tags=["lakestream", "spark"],
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
    MaintainIcebergOperator(
        task_id="maintain",
        maintenance={
            "tables": "{{ params.tables }}",
            "compact": True,
            "rewrite_manifests": True,
            "expire": {"older_than": "{{ params.expire_older_than }}"},
            "remove_orphans": {
                "older_than": "{{ params.orphans_older_than }}",
                "longest_run": "{{ params.longest_run }}",
            },
        },
        conf={"spark.ui.enabled": "false"},
        name="lakestream maintain_iceberg",
        retries=1,
    )
