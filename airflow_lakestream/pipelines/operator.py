"""The operator of a compiled pipeline: its class and arguments, without Airflow, so that they can also be printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.core.policies import TableFormat, seconds
from airflow_lakestream.pipelines.compiled import Compiled

# What the supervising task is told beside the app's own arguments.
_CONNECTIONS = ("kafka_conn_id", "iceberg_conn_id", "storage_conn_id")
# Where `lakestream init` puts checkpoints, too.
_CHECKPOINTS = "{{ var.value.get('lakestream_checkpoints', '/tmp/lakestream') }}/{{ dag.dag_id }}"


# JSON without a schema, as the other engines read it; a file may say others.
_CONVERTERS = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}


@dataclass(frozen=True)
class OperatorCall:
    """What makes the task: `module.name(first, **arguments)`."""

    module: str
    name: str
    first: Mapping[str, str]
    arguments: Mapping[str, Any]


def operator_of(compiled: Compiled) -> OperatorCall:
    """Return the call that makes a pipeline's task, or its group of tasks."""
    base = "airflow_lakestream.operators"
    if compiled.engine == "flink":
        return OperatorCall(f"{base}.flink_sql", "FlinkSqlOperator", {"task_id": "land"}, _of_flink(compiled))
    if compiled.engine == "connect":
        return OperatorCall(f"{base}.kafka_connect", "KafkaConnectOperator", {"task_id": "land"}, _of_connect(compiled))
    if compiled.engine == "spark":
        name = "SparkStreamingSubmitOperator"
        return OperatorCall(f"{base}.spark_streaming_submit", name, {"task_id": "land"}, _of_spark(compiled))
    arguments = dict(compiled.landing)
    if compiled.mode == "mirror":
        return OperatorCall(f"{base}.kafka_mirror", "KafkaMirrorOperator", {"task_id": "land"}, arguments)
    if compiled.engine == "group":
        tasks = {"tasks": arguments.pop("parallelism")} if "parallelism" in arguments else {}
        call = tasks | arguments
        return OperatorCall(f"{base}.kafka_extract_group", "kafka_extract_group", {"group_id": "land"}, call)
    return OperatorCall(f"{base}.kafka_extract", "KafkaExtractOperator", {"task_id": "land"}, arguments)


def app_of(compiled: Compiled) -> str:
    """Return the bundled Spark app that lands a pipeline."""
    kind = "cdc" if compiled.mode == "mirror" else "kafka"
    return f"{kind}_to_{TableFormat(compiled.table_format)}"


def _of_spark(compiled: Compiled) -> dict[str, Any]:
    landing = dict(compiled.landing)
    connections = {name: landing.pop(name) for name in _CONNECTIONS if name in landing}
    landing.pop("table_format", None)
    own = dict(compiled.own)
    found: dict[str, Any] = {"app": app_of(compiled), **connections}
    if "connection" in own:
        found["spark_conn_id"] = own.pop("connection")
    for key, argument in (("max_records", "max_offsets_per_trigger"), ("parallelism", "total_executor_cores")):
        if key in landing:
            found[argument] = landing.pop(key)
    every = landing.pop("checkpoint_interval", 60)
    location = own.pop("checkpoint_location", None) or _CHECKPOINTS
    if compiled.mode != "replace":
        found["checkpoint_location"] = location
        if compiled.is_continuous:
            found["trigger"] = f"{seconds('checkpoint_interval', every):g} seconds"
    return {**found, **_deferred(compiled), **own, "app_config": landing}


def _of_flink(compiled: Compiled) -> dict[str, Any]:
    landing, own = dict(compiled.landing), dict(compiled.own)
    landing["columns"] = landing.pop("schema")
    if "checkpoint_interval" in landing:
        landing["publish_interval"] = landing["checkpoint_interval"]
    if "connection" in own:
        own["flink_conn_id"] = own.pop("connection")
    return {**landing, "checkpoint_location": _CHECKPOINTS, **_deferred(compiled), **own}


def _of_connect(compiled: Compiled) -> dict[str, Any]:
    landing, own = dict(compiled.landing), dict(compiled.own)
    config = {"topics": landing["topic"], "iceberg.tables": landing["table"], **_CONVERTERS}
    if "parallelism" in landing:
        config["tasks.max"] = str(landing["parallelism"])
    found = {"connector": own.get("connector", compiled.name), "config": {**config, **own.get("config", {})}}
    if "connection" in own:
        found["connect_conn_id"] = own["connection"]
    if "checkpoint_interval" in landing:
        found["publish_interval"] = landing["checkpoint_interval"]
    names = ("kafka_conn_id", "iceberg_conn_id", "consumer_group", "checks")
    return {**found, **{name: landing[name] for name in names if name in landing}, **_deferred(compiled)}


def _deferred(compiled: Compiled) -> dict[str, Any]:
    return {} if compiled.deferrable is None else {"deferrable": compiled.deferrable}
