"""Trigger for a Spark driver. Airflow's database stores this path for waiting tasks."""

from __future__ import annotations

from airflow_lakestream.triggers.driver import DriverTrigger


class SparkStreamTrigger(DriverTrigger):
    """Watches a Spark driver, see `DriverTrigger`."""

    engine = "spark"
