"""KafkaMirrorOperator: a mirror of a database's table, by Debezium's events, in Iceberg or Delta, in the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

# No import of PyIceberg, Arrow or pandas at the top: Airflow parses DAG files again every half minute.
from airflow_lakestream.config.checks import checks_of_mirror
from airflow_lakestream.config.literals import check_literals
from airflow_lakestream.core.formats import UNAVAILABLE
from airflow_lakestream.core.mirrors import FIXED, NotForMirror, check_mirror_name
from airflow_lakestream.core.policies import (
    MergeMode,
    OnDataLoss,
    OnEmpty,
    OnError,
    OutOfRange,
    TableFormat,
    TimestampsFiner,
)
from airflow_lakestream.core.routing import TableTemplate
from airflow_lakestream.core.secrecy import refuse_shown
from airflow_lakestream.operators.arguments import templated
from airflow_lakestream.operators.landing import LandingOperator, plain_schema
from airflow_lakestream.operators.rendering import TextRendering
from airflow_lakestream.registry.config import refuse_secrets

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.providers.common.compat.sdk import Context
    from pyiceberg.schema import Schema

    from airflow_lakestream.config.mirror import MirrorConfig
    from airflow_lakestream.hooks.kafka import KafkaHook

_IN_ORDER = "all events are applied, from the topic's begin up to now"
# Arguments of KafkaExtractOperator with a fixed value in this operator.
_REFUSED = {
    **FIXED,
    **dict.fromkeys(("mode", "interval_start", "interval_end", "ranges"), _IN_ORDER),
    **dict.fromkeys(("start_offset", "start_timestamp"), _IN_ORDER),
    "csv_delimiter": "Debezium's events are not CSV",
    "parallelism": "one process applies the events",
}


class KafkaMirrorOperator(TextRendering, LandingOperator):
    """Keep a table equal to a table of a database, by Debezium's change events up to now.

    The same mirror as of the Spark apps `cdc_to_iceberg` and `cdc_to_delta`, for tables that a worker can merge: no
    Spark, no JDK. Apps and operator keep the same ledger, so that each can take over from the other, with the same
    arguments and the same `consumer_group`. Rows and ledger are one commit: any number of retries, clears and parallel
    runs applies each event once. The table and its namespace are created when missing.

    Returns, and puts on the event of each outlet asset (an `AssetAlias` becomes the asset of each table that was
    written), the report of `KafkaExtractOperator`; `rows` are the applied events.

    Raises AirflowFailException if only a change of input helps (a record that is not an event, a mirror that can't
    follow its table, a contradiction in the arguments), and errors that Airflow retries otherwise.

    .. seealso:: docs/operators/kafka_mirror.md, docs/cdc.md

    :param topic: topic of the table's events, or a regex that begins with `^` and matches whole names: each topic in
        turn (templated)
    :param table: `namespace.table` to mirror into; `{topic}` in it becomes the topic's name (templated)
    :param consumer_group: names the ledger in the table, and the Kafka group that follows it; default: the DAG's id
        (templated)
    :param key: columns of the primary key; default: the fields of the records' keys, if these are JSON (templated)
    :param soft_delete: a deleted row stays, with `_is_deleted` true (templated)
    :param out_of_range: for a date, a time or a timestamp that its column can't hold: `"reject"` makes the event a
        bad event, `"clamp"` takes the nearest value, `"null"` takes NULL (templated)
    :param timestamps_finer: for timestamps and times that are finer than microseconds: `"reject"` makes the event a
        bad event, `"truncate"` drops the digits after the microseconds (templated)
    :param rename_columns: column names of the mirror, by column names in the database (templated)
    :param unavailable_placeholder: the connector's `unavailable.value.placeholder`, if it has another; also with `hex:`
        (templated)
    :param source_tables: regex of the source's tables, `database.schema.table` each, if the rows of several are in the
        same mirror (templated)
    :param merge_mode: way of changing an Iceberg table: `"copy-on-write"` rewrites the files that have the rows,
        `"merge-on-read"` deletes the old rows in place, `"auto"` decides for each file (templated)
    :param format: format of values: `"json"`, `"avro"`, `"json_schema"` (templated)
    :param schema_registry: a URL, a mapping with `url` in it, or the id of an Airflow connection, where all secrets
        belong; default: `schema.registry.url` in the Kafka connection's extra (templated)
    :param writer_schemas: schemas of Avro's single-object encoding, as JSON text (templated)
    :param schema: types of some columns: DDL such as `"born string"`, or a PyIceberg or pyarrow schema; all other
        columns have the events' types (templated)
    :param kafka_conn_id: connection of type `kafka` (templated)
    :param iceberg_conn_id: connection of type `iceberg` (templated)
    :param table_format: `"iceberg"`, or `"delta"`: `table` is then an absolute path or a URI, see docs/delta.md
        (templated)
    :param storage_conn_id: with `"delta"`: connection of type `aws`, or `generic` with storage options; default: the
        worker's environment (templated)
    :param max_records: most events in one run, None until caught up (templated)
    :param max_batch_bytes: commit at the latest after this many bytes of keys and values; a batch is merged in memory
        (templated)
    :param checkpoint_interval: commit at the latest after this many seconds, a number or `"60s"` (templated)
    :param poll_timeout: seconds after which a partition that yields nothing short of its end is an error (templated)
    :param idle_timeout: 0 ends at the ends of the start; else go on until this many seconds had no record (templated)
    :param partition_by: such as `["day(placed_at)", "bucket(16, id)"]`, for a table to be created (templated)
    :param sort_order: such as `["placed_at"]`; rows are sorted in each file (templated)
    :param table_properties: properties of a table to be created (templated)
    :param on_error: for a record that is not an event of the table: `"fail"` fails the run, `"reject"` keeps it, raw
        and with the reason, in `<table>__rejected`, `"skip"` counts it (templated)
    :param max_rejected: with `"reject"` or `"skip"`: most bad records, as for `KafkaExtractOperator` (templated)
    :param on_data_loss: `"fail"`, or `"record"` to write offsets that retention removed into the ledger (templated)
    :param checks: rules for the new rows of each commit, checked before they are visible, such as
        `{"not_null": ["name"]}`; see docs/checks.md (templated)
    :param on_empty: `"success"` or `"skip"` for a run with nothing to apply (templated)
    :param topic_url: address of the link Topic, such as `"https://kafka-ui/topics/{topic}"` (templated)
    :param table_url: address of the link Table, with `{table}` in it (templated)
    :param allow_group_overlap: apply events that another group's ledger on this table holds already (templated)
    """

    template_fields_renderers = {
        "schema": "sql",
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
        format: str = "json",  # noqa: A002  # the word that users know
        schema_registry: str | Mapping[str, Any] | None = None,
        writer_schemas: Sequence[str] | str | None = None,
        schema: str | Schema | pa.Schema | None = None,
        kafka_conn_id: str = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        table_format: str = TableFormat.ICEBERG.value,
        storage_conn_id: str | None = None,
        max_records: int | str | None = None,
        max_batch_bytes: int | str = "256MiB",
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
            if name in _REFUSED:
                raise NotForMirror(name, _REFUSED[name])
        super().__init__(**kwargs)
        self.topic = topic
        self.table = table
        self.consumer_group = consumer_group
        self.key = key
        self.soft_delete = soft_delete
        self.out_of_range = out_of_range
        self.timestamps_finer = timestamps_finer
        self.rename_columns = rename_columns
        self.unavailable_placeholder = unavailable_placeholder
        self.source_tables = source_tables
        self.merge_mode = merge_mode
        self.format = format
        # As early as possible, before a DAG with a secret in it is stored anywhere.
        refuse_secrets(schema_registry or "")
        self.schema_registry = schema_registry
        self.writer_schemas = writer_schemas
        self.schema = plain_schema(schema)
        self.kafka_conn_id = kafka_conn_id
        self.iceberg_conn_id = iceberg_conn_id
        self.table_format = table_format
        self.storage_conn_id = storage_conn_id
        self.max_records = max_records
        self.max_batch_bytes = max_batch_bytes
        self.checkpoint_interval = checkpoint_interval
        self.poll_timeout = poll_timeout
        self.idle_timeout = idle_timeout
        self.partition_by = partition_by
        self.sort_order = sort_order
        refuse_shown("table", table)
        refuse_shown("table_properties", table_properties)
        self.table_properties = table_properties or {}
        self.on_error = on_error
        self.max_rejected = max_rejected
        self.on_data_loss = on_data_loss
        self.checks = checks
        self.on_empty = on_empty
        self.topic_url = topic_url
        self.table_url = table_url
        self.allow_group_overlap = allow_group_overlap
        own = {"table": _one, "checks": checks_of_mirror}
        check_literals({name: getattr(self, name) for name in KafkaMirrorOperator.template_fields}, own)

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


def _one(_: str, table: object) -> None:
    if TableFormat.of(str(table)) is TableFormat.ICEBERG:
        check_mirror_name(TableTemplate.parse(str(table)))
