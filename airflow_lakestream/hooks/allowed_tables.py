"""Which tables the bundled DAGs may be started for: those that the deployment names, and no others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Param, Variable

from airflow_lakestream.exceptions import InvalidArgument

TABLES, STREAMS = "lakestream_tables", "lakestream_streams"
# What the bundled DAGs land in.
_USUAL = ("lake.*",)
# Also of JavaScript, by which Airflow's form checks.
_SPECIAL = re.compile(r"[\\^$.+?()\[\]{}|]")


def allowed_tables() -> Sequence[str]:
    """Return the names of tables, and patterns such as lake.*, that the Airflow variable lakestream_tables lists.

    Without it, the tables of lakestream_streams; without either, those of the namespace lake. Raises InvalidArgument.
    """
    found = Variable.get(TABLES, default=None, deserialize_json=True)
    if found is None:
        streams = Variable.get(STREAMS, default=None, deserialize_json=True)
        named = {one.get("table") for one in streams or () if isinstance(one, Mapping)}
        found = sorted(one for one in named if isinstance(one, str)) or _USUAL
    if not isinstance(found, list | tuple) or not found or not all(isinstance(one, str) and one for one in found):
        problem = "the Airflow variable is no list of tables."
        raise InvalidArgument(TABLES, problem, 'Set it to JSON such as ["lake.orders", "lake.clicks*"].')
    return tuple(found)


def table_param(default: str, description: str) -> Param:
    """Return the field of a form that takes an allowed table; raises InvalidArgument for what names none."""
    allowed = allowed_tables()
    if any("*" in one for one in allowed):
        return Param(default, type="string", pattern=_regex(allowed), title="Table", description=description)
    # A form begins with a value that it takes.
    first = default if default in allowed else allowed[0]
    return Param(first, type="string", enum=list(allowed), title="Table", description=description)


def refuse_others(context: Any) -> None:
    """Fail a task whose table is not allowed, without retries, whoever gave the params: to be its `pre_execute`."""
    table = str(context["params"]["table"])
    allowed = allowed_tables()
    if not re.fullmatch(_regex(allowed), table):
        raise AirflowFailException(
            f"table: {table!r} is none of {', '.join(allowed)}, for which this DAG may be started. "
            f"Add it to the Airflow variable {TABLES}."
        )


def _regex(allowed: Sequence[str]) -> str:
    parts = (_SPECIAL.sub(r"\\\g<0>", one).replace("*", ".*") for one in allowed)
    return f"^({'|'.join(parts)})$"
