"""Land Kafka topics in Iceberg tables as scheduled, supervised Airflow DAGs.

Only the version lives here: Spark imports this package from a zip, with no Airflow around.
"""

__version__ = "0.1.0"
