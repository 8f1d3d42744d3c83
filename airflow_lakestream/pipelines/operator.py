"""Operators and sensors of a compiled pipeline as calls, without Airflow: classes and arguments, also for printing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_lakestream.core.policies import OnError, TableFormat, seconds
from airflow_lakestream.pipelines.compiled import (
    CompiledPipeline,
    CompiledSensor,
    FileArguments,
    SinkLanding,
    with_suffix,
)

_BASE = "airflow_lakestream.operators"
# Arguments of the supervising task in addition to the app's own.
_CONNECTIONS = ("kafka_conn_id", "iceberg_conn_id", "storage_conn_id")
# The same folder as in `lakestream init`.
_CHECKPOINTS = "{{ var.value.get('lakestream_checkpoints', '/tmp/lakestream') }}/{{ dag.dag_id }}"
# DAG ids have no tilde, so a sink's checkpoint never equals another pipeline's. Connect's names go into URLs.
_OF_PLACES, _OF_CONNECTORS = "~", "-"

# JSON without a schema, as the other engines read it; a file may set others.
_CONVERTERS = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}


@dataclass(frozen=True)
class KnownSensor:
    """A sensor that pipeline files can use: module and name of its class.

    :param check: name of its check in `watching.asking`, by which the arguments are checked without Airflow.
    :param defaults: arguments that the check requires and the file may leave out; placeholders if only Airflow knows
        them.
    :param of_airflow: arguments of the sensor that the check does not take.
    """

    module: str
    name: str
    check: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    of_airflow: tuple[str, ...] = ("deferrable", "mode", "poke_interval", "soft_fail", "timeout")


# A group that only Airflow knows.
_SOME_GROUP = {"consumer_group": "group"}
SENSORS: Mapping[str, KnownSensor] = {
    "lag": KnownSensor(
        "airflow_lakestream.sensors.checkpoint_lag", "CheckpointLagSensor", "checkpoint_lag", _SOME_GROUP
    ),
    "freshness": KnownSensor(
        "airflow_lakestream.sensors.iceberg_snapshot_freshness",
        "IcebergSnapshotFreshnessSensor",
        "freshness",
        {"iceberg_conn_id": "iceberg_default"},
    ),
    "retention": KnownSensor(
        "airflow_lakestream.sensors.retention_risk",
        "RetentionRiskSensor",
        "retention_risk",
        {**_SOME_GROUP, "min_time_left": "1h"},
    ),
}


@dataclass(frozen=True)
class OperatorCall:
    """Call for a task, or for a group of tasks: `module.name(**first, **arguments)`.

    :param first: the argument with its id, `task_id` or `group_id`.
    :param in_file: its arguments and positions in the file, for errors.
    :param after: the ids of the tasks and groups that it waits for.
    """

    module: str
    name: str
    first: Mapping[str, str]
    arguments: Mapping[str, Any]
    in_file: FileArguments
    after: tuple[str, ...] = ()

    @property
    def task_id(self) -> str:
        """The id of the task or the group."""
        return next(iter(self.first.values()))


def calls_of(compiled: CompiledPipeline) -> Iterator[OperatorCall]:
    """Yield the calls for a pipeline's tasks. The tasks that a call waits for come before the call."""
    for sensor in compiled.sensors:
        if sensor.after is None:
            yield _sensor_call(sensor)
    for landing in compiled.landings:
        after = tuple(sensor.task_id for sensor in compiled.sensors if landing.sink in sensor.before)
        yield _landing_call(compiled, landing, after)
    for one in () if compiled.landings else compiled.maintenance:
        name = "LakestreamMaintainOperator"
        yield OperatorCall(f"{_BASE}.maintain", name, {"task_id": one.task_id}, one.arguments, one)
    for sensor in compiled.sensors:
        if sensor.after is not None:
            yield _sensor_call(sensor, compiled.landing_of(sensor.after).task_id)


def _sensor_call(sensor: CompiledSensor, *after: str) -> OperatorCall:
    known = SENSORS[sensor.kind]
    return OperatorCall(known.module, known.name, {"task_id": sensor.task_id}, sensor.arguments, sensor, after)


def _landing_call(compiled: CompiledPipeline, landing: SinkLanding, after: tuple[str, ...]) -> OperatorCall:
    """Return the call of a landing's operator, or of the function that makes a group of tasks."""
    first, arguments = {"task_id": landing.task_id}, dict(landing.arguments)
    match compiled.engine:
        case "flink":
            module, name, arguments = "flink_sql", "FlinkSqlOperator", _flink_arguments(compiled, landing)
        case "connect":
            module, name, arguments = "kafka_connect", "KafkaConnectOperator", _connect_arguments(compiled, landing)
        case "spark":
            module, name = "spark_streaming_submit", "SparkStreamingSubmitOperator"
            arguments = _spark_arguments(compiled, landing)
        case _ if landing.is_mirror:
            module, name = "kafka_mirror", "KafkaMirrorOperator"
        case "group":
            module = name = "kafka_extract_group"
            first = {"group_id": landing.task_id}
            arguments = ({"tasks": arguments.pop("parallelism")} if "parallelism" in arguments else {}) | arguments
        case _:
            module, name = "kafka_extract", "KafkaExtractOperator"
    return OperatorCall(f"{_BASE}.{module}", name, first, arguments, landing, after)


def app_of(landing: SinkLanding) -> str:
    """Return the name of the bundled Spark app for a landing, such as `cdc_to_delta`."""
    kind = "cdc" if landing.is_mirror else "kafka"
    return f"{kind}_to_{TableFormat(landing.table_format)}"


def connector_of(compiled: CompiledPipeline, landing: SinkLanding) -> str:
    """Return the name of a landing's connector in Kafka Connect: of the file, or the pipeline's name."""
    return with_suffix(str(compiled.own.get("connector", compiled.name)), _OF_CONNECTORS, landing.apart)


def _spark_arguments(compiled: CompiledPipeline, landing: SinkLanding) -> dict[str, Any]:
    """Return the arguments of a submission; the rest of a landing's arguments belong to the app's configuration."""
    arguments = dict(landing.arguments)
    connections = {name: arguments.pop(name) for name in _CONNECTIONS if name in arguments}
    arguments.pop("table_format", None)
    own = dict(compiled.own)
    found: dict[str, Any] = {"app": app_of(landing), **connections}
    if "connection" in own:
        found["spark_conn_id"] = own.pop("connection")
    for key, argument in (("max_records", "max_offsets_per_trigger"), ("parallelism", "total_executor_cores")):
        if key in arguments:
            found[argument] = arguments.pop(key)
    # Without a continuous schedule the default trigger stays: each run reads all records up to now, and ends.
    every = arguments.pop("checkpoint_interval", 60)
    location = _place(own, landing)
    if landing.mode != "replace":
        found["checkpoint_location"] = location
        if compiled.cron == "@continuous":
            found["trigger"] = f"{seconds('checkpoint_interval', every):g} seconds"
    return {**found, **_deferred(compiled), **own, "app_config": arguments}


def _flink_arguments(compiled: CompiledPipeline, landing: SinkLanding) -> dict[str, Any]:
    """Return the arguments of Flink's operator: those of the landing, some under another name."""
    arguments, own = dict(landing.arguments), dict(compiled.own)
    if "schema" in arguments and ("sql" not in arguments or arguments.get("sql_input") == "decoded"):
        arguments["columns"] = arguments.pop("schema")
    # As in the other engines: records that Flink would decode otherwise are landed by the extract's code.
    arguments.setdefault("on_error", OnError.REJECT.value)
    if "checkpoint_interval" in arguments:
        arguments["publish_interval"] = arguments["checkpoint_interval"]
    if "connection" in own:
        own["flink_conn_id"] = own.pop("connection")
    return {**arguments, "checkpoint_location": _place(own, landing), **_deferred(compiled), **own}


def _connect_arguments(compiled: CompiledPipeline, landing: SinkLanding) -> dict[str, Any]:
    arguments, own = landing.arguments, compiled.own
    config = {"topics": arguments["topic"], "iceberg.tables": arguments["table"], **_CONVERTERS}
    if "parallelism" in arguments:
        config["tasks.max"] = str(arguments["parallelism"])
    found = {"connector": connector_of(compiled, landing), "config": {**config, **own.get("config", {})}}
    if "connection" in own:
        found["connect_conn_id"] = own["connection"]
    if "checkpoint_interval" in arguments:
        found["publish_interval"] = arguments["checkpoint_interval"]
    names = ("kafka_conn_id", "iceberg_conn_id", "consumer_group", "checks")
    return {**found, **{name: arguments[name] for name in names if name in arguments}, **_deferred(compiled)}


def _place(own: dict[str, Any], landing: SinkLanding) -> str:
    """Return the checkpoint location of a landing, and remove the setting from the engine's own settings.

    The location of the file is shared by all sinks, so a sink's suffix is added.
    """
    location = own.pop("checkpoint_location", None) or _CHECKPOINTS
    return with_suffix(str(location).rstrip("/") if landing.apart else str(location), _OF_PLACES, landing.apart)


def _deferred(compiled: CompiledPipeline) -> dict[str, Any]:
    return {} if compiled.deferrable is None else {"deferrable": compiled.deferrable}


_TEMPLATE = '''\
"""The pipeline {file}."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
{imports}
{modules}
{dags}'''
_DAG = "with DAG(\n{settings}):\n{tasks}"


_DEADLINES = "from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference\n"


def python_of(compiled: CompiledPipeline) -> str:
    """Return the text of a DAG file whose DAGs equal the pipeline's."""
    replaces = compiled.replaces and compiled.cron
    alerted = list(compiled.on_failure)
    imports = "from airflow.timetables.interval import CronDataIntervalTimetable\n" if replaces else ""
    if compiled.deadline is not None:
        alerted.append(compiled.on_deadline)
        imports = _DEADLINES + imports
    calls = [call for one in compiled.dags for call in calls_of(one)]
    return _TEMPLATE.format(
        # The path is in triple quotes.
        file=compiled.file.encode("unicode_escape").decode().replace('"', "'"),
        imports=imports,
        modules="".join(
            [
                *(f"import {one}\n" for one in sorted({one.partition(":")[0] for one in alerted})),
                *sorted({f"from {one.module} import {one.name}\n" for one in calls}),
            ]
        ),
        dags="\n\n".join(map(_dag_text, compiled.dags)),
    )


def _dag_text(compiled: CompiledPipeline) -> str:
    year, month, day = (int(part) for part in compiled.start_date.split("-"))
    default_args = {
        "retries": compiled.retries,
        "retry_delay": _PythonCode(f"timedelta(seconds={compiled.retry_delay:g})"),
    }
    for name in ("owner", "pool"):
        if getattr(compiled, name):
            default_args[name] = getattr(compiled, name)
    if compiled.on_failure:
        default_args["on_failure_callback"] = [_called(one) for one in compiled.on_failure]
    cron = compiled.cron
    if compiled.replaces and cron:
        cron = _PythonCode(f"CronDataIntervalTimetable({cron!r}, timezone='UTC')")
    settings = {
        "dag_id": compiled.name,
        "description": compiled.description,
        "schedule": cron,
        "start_date": _PythonCode(f"datetime({year}, {month}, {day}, tzinfo=UTC)"),
        "catchup": compiled.catchup,
        "max_active_runs": 1,
        "tags": list(compiled.tags),
        "default_args": default_args,
    }
    if compiled.deadline is not None:
        function = _called(compiled.on_deadline)
        called = f"interval=timedelta(seconds={compiled.deadline:g}), callback=AsyncCallback({function})"
        settings["deadline"] = _PythonCode(f"DeadlineAlert(reference=DeadlineReference.DAGRUN_QUEUED_AT, {called})")
    return _DAG.format(settings=_keywords(settings, 4), tasks=_tasks(list(calls_of(compiled))))


def _tasks(calls: Sequence[OperatorCall]) -> str:
    """Return the text of the calls, and of the dependencies between tasks.

    A task is assigned to a variable only if it has a dependency.
    """
    waited = {one for call in calls for one in call.after}
    names: dict[str, str] = {}
    made, waits = [], []
    for call in calls:
        # Ids that differ only in such a character get a suffix, so that names stay unique.
        name = re.sub(r"\W", "_", call.task_id)
        while name in names.values():
            name += "_"
        names[call.task_id] = name
        is_named = call.after or call.task_id in waited
        arguments = _keywords({**call.first, **call.arguments}, 8)
        made.append(f"    {f'{name} = ' if is_named else ''}{call.name}(\n{arguments}    )\n")
        if call.after:
            before = ", ".join(names[one] for one in call.after)
            waits.append(f"    {before if len(call.after) == 1 else f'[{before}]'} >> {name}\n")
    return "".join([*made, *waits])


class _PythonCode(str):
    """Python code, for output without quotes among values."""

    __slots__ = ()


def _called(function: str) -> _PythonCode:
    return _PythonCode(function.replace(":", "."))


def _keywords(given: Mapping[str, Any], indent: int) -> str:
    """Return keyword arguments as Python code, a line for each."""
    return "".join(f"{' ' * indent}{name}={_python(value, indent)},\n" for name, value in given.items())


def _python(value: Any, indent: int) -> str:
    """Return a value as Python code: `repr`, with nested mappings and texts of several lines broken into lines."""
    if isinstance(value, _PythonCode):
        return str(value)
    if isinstance(value, Mapping) and value:
        inner = " " * (indent + 4)
        rows = "".join(f"{inner}{name!r}: {_python(one, indent + 4)},\n" for name, one in value.items())
        return f"{{\n{rows}{' ' * indent}}}"
    if isinstance(value, list):
        return f"[{', '.join(_python(one, indent) for one in value)}]"
    if isinstance(value, str) and "\n" in value:
        inner = " " * (indent + 4)
        rows = "".join(f"{inner}{line!r}\n" for line in value.splitlines(keepends=True))
        return f"(\n{rows}{' ' * indent})"
    return repr(value)
