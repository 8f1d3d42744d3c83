"""Kept for old imports; now `airflow_lakestream.driver.lease`."""

from airflow_lakestream.driver.lease import Lease as Lease
from airflow_lakestream.driver.lease import request_stop as request_stop
