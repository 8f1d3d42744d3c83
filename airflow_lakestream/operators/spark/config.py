"""Configuration of a driver: the operator's arguments and the connections, in a file readable only by the owner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_lakestream.config.arguments import AVAILABLE_NOW
from airflow_lakestream.core.policies import is_given
from airflow_lakestream.driver.job_folder import DriverConfig
from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.delta_storage import DeltaStorageHook
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.hooks.registry import registry_of
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.apps import DELTA_APPS, MAINTAIN_ICEBERG, check_app
from airflow_lakestream.spark.inputs import fingerprint, inputs_of
from airflow_lakestream.spark.maintenance.config import MaintenanceConfig


@dataclass(frozen=True)
class ConnectionIds:
    """Ids of Airflow's connections for source and target of the records."""

    kafka: str | None
    iceberg: str | None
    storage: str | None = None


def configure_bundled(
    app: str, arguments: Mapping[str, Any], query: Mapping[str, Any], connections: ConnectionIds
) -> DriverConfig:
    """Configure a bundled app, before any submission. Raises InvalidArgument with the wrong key.

    :param arguments: the app's own arguments.
    :param query: checkpoint_location, trigger, max_batches, max_offsets_per_trigger, owner; without a query
        lease_location and run_id.
    """
    check_app(app)
    given = {key: value for key, value in query.items() if is_given(value)}
    if app == MAINTAIN_ICEBERG:
        return _maintenance(arguments, given, connections)
    return _landing(app, arguments, given, connections)


def _landing(
    app: str, landing: Mapping[str, Any], query: Mapping[str, Any], connections: ConnectionIds
) -> DriverConfig:
    if connections.kafka is None:
        raise InvalidArgument("kafka_conn_id", f"is None, but the app {app!r} needs a connection.")
    kafka = KafkaHook(connections.kafka)
    arguments = dict(landing)
    formats = (arguments.get("format", "json"), arguments.get("key_format"))
    if (registry := registry_of(arguments.get("schema_registry"), kafka, *formats)) is not None:
        arguments["schema_registry"] = registry
    given = {
        "app": app,
        "kafka": kafka.configuration(),
        **_lake(app, connections),
        "landing": arguments,
        **query,
    }
    config = AppConfig.parse(given)
    return DriverConfig(config.to_dict(), fingerprint(config), inputs_of(config))


def _maintenance(work: Mapping[str, Any], query: Mapping[str, Any], connections: ConnectionIds) -> DriverConfig:
    lease_keys = {key: query[key] for key in ("owner", "lease_location") if key in query}
    for key, usual in (("trigger", AVAILABLE_NOW), ("max_batches", None), ("max_offsets_per_trigger", None)):
        if query.get(key) != usual:
            raise InvalidArgument(key, f"goes with a query; {MAINTAIN_ICEBERG} has no query.", "Leave it out.")
    given = {"app": MAINTAIN_ICEBERG, **_lake(MAINTAIN_ICEBERG, connections), "maintenance": dict(work), **lease_keys}
    config = MaintenanceConfig.parse(given)
    content = config.to_dict()
    _check_json(content)
    return DriverConfig(content, config.fingerprint, config.inputs)


def configure_own(
    application: str,
    app_config: Mapping[str, Any],
    query: Mapping[str, Any],
    connections: ConnectionIds,
) -> DriverConfig:
    """Configure a program of the user: own arguments, the query's arguments, the connections, and the lease."""
    kafka = KafkaHook(connections.kafka).configuration() if connections.kafka else {}
    catalog = _catalog(connections.iceberg) if connections.iceberg else {}
    storage = _storage(connections.storage) if connections.storage else {}
    inputs = {"application": Path(application).name}
    same = {**query, "app_config": dict(app_config), "application": application, "catalog": catalog.get("name")}
    same |= {"owner": "", "run_id": "", "kafka": kafka.get("bootstrap.servers")}
    content = {
        **app_config,
        **{key: value for key, value in query.items() if is_given(value)},
        **({"kafka": kafka} if kafka else {}),
        **({"catalog": catalog} if catalog else {}),
        **({"storage": storage} if storage else {}),
        "inputs": inputs,
        "fingerprint": fingerprint_of(same),
    }
    _check_json(content)
    return DriverConfig(content, content["fingerprint"], inputs)


def _check_json(content: Mapping[str, Any]) -> None:
    try:
        json.dumps(content)
    except TypeError as e:
        raise InvalidArgument("app_config", f"it can't be written as JSON: {e}.") from e


def _lake(app: str, connections: ConnectionIds) -> dict[str, Any]:
    if app in DELTA_APPS:
        return {"storage": _storage(connections.storage)}
    if is_given(connections.storage):
        apps = " and ".join(map(repr, DELTA_APPS))
        raise InvalidArgument(
            "storage_conn_id", f"goes with {apps}; for other apps, the catalog contains the tables' locations."
        )
    if connections.iceberg is None:
        raise InvalidArgument("iceberg_conn_id", f"is None, but the app {app!r} needs a connection.")
    return {"catalog": _catalog(connections.iceberg)}


def _storage(conn_id: str | None) -> dict[str, str]:
    return dict(DeltaStorageHook(conn_id if is_given(conn_id) else None).open_storage().options)


def _catalog(conn_id: str) -> dict[str, Any]:
    return {"name": conn_id, "properties": IcebergHook(conn_id).properties()}
