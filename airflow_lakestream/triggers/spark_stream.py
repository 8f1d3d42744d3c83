"""Waits for a Spark driver. Airflow's database keeps the triggers of waiting tasks by this path."""

from __future__ import annotations

from airflow_lakestream.triggers.driver import DriverTrigger


class SparkStreamTrigger(DriverTrigger):
    """Watches a Spark driver, see `DriverTrigger`."""

    engine = "spark"
