"""Arguments of SparkStreamingSubmitOperator, checked as far as possible at the parsing of a DAG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow_lakestream.config.arguments import between_batches, count
from airflow_lakestream.config.literals import Check, check_literals
from airflow_lakestream.core.policies import SqlInput, is_given
from airflow_lakestream.core.secrecy import refuse_shown
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.arguments import templated
from airflow_lakestream.operators.spark.arguments import NUMBERS, SparkArguments
from airflow_lakestream.operators.sql_template import check_written_out
from airflow_lakestream.registry.config import refuse_secrets
from airflow_lakestream.spark.apps import DELTA_APPS, MAINTAIN_ICEBERG, check_app
from airflow_lakestream.stores.folders import is_object_store

_CHECKS: dict[str, Check] = {
    "app": lambda _, value: check_app(str(value)),
    "trigger": between_batches,
    "max_batches": count,
    "max_offsets_per_trigger": count,
    **dict.fromkeys(NUMBERS, partial(count, unit="processes")),
}


class StreamArguments(SparkArguments):
    """The arguments of `SparkStreamingSubmitOperator`, which documents each."""

    def __init__(
        self,
        *,
        app: str | None = None,
        application: str | None = None,
        app_config: Mapping[str, Any] | None = None,
        trigger: str = "available_now",
        max_batches: int | str | None = None,
        max_offsets_per_trigger: int | str | None = None,
        driver_folder: str | None = None,
        kafka_conn_id: str | None = "kafka_default",
        iceberg_conn_id: str | None = "iceberg_default",
        spark_conn_id: str = "spark_default",
        storage_conn_id: str | None = None,
        packages: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (app is None) == (application is None):
            raise InvalidArgument("app", "exactly one of app and application has to be given.")
        self.app = app
        self.application = application
        self.app_config = dict(app_config or {})
        # As early as possible, before a DAG with a secret in it is stored anywhere.
        refuse_secrets(self.app_config.get("schema_registry") or "")
        refuse_shown("app_config", self.app_config)
        self.trigger = trigger
        self.max_batches = max_batches
        self.max_offsets_per_trigger = max_offsets_per_trigger
        self.driver_folder = driver_folder
        self.kafka_conn_id = kafka_conn_id
        self.iceberg_conn_id = iceberg_conn_id
        self.spark_conn_id = spark_conn_id
        self.storage_conn_id = storage_conn_id
        self.packages = packages
        check_literals({name: getattr(self, name) for name in StreamArguments.template_fields}, _CHECKS)
        if app not in (None, MAINTAIN_ICEBERG):
            check_written_out(self.app_config.get("sql"), self.app_config.get("sql_input", SqlInput.RAW.value))
            check_literals({"table_format": "delta" if app in DELTA_APPS else "iceberg", **self.app_config})

    template_fields: Sequence[str] = (*templated(__init__), *SparkArguments.template_fields)

    def store_conn_id(self) -> str | None:
        """Return the connection of the object store with lease and checkpoint; None for a local path."""
        location = self.checkpoint_location
        if not is_given(location) or not is_object_store(str(location)):
            return None
        return self.storage_conn_id if self.app in DELTA_APPS or self.iceberg_conn_id is None else self.iceberg_conn_id
