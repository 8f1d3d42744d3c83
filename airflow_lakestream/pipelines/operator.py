"""Operators and sensors of a compiled pipeline as calls, without Airflow: classes and arguments, also for printing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

    :param check: name of its check in `watching.checks`, by which the arguments are checked without Airflow.
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
            yield _of_sensor(sensor)
    for landing in compiled.landings:
        after = tuple(sensor.task_id for sensor in compiled.sensors if landing.sink in sensor.before)
        yield _of_landing(compiled, landing, after)
    for sensor in compiled.sensors:
        if sensor.after is not None:
            yield _of_sensor(sensor, compiled.landing_of(sensor.after).task_id)


def _of_sensor(sensor: CompiledSensor, *after: str) -> OperatorCall:
    known = SENSORS[sensor.kind]
    return OperatorCall(known.module, known.name, {"task_id": sensor.task_id}, sensor.arguments, sensor, after)


# The operator of a landing, or the function that makes a group of tasks, by engine and mode.
def _of_landing(compiled: CompiledPipeline, landing: SinkLanding, after: tuple[str, ...]) -> OperatorCall:
    first = {"task_id": landing.task_id}
    if compiled.engine == "flink":
        call = _of_flink(compiled, landing)
        return OperatorCall(f"{_BASE}.flink_sql", "FlinkSqlOperator", first, call, landing, after)
    if compiled.engine == "connect":
        call = _of_connect(compiled, landing)
        return OperatorCall(f"{_BASE}.kafka_connect", "KafkaConnectOperator", first, call, landing, after)
    if compiled.engine == "spark":
        module, name = f"{_BASE}.spark_streaming_submit", "SparkStreamingSubmitOperator"
        return OperatorCall(module, name, first, _of_spark(compiled, landing), landing, after)
    call = dict(landing.arguments)
    if landing.is_mirror:
        return OperatorCall(f"{_BASE}.kafka_mirror", "KafkaMirrorOperator", first, call, landing, after)
    if compiled.engine == "group":
        tasks = {"tasks": call.pop("parallelism")} if "parallelism" in call else {}
        first, name = {"group_id": landing.task_id}, "kafka_extract_group"
        return OperatorCall(f"{_BASE}.{name}", name, first, tasks | call, landing, after)
    return OperatorCall(f"{_BASE}.kafka_extract", "KafkaExtractOperator", first, call, landing, after)


def app_of(landing: SinkLanding) -> str:
    """Return the name of the bundled Spark app for a landing, such as `cdc_to_delta`."""
    kind = "cdc" if landing.is_mirror else "kafka"
    return f"{kind}_to_{TableFormat(landing.table_format)}"


def connector_of(compiled: CompiledPipeline, landing: SinkLanding) -> str:
    """Return the name of a landing's connector in Kafka Connect: of the file, or the pipeline's name."""
    return with_suffix(str(compiled.own.get("connector", compiled.name)), _OF_CONNECTORS, landing.apart)


# A landing's arguments belong to the app's configuration, except arguments of the submission.
def _of_spark(compiled: CompiledPipeline, landing: SinkLanding) -> dict[str, Any]:
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
        if compiled.is_continuous:
            found["trigger"] = f"{seconds('checkpoint_interval', every):g} seconds"
    return {**found, **_deferred(compiled), **own, "app_config": arguments}


# A landing's arguments are Flink's operator's own, except a few with another name.
def _of_flink(compiled: CompiledPipeline, landing: SinkLanding) -> dict[str, Any]:
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


def _of_connect(compiled: CompiledPipeline, landing: SinkLanding) -> dict[str, Any]:
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
