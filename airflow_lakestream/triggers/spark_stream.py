"""Trigger that watches a Spark driver. The class must keep its path, which Airflow's database has for waiting tasks."""

from __future__ import annotations

from airflow_lakestream.triggers.driver import DriverTrigger


class SparkStreamTrigger(DriverTrigger):
    """Watches a Spark driver, see `DriverTrigger`."""

    engine = "spark"
