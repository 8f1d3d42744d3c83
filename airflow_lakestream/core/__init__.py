"""The vocabulary and the algorithms, in the standard library alone: no Airflow, Kafka, Iceberg or Arrow in here."""
