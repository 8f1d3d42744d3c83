"""The maintenance, by Spark, of Iceberg tables that records are landed in."""

from airflow_lakestream.spark.maintenance.work import maintain as maintain
from airflow_lakestream.spark.maintenance.work import open_maintenance_session as open_maintenance_session
