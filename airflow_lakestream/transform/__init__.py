"""SQL for records on the way to the table, by DuckDB in a separate process. Uses Arrow, DuckDB and the core."""

from __future__ import annotations

from airflow_lakestream.transform.messages import FailedRecord, Transformed
from airflow_lakestream.transform.transform import SqlTransform

__all__ = ["FailedRecord", "SqlTransform", "Transformed"]
