"""Options that a pipeline's file says already: with `--pipeline FILE` a command needs none of them again."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from airflow_lakestream.config.decoding import DECODING
from airflow_lakestream.core.formats import Format
from airflow_lakestream.core.policies import SqlInput
from airflow_lakestream.exceptions import InvalidArgument

if TYPE_CHECKING:
    from airflow_lakestream.pipelines.compiled import Compiled, Landing

Command = Callable[..., Any]

_PIPELINE = Annotated[
    Path | None,
    typer.Option("--pipeline", help="a pipeline's file: what it says need not be given", exists=True, dir_okay=False),
]
_SINK = Annotated[str | None, typer.Option("--sink", help="with --pipeline: the sink, if it has several")]
# By option: the argument of a landing. The others have one name.
_ARGUMENTS = {
    "group": "consumer_group",
    "kafka_conn": "kafka_conn_id",
    "iceberg_conn": "iceberg_conn_id",
    "storage_conn": "storage_conn_id",
}


def takes_pipeline(command: Command) -> Command:
    """Give a command `--pipeline` and `--sink`. What is given on the command line goes before what the file says."""
    signature = inspect.signature(command, eval_str=True)
    own = {one.name: one for one in signature.parameters.values()}
    required = [name for name, one in own.items() if one.default is one.empty]

    @functools.wraps(command)
    def taking(**kwargs: Any) -> Any:
        context, file, sink = (kwargs.pop(name) for name in ("context", "pipeline", "sink"))
        if file is not None:
            kwargs |= _from_file(*_landing(file, sink), own, context)
        for name in required:
            if kwargs[name] is None:
                raise InvalidArgument(_shown(name), "is missing.", "Give it, or a --pipeline that says it.")
        return command(**kwargs)

    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [
        one.replace(default=None, annotation=_optional(one.annotation)) if one.name in required else one
        for one in own.values()
    ]
    options += [
        inspect.Parameter("context", keyword, annotation=typer.Context),
        inspect.Parameter("pipeline", keyword, default=None, annotation=_PIPELINE),
        inspect.Parameter("sink", keyword, default=None, annotation=_SINK),
    ]
    options = [one.replace(kind=keyword) for one in options]
    # mypy knows of no function with a signature of its own.
    taking.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    taking.__annotations__ = {one.name: one.annotation for one in options}
    return taking


def _landing(file: Path, sink: str | None) -> tuple[Compiled, Landing]:
    from airflow_lakestream.cli.pipeline import landings, read

    compiled = read(file)
    found = landings(compiled, sink)
    if len(found) > 1:
        raise InvalidArgument("--sink", f"{file} has {', '.join(one.sink for one in found)}.", "Say which one.")
    return compiled, found[0]


def _from_file(
    compiled: Compiled, landing: Landing, options: Mapping[str, inspect.Parameter], context: typer.Context
) -> dict[str, Any]:
    """Return the options that the file says and the command line does not. Raises PipelineError for a template."""
    from airflow_lakestream.pipelines.check import refuse_rendered

    found, taken = {}, {}
    unread = _unread_by_audit(landing, repairs=bool(context.params["repair"])) if "repair" in options else ()
    for name, one in options.items():
        value = landing.arguments.get(argument := _ARGUMENTS.get(name, name))
        source = context.get_parameter_source(name)
        if value is None or name in unread or (source is not None and source.name == "COMMANDLINE"):
            continue
        check = next((info.callback for info in get_args(one.annotation)[1:] if getattr(info, "callback", None)), None)
        taken[argument] = value
        refuse_rendered(compiled, [replace(landing, arguments=taken)])
        found[name] = (check or _unchanged)(_as_option(value))
    return found


def _unread_by_audit(landing: Landing, *, repairs: bool) -> tuple[str, ...]:
    """Return the options that an audit refuses: it decodes nothing, and a repair decodes into the table's columns."""
    if not repairs:
        return (*DECODING, "tombstones", "on_data_loss")
    arguments = landing.arguments
    return (
        () if arguments.get("sql_input") == SqlInput.DECODED or arguments.get("format") == Format.CSV else ("schema",)
    )


def _unchanged(value: Any) -> Any:
    return value


def _as_option(value: Any) -> Any:
    """Return a value as the command line would have it."""
    if isinstance(value, Mapping):
        return json.dumps(value)
    return [str(one) for one in value] if isinstance(value, list | tuple) else str(value)


def _optional(annotation: Any) -> Any:
    kind, *metadata = get_args(annotation)
    return Annotated[(kind | None, *metadata)]


def _shown(name: str) -> str:
    return f"--{name.replace('_', '-')}"
