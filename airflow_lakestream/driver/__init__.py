"""A driver process outside Airflow, for any engine: lease, progress and supervision."""
