"""Variables `${...}` in a pipeline's file: an Airflow variable, or a field of a connection; never a secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from airflow_lakestream.core.secrecy import MASKED, is_secret_name, url_holds_secret

Lookup = Callable[[str], str]

_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_OF_CONNECTION = re.compile(r"connection:([\w.-]+)\.(host|port|schema|login|conn_type)", re.ASCII)
_WHERE = "Secrets belong into an Airflow connection: write its id."


def looked_up(variable: Callable[[str], object], connection: Callable[[str], Mapping[str, object] | None]) -> Lookup:
    """Return a function from the name in `${NAME}` to the value.

    The function raises LookupError for an unknown or malformed name, and for a secret. The error's text is the problem,
    and never contains the value.

    :param variable: returns an Airflow variable, or None.
    :param connection: returns the fields of a connection, or None. Only fields that are not secret are used.
    """

    def look(name: str) -> str:
        if name.startswith("connection:"):
            return _field(name, connection)
        if not _NAME.fullmatch(name):
            known = "Write ${NAME} for an Airflow variable, or ${connection:ID.host} for a field of a connection"
            raise LookupError(
                f"${{{name}}} is not the name of a variable. {known} (host, port, schema, login, conn_type)."
            )
        if is_secret_name(name) or MASKED.search(name):
            raise LookupError(f"${{{name}}} has the name of a secret, and a pipeline is shown. {_WHERE}")
        found = variable(name)
        if found is None:
            raise LookupError(f"there is no Airflow variable {name}. Set it: airflow variables set {name} VALUE.")
        if url_holds_secret(str(found)):
            raise LookupError(f"${{{name}}} is a URL with a secret in it. {_WHERE}")
        return str(found)

    return look


def _field(name: str, connection: Callable[[str], Mapping[str, object] | None]) -> str:
    match = _OF_CONNECTION.fullmatch(name)
    if match is None:
        raise LookupError(f"${{{name}}}: of a connection there are host, port, schema, login and conn_type. {_WHERE}")
    conn_id, field = match.groups()
    found = connection(conn_id)
    if found is None:
        raise LookupError(f"${{{name}}}: there is no connection {conn_id}. Add it, or correct the name.")
    if found.get(field) is None:
        raise LookupError(f"${{{name}}}: the connection {conn_id} has no {field}.")
    text = str(found[field])
    # A host without a scheme may contain a login.
    if url_holds_secret(text) or url_holds_secret(f"any://{text}"):
        raise LookupError(f"${{{name}}}: the connection's {field} has a secret in it. {_WHERE}")
    return text
