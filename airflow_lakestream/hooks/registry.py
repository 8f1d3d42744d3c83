"""A task's schema registry: from an argument, an Airflow connection, or the Kafka connection."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import mask_secret

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.core.printable import url_of
from airflow_lakestream.decode.known_formats import uses_registry
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.connections import connection_of, texts_of
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.registry.config import RegistryConfig, is_address, refuse_secrets

_FIELDS = "host (with https:// where it is that), port, login and password"
_EXTRA = "url, token, ca_file, cert_file, key_file, key_password, timeout, retries"


def registry_of(value: Any, kafka: KafkaHook, *formats: object) -> RegistryConfig | None:
    """Return a task's schema registry with secrets, which Airflow masks from here on, or None without a registry.

    :param value: `schema_registry` as the user gave it: a URL, a mapping without secrets, the id of a connection, or
        None for the Kafka connection's registry, which is used only if one of the formats needs a registry.

    Raises InvalidArgument.
    """
    if not is_given(value):
        registry = kafka.registry() if uses_registry(*formats) else None
    elif is_address(value):
        refuse_secrets(value)
        registry = RegistryConfig.parse(value)
    else:
        registry = _of_connection(str(value).strip())
    for secret in (registry.password, registry.token, registry.key_password) if registry is not None else ():
        if secret:
            mask_secret(secret)
    return registry


def _of_connection(conn_id: str) -> RegistryConfig:
    """Return the registry that a connection describes. Raises InvalidArgument."""
    remedy = f"Add one with {_FIELDS}, whose extra may have {_EXTRA}; or write a URL."
    connection = connection_of("schema_registry", conn_id, remedy)
    settings: dict[str, Any] = texts_of("schema_registry", connection)
    if connection.host:
        settings.setdefault("url", url_of(connection.host, connection.schema, connection.port))
    if connection.login:
        settings |= {"username": connection.login, "password": connection.password or ""}
    elif connection.password:
        # A password without a login is a token, as in connections of services that know tokens only.
        settings.setdefault("token", connection.password)
    try:
        return RegistryConfig.parse(settings)
    except InvalidArgument as e:
        problem = f"connection {conn_id!r} can't be used ({e})."
        raise InvalidArgument("schema_registry", problem, f"Set {_FIELDS}.") from e
