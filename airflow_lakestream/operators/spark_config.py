"""What a driver is told: the operator's arguments and the connections, in a file that only its owner can read."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.hooks.registry import registry_of
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.inputs import fingerprint, inputs_of
from airflow_lakestream.spark.lease_record import fingerprint_of

_CONFIG = "app.json"
_SECRET_FILES = (_CONFIG, "spark.properties")
# Of earlier drivers, for their logs.
_KEPT_FOLDERS = 10


@dataclass(frozen=True)
class DriverConfig:
    """A configuration that is complete; `content` holds secrets, `inputs` and `fingerprint` do not."""

    content: Mapping[str, Any]
    fingerprint: str
    inputs: Mapping[str, str]

    def write(self, folder: Path) -> Path:
        """Write it into a folder, and return the file's path."""
        file = folder / _CONFIG
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            json.dump(self.content, opened)
        return file


def bundled(
    app: str,
    landing: Mapping[str, Any],
    query: Mapping[str, Any],
    kafka_conn_id: str | None,
    iceberg_conn_id: str | None,
) -> DriverConfig:
    """Configure a bundled app. Raises InvalidArgument, which names the key, before anything is submitted.

    :param landing: the app's own arguments.
    :param query: of the query: checkpoint_location, trigger, max_batches, max_offsets_per_trigger, owner.
    """
    if kafka_conn_id is None or iceberg_conn_id is None:
        missing = "kafka_conn_id" if kafka_conn_id is None else "iceberg_conn_id"
        raise InvalidArgument(missing, f"is None, which the app {app!r} can't do without.")
    kafka = KafkaHook(kafka_conn_id)
    told = dict(landing)
    formats = (told.get("format", "json"), told.get("key_format"))
    if (registry := registry_of(told.get("schema_registry"), kafka, *formats)) is not None:
        told["schema_registry"] = registry
    given = {
        "app": app,
        "kafka": kafka.configuration(),
        "catalog": _catalog(iceberg_conn_id),
        "landing": told,
        **{key: value for key, value in query.items() if is_given(value)},
    }
    config = AppConfig.parse(given)
    return DriverConfig(config.to_dict(), fingerprint(config), inputs_of(config))


def own(
    application: str,
    app_config: Mapping[str, Any],
    query: Mapping[str, Any],
    kafka_conn_id: str | None,
    iceberg_conn_id: str | None,
) -> DriverConfig:
    """Configure a program of the user's: what it was given, the query's arguments, the connections, and its lease."""
    kafka = KafkaHook(kafka_conn_id).configuration() if kafka_conn_id else {}
    catalog = _catalog(iceberg_conn_id) if iceberg_conn_id else {}
    inputs = {"application": Path(application).name}
    same = {**query, "app_config": dict(app_config), "application": application, "catalog": catalog.get("name")}
    same |= {"owner": "", "kafka": kafka.get("bootstrap.servers")}
    content = {
        **app_config,
        **{key: value for key, value in query.items() if is_given(value)},
        **({"kafka": kafka} if kafka else {}),
        **({"catalog": catalog} if catalog else {}),
        "inputs": inputs,
        "fingerprint": fingerprint_of(same),
    }
    try:
        json.dumps(content)
    except TypeError as e:
        raise InvalidArgument("app_config", f"it has no JSON: {e}.") from e
    return DriverConfig(content, content["fingerprint"], inputs)


def new_folder(root: Path, location: str) -> Path:
    """Make the folder of one driver, which only its owner can enter; those of long ago are removed."""
    stream = root / fingerprint_of({"location": location})
    earlier = sorted(path for path in stream.glob("*") if path.is_dir())
    for path in earlier:
        forget_secrets(path)
    for path in earlier[: -_KEPT_FOLDERS + 1]:
        shutil.rmtree(path, ignore_errors=True)
    folder = stream / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"
    folder.mkdir(mode=0o700, parents=True)
    return folder


def forget_secrets(folder: Path) -> None:
    """Remove the files of a driver's folder that may hold secrets; a driver that works has read them."""
    for name in _SECRET_FILES:
        (folder / name).unlink(missing_ok=True)


def _catalog(conn_id: str) -> dict[str, Any]:
    return {"name": conn_id, "properties": IcebergHook(conn_id).properties()}
