"""Kept for users' programs; now `airflow_lakestream.driver.progress`."""

from airflow_lakestream.driver.progress import BatchProgress as BatchProgress
from airflow_lakestream.driver.progress import ProgressLog as ProgressLog
