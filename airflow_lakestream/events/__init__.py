"""For tasks of DAGs started by landings; see docs/events.md."""

from airflow_lakestream.events.once import once_per_landing

__all__ = ["once_per_landing"]
