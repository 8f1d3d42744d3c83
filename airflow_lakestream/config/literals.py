"""Literal arguments in a DAG file, checked when the file is parsed.

Templates and results of another task are left to the run, which checks everything. Imports nothing that a
DAG's parser would have to wait for; so DDL and SQL are left to the run, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

from airflow_lakestream.config import arguments
from airflow_lakestream.config.checks import parse_checks, refuse_incompatible_with_checks
from airflow_lakestream.core.formats import (
    KeyFormat,
    UnavailableValues,
    ValueEnvelope,
    ValueFormat,
    check_delimiter,
    octets_of,
)
from airflow_lakestream.core.landing.modes import parse_ranges
from airflow_lakestream.core.names import (
    FUNCTIONS,
    METADATA_NAMES,
    check_function,
    check_group,
    check_location,
    check_table_name,
)
from airflow_lakestream.core.policies import (
    OF_INPUT,
    MergeMode,
    MissingPolicy,
    ModeName,
    OnDataLoss,
    OnEmpty,
    OnError,
    OutOfRange,
    SchemaEvolution,
    SqlInput,
    StartOffset,
    StateStore,
    TableFormat,
    TimestampsFiner,
    Tombstones,
    UnknownFields,
    choose,
    is_given,
    is_template,
    seconds,
    size_in_bytes,
)
from airflow_lakestream.core.routing import NewTables, TableTemplate, check_topic_or_pattern
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue
from airflow_lakestream.registry.config import RegistryConfig, is_address

Check = Callable[[str, object], object]
_TEMPLATE = re.compile(r"\{[{%#].*?(?:[}%#]\}|$)", re.DOTALL)


def check_literals(given: Mapping[str, object], checks: Mapping[str, Check] | None = None) -> None:
    """Refuse wrong literal arguments, by name. Raises InvalidArgument.

    Arguments with templates are not checked. The table's name is checked only if its format is literal, too, or not
    given.

    :param given: all arguments, by name.
    :param checks: for further arguments, which are not a landing's.
    """
    literal = {name: value for name, value in given.items() if is_given(value) and is_literal(value)}
    for name, check in {**_CHECKS, **(checks or {})}.items():
        if name in literal:
            check(name, literal[name])
    if "checks" in literal:
        refuse_incompatible_with_checks(literal)
    if "table" in literal and ("table_format" in literal or not is_given(given.get("table_format"))):
        _check_table(str(literal["table"]), literal.get("table_format"))


def is_literal(value: object) -> bool:
    """Return whether a value is final: without a template, and not another task's result."""
    if isinstance(value, str):
        return not is_template(value)
    if isinstance(value, Mapping):
        return all(is_literal(one) for item in value.items() for one in item)
    if isinstance(value, list | tuple):
        return all(map(is_literal, value))
    return isinstance(value, int | float | datetime | timedelta)


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
    kind = TableFormat.of(table) if given_format is None else choose(TableFormat, "table_format", given_format)
    if kind is TableFormat.DELTA:
        check_location(table)
    else:
        TableTemplate.parse(table)


def _one_of(kind: type[StrEnum]) -> Check:
    return partial(choose, kind)


def _topics(argument: str, value: object) -> None:
    for topic in arguments.items(argument, value) or ():
        check_topic_or_pattern(topic)


def _seconds(argument: str, value: object) -> None:
    if not isinstance(value, timedelta):
        seconds(argument, value)


def _metadata(argument: str, value: object) -> None:
    for name in arguments.items(argument, value) or ():
        if name not in METADATA_NAMES:
            raise UnknownValue(argument, name, METADATA_NAMES)


def _registry(argument: str, value: object) -> None:
    if is_address(value):
        RegistryConfig.parse(value)


def _each(check: Check, names: Iterable[str]) -> dict[str, Check]:
    return dict.fromkeys(names, check)


_CHECKS: Mapping[str, Check] = {
    "topic": _topics,
    "consumer_group": lambda _, value: check_group(str(value)),
    "home_table": lambda argument, value: check_table_name(str(value), argument),
    "format": _one_of(ValueFormat),
    "key_format": _one_of(KeyFormat),
    "envelope": _one_of(ValueEnvelope),
    "schema_registry": _registry,
    "table_format": _one_of(TableFormat),
    "state_store": _one_of(StateStore),
    "output_mode": arguments.output_mode,
    **_each(lambda argument, value: check_function(str(value), argument), FUNCTIONS),
    "mode": _one_of(ModeName),
    "start_offset": _one_of(StartOffset),
    "schema_evolution": _one_of(SchemaEvolution),
    "unknown_fields": _one_of(UnknownFields),
    "sql_input": _one_of(SqlInput),
    "new_tables": _one_of(NewTables),
    "on_error": _one_of(OnError),
    "tombstones": _one_of(Tombstones),
    "on_data_loss": _one_of(OnDataLoss),
    "on_empty": _one_of(OnEmpty),
    "out_of_range": _one_of(OutOfRange),
    "timestamps_finer": _one_of(TimestampsFiner),
    "merge_mode": _one_of(MergeMode),
    "missing": _one_of(MissingPolicy),
    "ranges": lambda _, value: parse_ranges(arguments.range_list(value)),
    "max_batch_bytes": size_in_bytes,
    "max_rejected": arguments.reject_limit,
    "parallelism": lambda argument, value: arguments.count(argument, value, "processes"),
    "poll_timeout": arguments.positive_seconds,
    "checks": parse_checks,
    "unavailable_placeholder": lambda _, value: octets_of(str(value)),
    "unavailable_values": _one_of(UnavailableValues),
    "csv_delimiter": lambda _, value: check_delimiter(str(value)),
    "metadata_columns": _metadata,
    "table_properties": lambda _, value: arguments.properties(value),
    "rename_columns": arguments.names,
    "source_tables": arguments.regex,
    "max_lag_records": arguments.count_from_zero,
    **_each(arguments.count, ("max_records", "max_tables")),
    **_each(arguments.milliseconds, ("interval_start", "interval_end", "start_timestamp", "complete_through")),
    **_each(arguments.items, ("partition_by", "sort_order", "key", "operations")),
    "writer_schemas": arguments.schemas,
    **_each(arguments.flag, ("replace", "full", "repair", "soft_delete", "per_partition", "idle_is_fresh")),
    **_each(arguments.flag, ("fail_when_behind", "fail_when_stale", "allow_group_overlap")),
    **_each(
        _seconds,
        (
            "checkpoint_interval",
            "idle_timeout",
            "max_lag_seconds",
            "max_batch_age",
            "max_age",
            "idle_after",
            "min_time_left",
            "watch_for",
            "run_interval",
        ),
    ),
}
