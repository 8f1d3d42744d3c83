"""The sensors of a file: contradictions, and the compiled sensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_lakestream.core.policies import TableFormat, seconds
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import LakeCapability, lake_named
from airflow_lakestream.pipelines.compiled import SCHEDULES, CompiledSensor, SinkLanding, with_suffix
from airflow_lakestream.pipelines.flow import RecordFlow
from airflow_lakestream.pipelines.model import AnySensor, Freshness, Lag, Pipeline
from airflow_lakestream.pipelines.part import ArgumentCollector, seconds_at
from airflow_lakestream.pipelines.yaml_file import FileProblem, Path, YamlDocument

_AT: Path = ("orchestration", "sensors")
_SUBJECTS = ("table", "checkpoint_location", "group_id")
# Settings that a sink has already.
_OF_SINK = (*_SUBJECTS, "consumer_group", "topic", "table_format")
_CONNECTIONS = ("kafka_conn_id", "iceberg_conn_id", "storage_conn_id")
_OF_FILE = ("type", "when", "sinks", "of")
_DURATIONS = ("timeout", "poke_interval")
# These engines land until a person stops them, on any schedule.
_ENDLESS = ("flink", "connect")


def check_sensors(document: YamlDocument, pipeline: Pipeline, found: Sequence[RecordFlow]) -> Iterator[FileProblem]:
    """Yield the contradictions in sensors with correct keys and values, and in `quality.freshness`.

    :param found: the flow into each sink.
    """
    for name, sensor in pipeline.orchestration.sensors.items():
        yield from _check_sensor(document, pipeline, (*_AT, name), sensor)
    for flow in found:
        yield from _check_freshness(document, pipeline, flow)


def _check_sensor(document: YamlDocument, pipeline: Pipeline, path: Path, sensor: AnySensor) -> Iterator[FileProblem]:
    """Yield contradictions in a sensor, whose subject is a sink of the file (`of`), or a table, checkpoint or group."""
    known = ", ".join(pipeline.sinks)
    for key, sinks in (("sinks", sensor.sinks or ()), ("of", (sensor.of,) if sensor.of is not None else ())):
        for sink in sinks:
            if sink not in pipeline.sinks:
                yield document.problem((*path, key), f"there is no sink {sink!r}; there are {known}.")
    if sensor.sinks == []:
        yield document.problem((*path, "sinks"), "no sink waits for it. Name some, or write when: beside.")
    if sensor.when == "beside" and sensor.sinks is not None:
        yield document.problem((*path, "sinks"), "no sink waits for a sensor with when: beside. Leave sinks out.")
    if isinstance(sensor, Freshness) and sensor.max_age is None and sensor.complete_through is None:
        yield document.problem(path, "max_age is missing, and so is complete_through. Give one of them.")
    if sensor.of is not None:
        yield from _check_subject(document, pipeline, path, sensor)
        return
    subjects = ("table",) if isinstance(sensor, Freshness) else _SUBJECTS
    if not any(getattr(sensor, one) is not None for one in subjects):
        problem = f"it looks at nothing: give {' or '.join(subjects)}, or of, the name of a sink."
        yield document.problem(path, problem)


def _check_subject(document: YamlDocument, pipeline: Pipeline, path: Path, sensor: AnySensor) -> Iterator[FileProblem]:
    """Yield the contradictions between a sensor and its subject, the sink named by `of`."""
    for key in (*_OF_SINK, *_CONNECTIONS):
        if getattr(sensor, key, None) is not None:
            yield document.problem((*path, key), f"{key} is set by the sink {sensor.of}. Leave it out.")
    sink = pipeline.sinks.get(str(sensor.of))
    if sink is None:
        return
    if isinstance(sensor, Freshness):
        try:
            lake_named("type", sink.type).require(LakeCapability.FRESHNESS, "freshness", sink.table)
        except InvalidArgument as error:
            yield document.problem((*path, "type"), str(error))
    if "{" in sink.table:
        yield document.problem((*path, "of"), f"topics or records choose the table of {sensor.of}. Give a table.")
    if isinstance(sensor, Lag | Freshness) and sensor.of in _waiters(pipeline, sensor):
        problem = f"the landing in {sensor.of} would wait for its own rows. Write when: beside, or name other sinks."
        yield document.problem((*path, "of"), problem)


def _check_freshness(document: YamlDocument, pipeline: Pipeline, flow: RecordFlow) -> Iterator[FileProblem]:
    """Yield contradictions in a sink's `freshness`, a sensor after the landing (`freshness_after`), which must end."""
    orchestration, path = pipeline.orchestration, (*flow.quality_at, "freshness")
    if (quality := flow.sink.quality or pipeline.quality).freshness is None:
        return
    try:
        seconds("freshness", quality.freshness)
    except InvalidArgument as error:
        yield document.problem(path, str(error))
    if flow.sink.mode == "replace":
        yield document.problem(path, "freshness is not for mode: replace, which lands intervals only. Leave it out.")
    if "{" in flow.sink.table:
        yield document.problem(
            path, f"freshness: topics or records choose the table of {flow.sink_name}. Leave it out."
        )
    schedule = (orchestration.schedule or "continuous").removeprefix("@")
    if orchestration.engine in _ENDLESS or (
        SCHEDULES[orchestration.engine] == "@continuous" and schedule == "continuous"
    ):
        problem = f"freshness looks after a landing, and one of {orchestration.engine} does not end. Leave it out"
        remedy = "." if orchestration.engine in _ENDLESS else ", or give a cron schedule."
        yield document.problem(path, problem + remedy)


def compiled_sensors(
    document: YamlDocument, pipeline: Pipeline, landings: Sequence[SinkLanding]
) -> Iterator[CompiledSensor]:
    """Yield the compiled sensors of `orchestration.sensors`. The file must have passed `check_sensors`.

    Raises PipelineError for an invalid timeout or poke interval.
    """
    of_sinks = {landing.sink: landing for landing in landings}
    for name, sensor in pipeline.orchestration.sensors.items():
        path = (*_AT, name)
        found = ArgumentCollector(path)
        found.take(sensor, path, *_OF_FILE, *_DURATIONS)
        for key in _DURATIONS:
            if (value := getattr(sensor, key)) is not None:
                found.add(key, seconds_at(document, value, *map(str, path), key), (*path, key))
        if sensor.of is not None:
            is_table = isinstance(sensor, Freshness)
            for key, value in _subject(of_sinks[sensor.of], is_table=is_table).items():
                found.add(key, value, (*path, "of"))
        if "deferrable" not in found.values:
            found.add("deferrable", pipeline.orchestration.deferrable, ("orchestration", "deferrable"))
        waiters = tuple(_waiters(pipeline, sensor))
        yield CompiledSensor(task_id=f"wait_{name}", kind=sensor.type, before=waiters, **found.to_fields(document))


def freshness_after(
    document: YamlDocument, pipeline: Pipeline, flow: RecordFlow, landing: SinkLanding
) -> CompiledSensor | None:
    """Return the sensor that checks a sink's freshness after its landing, or None without `quality.freshness`.

    The sensor looks once, and fails if the table lacks a record older than the setting.
    """
    quality = flow.sink.quality or pipeline.quality
    if quality.freshness is None:
        return None
    path = (*flow.quality_at, "freshness")
    found = ArgumentCollector(path)
    for key, value in _subject(landing, is_table=False).items():
        found.add(key, value, path)
    found.add("max_lag_seconds", quality.freshness, path)
    found.add("fail_when_behind", True, path)
    found.add("deferrable", pipeline.orchestration.deferrable, ("orchestration", "deferrable"))
    task_id = with_suffix("fresh", "_", landing.apart)
    return CompiledSensor(task_id=task_id, kind="lag", after=landing.sink, **found.to_fields(document))


def _waiters(pipeline: Pipeline, sensor: AnySensor) -> list[str]:
    """Return the names of the sinks whose landings wait for the sensor: all by default."""
    return [] if sensor.when == "beside" else list(pipeline.sinks) if sensor.sinks is None else sensor.sinks


def _subject(landing: SinkLanding, *, is_table: bool) -> Mapping[str, Any]:
    """Return a sensor's arguments for a look at the table of a sink, from the arguments of the sink's landing.

    :param is_table: the sensor is for Iceberg tables only, and has no argument `table_format`.
    """
    arguments = landing.arguments
    found = {key: arguments[key] for key in ("table", "consumer_group", *_CONNECTIONS) if key in arguments}
    if not is_table:
        found["table_format"] = TableFormat(landing.table_format)
    return found
