"""The page of all streams, read from Airflow's own database: neither Kafka nor a catalog is asked."""
