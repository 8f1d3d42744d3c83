"""Arguments of operators: names of templated arguments, arguments of decoding, and the interval of the run."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any, TypeVar

from airflow_lakestream.config.decoding import DecodingSettings
from airflow_lakestream.config.literals import Check, check_literals
from airflow_lakestream.config.setting import SettingTaker
from airflow_lakestream.config.settings import SETTINGS
from airflow_lakestream.core.policies import ValueFormat, is_given
from airflow_lakestream.core.secrecy import refuse_shown
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import DEFAULT, LAKES
from airflow_lakestream.operators.sql_template import check_written_out
from airflow_lakestream.registry.config import refuse_secrets

Init = Callable[..., None]
Operator = TypeVar("Operator", bound=type)
# Arguments with texts that Airflow's UI and database show, and that may have secrets in them.
_SHOWN_IN_AIRFLOW = ("table", "table_properties", "sql", "checkpoint_location", "topic_url", "table_url")


def templated(init: Init, *excluded: str) -> Sequence[str]:
    """Return the names of an operator's own templated arguments.

    These are the keyword-only parameters of `init`, except `excluded`.
    """
    return tuple(name for name in _keyword_names(init) if name not in excluded)


@functools.cache
def _keyword_names(init: Init) -> Sequence[str]:
    parameters = inspect.signature(init).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


def check_written_flags(**flags: object) -> None:
    """Raise InvalidArgument for a value other than True or False in an argument that is not templated."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            problem = f"{value!r} is neither True nor False, and no task renders this argument."
            raise InvalidArgument(name, problem, "Write True or False.")


def extras_of(operator: Any) -> Sequence[str]:
    """Return the extras needed by the formats of a landing, from an operator's rendered arguments."""
    formats = {operator.format, getattr(operator, "key_format", None)}
    return [
        *LAKES.get(str(getattr(operator, "table_format", None)), DEFAULT).extras,
        *(("protobuf",) if ValueFormat.PROTOBUF in formats else ()),
    ]


def set_arguments(
    operator: Any, operator_class: type, values: Mapping[str, Any], checks: Mapping[str, Check] | None = None
) -> None:
    """Set the arguments of an operator's class as attributes, and check literals, where the DAG is parsed.

    Raises InvalidArgument, also for a secret, before Airflow stores the DAG anywhere.

    :param operator_class: the class whose `__init__` calls this function.
    :param values: the arguments by name, such as `locals()`.
    :param checks: checks of literals in place of the settings' own checks.
    """
    names = _keyword_names(vars(operator_class)["__init__"])
    _set({name: values[name] for name in names if name in values}, operator, checks)


def _set(arguments: dict[str, Any], operator: Any, checks: Mapping[str, Check] | None = None) -> None:
    """Set arguments as attributes of an operator, and check literals. Raises InvalidArgument."""
    refuse_secrets(arguments.get("schema_registry") or "")
    for name in _SHOWN_IN_AIRFLOW:
        refuse_shown(name, arguments.get(name))
    if "schema" in arguments:
        arguments["schema"] = plain_schema(arguments["schema"])
    for name, value in arguments.items():
        # A duration becomes seconds: the arguments of a trigger have to be plain values.
        setattr(operator, name, value.total_seconds() if isinstance(value, timedelta) else value)
    check_literals(arguments, checks)


def plain_schema(schema: Any) -> Any:
    """Return a schema in a form for DAGs: text or an Iceberg schema.

    An Arrow schema would show as the address of a buffer, and make Airflow see another DAG at each parse.
    """
    if schema is None or isinstance(schema, str):
        return schema
    from airflow_lakestream.tables.schema.columns import to_schema

    return to_schema(schema)


def documented(taker: SettingTaker = SettingTaker.LANDING) -> Callable[[Operator], Operator]:
    """Return a decorator that adds the texts of `config.settings` to an operator's docstring.

    An argument that the docstring already describes keeps its text.
    """

    def decorate(operator_class: Operator) -> Operator:
        doc = inspect.cleandoc(operator_class.__doc__ or "")
        lines = [doc]
        for name in _keyword_names(vars(operator_class)["__init__"]):
            setting = SETTINGS.get(name)
            if setting and not re.search(rf":param {name}:", doc):
                lines.append(f":param {name}: {setting.text(taker).rstrip('.')} (templated)")
        operator_class.__doc__ = "\n".join(lines)
        return operator_class

    return decorate


def takes_decoding(init: Init) -> Init:
    """Decorate an operator's `__init__`: add the arguments of `config.decoding`, set as attributes.

    The arguments are part of the new signature, so that Airflow finds them in `default_args`.

    :param init: an `__init__` with keyword-only parameters, and `**kwargs` as the last parameter.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    decoding = {
        setting.name: inspect.Parameter(setting.name, keyword, default=setting.default, annotation=setting.type)
        for setting in fields(DecodingSettings)
    }
    signature = inspect.signature(init)
    *own, var_keyword = signature.parameters.values()

    @functools.wraps(init)
    def init_with_decoding(self: Any, **kwargs: Any) -> None:
        arguments = {name: kwargs.pop(name, parameter.default) for name, parameter in decoding.items()}
        init(self, **kwargs)
        check_written_out(arguments["sql"], arguments["sql_input"])
        _set(arguments, self)

    parameters = [*own, *decoding.values(), var_keyword]
    # Mypy does not know this attribute; `inspect` reads it.
    init_with_decoding.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # see above
    return init_with_decoding


NAMES = ("interval_start", "interval_end")


def resolve_interval(context: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return start and end of the run's interval, unparsed, from the first source with a start or an end.

    The sources, in this order: the operator's arguments, the run's conf, the run's params, the run's data interval.
    Raises InvalidArgument for a source with only a start or only an end, and for a missing or empty data interval.

    :param given: the operator's arguments; only `interval_start` and `interval_end` are used.
    """
    dag_run = context.get("dag_run")
    conf = getattr(dag_run, "conf", None) or {}
    for source, values in (("arguments", given), ("conf", conf), ("params", context.get("params") or {})):
        bounds = {name: values.get(name) for name in NAMES if is_given(values.get(name))}
        if len(bounds) == 1:
            (missing,) = set(NAMES) - set(bounds)
            raise InvalidArgument(missing, f"is missing, while the {source} give {next(iter(bounds))}.")
        if bounds:
            return bounds
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if start is None or end is None:
        raise InvalidArgument(
            "interval_start",
            "the run has no data interval (it was triggered without a logical date).",
            "Trigger it with a logical date, or give interval_start and interval_end in its conf.",
        )
    if start == end:
        raise InvalidArgument(
            "interval_start",
            f"the run's data interval is empty, it starts and ends at {start}: that is what a plain cron schedule "
            "gives in Airflow 3.",
            "Schedule the DAG by CronDataIntervalTimetable, or give interval_start and interval_end.",
        )
    return {"interval_start": start, "interval_end": end}
