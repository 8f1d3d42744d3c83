"""Kafka topics on Spark: the bundled apps and what they are made of. No Airflow; pyspark only inside functions."""
