"""Tables allowed for the bundled DAGs: only the tables listed by the deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Param, Variable

from airflow_lakestream.exceptions import InvalidArgument

TABLES, STREAMS = "lakestream_tables", "lakestream_streams"
# Default tables of the bundled DAGs.
_DEFAULT_TABLES = ("lake.*",)
# Special characters also in JavaScript's regular expressions, which Airflow's form uses.
_SPECIAL = re.compile(r"[\\^$.+?()\[\]{}|]")


def allowed_tables() -> Sequence[str]:
    """Return the names of tables, and patterns such as lake.*, in the Airflow variable lakestream_tables.

    Without it, the tables of lakestream_streams; without either, all tables of namespace lake. Raises InvalidArgument.
    """
    tables = Variable.get(TABLES, default=None, deserialize_json=True)
    if tables is None:
        streams = Variable.get(STREAMS, default=None, deserialize_json=True)
        names = {stream.get("table") for stream in streams or () if isinstance(stream, Mapping)}
        tables = sorted(name for name in names if isinstance(name, str)) or _DEFAULT_TABLES
    is_list = isinstance(tables, list | tuple) and bool(tables)
    if not is_list or not all(isinstance(table, str) and table for table in tables):
        problem = "the Airflow variable is not a list of tables."
        raise InvalidArgument(TABLES, problem, 'Set it to JSON such as ["lake.orders", "lake.clicks*"].')
    return tuple(tables)


def table_param(default: str, description: str) -> Param:
    """Return a form's field for an allowed table.

    The field is a list of the allowed names, or a text with a pattern if one of the names has a `*`.

    :param default: the field's first value; if this table is not allowed, the first allowed table is the value.

    Raises InvalidArgument for a variable without tables.
    """
    allowed = allowed_tables()
    if any("*" in table for table in allowed):
        return Param(default, type="string", pattern=_regex(allowed), title="Table", description=description)
    # A form begins with an allowed value.
    first = default if default in allowed else allowed[0]
    return Param(first, type="string", enum=list(allowed), title="Table", description=description)


def refuse_others(context: Any) -> None:
    """Fail a task without retries if the param `table` is not an allowed table.

    Use it as the task's `pre_execute`: a form checks only its own input, but params also come from the API or another
    DAG.
    """
    table = str(context["params"]["table"])
    allowed = allowed_tables()
    if not re.fullmatch(_regex(allowed), table):
        raise AirflowFailException(
            f"table: {table!r} is not one of {', '.join(allowed)}, for which this DAG may be started. "
            f"Add it to the Airflow variable {TABLES}."
        )


def _regex(allowed: Sequence[str]) -> str:
    """Return a regular expression, for Python and JavaScript, that matches the allowed tables only."""
    parts = (_SPECIAL.sub(r"\\\g<0>", table).replace("*", ".*") for table in allowed)
    return f"^({'|'.join(parts)})$"
