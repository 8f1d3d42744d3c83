"""Kafka topics on Spark: the bundled apps, and what keeps their books. No Airflow; pyspark inside functions only."""
