"""Identity of a stream in a lease: the inputs of the checkpoint, and a fingerprint of the configuration.

No secrets: a changed password does not make another stream, and no password is written to the driver's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.configuration import AppSettings
from airflow_lakestream.spark.lease import Lease
from airflow_lakestream.spark.settings.catalog import identity_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Keys that differ from one submit to the next, and keys handled below.
_NOT_OF_IT = ("kafka", "catalog", "storage", "owner", "run_id", "lease_location")
# Settings of the Kafka connection that identify the cluster.
_OF_KAFKA = ("bootstrap.servers",)


def inputs_of(config: AppConfig) -> dict[str, str]:
    """Return the permanent inputs of the checkpoint: app, topic, table and group."""
    landing = config.landing
    group = landing.get("consumer_group", "")
    return {"app": config.app, "topic": str(landing.get("topic", "")), "table": str(landing.get("table", ""))} | {
        "group": str(group)
    }


def fingerprint(config: AppConfig) -> str:
    """Return a fingerprint of a configuration: equal for two configurations if a driver may serve both."""
    known = config.to_dict()
    settings: dict[str, Any] = {key: value for key, value in known.items() if key not in _NOT_OF_IT}
    registry = config.landing.get("schema_registry")
    if registry is not None:
        address = registry.get("url") if isinstance(registry, dict) else getattr(registry, "url", registry)
        settings["landing"] = {**settings["landing"], "schema_registry": address}
    settings["kafka"] = {key: config.kafka.get(key) for key in _OF_KAFKA}
    settings["catalog"] = identity_of(config.catalog_name, config.catalog_properties)
    return fingerprint_of(settings)


def take_lease(config: AppConfig, spark: SparkSession, location: str) -> Lease:
    """Take the lease of a configuration's checkpoint, or of `lease_location`.

    Raises LeaseHeld, OtherInputs.
    """
    return lease_for(config, spark, location, fingerprint(config), inputs_of(config))


def lease_for(
    config: AppSettings, spark: SparkSession, location: str, fingerprint: str, inputs: Mapping[str, str]
) -> Lease:
    """Take a lease for any app; see `driver.lease.HeldLease.take`. Raises LeaseHeld, OtherInputs."""
    context = spark.sparkContext
    return Lease.take(
        location,
        fingerprint,
        config.owner or f"{config.app} of nobody's",
        inputs=inputs,
        application_id=context.applicationId,
        ui_url=context.uiWebUrl or "",
        properties=config.store_properties,
    )
