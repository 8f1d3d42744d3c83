"""Parts of a task with a driver of Flink, built from the operator's arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_lakestream.config import arguments
from airflow_lakestream.core.policies import is_given
from airflow_lakestream.decode.known_formats import uses_registry
from airflow_lakestream.driver.backend import DriverHandle
from airflow_lakestream.driver.detached import DetachedBackend, DetachedJob
from airflow_lakestream.driver.driver_folder import DriverConfig, new_folder
from airflow_lakestream.driver.driving import DriverSupervision, StreamSpec
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.flink.job import cancel_noted
from airflow_lakestream.flink.job_config import JobConfig
from airflow_lakestream.flink.script.config import DATABASE, KAFKA, ScriptConfig, digest_of, read_jar
from airflow_lakestream.hooks.connections import connector_options
from airflow_lakestream.hooks.flink import FlinkHook
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.hooks.registry import registry_of

if TYPE_CHECKING:
    # The operators themselves import this module.
    from airflow_lakestream.operators.supervised.operator import SupervisedOperator

# Arguments of FlinkSqlOperator that `FlinkConfig` gets unchanged: always, and only with a value.
_REQUIRED_ARGUMENTS = ("topic", "table", "format", "start_offset", "on_data_loss", "publish_interval", "prove")
_OPTIONAL_ARGUMENTS = (
    *("columns", "sql", "sql_input", "schema", "start_timestamp", "partition_by", "branch", "checks"),
    *("on_error", "max_rejected"),
)


class FlinkBackend(DetachedBackend):
    """Drivers next to the worker. Killing a live driver also cancels the driver's job.

    A driver that has vanished leaves its job running, and the next driver adopts the job.
    """

    def __init__(self, config: JobConfig) -> None:
        super().__init__()
        self._config = config

    def kill(self, handle: DriverHandle) -> None:
        """Kill the driver. If the driver was alive, also cancel the job."""
        is_alive = handle.process is not None and handle.process.alive is True
        super().kill(handle)
        if is_alive:
            config = self._config
            cancel_noted(config.checkpoint_location, config.store_properties, config.manager_address)


def build_supervision(
    operator: SupervisedOperator, config: JobConfig, owner: str, wait: Callable[[float], None]
) -> DriverSupervision:
    """Return the supervision of a driver of Flink.

    :param operator: a `FlinkOperator`.
    :param owner: key of the task's run, the same for all tries.
    :param wait: waits for some seconds, and raises an error after a signal.
    """
    spec = StreamSpec(
        location=config.checkpoint_location,
        fingerprint=config.fingerprint,
        inputs=config.inputs,
        limits=operator.limits(),
        poll_interval=operator.seconds_between_looks(),
        by=owner,
        properties=config.store_properties,
    )
    return DriverSupervision(spec, FlinkBackend(config), _FlinkLaunch(config, operator.root_folder()).prepare, wait)


def configured(operator: SupervisedOperator, owner: str) -> FlinkConfig:
    """Return the configuration of a landing's driver. Raises InvalidArgument.

    :param operator: a `FlinkSqlOperator`.
    :param owner: key of the task's run, the same for all tries.
    """
    optional = {name: value for name in _OPTIONAL_ARGUMENTS if is_given(value := getattr(operator, name))}
    kafka = KafkaHook(operator.kafka_conn_id)
    registry = registry_of(operator.schema_registry, kafka, operator.format)
    if registry is not None and not uses_registry(operator.format):
        problem = f"is given, and records of format={operator.format!r} name no schemas."
        raise InvalidArgument("schema_registry", problem, "Leave it out, or correct format.")
    return FlinkConfig(
        **_common(operator, owner),
        kafka=kafka.configuration(),
        registry={} if registry is None else asdict(registry),
        consumer_group=operator.consumer_group or operator.dag_id,
        table_properties=dict(operator.table_properties or {}),
        **{name: getattr(operator, name) for name in _REQUIRED_ARGUMENTS},
        **optional,
    )


def script_configured(operator: SupervisedOperator, owner: str) -> ScriptConfig:
    """Return the configuration of the driver of a script or a program. Raises InvalidArgument.

    The connections of Kafka and the database are read only if the script refers to them.

    :param operator: a `FlinkScriptOperator`.
    :param owner: key of the task's run, the same for all tries.
    """
    common = {**_common(operator, owner), "name": f"{operator.dag_id}.{operator.task_id}"}
    if is_given(operator.jar):
        jar = str(operator.jar)
        return ScriptConfig(
            **common,
            jar=jar,
            jar_digest=digest_of(read_jar(jar)),
            entry_class=str(operator.entry_class) if is_given(operator.entry_class) else "",
            program_arguments=arguments.items("program_arguments", operator.program_arguments) or (),
        )
    script = str(operator.script)
    wants_kafka = KAFKA in script
    wants_database = DATABASE in script and is_given(operator.database_conn_id)
    return ScriptConfig(
        **common,
        kafka=KafkaHook(operator.kafka_conn_id).configuration() if wants_kafka else {},
        database=connector_options(str(operator.database_conn_id)) if wants_database else {},
        script=script,
    )


def _common(operator: SupervisedOperator, owner: str) -> dict[str, Any]:
    """Return the settings of `JobConfig`. Raises InvalidArgument."""
    if not is_given(operator.checkpoint_location):
        raise InvalidArgument(
            "checkpoint_location",
            "is missing.",
            "Give a path or URI that the workers, the triggerer and Flink's processes share.",
        )
    gateway, manager = FlinkHook(operator.flink_conn_id).addresses()
    return {
        "catalog": {"name": operator.iceberg_conn_id, "properties": IcebergHook(operator.iceberg_conn_id).properties()},
        "gateway": gateway,
        "manager": manager,
        "owner": owner,
        "checkpoint_location": str(operator.checkpoint_location).rstrip("/"),
        "checkpoint_interval": operator.checkpoint_interval,
        "parallelism": operator.parallelism,
    }


@dataclass
class _FlinkLaunch:
    """The preparation of launches; `folder` is the root folder of all drivers."""

    config: JobConfig
    folder: Path

    def prepare(self) -> DetachedJob:
        """Create a driver's folder with the configuration, and return the job to launch."""
        folder = new_folder(self.folder, self.config.checkpoint_location)
        file = DriverConfig(self.config.to_dict(), self.config.fingerprint, self.config.inputs).write(folder)
        command = [sys.executable, "-m", "airflow_lakestream.flink.program", "--config", str(file)]
        # The driver must not see Airflow's connections and settings: the necessary ones are in its file.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW_", "_AIRFLOW_"))}
        return DetachedJob(command, environment, folder)
