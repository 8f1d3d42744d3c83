"""Literal arguments in a DAG file, checked when the file is parsed.

Templates and results of another task are left to the run, which checks everything. Imports nothing that a
DAG's parser would have to wait for; so DDL and SQL are left to the run, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial

from airflow_lakestream.config.checks import refuse_incompatible_with_checks
from airflow_lakestream.config.setting import Check as Check
from airflow_lakestream.config.setting import RecordEnvelope
from airflow_lakestream.config.settings import SETTINGS
from airflow_lakestream.core.policies import OF_INPUT, choose, is_given, is_literal
from airflow_lakestream.core.routing import TableTemplate
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import LakeCapability, lake_named, lake_of

# Checks of a mirror, in place of a landing's.
OF_MIRROR: Mapping[str, Check] = {"envelope": partial(choose, RecordEnvelope)}
_TEMPLATE = re.compile(r"\{[{%#].*?(?:[}%#]\}|$)", re.DOTALL)


def check_literals(given: Mapping[str, object], checks: Mapping[str, Check] | None = None) -> None:
    """Refuse wrong literal arguments, by name. Raises InvalidArgument.

    Arguments with templates are not checked. The table's name is checked only if its format is literal, too, or not
    given.

    :param given: all arguments, by name.
    :param checks: for further arguments, or in place of a landing's.
    """
    own, literal = checks or {}, {name: value for name, value in given.items() if is_given(value) and is_literal(value)}
    for name, value in literal.items():
        if name in own:
            own[name](name, value)
        elif name in SETTINGS:
            SETTINGS[name].parse(value)
    if "checks" in literal:
        refuse_incompatible_with_checks(literal)
    if "table" in literal and ("table_format" in literal or not is_given(given.get("table_format"))):
        _check_table(str(literal["table"]), literal.get("table_format"))


def templates_in(name: str, value: object) -> Iterator[str]:
    """Yield the templates in an argument, as Airflow renders templates; `{{ input }}` of a statement is not a template.

    :param name: the argument's name.
    """
    if isinstance(value, str):
        text = OF_INPUT.sub("", value) if name == "sql" else value
        yield from _TEMPLATE.findall(text)
    elif isinstance(value, Mapping):
        for item in value.items():
            yield from templates_in("", item)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from templates_in("", one)


def refuse_templates(given: Mapping[str, object]) -> None:
    """Refuse templates outside of Airflow's tasks, since only a task renders templates. Raises InvalidArgument."""
    for name, value in given.items():
        for template in templates_in(name, value):
            problem = f"{template!r} is a template, and only a task of Airflow renders it."
            raise InvalidArgument(name, problem, "Write its value, or run the DAG.")


def _check_table(table: str, given_format: object) -> None:
    lake = lake_of(table) if given_format is None else lake_named("table_format", given_format)
    if LakeCapability.FAN_OUT in lake.can:
        TableTemplate.parse(table)
    else:
        lake.check_name(table)
