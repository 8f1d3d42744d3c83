"""Maintenance, by Spark, of Iceberg tables with landed records."""

from airflow_lakestream.spark.maintenance.work import maintain as maintain
from airflow_lakestream.spark.maintenance.work import open_maintenance_session as open_maintenance_session
