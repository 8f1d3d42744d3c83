"""A document to a `Compiled`: each key of the file to the operators' argument, and what does not go together."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from airflow_lakestream.config.literals import check_literals
from airflow_lakestream.core.formats import Format
from airflow_lakestream.core.policies import TableFormat, seconds
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.pipelines.compiled import Compiled
from airflow_lakestream.pipelines.errors import PipelineError, Problem
from airflow_lakestream.pipelines.model import Pipeline, Sink
from airflow_lakestream.pipelines.rules import contradictions
from airflow_lakestream.pipelines.statement import statement_of
from airflow_lakestream.pipelines.yaml_file import Document, Path

# The keys that are arguments, by the names of those; all others have their own name.
_RENAMED = {"schema_": "schema", "properties": "table_properties"}
_OF_LANDING = ("checkpoint_interval", "parallelism", "max_records", "max_batch_bytes", "idle_timeout")
# Formats whose schemas a registry may have.
_OF_REGISTRIES: tuple[str, ...] = (Format.AVRO, Format.PROTOBUF, Format.JSON_SCHEMA)
_SAMPLES = {
    "literal_error": "{input} is not one of {expected}.",
    "enum": "{input} is not one of {expected}.",
    "missing": "is missing.",
}


def compile_document(document: Document, engine: str | None = None) -> Compiled:
    """Return what a file comes to. Raises PipelineError with all that is wrong.

    :param engine: instead of the file's own.
    """
    content = document.content
    if not isinstance(content, dict):
        raise PipelineError([document.problem((), "a pipeline is a mapping with metadata, sources and sinks.")])
    if engine is not None and isinstance(told := content.get("orchestration") or {}, dict):
        content = {**content, "orchestration": {**told, "engine": engine}}
    try:
        pipeline = Pipeline.model_validate(content)
    except ValidationError as error:
        raise PipelineError([_problem(document, one) for one in error.errors(include_url=False)]) from None
    if problems := list(contradictions(document, pipeline)):
        raise PipelineError(problems)
    compiled = _compiled(document, pipeline)
    try:
        check_literals({"table_format": compiled.table_format, **compiled.landing})
    except InvalidArgument as error:
        raise PipelineError([problem_of(compiled, error)]) from None
    return compiled


def problem_of(compiled: Compiled, error: LakestreamError) -> Problem:
    """Return an error about an argument as one about the file."""
    argument = getattr(error, "argument", "").removeprefix("landing.")
    while argument not in compiled.places and "." in argument:
        argument = argument.rpartition(".")[0]
    line, column = compiled.places.get(argument, (1, 1))
    text = " ".join(str(error).split())
    if argument in compiled.keys:
        text = f"{compiled.keys[argument]}: {text.removeprefix(f'{argument}: ').removeprefix(f'landing.{argument}: ')}"
    return Problem(compiled.file, line, column, text)


def _problem(document: Document, error: Any) -> Problem:
    path = _in_file(document, error["loc"])
    name = ".".join(map(str, path)) or "the file"
    kind = error["type"]
    if kind == "extra_forbidden":
        return document.problem(path, f"{name}: there is no such key.{_nearest(path)}")
    context = error.get("ctx", {})
    sample = _SAMPLES.get(kind)
    text = sample.format(input=repr(error["input"]), expected=context.get("expected")) if sample else error["msg"] + "."
    return document.problem(path, f"{name}: {text}")


def _in_file(document: Document, found: tuple[str | int, ...]) -> Path:
    """Return the part of pydantic's path that the file has: it names the members of a union, too."""
    path: Path = ()
    for at, step in enumerate(found):
        if (*path, step) in document.places or at == len(found) - 1:
            path = (*path, step)
    return path


def _nearest(path: Path) -> str:
    known = sorted(_keys_at(path[:-1]))
    near = difflib.get_close_matches(str(path[-1]), known, 1)
    return f" Did you mean {near[0]}?" if near else f" There are {', '.join(known)}."


def _keys_at(path: Path) -> set[str]:
    """Return the keys that a part of the file may have."""
    part: Any = Pipeline
    is_member = False
    for step in path:
        if is_member:
            # The name of a source, or the number of a transformation.
            is_member = False
            continue
        kind = part.model_fields[step].annotation
        is_member = get_origin(kind) in (dict, list)
        part = next(one for one in (kind, *get_args(kind)) if isinstance(one, type) and issubclass(one, BaseModel))
    return {field.alias or name for name, field in part.model_fields.items()}


def _compiled(document: Document, pipeline: Pipeline) -> Compiled:
    (source_name, source), (sink_name, sink) = next(iter(pipeline.sources.items())), next(iter(pipeline.sinks.items()))
    told = pipeline.orchestration
    landing = _Arguments()
    landing.take(source, ("sources", source_name), "type", "connection", "schema_")
    landing.take(sink, ("sinks", sink_name), "type", "connection", "mode")
    landing.take(pipeline.quality, ("quality",))
    for name in pipeline.quality.checks.model_fields_set if pipeline.quality.checks else ():
        landing.paths[f"checks.{name}"] = ("quality", "checks", name)
    landing.take(told, ("orchestration",), *(name for name in type(told).model_fields if name not in _OF_LANDING))
    landing.add("kafka_conn_id", source.connection, ("sources", source_name, "connection"))
    landing.add(_sink_connection(sink), sink.connection, ("sinks", sink_name, "connection"))
    landing.add("consumer_group", source.consumer_group or pipeline.metadata.name, ("metadata", "name"))
    if sink.type == "delta":
        landing.add("table_format", sink.type, ("sinks", sink_name, "type"))
    if not {str(source.format), str(source.key_format)} & set(_OF_REGISTRIES):
        # Documented: one line says where schemas are, whatever the format is today.
        landing.drop("schema_registry")
    if (sql := statement_of(pipeline.transformations)) is not None:
        landing.add("sql", sql, ("transformations", len(pipeline.transformations) - 1, "sql"))
    if source.schema_ is not None:
        landing.add("schema", source.schema_, ("sources", source_name, "schema"))
        landing.add("sql_input", "decoded", ("sources", source_name, "schema"))
    if sink.mode == "replace":
        landing.add("mode", "interval", ("sinks", sink_name, "mode"))
        landing.add("replace", True, ("sinks", sink_name, "mode"))
    if sink.mode == "mirror":
        landing.drop("envelope")
    alerts = ("orchestration", "alerts")
    paths = {**landing.paths, **{name: (*alerts, name) for name in type(told.alerts).model_fields}}
    return Compiled(
        file=document.file,
        name=pipeline.metadata.name,
        engine=told.engine,
        mode=sink.mode,
        table_format=str(TableFormat(sink.type)),
        landing=landing.values,
        places={name: document.place(path) for name, path in paths.items()},
        keys={name: ".".join(map(str, path)) for name, path in paths.items()},
        owner=pipeline.metadata.owner,
        description=pipeline.metadata.description,
        tags=(*pipeline.metadata.tags, *([f"v{one}"] if (one := pipeline.metadata.version) else [])),
        schedule=told.schedule,
        start_date=told.start_date,
        catchup=told.catchup,
        retries=told.retries,
        retry_delay=_seconds(document, told.retry_delay, "retry_delay"),
        pool=told.pool,
        deferrable=told.deferrable,
        on_failure=tuple(_function(one, "tell") for one in told.alerts.on_failure),
        deadline=None if (most := told.alerts.deadline) is None else _seconds(document, most, "alerts", "deadline"),
        on_deadline=_function(told.alerts.on_deadline, "tell_deadline"),
        own=_plain(own.model_dump(exclude_unset=True)) if (own := getattr(told, told.engine, None)) else {},
    )


def _seconds(document: Document, value: object, *path: str) -> float:
    try:
        return seconds(path[-1], value)
    except InvalidArgument as error:
        raise PipelineError([document.problem(("orchestration", *path), str(error))]) from None


def _function(name: str, usual: str) -> str:
    return f"airflow_lakestream.alerts:{usual}" if name == "log" else name


def _sink_connection(sink: Sink) -> str:
    return "iceberg_conn_id" if sink.type == "iceberg" else "storage_conn_id"


class _Arguments:
    """A landing's arguments, and the path of each in the file."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.paths: dict[str, Path] = {}

    def take(self, part: BaseModel, path: Path, *but: str) -> None:
        """Take what a part of the file says."""
        for name in type(part).model_fields:
            if name not in but and name in part.model_fields_set:
                key = type(part).model_fields[name].alias or name
                self.add(_RENAMED.get(name, name), getattr(part, name), (*path, key))

    def add(self, name: str, value: Any, path: Path) -> None:
        """Take one; None leaves it to its default."""
        if value is not None:
            self.values[name] = _plain(value)
            self.paths.setdefault(name, path)

    def drop(self, name: str) -> None:
        """Leave one out."""
        self.values.pop(name, None)


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(exclude_none=True))
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
