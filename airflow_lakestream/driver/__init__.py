"""A driver that runs beside Airflow, of whatever engine: its lease, its progress, and what to do about it."""
