"""The page of all streams, from Airflow's own database. Neither Kafka nor a catalog is opened."""
