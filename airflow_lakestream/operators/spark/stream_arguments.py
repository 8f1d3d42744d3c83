"""What SparkStreamingSubmitOperator is told: its arguments, checked as far as they can be where a DAG is parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow.providers.common.compat.sdk import conf

from airflow_lakestream.config.arguments import between_batches, count, count_from_zero
from airflow_lakestream.config.literals import Check, check_literals
from airflow_lakestream.core.policies import choose, seconds
from airflow_lakestream.core.secrecy import refuse_shown
from airflow_lakestream.driver.supervisor import OnKill
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.arguments import templated
from airflow_lakestream.operators.spark.arguments import SPARK_TEMPLATE_FIELDS, SparkArguments
from airflow_lakestream.registry.config import refuse_secrets
from airflow_lakestream.spark.apps import DELTA_APPS, MAINTAIN_ICEBERG, check_app

_DURATIONS = ("healthy_after", "stall_timeout", "start_timeout", "unknown_timeout", "stop_timeout", "poll_interval")
_CHECKS: dict[str, Check] = {
    "app": lambda _, value: check_app(str(value)),
    "trigger": between_batches,
    "max_batches": count,
    "max_offsets_per_trigger": count,
    "max_restarts": count_from_zero,
    "on_kill_action": partial(choose, OnKill),
    **dict.fromkeys(("restart_backoff", *_DURATIONS), seconds),
}


class StreamArguments(SparkArguments):
    """The arguments; `SparkStreamingSubmitOperator` says what each of them means."""

    def __init__(
        self,
        *,
        app: str | None = None,
        application: str | None = None,
        app_config: Mapping[str, Any] | None = None,
        trigger: str = "available_now",
        checkpoint_location: str | None = None,
        max_batches: int | str | None = None,
        max_offsets_per_trigger: int | str | None = None,
        max_restarts: int | str = 5,
        restart_backoff: float | str = "10s",
        healthy_after: float | str = "10m",
        stall_timeout: float | str | None = "30m",
        start_timeout: float | str = "5m",
        unknown_timeout: float | str = "5m",
        on_kill_action: str = OnKill.GRACEFUL.value,
        stop_timeout: float | str | None = "10m",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float | str | None = None,
        driver_folder: str | None = None,
        kafka_conn_id: str | None = "kafka_default",
        iceberg_conn_id: str | None = "iceberg_default",
        spark_conn_id: str = "spark_default",
        storage_conn_id: str | None = None,
        topic_url: str | None = None,
        table_url: str | None = None,
        packages: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (app is None) == (application is None):
            raise InvalidArgument("app", "exactly one of app and application has to be given.")
        self.app = app
        self.application = application
        self.app_config = dict(app_config or {})
        # As early as can be: a DAG with a secret in it is not written down anywhere.
        refuse_secrets(self.app_config.get("schema_registry") or "")
        refuse_shown("app_config", self.app_config)
        refuse_shown("checkpoint_location", checkpoint_location)
        self.trigger = trigger
        self.checkpoint_location = checkpoint_location
        self.max_batches = max_batches
        self.max_offsets_per_trigger = max_offsets_per_trigger
        self.max_restarts = max_restarts
        self.restart_backoff = restart_backoff
        self.healthy_after = healthy_after
        self.stall_timeout = stall_timeout
        self.start_timeout = start_timeout
        self.unknown_timeout = unknown_timeout
        self.on_kill_action = on_kill_action
        self.stop_timeout = stop_timeout
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.driver_folder = driver_folder
        self.kafka_conn_id = kafka_conn_id
        self.iceberg_conn_id = iceberg_conn_id
        self.spark_conn_id = spark_conn_id
        self.storage_conn_id = storage_conn_id
        self.topic_url = topic_url
        self.table_url = table_url
        self.packages = packages
        check_literals({name: getattr(self, name) for name in StreamArguments.template_fields}, _CHECKS)
        if app not in (None, MAINTAIN_ICEBERG):
            check_literals({"table_format": "delta" if app in DELTA_APPS else "iceberg", **self.app_config})

    template_fields: Sequence[str] = (*templated(__init__, "deferrable"), *SPARK_TEMPLATE_FIELDS)
