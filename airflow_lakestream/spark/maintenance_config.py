"""By its former name: `airflow_lakestream.spark.maintenance.config`."""

from airflow_lakestream.spark.maintenance.config import MaintenanceConfig as MaintenanceConfig
