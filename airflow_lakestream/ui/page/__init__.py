"""The page of all streams: what Airflow's own database tells of them. It opens no Kafka and no catalog."""
