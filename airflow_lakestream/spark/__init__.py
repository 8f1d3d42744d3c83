"""Kafka topics on Spark: the bundled apps and their modules. No Airflow; pyspark only inside functions."""
