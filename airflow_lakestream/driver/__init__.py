"""A driver process that runs outside Airflow, for any engine: its lease, its progress, and its supervision."""
