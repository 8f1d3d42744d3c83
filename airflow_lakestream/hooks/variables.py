"""Airflow's variables, and what connections say, for files that name them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from airflow.configuration import ensure_secrets_loaded
from airflow.sdk import Variable

from airflow_lakestream.hooks.store import fields_of

log = logging.getLogger(__name__)


def airflow_variables() -> tuple[Callable[[str], object], Callable[[str], Mapping[str, object] | None]]:
    """Return what looks up a variable, None if there is none; and a connection's fields, secrets included."""
    return lambda name: Variable.get(name, default=None), fields_of


def variable_outside_airflow(name: str) -> str | None:
    """Return a variable as `airflow variables get` finds it, None if there is none.

    Outside of Airflow `Variable.get` writes a traceback into the log for each backend that can't be asked, such as a
    database that nobody has made.
    """
    for backend in ensure_secrets_loaded():
        try:
            found: str | None = backend.get_variable(key=name)
        except Exception as error:  # noqa: BLE001  # as Airflow does: the next one is asked
            log.debug("%s can't be asked for the variable %s: %s", type(backend).__name__, name, error)
            continue
        if found is not None:
            return found
    return None
