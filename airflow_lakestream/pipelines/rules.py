"""What the keys of a pipeline's file do not go together with."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from pydantic import BaseModel

from airflow_lakestream.core.formats import Envelope, Format
from airflow_lakestream.pipelines.compiled import SCHEDULES
from airflow_lakestream.pipelines.errors import Problem
from airflow_lakestream.pipelines.model import Pipeline, Sink, Source
from airflow_lakestream.pipelines.statement import check_chain
from airflow_lakestream.pipelines.yaml_file import Document, Path

# What the engines take that know nothing of our decoding. A new table's design may wait for the engine that makes it.
_ANY = frozenset(
    {"type", "topic", "connection", "consumer_group", "format", "schema_registry", "table", "mode", "schema_"}
    | {"partition_by", "properties", "engine", "schedule", "start_date", "catchup", "checkpoint_interval"}
    | {"parallelism", "retries", "retry_delay", "pool", "deferrable", "alerts", "spark", "flink", "connect"}
    | {"checks"}
)
ON_BRANCHES = {"flink": _ANY | {"start_offset", "start_timestamp", "on_data_loss"}, "connect": _ANY | {"sort_order"}}
_OF_MIRRORS = ("key", "soft_delete", "out_of_range", "merge_mode", "rename_columns", "source_tables")
_NOT_OF_MIRRORS = {
    "sources": ("start_offset", "start_timestamp", "tombstones", "key_format", "csv_delimiter"),
    "sinks": ("schema_evolution", "unknown_fields", "metadata_columns"),
}
# What only a landing in a worker has.
_NOT_ON_SPARK = {
    "idle_timeout": "is not for Spark: a continuous query follows the topic by itself. Leave it out.",
    "max_batch_bytes": "is not for Spark: max_records bounds a batch. Leave it out.",
}


def contradictions(document: Document, pipeline: Pipeline) -> Iterator[Problem]:
    """Yield what is wrong with a file whose keys and values are right one by one."""
    for part, found in (("sources", pipeline.sources), ("sinks", pipeline.sinks)):
        for name in list(found)[1:]:
            problem = f"{name}: a pipeline has one of the {part}, and one ledger. Write a file for each more."
            yield document.problem((part, name), problem)
    (source_name, source), (sink_name, sink) = next(iter(pipeline.sources.items())), next(iter(pipeline.sinks.items()))
    source_at: Path = ("sources", source_name)
    sink_at: Path = ("sinks", sink_name)
    yield from check_chain(document, source_name, pipeline.transformations)
    yield from _of_schedule(document, pipeline, sink)
    yield from _of_engine(document, pipeline, sink, sink_at)
    yield from _of_columns(document, pipeline, (source, source_at), (sink, sink_at))
    if sink.mode == "mirror":
        yield from _of_mirror(document, pipeline, (source, source_at), (sink, sink_at))
        return
    for key in _OF_MIRRORS:
        if getattr(sink, key) is not None:
            yield document.problem((*sink_at, key), f"{key} goes with mode: mirror; the mode is {sink.mode!r}.")


def _of_schedule(document: Document, pipeline: Pipeline, sink: Sink) -> Iterator[Problem]:
    told = pipeline.orchestration
    said = (told.schedule or "continuous").removeprefix("@")
    if sink.mode == "replace" and said in ("continuous", "never"):
        problem = "mode: replace lands a run's data interval anew, so it needs a cron schedule."
        yield document.problem(("orchestration", "schedule"), problem)
    alerts: Path = ("orchestration", "alerts")
    if told.alerts.deadline is None and "on_deadline" in told.alerts.model_fields_set:
        yield document.problem((*alerts, "on_deadline"), "on_deadline goes with deadline. Say how long a run may take.")
    if told.alerts.deadline is not None and SCHEDULES[told.engine] == "@continuous" and said == "continuous":
        problem = f"a continuous run of {told.engine} never ends. Leave deadline out, or give a cron schedule."
        yield document.problem((*alerts, "deadline"), problem)
    try:
        date.fromisoformat(told.start_date)
    except ValueError:
        yield document.problem(("orchestration", "start_date"), "start_date is not a date such as 2026-01-31.")


def _of_engine(document: Document, pipeline: Pipeline, sink: Sink, sink_at: Path) -> Iterator[Problem]:
    told = pipeline.orchestration
    if told.engine in ON_BRANCHES:
        yield from _of_branches(document, pipeline, sink, sink_at)
    if told.engine == "group" and sink.mode != "append":
        yield document.problem((*sink_at, "mode"), f"{sink.mode!r} is for the engines extract and spark.")
    if told.engine == "spark":
        for key, why in _NOT_ON_SPARK.items():
            if getattr(told, key) is not None:
                yield document.problem(("orchestration", key), f"{key} {why}")


def _of_branches(document: Document, pipeline: Pipeline, sink: Sink, sink_at: Path) -> Iterator[Problem]:
    """Yield what an engine can't do whose files are published from a branch: it knows nothing of our decoding."""
    engine = pipeline.orchestration.engine
    (source_name, source) = next(iter(pipeline.sources.items()))
    takes, whose = ON_BRANCHES[engine], f"is not for the engine {engine}. Leave it out, or take another engine."
    if pipeline.transformations:
        yield document.problem(("transformations",), f"transformations: SQL {whose}")
    if source.format is not Format.JSON:
        yield document.problem(("sources", source_name, "format"), f"{engine} reads JSON here.")
    if sink.type != "iceberg" or sink.mode != "append":
        yield document.problem((*sink_at, "mode"), f"{engine} appends to Iceberg tables only.")
    if engine == "flink" and sink.schema_ is None:
        yield document.problem(sink_at, "schema is missing: Flink has to be told the columns of the records.")
    parts: list[tuple[BaseModel, Path]] = [
        (source, ("sources", source_name)),
        (sink, sink_at),
        (pipeline.orchestration, ("orchestration",)),
        (pipeline.quality, ("quality",)),
    ]
    for part, path in parts:
        for name in sorted(part.model_fields_set - takes):
            key = type(part).model_fields[name].alias or name
            yield document.problem((*path, key), f"{key} {whose}")


def _of_columns(
    document: Document, pipeline: Pipeline, of_source: tuple[Source, Path], of_sink: tuple[Sink, Path]
) -> Iterator[Problem]:
    (source, source_at), (sink, sink_at) = of_source, of_sink
    if source.schema_ is None:
        return
    if not pipeline.transformations:
        problem = "it is of the columns that transformations read; there are none. The table's belong to the sink."
        yield document.problem((*source_at, "schema"), problem)
    if sink.schema_ is not None:
        yield document.problem((*sink_at, "schema"), "the table's columns are those that the transformations make.")


def _of_mirror(
    document: Document, pipeline: Pipeline, of_source: tuple[Source, Path], of_sink: tuple[Sink, Path]
) -> Iterator[Problem]:
    if pipeline.transformations:
        yield document.problem(("transformations",), "a mirror has the rows of the database's table; leave them out.")
    if of_source[0].envelope not in (None, Envelope.DEBEZIUM):
        yield document.problem((*of_source[1], "envelope"), "a mirror follows Debezium's events.")
    for part, path in (of_source, of_sink):
        for key in _NOT_OF_MIRRORS[str(path[0])]:
            if key in part.model_fields_set:
                yield document.problem((*path, key), f"{key} is not for a mirror. Leave it out.")
    if pipeline.orchestration.parallelism is not None and pipeline.orchestration.engine == "extract":
        yield document.problem(("orchestration", "parallelism"), "a mirror is merged by one process. Leave it out.")
