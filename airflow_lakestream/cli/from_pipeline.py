"""Options of a command taken from a pipeline's file or from a task of a DAG."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from airflow_lakestream.config.decoding import DECODING, OF_ROWS
from airflow_lakestream.config.literals import refuse_templates
from airflow_lakestream.core.policies import SqlInput, ValueFormat
from airflow_lakestream.exceptions import InvalidArgument

if TYPE_CHECKING:
    from airflow_lakestream.pipelines.compiled import CompiledPipeline, SinkLanding

Command = Callable[..., Any]
Refuse = Callable[[Mapping[str, Any]], None]

_PIPELINE = Annotated[
    Path | None,
    typer.Option("--pipeline", help="a pipeline's file: its settings need not be given", exists=True, dir_okay=False),
]
_SINK = Annotated[str | None, typer.Option("--sink", help="with --pipeline: the sink, if it has several")]
_DAG = Annotated[str | None, typer.Option("--dag", help="a DAG: its task's arguments need not be given")]
_TASK = Annotated[str | None, typer.Option("--task", help="with --dag: the task, if several land")]
_FOLDER = Annotated[
    Path | None,
    typer.Option("--dag-folder", help="with --dag: its file or folder; default: Airflow's", exists=True),
]
_SOURCES = {"pipeline": _PIPELINE, "sink": _SINK, "dag": _DAG, "task": _TASK, "dag_folder": _FOLDER}
# By option: the argument of a landing. The other options have the argument's name.
_ARGUMENTS = {
    "group": "consumer_group",
    "kafka_conn": "kafka_conn_id",
    "iceberg_conn": "iceberg_conn_id",
    "storage_conn": "storage_conn_id",
}


def takes_pipeline(command: Command) -> Command:
    """Give a command the options `--pipeline`, `--dag`, and the options that go with either.

    Required options of the command become optional: the file or the task may set them. If neither does, the command
    raises InvalidArgument. Options of the command line take precedence over the file's or the task's.
    """
    signature = inspect.signature(command, eval_str=True)
    own = {one.name: one for one in signature.parameters.values()}
    required = [name for name, one in own.items() if one.default is one.empty]

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        context, sources = kwargs.pop("context"), {name: kwargs.pop(name) for name in _SOURCES}
        if (given := _given_arguments(**sources)) is not None:
            kwargs |= _options_of(*given, own, context)
        for name in required:
            if kwargs[name] is None:
                raise InvalidArgument(_shown(name), "is missing.", "Give it, or a --pipeline or --dag that sets it.")
        return command(**kwargs)

    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [
        one.replace(default=None, annotation=_optional(one.annotation)) if one.name in required else one
        for one in own.values()
    ]
    options.append(inspect.Parameter("context", keyword, annotation=typer.Context))
    options += [inspect.Parameter(name, keyword, default=None, annotation=one) for name, one in _SOURCES.items()]
    options = [one.replace(kind=keyword) for one in options]
    # mypy does not support functions with an assigned signature.
    wrapper.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]  # Typer reads it
    wrapper.__annotations__ = {one.name: one.annotation for one in options}
    return wrapper


def _given_arguments(
    pipeline: Path | None, sink: str | None, dag: str | None, task: str | None, dag_folder: Path | None
) -> tuple[Mapping[str, Any], bool, Refuse] | None:
    """Return the arguments of a pipeline's landing or of a DAG's task, or None without `--pipeline` and `--dag`.

    The second value is whether they are a mirror's, or a table's by key. The third is a function that refuses templates
    in some of the arguments: they are checked only if used.

    Raises InvalidArgument for options that do not go together, and for an unknown file, DAG, sink or task.
    """
    alone = {"sink": (sink, pipeline), "task": (task, dag), "dag_folder": (dag_folder, dag)}
    for name, (given, goes_with) in alone.items():
        if given is not None and goes_with is None:
            raise InvalidArgument(_shown(name), f"goes with {'--pipeline' if name == 'sink' else '--dag'}.")
    if pipeline is not None and dag is not None:
        raise InvalidArgument("--dag", "does not go with --pipeline.", "Give one of them.")
    if pipeline is not None:
        from airflow_lakestream.pipelines.check import refuse_rendered

        compiled, landing = _landing(pipeline, sink)
        return (
            landing.arguments,
            landing.is_mirror,
            lambda some: refuse_rendered(compiled, [replace(landing, arguments=some)]),
        )
    if dag is None:
        return None
    from airflow_lakestream.cli.from_dag import arguments_of_task

    arguments = arguments_of_task(dag, task, dag_folder)
    return arguments, arguments.is_mirror, refuse_templates


def _landing(file: Path, sink: str | None) -> tuple[CompiledPipeline, SinkLanding]:
    from airflow_lakestream.cli.pipeline import landings, read

    compiled = read(file)
    found = landings(compiled, sink)
    if len(found) > 1:
        raise InvalidArgument("--sink", f"{file} has {', '.join(one.sink for one in found)}.", "Say which one.")
    return compiled, found[0]


def _options_of(
    arguments: Mapping[str, Any],
    is_mirror: bool,
    refuse: Refuse,
    options: Mapping[str, inspect.Parameter],
    context: typer.Context,
) -> dict[str, Any]:
    """Return the arguments as options of the command, without options given on the command line.

    Raises the errors of `refuse` for templates, and of an option's own check.

    :param options: the parameters of the command.
    """
    found: dict[str, Any] = {}
    unread: tuple[str, ...] = ()
    is_fan_out = "{" in str(arguments.get("table")).replace("{{", "")
    if "repair" in options and (is_mirror or is_fan_out):
        names = OF_ROWS if is_mirror else ("home_table", "metadata_columns")
        of_rows = {name: arguments[name] for name in names if name in arguments and name not in options}
        refuse(of_rows)
        unread = ("on_data_loss",)
        found = {} if context.params["landing"] else {"landing": json.dumps(of_rows, default=_seconds)}
    elif "repair" in options:
        if repairs := bool(context.params["repair"]):
            # The schema is read at once, for its types of times.
            refuse({"schema": arguments.get("schema")})
        unread = _unread_by_audit(arguments, repairs=repairs)
    for name, one in options.items():
        value = arguments.get(argument := _ARGUMENTS.get(name, name))
        source = context.get_parameter_source(name)
        if value is None or name in unread or (source is not None and source.name == "COMMANDLINE"):
            continue
        refuse({argument: value})
        # Typer calls an option's callback only with its own value, not with this one.
        check = next((info.callback for info in get_args(one.annotation)[1:] if getattr(info, "callback", None)), None)
        found[name] = (check or _unchanged)(_as_option(value))
    return found


def _unread_by_audit(arguments: Mapping[str, Any], *, repairs: bool) -> tuple[str, ...]:
    """Return the names of options that an audit leaves out.

    An audit without a repair decodes nothing, except of a table by key. A repair takes the columns from the table: it
    needs a schema only for SQL over decoded columns, for CSV, and for times made from another type.
    """
    if not repairs:
        return (*DECODING, "tombstones", "on_data_loss")
    from airflow_lakestream.tables.schema.columns import to_timed_schema

    schema = arguments.get("schema")
    has_time_sources = schema is not None and bool(to_timed_schema(schema)[1])
    needs_schema = arguments.get("sql_input") == SqlInput.DECODED or arguments.get("format") == ValueFormat.CSV
    return () if needs_schema or has_time_sources else ("schema",)


def _seconds(value: timedelta) -> str:
    return f"{value.total_seconds()}s"


def _unchanged(value: Any) -> Any:
    return value


def _as_option(value: Any) -> Any:
    """Return a value as the command line has it: as text, or as a list of texts."""
    if hasattr(value, "as_struct"):
        from airflow_lakestream.tables.schema.types import schema_text

        return schema_text(value)
    if isinstance(value, Mapping):
        return json.dumps(value)
    return [str(one) for one in value] if isinstance(value, list | tuple) else str(value)


def _optional(annotation: Any) -> Any:
    kind, *metadata = get_args(annotation)
    return Annotated[(kind | None, *metadata)]


def _shown(name: str) -> str:
    return f"--{name.replace('_', '-')}"
