"""Compilation of a document: from file keys to operator arguments, and the check for contradictions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from airflow_lakestream.config.literals import OF_MIRROR, check_literals
from airflow_lakestream.core.policies import TableFormat, ValueFormat
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import DEFAULT, LakeCapability, lake_named
from airflow_lakestream.pipelines.compiled import (
    MIRROR_MODES,
    CompiledPipeline,
    FileArguments,
    SinkLanding,
    TableMaintenance,
    with_suffix,
)
from airflow_lakestream.pipelines.flow import RecordFlow, check_flow, record_flows, unknown_inputs
from airflow_lakestream.pipelines.model import Pipeline, PipelineSink
from airflow_lakestream.pipelines.part import ArgumentCollector, plain, seconds_at
from airflow_lakestream.pipelines.rules import OF_DOCUMENTS, OF_LANDING, OF_WORKS, contradictions
from airflow_lakestream.pipelines.waiting import compiled_sensors, freshness_after
from airflow_lakestream.pipelines.yaml_file import FileProblem, Path, PipelineError, YamlDocument

# Formats whose schemas a registry may have.
_OF_REGISTRIES: tuple[str, ...] = (ValueFormat.AVRO, ValueFormat.PROTOBUF, ValueFormat.JSON_SCHEMA)
# The step of pydantic's path behind a name that is wrong itself.
_KEY = "[key]"
_SAMPLES = {
    "literal_error": "{input} is not one of {expected}.",
    "enum": "{input} is not one of {expected}.",
    "missing": "is missing.",
    "union_tag_not_found": "type is missing; there are {known}.",
    "union_tag_invalid": "type: {tag!r} is not one of {expected_tags}.",
    "model_type": "{input} is not a mapping of keys to values.",
}


def compile_document(document: YamlDocument, engine: str | None = None) -> CompiledPipeline:
    """Return the compiled pipeline of a file.

    :param engine: an engine in place of the file's own.

    Raises PipelineError. The checks come in stages: keys and values, flow, contradictions, literal checks. The error
    has all problems of the first stage that fails, and those of later stages that do not depend on it: unknown inputs,
    and wrong literals.
    """
    content = document.content
    if not isinstance(content, dict):
        raise PipelineError([document.problem((), "a pipeline is a mapping with metadata, sources and sinks.")])
    if engine is not None and isinstance(orchestration := content.get("orchestration") or {}, dict):
        content = {**content, "orchestration": {**orchestration, "engine": engine}}
    try:
        pipeline = Pipeline.model_validate(content)
    except ValidationError as error:
        wrong = _problems(document, error.errors(include_url=False))
        raise PipelineError(with_new_places(wrong, unknown_inputs(document)), document) from None
    if problems := check_flow(document, pipeline):
        raise PipelineError(problems, document)
    flows = record_flows(pipeline)
    if problems := list(contradictions(document, pipeline, flows)):
        literals = _wrong_literals(document.file, [_landing(document, pipeline, flow) for flow in flows])
        raise PipelineError(with_new_places(problems, literals), document)
    compiled = _compiled(document, pipeline, flows)
    if problems := list(_wrong_literals(document.file, [*compiled.landings, *compiled.sensors])):
        raise PipelineError(problems, document)
    return compiled


def with_new_places(problems: Iterable[FileProblem], more: Iterable[FileProblem]) -> list[FileProblem]:
    """Return problems, each once, with more of them if nothing is reported at their positions yet."""
    # Sinks may share a part of the file.
    found = list(dict.fromkeys(problems))
    places = {(one.line, one.column) for one in found}
    return [*found, *(one for one in dict.fromkeys(more) if (one.line, one.column) not in places)]


def _wrong_literals(file: str, tasks: Sequence[FileArguments]) -> Iterator[FileProblem]:
    """Yield refusals of arguments that need no rendering, by the same checks as in the operators."""
    for task in tasks:
        table_format = {"table_format": task.table_format} if isinstance(task, SinkLanding) else {}
        checks = OF_MIRROR if isinstance(task, SinkLanding) and task.is_mirror else {}
        left = {**table_format, **task.arguments}
        while True:
            try:
                check_literals(left, checks)
                break
            except InvalidArgument as error:
                yield task.problem(file, error)
                # The others, without it.
                if left.pop(error.argument.partition(".")[0], None) is None:
                    break


def _problems(document: YamlDocument, errors: Sequence[Any]) -> Iterator[FileProblem]:
    """Yield the problems for the errors of pydantic.

    A misspelt required key is two errors (an unknown key, and a missing key), and one problem.
    """
    missing = {error["loc"] for error in errors if error["type"] == "missing"}
    meant: dict[Path, Path] = {}
    for loc in [error["loc"] for error in errors if error["type"] == "extra_forbidden"]:
        if near := _near(loc[-1], [one[-1] for one in missing if one[:-1] == loc[:-1]]):
            meant[loc] = (*loc[:-1], near)
    for error in errors:
        if key := meant.get(error["loc"]):
            yield _misspelt(document, error["loc"], key[-1])
        elif error["loc"] not in meant.values():
            yield _problem(document, error)


def _misspelt(document: YamlDocument, found: Path, key: str | int) -> FileProblem:
    """Return the problem of an unknown key that was written for a required key."""
    path = _in_file(document, found)
    name = ".".join(map(str, path))
    return document.problem(path, f"{name}: there is no such key. Did you mean {key}? It is required.")


def _problem(document: YamlDocument, error: Any) -> FileProblem:
    """Return an error of pydantic as a problem of the file; `_SAMPLES` has texts in place of pydantic's."""
    path = _in_file(document, error["loc"])
    name = ".".join(map(str, path)) or "the file"
    kind = error["type"]
    if kind == "extra_forbidden":
        return document.problem(path, f"{name}: there is no such key.{_nearest(error['loc'])}")
    if kind == "union_tag_not_found" and (typed := _near("type", error["input"])):
        return _misspelt(document, (*error["loc"], typed), "type")
    context = {"expected": "", "known": ", ".join(_tags(error["loc"])), **error.get("ctx", {})}
    sample = _SAMPLES.get(kind)
    text = (
        sample.format(input=repr(error["input"]), **context)
        if sample
        else error["msg"].removeprefix("Value error, ") + "."
    )
    near = _near(error["input"], re.findall(r"'([^']+)'", context["expected"]))
    return document.problem(path, f"{name}: {text}" + (f" Did you mean {near!r}?" if near else ""))


def _in_file(document: YamlDocument, found: tuple[str | int, ...]) -> Path:
    """Return the steps of pydantic's path that the file has.

    Pydantic also has steps for the member of a union and for a wrong key; these are left out. The last step stays, even
    if the key is missing from the file.
    """
    found = tuple(step for at, step in enumerate(found) if step != _KEY and not _is_tag(found, at))
    path: Path = ()
    for at, step in enumerate(found):
        if (*path, step) in document.places or at == len(found) - 1:
            path = (*path, step)
    return path


def _is_tag(found: Path, at: int) -> bool:
    """Return whether a step is the member of a union, which pydantic adds, even if the file has a key of the name."""
    return len(_parts_at(found[:at])) > 1 == len(_parts_at(found[: at + 1]))


def _nearest(found: tuple[str | int, ...]) -> str:
    """Return the remedy for an unknown key: the closest known key, or all known keys."""
    known = sorted({field.alias or name for part in _parts_at(found[:-1]) for name, field in part.model_fields.items()})
    near = _near(found[-1], known)
    return f" Did you mean {near}?" if near else f" There are {', '.join(known)}."


def _near(key: object, known: Iterable[object]) -> str | None:
    """Return the known key that is most like a given key, or None if none is like the given key."""
    return next(iter(difflib.get_close_matches(str(key), list(map(str, known)), 1)), None)


def _tags(found: tuple[str | int, ...]) -> list[str]:
    """Return the possible values of `type` in a part of the file, quoted; an empty list for a part without `type`."""
    return [repr(one) for part in _parts_at(found) if "type" in part.model_fields for one in _types_of(part)]


def _types_of(part: type[BaseModel]) -> tuple[Any, ...]:
    return get_args(part.model_fields["type"].annotation)


def _parts_at(found: tuple[str | int, ...]) -> list[type[BaseModel]]:
    """Return the possible models at pydantic's path: a single model, the members of a union, or none if unknown."""
    parts: list[type[BaseModel]] = [Pipeline]
    is_member = False
    for step in found:
        if is_member:
            # The name of a source, or the number of a transformation.
            is_member = False
        elif len(parts) > 1:
            parts = [one for one in parts if step in _types_of(one)]
        elif not parts or step not in parts[0].model_fields:
            return []
        else:
            kind = parts[0].model_fields[str(step)].annotation
            is_member = get_origin(kind) in (dict, list)
            parts = list(_models_in(kind))
    return parts


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for one in get_args(kind):
        yield from _models_in(one)


def _compiled(document: YamlDocument, pipeline: Pipeline, flows: list[RecordFlow]) -> CompiledPipeline:
    """Return the compiled pipeline of a file without contradictions: a landing for each flow, and the DAG."""
    orchestration = pipeline.orchestration
    landings = tuple(_landing(document, pipeline, flow) for flow in flows)
    looks = [freshness_after(document, pipeline, *one) for one in zip(flows, landings, strict=True)]
    return CompiledPipeline(
        file=document.file,
        name=pipeline.metadata.name,
        engine=orchestration.engine,
        landings=landings,
        sensors=(*compiled_sensors(document, pipeline, landings), *(one for one in looks if one is not None)),
        maintenance=tuple(_maintenance(document, pipeline, landings)),
        maintenance_schedule=None if pipeline.maintenance is None else pipeline.maintenance.schedule,
        alerts=_alerts(document, pipeline),
        owner=pipeline.metadata.owner,
        description=pipeline.metadata.description,
        tags=(*pipeline.metadata.tags, *([f"v{one}"] if (one := pipeline.metadata.version) else [])),
        schedule=orchestration.schedule,
        start_date=orchestration.start_date,
        catchup=orchestration.catchup,
        retries=orchestration.retries,
        retry_delay=seconds_at(document, orchestration.retry_delay, "orchestration", "retry_delay"),
        pool=orchestration.pool,
        deferrable=orchestration.deferrable,
        own=plain(own.model_dump(exclude_unset=True))
        if (own := getattr(orchestration, orchestration.engine, None))
        else {},
    )


def _landing(document: YamlDocument, pipeline: Pipeline, flow: RecordFlow) -> SinkLanding:
    """Return a flow's landing: arguments under the operators' names, each with the path in the file, for errors."""
    source, sink, orchestration = flow.source, flow.sink, pipeline.orchestration
    landing = ArgumentCollector(flow.sink_at)
    landing.take(source, flow.source_at, "type", "connection", "schema_", "consumer_group")
    landing.take(sink, flow.sink_at, "type", "connection", "mode", "input", "consumer_group", "quality")
    quality = sink.quality or pipeline.quality
    landing.take(quality, flow.quality_at, "freshness")
    for name in quality.checks.model_fields_set if quality.checks else ():
        landing.paths[f"checks.{name}"] = (*flow.quality_at, "checks", name)
    landing.take(
        orchestration,
        ("orchestration",),
        *(name for name in type(orchestration).model_fields if name not in OF_LANDING),
    )
    # Keys with another meaning, name or default than the operator's argument.
    landing.add("kafka_conn_id", source.connection, (*flow.source_at, "connection"))
    landing.add(_sink_connection(sink), sink.connection, (*flow.sink_at, "connection"))
    # The sink's own group, else the source's, else the pipeline's name: `add` ignores None.
    for group, path in (
        (sink.consumer_group, (*flow.sink_at, "consumer_group")),
        (source.consumer_group, (*flow.source_at, "consumer_group")),
        (pipeline.metadata.name, ("metadata", "name")),
    ):
        if "consumer_group" not in landing.values:
            landing.add("consumer_group", group, path)
    if sink.type != DEFAULT.format:
        landing.add("table_format", sink.type, (*flow.sink_at, "type"))
    if not {str(source.format), str(source.key_format)} & set(_OF_REGISTRIES):
        # Documented: one line names the registry, and stays for any format.
        landing.drop("schema_registry")
    if (sql := flow.statement) is not None:
        # A task takes a text that ends so for the name of a file.
        landing.add("sql", f"{sql}\n" if sql.endswith(".sql") else sql, (*flow.last_at, "sql"))
        if source.schema_ is not None:
            landing.add("schema", source.schema_, (*flow.source_at, "schema"))
            landing.add("sql_input", "decoded", (*flow.source_at, "schema"))
    _add_mode(landing, flow)
    return SinkLanding(
        sink=flow.sink_name,
        apart="" if sink.input is None else flow.sink_name,
        mode=sink.mode,
        table_format=str(TableFormat(sink.type)),
        **landing.to_fields(document),
    )


def _add_mode(landing: ArgumentCollector, flow: RecordFlow) -> None:
    mode, path = flow.sink.mode, (*flow.sink_at, "mode")
    if mode == "replace":
        landing.add("mode", "interval", path)
        landing.add("replace", True, path)
    if mode in MIRROR_MODES:
        landing.drop("envelope")
    if mode == "upsert" or (mode in MIRROR_MODES and flow.source.envelope in OF_DOCUMENTS):
        # None is the argument's value of an upsert, which `add` would leave out.
        landing.values["envelope"], landing.paths["envelope"] = flow.source.envelope, path


def _alerts(document: YamlDocument, pipeline: Pipeline) -> FileArguments:
    alerts, path = pipeline.orchestration.alerts, ("orchestration", "alerts")
    found = ArgumentCollector(path)
    found.add("on_failure", [_function(one, "tell") for one in alerts.on_failure] or None, (*path, "on_failure"))
    if alerts.deadline is not None:
        found.add("deadline", seconds_at(document, alerts.deadline, *path, "deadline"), (*path, "deadline"))
        found.add("on_deadline", _function(alerts.on_deadline, "tell_deadline"), (*path, "on_deadline"))
    return FileArguments(**found.to_fields(document))


def _maintenance(
    document: YamlDocument, pipeline: Pipeline, landings: Sequence[SinkLanding]
) -> Iterator[TableMaintenance]:
    """Yield the maintenance of each sink's table, and of the tables next to it, such as the reject table."""
    upkeep, at = pipeline.maintenance, ("maintenance",)
    if upkeep is None:
        return
    for landing in landings:
        if upkeep.sinks is not None and landing.sink not in upkeep.sinks:
            continue
        found, table = ArgumentCollector(at), str(landing.arguments["table"])
        has_patterns = LakeCapability.CATALOG in lake_named("type", landing.table_format).can
        found.add("tables", [table, f"{table}__*"] if has_patterns else [table], ("sinks", landing.sink, "table"))
        for work, keys in OF_WORKS.items():
            given = {name: getattr(upkeep, key) for key, name in keys.items() if getattr(upkeep, key) is not None}
            if (size := given.pop("options.target-file-size-bytes", None)) is not None:
                given["options"] = {"target-file-size-bytes": size}
            found.add(work, getattr(upkeep, work) and (given or True), (*at, work))
            # Errors name the keys of the section of Spark's app, which has the same rules.
            found.paths |= {f"maintenance.{work}.{name}": (*at, key) for key, name in keys.items()}
        found.add("rewrite_manifests", upkeep.rewrite_manifests, (*at, "rewrite_manifests"))
        found.add("budget", upkeep.budget, (*at, "budget"))
        connection = _sink_connection(pipeline.sinks[landing.sink])
        found.add(connection, landing.arguments.get(connection), ("sinks", landing.sink, "connection"))
        yield TableMaintenance(task_id=with_suffix("maintain", "_", landing.apart), **found.to_fields(document))


def _function(name: str, usual: str) -> str:
    return f"airflow_lakestream.alerts:{usual}" if name == "log" else name


def _sink_connection(sink: PipelineSink) -> str:
    return lake_named("type", sink.type).connection
