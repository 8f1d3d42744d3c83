"""Connections as JSON in environment variables, read without Airflow, since an import of Airflow takes seconds.

Only if the result equals that of the hooks. Everything that needs more, such as a token or a secrets backend, is
left to the hooks: the functions return None then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from configparser import Error, RawConfigParser
from pathlib import Path
from typing import Any

from airflow_lakestream.kafka.settings import problem_of
from airflow_lakestream.registry.config import is_client_setting

_FIELDS = {"conn_type", "description", "host", "login", "password", "port", "schema", "extra"}
# Catalogs that need only their properties, and that can compare and set.
_CATALOGS = ("rest", "sql", "glue", "hive")
# Airflow's settings with their accepted values: other values concern the origin of connections, or shared disks.
_USUAL = {("secrets", "backend"): "", ("core", "executor"): "LocalExecutor"}


def kafka_settings(conn_id: str) -> dict[str, Any] | None:
    """Return librdkafka's configuration, as `KafkaHook.configuration` does, or None if the hook is needed."""
    connection = _connection(conn_id)
    if connection is None:
        return None
    extra = connection["extra"]
    servers = str(extra.get("bootstrap.servers") or "")
    needs_a_hook = any(name.endswith("_cb") or name == "on_commit" for name in extra) or "OAUTHBEARER" in extra.values()
    has_login = bool(connection.get("login") or connection.get("password"))
    is_wrong = problem_of(extra, has_login=has_login) is not None
    if not servers or "cloud.goog" in servers or needs_a_hook or is_wrong:
        return None
    return {name: value for name, value in extra.items() if not is_client_setting(name)}


def catalog_properties(conn_id: str) -> dict[str, Any] | None:
    """Return PyIceberg's properties of a catalog, as `IcebergHook.catalog` does, or None if the hook is needed."""
    connection = _connection(conn_id)
    if connection is None:
        return None
    properties = {"type": "rest", **connection["extra"]}
    if not all(isinstance(value, str) for value in properties.values()):
        return None
    if host := connection.get("host"):
        properties["uri"] = host.rstrip("/")
    login, password = connection.get("login"), connection.get("password")
    if properties["type"] not in _CATALOGS or bool(login) != bool(password):
        return None
    if login and properties["type"] != "rest":
        return None
    if login:
        properties["credential"] = f"{login}:{password}"
    return properties


def _connection(conn_id: str) -> dict[str, Any] | None:
    text = os.environ.get(f"AIRFLOW_CONN_{conn_id.upper()}", "")
    if not text.lstrip().startswith("{") or not _is_airflow_as_usual():
        return None
    try:
        found = json.loads(text)
        extra = found.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
    except ValueError:
        return None
    return found | {"extra": extra} if isinstance(extra, Mapping) and set(found) <= _FIELDS else None


def _is_airflow_as_usual() -> bool:
    """Return whether Airflow looks into the environment first, and runs tasks on this machine alone."""
    if any(name.startswith(("AIRFLOW__SECRETS__", "AIRFLOW__WORKERS__SECRETS")) for name in os.environ):
        return False
    home = Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow")
    file = Path(os.environ.get("AIRFLOW_CONFIG") or home / "airflow.cfg")
    config = RawConfigParser(strict=False)
    try:
        config.read(file.expanduser())
    except Error:
        return False
    for (section, name), usual in _USUAL.items():
        found = os.environ.get(f"AIRFLOW__{section}__{name}".upper(), config.get(section, name, fallback=usual))
        if found.strip() not in ("", usual):
            return False
    return not config.get("workers", "secrets_backend", fallback="").strip()
