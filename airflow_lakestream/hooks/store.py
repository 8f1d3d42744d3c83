"""Properties of an object store, from the connection of an Iceberg catalog or of Delta tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseHook, mask_secret

from airflow_lakestream.exceptions import InvalidArgument, MissingExtra
from airflow_lakestream.hooks.connections import connection_of, find_connection, refuse_unread, texts_of
from airflow_lakestream.hooks.iceberg import IcebergHook

if TYPE_CHECKING:
    from airflow_lakestream.delta.storage import DeltaStorage

_ARGUMENT = "storage_conn_id"
# By name in the extra of a connection of type aws, the storage option of delta-rs.
_AWS_EXTRA = {
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint_url",
    "aws_session_token": "aws_session_token",
}
# The value of a storage option with one of these words in its name is masked in logs.
_SECRET_WORDS = ("key", "secret", "token", "password", "sas", "credential")


class DeltaStorageHook(BaseHook):
    """Reads a connection of type `aws`, or of type `generic` with storage options in its extra.

    Without a connection's id the worker's environment decides: variables, or the role of the instance.
    """

    def __init__(self, storage_conn_id: str | None = None) -> None:
        super().__init__()
        self.storage_conn_id = storage_conn_id

    def open_storage(self) -> DeltaStorage:
        """Return the storage. Raises InvalidArgument for an unusable connection, MissingExtra without delta-rs."""
        try:
            from airflow_lakestream.delta.storage import DeltaStorage
        except ModuleNotFoundError as e:
            raise MissingExtra("delta", e.name) from e
        return DeltaStorage(self._options())

    def _options(self) -> dict[str, str]:
        """Return the storage options of delta-rs, secrets included and masked in logs. Raises InvalidArgument."""
        if not self.storage_conn_id:
            return {}
        remedy = 'Add one of type aws, or of type generic with an extra such as {"aws_region": "eu-central-1"}.'
        connection = connection_of(_ARGUMENT, self.storage_conn_id, remedy)
        if connection.conn_type == "aws":
            options = self._aws_options(connection)
        elif connection.conn_type == "generic":
            options = texts_of(_ARGUMENT, connection)
            remedy = "Write the storage options of delta-rs into its extra."
            refuse_unread(_ARGUMENT, connection, "host", "login", "password", remedy=remedy)
        else:
            raise InvalidArgument(
                _ARGUMENT,
                f"connection {self.storage_conn_id!r} is of type {connection.conn_type!r}.",
                "Take one of type aws, or of type generic with the storage options of delta-rs in its extra.",
            )
        for key, value in options.items():
            if value and any(word in key.lower() for word in _SECRET_WORDS):
                mask_secret(value)
        return options

    def _aws_options(self, connection: Any) -> dict[str, str]:
        """Return the storage options for a connection of type aws. Raises InvalidArgument."""
        extra = texts_of(_ARGUMENT, connection)
        refuse_unread(_ARGUMENT, connection, "host", remedy="Write it as endpoint_url into the extra.")
        if not (connection.login and connection.password):
            remedy = "The key's id is the login, the secret key the password: give both, or neither."
            refuse_unread(_ARGUMENT, connection, "login", "password", remedy=remedy)
        if unknown := sorted(set(extra) - set(_AWS_EXTRA)):
            raise InvalidArgument(
                _ARGUMENT,
                f"connection {self.storage_conn_id!r}: its extra has {', '.join(unknown)}, which is not read here.",
                f"Known are {', '.join(_AWS_EXTRA)}. For a role, leave {_ARGUMENT} out and give it to the worker; or "
                "take a connection of type generic with storage options.",
            )
        options = {name: extra[key] for key, name in _AWS_EXTRA.items() if extra.get(key)}
        if connection.login:
            options |= {"aws_access_key_id": connection.login, "aws_secret_access_key": connection.password}
        if options.get("aws_endpoint_url", "").startswith("http://"):
            options["aws_allow_http"] = "true"
        return options


# Types of connections that `DeltaStorageHook` reads.
_DELTA_TYPES = ("aws", "generic")


def store_properties(conn_id: str | None) -> dict[str, str] | None:
    """Return the properties for opening the object store of a checkpoint.

    They are PyIceberg's properties for a connection of type `iceberg`, and delta-rs' storage options for `aws` and
    `generic`; secrets are included.

    :param conn_id: None or an empty text for a local checkpoint: the function then returns None.

    Raises InvalidArgument if `conn_id` names no connection, or an unusable connection.
    """
    if not conn_id:
        return None
    remedy = "Add it: it opens the checkpoint's object store."
    if connection_of("storage_conn_id", conn_id, remedy).conn_type in _DELTA_TYPES:
        return dict(DeltaStorageHook(conn_id).open_storage().options)
    return IcebergHook(conn_id).properties()


def fields_of(conn_id: str) -> dict[str, Any] | None:
    """Return a connection's fields, secrets included, with the extra as a mapping.

    Returns None if no connection has the id. Raises InvalidArgument for an unreadable connection.
    """
    connection = find_connection("connection", conn_id)
    if connection is None:
        return None
    names = ("conn_type", "host", "port", "login", "password", "schema")
    fields = {name: getattr(connection, name) for name in names if getattr(connection, name)}
    extra = connection.extra_dejson
    return {**fields, "extra": dict(extra) if isinstance(extra, Mapping) else {}}
