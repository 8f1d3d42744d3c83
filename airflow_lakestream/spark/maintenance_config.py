"""Kept for old imports; now `airflow_lakestream.spark.maintenance.config`."""

from airflow_lakestream.spark.maintenance.config import MaintenanceConfig as MaintenanceConfig
