"""Contradictions between keys of a pipeline's file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from airflow_lakestream.config.engines import EngineCapability, lack_of
from airflow_lakestream.config.literals import templates_in
from airflow_lakestream.config.setting import RecordEnvelope, SettingSection, SettingTaker
from airflow_lakestream.config.settings import SETTINGS
from airflow_lakestream.core.names import DEFAULT_METADATA
from airflow_lakestream.core.policies import OF_INPUT, ValueFormat, is_template
from airflow_lakestream.core.routing import is_pattern
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.formats.known import check_format
from airflow_lakestream.onramp.schedules import schedule_problem
from airflow_lakestream.pipelines.compiled import MIRROR_MODES, NEVER, SCHEDULES
from airflow_lakestream.pipelines.flow import RecordFlow
from airflow_lakestream.pipelines.model import Pipeline
from airflow_lakestream.pipelines.part import NAME, RENAMED
from airflow_lakestream.pipelines.waiting import check_sensors
from airflow_lakestream.pipelines.yaml_file import FileProblem, Path, YamlDocument

if TYPE_CHECKING:
    import pyarrow as pa


def flink_problems(document: YamlDocument, pipeline: Pipeline, flow: RecordFlow) -> Iterator[FileProblem]:
    """Yield the problems of a flow's SQL for Flink. A statement with templates yields none: its run checks it."""
    # Imported here, since DuckDB takes a tenth of a second to import, and unchanged files are not compiled again.
    from airflow_lakestream.transform.to_flink.functions import NotCommon
    from airflow_lakestream.transform.to_flink.translate import translated
    from airflow_lakestream.transform.transform import RAW_SCHEMA

    sql = str(flow.statement)
    if is_template(OF_INPUT.sub("", sql)):
        return
    step, place = flow.steps[-1], ""
    try:
        if flow.source.schema_ is None:
            translated(sql, RAW_SCHEMA, raw=True)
        else:
            translated(sql, _decoded(flow.source.schema_), raw=False)
    except NotCommon as refused:
        if refused.place is not None:
            step, line, column = flow.step_at(*refused.place)
            place = f"line {line}, column {column}: "
        text = f"{place}{refused.subject} {refused.reason}. {refused.remedy}"
        yield document.problem(("transformations", pipeline.transformations.index(step), "sql"), text)
    except InvalidArgument as refused:
        yield document.problem((*flow.last_at, "sql"), str(refused))


def _decoded(schema: str) -> pa.Schema:
    """Return the columns that SQL reads: of the source's DDL, and the default metadata columns."""
    import pyarrow as pa

    from airflow_lakestream.decode.metadata import metadata_schema
    from airflow_lakestream.tables.schema.columns import payload_schema, to_schema

    return pa.schema([*payload_schema(to_schema(schema), ()), *metadata_schema(DEFAULT_METADATA)])


# Engines that decode records themselves, and append to a branch.
ON_BRANCHES = {"flink": SettingTaker.FLINK, "connect": SettingTaker.CONNECT}
# Formats that SQL can read before decoding.
_TEXTS = (ValueFormat.JSON, ValueFormat.RAW)
# Keys of `orchestration` that tasks render; other keys, and all of `metadata`, go to Airflow without rendering.
OF_LANDING = tuple(one.name for one in SETTINGS.values() if one.section is SettingSection.LIMITS)
_RENDERED = (*OF_LANDING, "sensors", "spark", "flink", "connect")
# Keys that a submission uses in the trigger's interval.
_NOT_BY_SPARK = ("checkpoint_interval",)
# Settings that compilation gives to Spark under another name.
_OTHERWISE_ON_SPARK = ("checkpoint_interval", "max_records", "parallelism")


def contradictions(document: YamlDocument, pipeline: Pipeline, found: Sequence[RecordFlow]) -> Iterator[FileProblem]:
    """Yield the contradictions in a file with correct keys and values and a correct flow.

    Their kinds: templates that no task renders, the schedule, sinks in conflict, keys that the engine or the mode does
    not use, and sensors.

    :param found: the flow into each sink.
    """
    is_spark = pipeline.orchestration.engine == "spark"
    for path, text in _templates(document.content, ()):
        if not _is_rendered(path) or (is_spark and path[-1] in _NOT_BY_SPARK):
            problem = "no task renders it. Write it out, or take a variable of Airflow's: ${NAME}."
            yield document.problem(path, f"{'.'.join(map(str, path))}: {text!r} is a template, and {problem}")
    yield from _schedule_problems(document, pipeline)
    yield from _sink_conflicts(document, pipeline, found)
    for flow in found:
        yield from _engine_problems(document, pipeline, flow)
        yield from _column_problems(document, flow)
        if flow.sink.mode in MIRROR_MODES:
            yield from _mirror_problems(document, pipeline, flow)
            continue
        yield from _refused_settings(document, SettingTaker.LANDING, flow.sink, flow.sink_at)
    for name, source in pipeline.sources.items():
        if source.schema_ is not None and not any(flow.steps for flow in found if flow.source_name == name):
            problem = "it sets the columns for transformations, and no transformation reads this source."
            reading = [flow.sink_name for flow in found if flow.source_name == name]
            remedy = f"For the table's columns, move it to {' and '.join(f'sinks.{one}.schema' for one in reading)}."
            yield document.problem(("sources", name, "schema"), f"{problem} {remedy}")
    yield from check_sensors(document, pipeline, found)
    yield from _maintenance_problems(document, pipeline)


def _templates(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the templates among a file's texts, with paths."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _templates(one, (*path, key))
    elif any(templates_in(str(path[-1]), value)):
        yield path, value


def _is_rendered(path: Path) -> bool:
    """Return whether a task renders a template at a path of the file; of a transformation, only SQL is rendered."""
    part = path[0]
    if part == "transformations":
        return path[-1] == "sql"
    if part == "maintenance":
        return path[1] not in ("schedule", "sinks")
    return part in ("sources", "sinks", "quality") or (part == "orchestration" and path[1] in _RENDERED)


def _sink_conflicts(document: YamlDocument, pipeline: Pipeline, found: Sequence[RecordFlow]) -> Iterator[FileProblem]:
    """Yield conflicts between sinks, and unfit names of sinks.

    Two sinks conflict if they have the same table, or the same consumer group on a common topic.
    """
    for at, flow in enumerate(found):
        if flow.sink.input is not None and not re.match(NAME, flow.sink_name):
            problem = f"{flow.sink_name!r} is in names of tasks: letters, digits, - and _ only, and no digit first."
            yield document.problem(flow.sink_at, problem)
        for other in found[:at]:
            if _place_of(flow) == _place_of(other):
                problem = f"{flow.sink.table} is the table of {other.sink_name} already. Each sink has its own."
                yield document.problem((*flow.sink_at, "table"), problem)
            group = _group_of(pipeline, flow)
            if _shares_topics(flow, other) and group == _group_of(pipeline, other):
                problem = f"{other.sink_name} reads {other.source.topic} by the consumer group {group} already."
                remedy = f"Give {flow.sink_name} a consumer_group of its own, that it keeps: it names the ledger."
                yield document.problem(flow.sink_at, f"{problem} {remedy}")


def _place_of(flow: RecordFlow) -> tuple[str, str | None, str]:
    return (flow.sink.type, flow.sink.connection, flow.sink.table)


def _group_of(pipeline: Pipeline, flow: RecordFlow) -> str:
    return flow.sink.consumer_group or flow.source.consumer_group or pipeline.metadata.name


def _shares_topics(flow: RecordFlow, other: RecordFlow) -> bool:
    if flow.source.connection != other.source.connection:
        return False
    topics = {flow.source.topic, other.source.topic}
    return len(topics) == 1 or any(_matches(one, two) for one in topics for two in topics)


def _matches(pattern: str, topic: str) -> bool:
    try:
        return is_pattern(pattern) and not is_pattern(topic) and re.fullmatch(pattern, topic) is not None
    except re.error:
        # Another check reports an invalid pattern.
        return False


def _schedule_problems(document: YamlDocument, pipeline: Pipeline) -> Iterator[FileProblem]:
    """Yield contradictions of schedule, mode and alerts.

    A missing schedule counts as continuous here, for any engine: a file with mode replace has to name a cron schedule.
    """
    orchestration = pipeline.orchestration
    schedule = (orchestration.schedule or "continuous").removeprefix("@")
    is_word = orchestration.schedule in (None, "continuous", "never")
    if not is_word and (wrong := schedule_problem(str(orchestration.schedule))) is not None:
        yield document.problem(
            ("orchestration", "schedule"), f"orchestration.schedule: {wrong} Or write continuous, or never."
        )
    if schedule in ("continuous", "never") and any(sink.mode == "replace" for sink in pipeline.sinks.values()):
        problem = "mode: replace lands a run's data interval again, so it needs a cron schedule."
        yield document.problem(("orchestration", "schedule"), problem)
    alerts: Path = ("orchestration", "alerts")
    if orchestration.alerts.deadline is None and "on_deadline" in orchestration.alerts.model_fields_set:
        yield document.problem((*alerts, "on_deadline"), "on_deadline goes with deadline. Say how long a run may take.")
    if (
        orchestration.alerts.deadline is not None
        and SCHEDULES[orchestration.engine] == "@continuous"
        and schedule == "continuous"
    ):
        problem = f"a continuous run of {orchestration.engine} never ends. Leave deadline out, or give a cron schedule."
        yield document.problem((*alerts, "deadline"), problem)
    try:
        date.fromisoformat(orchestration.start_date)
    except ValueError:
        yield document.problem(("orchestration", "start_date"), "it is not a date such as 2026-01-31.")


_TEMPLATE = re.compile(r"\{\{.*?\}\}")
# By work: the keys of `maintenance` that go with the work, and their names in the mapping of the work.
OF_WORKS = {
    "retention": {"retention_column": "column", "keep": "keep", "exact": "exact"},
    "compact": {"target_file_size": "options.target-file-size-bytes"},
    "expire": {"expire_older_than": "older_than", "retain_last": "retain_last"},
    "remove_orphans": {"orphans_older_than": "older_than", "longest_run": "longest_run"},
}


def _maintenance_problems(document: YamlDocument, pipeline: Pipeline) -> Iterator[FileProblem]:
    """Yield the contradictions in the section `maintenance`."""
    upkeep, at = pipeline.maintenance, ("maintenance",)
    if upkeep is None:
        return
    if upkeep.schedule != NEVER and (wrong := schedule_problem(upkeep.schedule)) is not None:
        yield document.problem((*at, "schedule"), f"maintenance.schedule: {wrong} Or write never.")
    works = (upkeep.retention, upkeep.compact, upkeep.rewrite_manifests, upkeep.expire, upkeep.remove_orphans)
    if not any(works):
        yield document.problem(at, "maintenance contains nothing to do. Leave out a key that is false.")
    for key, work in ((key, work) for work, keys in OF_WORKS.items() for key in keys):
        if getattr(upkeep, key) is not None and not getattr(upkeep, work):
            yield document.problem((*at, key), f"{key} goes with {work}, which is false. Leave it out.")
    for name in pipeline.sinks if upkeep.sinks is None else upkeep.sinks:
        if name not in pipeline.sinks:
            known = ", ".join(pipeline.sinks)
            yield document.problem((*at, "sinks"), f"there is no sink {name!r}; there are {known}.")
        elif "{" in _TEMPLATE.sub("", pipeline.sinks[name].table):
            problem = f"topics or records choose the table of {name}. Name other sinks; maintain these tables by a DAG."
            yield document.problem((*at, "sinks") if upkeep.sinks else at, problem)
    if upkeep.sinks == []:
        yield document.problem((*at, "sinks"), "no table is maintained. Name some sinks, or leave it out.")


def _engine_problems(document: YamlDocument, pipeline: Pipeline, flow: RecordFlow) -> Iterator[FileProblem]:
    orchestration, mode = pipeline.orchestration, flow.sink.mode
    if orchestration.engine in ON_BRANCHES:
        yield from _branch_problems(document, pipeline, flow)
    for needed, is_needed in (
        (EngineCapability.REPLACE, mode == "replace"),
        (EngineCapability.MIRROR, mode in MIRROR_MODES and orchestration.engine != "extract"),
        (EngineCapability.DELTA, flow.sink.type == "delta"),
    ):
        if is_needed and (lack := lack_of(orchestration.engine, needed)):
            key, value = ("type", flow.sink.type) if needed is EngineCapability.DELTA else ("mode", mode)
            yield document.problem((*flow.sink_at, key), f"{value} {' '.join(lack)}")
    if orchestration.engine == "spark":
        yield from _refused_settings(
            document, SettingTaker.SPARK, orchestration, ("orchestration",), *_OTHERWISE_ON_SPARK
        )
        yield from _refused_settings(document, SettingTaker.SPARK, flow.sink, flow.sink_at)


def _branch_problems(document: YamlDocument, pipeline: Pipeline, flow: RecordFlow) -> Iterator[FileProblem]:
    """Yield the settings of a flow unfit for Flink or Connect, which do not use this package's decoding.

    Also yield the problems of transformations: Flink translates SQL, Connect takes none.
    """
    engine = pipeline.orchestration.engine
    taker = ON_BRANCHES[engine]
    if flow.steps and engine == "flink":
        yield from flink_problems(document, pipeline, flow)
    elif flow.steps and (lack := lack_of(engine, EngineCapability.SQL)):
        yield document.problem(("transformations",), f"transformations: SQL {' '.join(lack)}")
    yield from _format_problems(document, engine, flow)
    yield from _made_time_problems(document, engine, flow.source.schema_, (*flow.source_at, "schema"))
    yield from _made_time_problems(document, engine, flow.sink.schema_, (*flow.sink_at, "schema"))
    yield from _refused_settings(document, taker, flow.source, flow.source_at)
    yield from _refused_settings(document, taker, flow.sink, flow.sink_at)
    yield from _refused_settings(document, taker, pipeline.orchestration, ("orchestration",))
    yield from _refused_settings(document, taker, flow.sink.quality or pipeline.quality, flow.quality_at)


def _refused_settings(
    document: YamlDocument, taker: SettingTaker, part: BaseModel, path: Path, *but: str
) -> Iterator[FileProblem]:
    """Yield the settings of a part that a taker does not take.

    :param but: names to leave out.
    """
    for name in sorted(part.model_fields_set - {*but}):
        setting = SETTINGS.get(RENAMED.get(name, name))
        refusal = None if setting is None else setting.refusal(taker)
        if refusal is not None and getattr(part, name) is not None:
            key = type(part).model_fields[name].alias or name
            yield document.problem((*path, key), f"{key} {refusal.text(taker)} {refusal.remedy}")


def _format_problems(document: YamlDocument, engine: str, flow: RecordFlow) -> Iterator[FileProblem]:
    at = (*flow.source_at, "format")
    if engine == "flink":
        try:
            check_format("format", str(flow.source.format))
        except InvalidArgument as e:
            yield document.problem(at, str(e))
    elif flow.source.format is not ValueFormat.JSON:
        yield document.problem(at, f"{engine} reads JSON here.")


def _made_time_problems(document: YamlDocument, engine: str, schema: str | None, path: Path) -> Iterator[FileProblem]:
    """Yield time columns that a DDL makes from fields of another type, which only this package's decoding makes."""
    if schema is None:
        return
    # Imported here, since it imports PyIceberg's types, and the parser of DAG files reads files of all engines.
    from airflow_lakestream.tables.schema.ddl import parse_timed_schema

    # Another check reports an invalid schema.
    with suppress(InvalidArgument):
        for column, source in parse_timed_schema(schema)[1].items():
            if lack := lack_of(engine, EngineCapability.TIMES):
                yield document.problem(path, f"column {'.'.join(column)!r}: a time made {source} {' '.join(lack)}")


def _column_problems(document: YamlDocument, flow: RecordFlow) -> Iterator[FileProblem]:
    source, sink = flow.source, flow.sink
    if not flow.steps:
        return
    if source.schema_ is None:
        if source.format not in _TEXTS:
            problem = f"SQL reads columns of {source.format}. Say with schema which ones: id bigint, name string."
            yield document.problem((*flow.source_at, "format"), problem)
    elif sink.schema_ is not None:
        problem = "the table's columns are those that the transformations make."
        yield document.problem((*flow.sink_at, "schema"), problem)


_OF_UPSERT = (RecordEnvelope.FLATTENED,)
OF_DOCUMENTS = (RecordEnvelope.MAXWELL, RecordEnvelope.CANAL)
_OF_MIRROR = (RecordEnvelope.DEBEZIUM, *OF_DOCUMENTS)


def _mirror_problems(document: YamlDocument, pipeline: Pipeline, flow: RecordFlow) -> Iterator[FileProblem]:
    is_upsert = flow.sink.mode == "upsert"
    taker = SettingTaker.UPSERT if is_upsert else SettingTaker.MIRROR
    if flow.steps and not is_upsert and (lack := lack_of("mirror", EngineCapability.SQL)):
        yield document.problem(flow.last_at[:1], f"SQL {' '.join(lack)}")
    if flow.source.envelope not in (None, *(_OF_UPSERT if is_upsert else _OF_MIRROR)):
        problem = (
            "mode: upsert takes plain records, or flattened ones. Leave it out."
            if is_upsert
            else "a mirror follows Debezium's events, or Maxwell's and Canal's documents."
        )
        yield document.problem((*flow.source_at, "envelope"), problem)
    if is_upsert and getattr(flow.sink, "key", None) is None:
        problem = "key is missing: plain records do not show which columns identify a row. Name the columns: [id]."
        yield document.problem((*flow.sink_at, "mode"), problem)
    yield from _refused_settings(document, taker, flow.source, flow.source_at, "envelope")
    yield from _refused_settings(document, taker, flow.sink, flow.sink_at, "mode")
    if pipeline.orchestration.parallelism is not None and pipeline.orchestration.engine == "extract":
        yield document.problem(("orchestration", "parallelism"), "a mirror is merged by one process. Leave it out.")
