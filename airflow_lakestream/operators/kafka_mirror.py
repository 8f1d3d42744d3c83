"""KafkaMirrorOperator: a mirror of a database's table, by Debezium's events, in Iceberg or Delta, in the worker."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_lakestream.config.checks import check_mirror, checks_of_mirror
from airflow_lakestream.config.literals import OF_MIRROR
from airflow_lakestream.config.setting import RecordMerge, SettingTaker
from airflow_lakestream.config.settings import mirror_taker, refusal_of, refuse_for
from airflow_lakestream.core.policies import (
    UNAVAILABLE,
    MergeMode,
    OnDataLoss,
    OnEmpty,
    OnError,
    OutOfRange,
    SqlInput,
    TableFormat,
    TimestampsFiner,
    ValueEnvelope,
    is_literal,
)
from airflow_lakestream.core.routing import TableTemplate, check_mirror_name

# No import of PyIceberg, Arrow or pandas at the top: Airflow parses DAG files again every half minute.
from airflow_lakestream.lakes import LakeCapability, lake_of
from airflow_lakestream.operators.arguments import documented, set_arguments, templated
from airflow_lakestream.operators.landing import LandingOperator
from airflow_lakestream.operators.sql_template import SqlRendering, check_written_out

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.providers.common.compat.sdk import Context
    from pyiceberg.schema import Schema

    from airflow_lakestream.config.mirror import MirrorConfig
    from airflow_lakestream.hooks.kafka import KafkaHook


@documented(SettingTaker.MIRROR)
class KafkaMirrorOperator(SqlRendering, LandingOperator):
    """Keep a table equal to a table of a database, by Debezium's change events up to now; or a table by key.

    With `envelope=None` the records of any topic are taken as they are: the newest record of each key is the row.
    The same mirror as of the Spark apps `cdc_to_iceberg` and `cdc_to_delta`, for tables that a worker can merge: no
    Spark, no JDK. Apps and operator keep the same ledger, so that each can take over from the other, with the same
    arguments and the same `consumer_group`. Rows and ledger are one commit: any number of retries, clears and parallel
    runs applies each event once. The table and its namespace are created when missing.

    Returns, and puts on the event of each outlet asset (an `AssetAlias` becomes the asset of each table that was
    written), the report of `KafkaExtractOperator`; `rows` are the applied events.

    Raises AirflowFailException if only a change of input helps (a record that is not an event, a mirror that can't
    follow its table, a contradiction in the arguments), and errors that Airflow retries otherwise.

    .. seealso:: docs/operators/kafka_mirror.md, docs/cdc.md
    """

    template_fields_renderers = {
        "schema": "sql",
        "sql": "sql",
        "delete_when": "sql",
        "rename_columns": "json",
        "table_properties": "json",
        "checks": "json",
    }
    ui_color = "#d5e4f2"

    def __init__(
        self,
        *,
        topic: str,
        table: str,
        consumer_group: str = "{{ dag.dag_id }}",
        key: Sequence[str] | str | None = None,
        soft_delete: bool | str = False,
        out_of_range: str = OutOfRange.REJECT.value,
        timestamps_finer: str = TimestampsFiner.REJECT.value,
        rename_columns: Mapping[str, str] | str | None = None,
        unavailable_placeholder: str = UNAVAILABLE,
        source_tables: str | None = None,
        merge_mode: str = MergeMode.AUTO.value,
        envelope: str | None = ValueEnvelope.DEBEZIUM.value,
        sql: str | None = None,
        sql_input: str = SqlInput.RAW.value,
        sequence_by: Sequence[str] | str | None = None,
        delete_when: str | None = None,
        insert_only: bool | str = False,
        history: bool | str = False,
        history_columns: Sequence[str] | str | None = None,
        merge: str = RecordMerge.REPLACE.value,
        within: str | float | timedelta | None = None,
        tombstones: str | None = None,
        format: str = "json",  # noqa: A002  # the word that users know
        key_format: str | None = None,
        csv_delimiter: str = ",",
        schema_registry: str | Mapping[str, Any] | None = None,
        writer_schemas: Sequence[str] | str | None = None,
        schema: str | Schema | pa.Schema | None = None,
        kafka_conn_id: str = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        table_format: str = TableFormat.ICEBERG.value,
        storage_conn_id: str | None = None,
        max_records: int | str | None = None,
        max_batch_bytes: int | str = "256MiB",
        max_bytes_per_second: int | str | None = None,
        checkpoint_interval: float | str = 60,
        poll_timeout: float | str = 30,
        idle_timeout: float | str = 0,
        partition_by: Sequence[str] | str | None = None,
        sort_order: Sequence[str] | str | None = None,
        table_properties: Mapping[str, str] | None = None,
        on_error: str = OnError.FAIL.value,
        max_rejected: int | float | str | None = None,
        on_data_loss: str = OnDataLoss.FAIL.value,
        checks: Mapping[str, Any] | None = None,
        on_empty: str = OnEmpty.SUCCESS.value,
        topic_url: str | None = None,
        table_url: str | None = None,
        allow_group_overlap: bool | str = False,
        **kwargs: Any,
    ) -> None:
        for name in kwargs:
            if refused := refusal_of(mirror_taker(envelope), name):
                raise refused
        super().__init__(**kwargs)
        _check_for_envelope(locals())
        check_written_out(sql, sql_input)
        set_arguments(
            self, KafkaMirrorOperator, locals(), {**OF_MIRROR, "table": _check_single_table, "checks": checks_of_mirror}
        )

    template_fields: Sequence[str] = templated(__init__)

    def configured(self, context: Context, kafka: KafkaHook) -> MirrorConfig:
        """Return the mirror's configuration, from the rendered arguments.

        `context` is not used: the base class passes it for the run's interval, and a mirror has no interval. Raises
        InvalidArgument.
        """
        from airflow_lakestream.config.mirror import MirrorConfig
        from airflow_lakestream.hooks.registry import registry_of

        names = MirrorConfig.__dataclass_fields__.keys() & set(self.template_fields)
        arguments = {name: getattr(self, name) for name in names}
        arguments["schema_registry"] = registry_of(self.schema_registry, kafka, self.format)
        return MirrorConfig(**arguments)


def _check_for_envelope(given: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for literal arguments that do not go with the envelope.

    :param given: the arguments by name.
    """
    if given["envelope"] is not None and not is_literal(given["envelope"]):
        return
    taker = mirror_taker(given["envelope"])
    parameters = inspect.signature(KafkaMirrorOperator).parameters.items()
    changed = {
        name: given[name] for name, parameter in parameters if name in given and given[name] != parameter.default
    }
    refuse_for(taker, changed)
    check_mirror(given, of_records=taker is SettingTaker.UPSERT)


def _check_single_table(_: str, table: object) -> None:
    """Raise InvalidArgument for a template of tables that a mirror can't have."""
    if LakeCapability.FAN_OUT in lake_of(str(table)).can:
        check_mirror_name(TableTemplate.parse(str(table)))
