"""Land Kafka topics in Iceberg tables as scheduled, supervised Airflow DAGs.

This module contains the version only: Spark imports the package from a zip, without Airflow.
"""

__version__ = "0.1.0"
