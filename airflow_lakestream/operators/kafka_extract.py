"""KafkaExtractOperator: a Kafka topic into an Iceberg table, in the worker, exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_lakestream.core.names import DEFAULT_METADATA

# No import of PyIceberg, Arrow or pandas at the top: Airflow parses DAG files again every half minute.
from airflow_lakestream.core.policies import (
    UNAVAILABLE,
    ModeName,
    OnDataLoss,
    OnEmpty,
    OnError,
    SchemaEvolution,
    SqlInput,
    StartOffset,
    TableFormat,
    TimestampsFiner,
    Tombstones,
    UnavailableValues,
    UnknownFields,
    choose,
    landing_tombstones,
)
from airflow_lakestream.core.routing import NewTables
from airflow_lakestream.operators.arguments import documented, resolve_interval, set_arguments, templated
from airflow_lakestream.operators.landing import LandingOperator
from airflow_lakestream.operators.sql_template import SqlRendering, check_written_out

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.providers.common.compat.sdk import Context
    from pyiceberg.schema import Schema

    from airflow_lakestream.hooks.kafka import KafkaHook
    from airflow_lakestream.run.job import ExtractConfig


@documented()
class KafkaExtractOperator(SqlRendering, LandingOperator):
    """Land the missing records of a topic in a table, and commit rows and offsets in one snapshot.

    Any number of retries, clears and parallel runs lands each record once. The table and its namespace are created
    when missing. Returns, and puts on the event of each outlet asset (an `AssetAlias` becomes the asset of each table
    that was written), a report: `snapshot_ids` as text, `rows`, `read`, `rejected`, `skipped`, `filtered`, `bad` (the
    rejected records, and the records skipped as bad), `ranges` as [partition, from, until], `lost`, `remaining_lag`,
    the rows by table in `tables`; for a regex the sums, and the reports by topic in `topics`. A retry whose earlier try
    landed returns that try's report.

    Raises AirflowFailException if only a change of input helps (a bad record, lost offsets, a contradiction in the
    arguments), and errors that Airflow retries otherwise. After any error nothing uncommitted stays behind.

    .. seealso:: docs/operators/kafka_extract.md, docs/operators/fan_out.md

    """

    template_fields_renderers = {
        "schema": "sql",
        "sql": "sql",
        "rename_columns": "json",
        "table_properties": "json",
        "checks": "json",
    }
    ui_color = "#d5eef2"

    def __init__(
        self,
        *,
        topic: str,
        table: str,
        consumer_group: str = "{{ dag.dag_id }}",
        format: str = "json",  # noqa: A002  # the word that users know
        key_format: str | None = None,
        envelope: str | None = None,
        schema_registry: str | Mapping[str, Any] | None = None,
        writer_schemas: Sequence[str] | str | None = None,
        kafka_conn_id: str = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        table_format: str = TableFormat.ICEBERG.value,
        storage_conn_id: str | None = None,
        mode: str = ModeName.RESUME.value,
        interval_start: str | int | datetime | None = None,
        interval_end: str | int | datetime | None = None,
        ranges: str | Sequence[Sequence[int]] | None = None,
        replace: bool | str = False,
        start_offset: str = StartOffset.EARLIEST.value,
        start_timestamp: str | int | datetime | None = None,
        max_records: int | str | None = None,
        max_batch_bytes: int | str = "256MiB",
        max_bytes_per_second: int | str | None = None,
        checkpoint_interval: float | str = 60,
        poll_timeout: float | str = 30,
        idle_timeout: float | str = 0,
        parallelism: int | str | None = None,
        schema: str | Schema | pa.Schema | None = None,
        schema_evolution: str = SchemaEvolution.NONE.value,
        unknown_fields: str = UnknownFields.IGNORE.value,
        sql: str | None = None,
        sql_input: str = SqlInput.RAW.value,
        csv_delimiter: str = ",",
        rename_columns: Mapping[str, str] | str | None = None,
        timestamps_finer: str = TimestampsFiner.REJECT.value,
        unavailable_placeholder: str = UNAVAILABLE,
        unavailable_values: str = UnavailableValues.REJECT.value,
        metadata_columns: Sequence[str] = DEFAULT_METADATA,
        partition_by: Sequence[str] | str | None = None,
        sort_order: Sequence[str] | str | None = None,
        table_properties: Mapping[str, str] | None = None,
        maintain: str | None = None,
        new_tables: str = NewTables.FAIL.value,
        max_tables: int | str = 100,
        home_table: str | None = None,
        on_error: str = OnError.REJECT.value,
        max_rejected: int | float | str | None = None,
        tombstones: str = Tombstones.KEEP.value,
        on_data_loss: str = OnDataLoss.FAIL.value,
        checks: Mapping[str, Any] | None = None,
        on_empty: str = OnEmpty.SUCCESS.value,
        topic_url: str | None = None,
        table_url: str | None = None,
        allow_group_overlap: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_written_out(sql, sql_input)
        set_arguments(self, KafkaExtractOperator, locals(), {"tombstones": landing_tombstones})

    template_fields: Sequence[str] = templated(__init__)

    def configured(self, context: Context, kafka: KafkaHook) -> ExtractConfig:
        """Return the landing's configuration, with the run's interval for `mode="interval"`.

        Raises InvalidArgument.
        """
        from airflow_lakestream.hooks.registry import registry_of
        from airflow_lakestream.run.job import ExtractConfig

        # Each field of the configuration is an argument, and so an attribute, of the operator.
        arguments = {f.name: getattr(self, f.name) for f in fields(ExtractConfig)}
        if choose(ModeName, "mode", self.mode) is ModeName.INTERVAL:
            arguments |= resolve_interval(context, arguments)
        arguments["schema_registry"] = registry_of(self.schema_registry, kafka, self.format, self.key_format)
        return ExtractConfig(**arguments)
