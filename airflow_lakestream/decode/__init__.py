"""Raw records to Arrow rows, the same in an Airflow task and on a Spark executor."""
