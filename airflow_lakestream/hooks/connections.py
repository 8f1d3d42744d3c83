"""Search of Airflow connections, and checks of their fields.

Each InvalidArgument raised here has the argument and the connection's id, never a value, which may be secret.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, conf, mask_secret

from airflow_lakestream.exceptions import InvalidArgument

# Fields that Airflow reads from a connection in JSON.
_FIELDS = {"conn_type", "description", "host", "login", "password", "port", "schema", "extra", "uri", "team_name"}


def connection_of(argument: str, conn_id: str, remedy: str) -> Any:
    """Return a connection whose extra is empty or an object in JSON.

    :param argument: name of the user's argument with the connection's id, for the error.
    :param remedy: advice for adding the connection, for the error.

    Raises InvalidArgument if the connection is missing, empty or unreadable, or if its extra is not an object.
    """
    connection = find_connection(argument, conn_id)
    if connection is None:
        raise InvalidArgument(argument, f"there is no connection {conn_id!r}.", remedy)
    if not any((connection.conn_type, connection.host, connection.login, connection.extra)):
        raise InvalidArgument(argument, f"connection {conn_id!r} is empty.", remedy)
    _check_extra(argument, connection, remedy)
    return connection


def find_connection(argument: str, conn_id: str) -> Any:
    """Return a connection, or None if the connection does not exist.

    Raises InvalidArgument if the connection's text can't be read.
    """
    # Airflow skips a text that it can't read, with a traceback that shows parts of it, and searches other backends.
    problem = _unreadable(conn_id)
    # Another backend of secrets is asked before the environment, and may have the connection.
    if problem is None or conf.get("secrets", "backend", fallback=""):
        try:
            return BaseHook.get_connection(conn_id)
        except AirflowNotFoundException:
            if problem is None:
                return None
        except (ValueError, TypeError) as e:
            # Without the error's text, which has parts of the connection.
            problem = type(e).__name__
    remedy = "Write it as JSON: text in each field, a number as port, an object as extra."
    raise InvalidArgument(argument, f"connection {conn_id!r} can't be read ({problem}).", remedy) from None


def _unreadable(conn_id: str) -> str | None:
    """Return the problem of the environment variable AIRFLOW_CONN_..., without a part of the variable's text.

    None if the text can be read as a connection, or if the variable does not exist.
    """
    name = f"AIRFLOW_CONN_{conn_id.upper()}"
    text = os.environ.get(name, "")
    try:
        if not text.startswith("{"):
            urlsplit(text).port  # noqa: B018  # raises ValueError for a bad port
            return None
        fields = json.loads(text)
        int(fields.get("port") or 0)
    except json.JSONDecodeError as e:
        return f"{name} is not JSON: {e.msg}, line {e.lineno}, column {e.colno}"
    except (ValueError, TypeError):
        return f"{name} is not a URI, or its port is not a number"
    unknown = sorted(set(fields) - _FIELDS)
    return f"{name}: a connection has no field {unknown[0]!r}" if unknown else None


def texts_of(argument: str, connection: Any, known: Collection[str] | None = None) -> dict[str, str]:
    """Return a connection's extra with all values as texts, booleans as "true" or "false"; without null values.

    :param known: all allowed names, or None if any name is allowed.

    Raises InvalidArgument for another name, a list or a mapping.
    """
    extra: dict[str, Any] = connection.extra_dejson or {}
    extra_has = f"connection {connection.conn_id!r}: its extra has"
    for name, value in extra.items():
        if known is not None and name not in known:
            remedy = f"Known are {', '.join(known)}. Correct it, or leave it out."
            raise InvalidArgument(argument, f"{extra_has} {name}, which is not read here.", remedy)
        if isinstance(value, list | Mapping):
            raise InvalidArgument(
                argument, f"{extra_has} {name}, which is a {_TYPE_NAMES[type(value)]}.", "Write a text."
            )
    values = {name: value for name, value in extra.items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def refuse_unread(argument: str, connection: Any, *fields: str, remedy: str) -> None:
    """Raise InvalidArgument if a connection has one of the fields, which nothing reads: the user expects an effect."""
    if unread := [name for name in fields if getattr(connection, name)]:
        problem = f"connection {connection.conn_id!r} has {' and '.join(unread)}, which nothing reads."
        raise InvalidArgument(argument, problem, remedy)


_TYPE_NAMES: Mapping[type, str] = {
    list: "list",
    dict: "mapping",
    str: "text",
    int: "number",
    float: "number",
    bool: "bool",
}


def _check_extra(argument: str, connection: Any, remedy: str) -> None:
    """Raise InvalidArgument unless a connection's extra is empty, null, or an object in JSON."""
    if not connection.extra:
        return
    try:
        extra = json.loads(connection.extra)
    except ValueError:
        problem = f"the extra of connection {connection.conn_id!r} is not JSON."
        raise InvalidArgument(argument, problem, remedy) from None
    if isinstance(extra, str):
        problem = (
            f"the extra of connection {connection.conn_id!r} is a text in JSON, not an object: it was encoded twice."
        )
        raise InvalidArgument(argument, problem, "Write the object itself, without quotes around it.")
    if extra is not None and not isinstance(extra, dict):
        problem = f"the extra of connection {connection.conn_id!r} is a {_TYPE_NAMES[type(extra)]}, not an object."
        raise InvalidArgument(argument, problem, remedy)


# By field of a connection, the name of Flink CDC's option.
_DATABASE_FIELDS = {
    "host": "hostname",
    "port": "port",
    "login": "username",
    "password": "password",
    "schema": "database-name",
}
_DATABASE_REMEDY = (
    "Add one with host, port, login, password, and the database's name in the field schema (or database)."
)


def connector_options(conn_id: str) -> dict[str, str]:
    """Return a database connection's address and login as options of a Flink CDC connector, secrets included.

    Airflow masks the password from here on. Raises InvalidArgument if the connection or one of its fields is missing.
    """
    connection = connection_of("database_conn_id", conn_id, _DATABASE_REMEDY)
    if connection.password:
        mask_secret(connection.password)
    if lacking := [field for field in _DATABASE_FIELDS if not getattr(connection, field)]:
        raise InvalidArgument(
            "database_conn_id", f"connection {conn_id!r} has no {' and no '.join(lacking)}.", _DATABASE_REMEDY
        )
    return {option: str(getattr(connection, field)) for field, option in _DATABASE_FIELDS.items()}
