"""The maintenance of Iceberg tables that are landed into, by Spark."""

from airflow_lakestream.spark.maintenance.work import maintain as maintain
from airflow_lakestream.spark.maintenance.work import open_maintenance_session as open_maintenance_session
