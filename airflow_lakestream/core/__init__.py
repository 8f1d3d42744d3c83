"""The vocabulary and the algorithms, with the standard library alone: no Airflow, Kafka, Iceberg or Arrow."""
