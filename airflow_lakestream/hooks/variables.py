"""Airflow's variables, and fields of connections, for files with references to these."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from airflow.configuration import ensure_secrets_loaded
from airflow.sdk import Variable

from airflow_lakestream.hooks.store import fields_of

log = logging.getLogger(__name__)


def airflow_variables() -> tuple[Callable[[str], object], Callable[[str], Mapping[str, object] | None]]:
    """Return two functions for references: variable by name, and connection's fields by id.

    Secrets are included. Both functions return None for a missing name or id.
    """
    return lambda name: Variable.get(name, default=None), fields_of


def variable_outside_airflow(name: str) -> str | None:
    """Return a variable, found as by `airflow variables get`, or None if missing.

    Outside of Airflow `Variable.get` writes a traceback into the log for each backend that can't be asked, such as a
    missing database.
    """
    for backend in ensure_secrets_loaded():
        try:
            value: str | None = backend.get_variable(key=name)
        except Exception as error:  # noqa: BLE001  # as in Airflow, the next backend is asked
            log.debug("%s can't be asked for the variable %s: %s", type(backend).__name__, name, error)
            continue
        if value is not None:
            return value
    return None
