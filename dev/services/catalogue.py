"""All services, and what every one that runs tells of itself."""

from __future__ import annotations

from typing import Protocol

from dev.services.airflow import Airflow
from dev.services.azure import Azure
from dev.services.brokers import Broker
from dev.services.connect import Connect
from dev.services.flink import FlinkDaemon
from dev.services.gcs import Gcs
from dev.services.glue import Glue
from dev.services.hdfs import HdfsDaemon
from dev.services.kafka import Kafka
from dev.services.kubernetes import Kubernetes
from dev.services.mariadb import MariaDb
from dev.services.metastore import Metastore
from dev.services.postgres import Postgres
from dev.services.registry import Registry
from dev.services.rest_catalog import RestCatalog
from dev.services.s3 import S3
from dev.services.spark import SparkDaemon
from dev.services.yarn import YarnDaemon


class Service(Protocol):
    """A running service, as its clients see it."""

    @property
    def ports(self) -> dict[str, int]:
        """Its ports, by what they are for."""

    def healthy(self, timeout: float = 2) -> bool:
        """Whether it answers."""


# In the order of their start; the way down is the reverse.
HANDLES: dict[str, type[Service]] = {
    # Its bridge is where others listen for pods.
    "kubernetes": Kubernetes,
    "kafka": Kafka,
    "broker-1": Broker,
    "broker-2": Broker,
    "broker-3": Broker,
    "registry": Registry,
    "s3": S3,
    "gcs": Gcs,
    "careless-gcs": Gcs,
    "azure": Azure,
    "hdfs-name-node": HdfsDaemon,
    "hdfs-data-node": HdfsDaemon,
    "postgres": Postgres,
    "metastore": Metastore,
    "old-metastore": Metastore,
    "mariadb": MariaDb,
    "mariadb-2": MariaDb,
    "rest-catalog": RestCatalog,
    "glue": Glue,
    "careless-glue": Glue,
    "connect": Connect,
    "spark-master": SparkDaemon,
    "spark-worker": SparkDaemon,
    "spark-worker-2": SparkDaemon,
    "yarn-manager": YarnDaemon,
    "yarn-node": YarnDaemon,
    "flink-manager": FlinkDaemon,
    "flink-worker": FlinkDaemon,
    "flink-gateway": FlinkDaemon,
    "old-flink-manager": FlinkDaemon,
    "old-flink-worker": FlinkDaemon,
    "old-flink-gateway": FlinkDaemon,
    "airflow": Airflow,
}
SERVICES = tuple(HANDLES)
