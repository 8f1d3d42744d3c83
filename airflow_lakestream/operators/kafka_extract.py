"""KafkaExtractOperator: a Kafka topic into an Iceberg table, in the worker, exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

# No import of PyIceberg, Arrow or pandas at the top: Airflow parses DAG files again every half minute.
from airflow_lakestream.config.literals import check_literals
from airflow_lakestream.core.formats import UNAVAILABLE, UnavailableValues
from airflow_lakestream.core.names import DEFAULT_METADATA
from airflow_lakestream.core.policies import (
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
    UnknownFields,
    choose,
)
from airflow_lakestream.core.routing import NewTables
from airflow_lakestream.core.secrecy import refuse_shown
from airflow_lakestream.operators.arguments import templated
from airflow_lakestream.operators.interval import resolve_interval
from airflow_lakestream.operators.landing import LandingOperator, plain_schema
from airflow_lakestream.operators.sql_template import SqlRendering, check_written_out
from airflow_lakestream.registry.config import refuse_secrets

if TYPE_CHECKING:
    import pyarrow as pa
    from airflow.providers.common.compat.sdk import Context
    from pyiceberg.schema import Schema

    from airflow_lakestream.hooks.kafka import KafkaHook
    from airflow_lakestream.run.job import ExtractConfig


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

    :param topic: topic to read, or a regex that begins with `^` and matches whole names: each topic in turn (templated)
    :param table: `namespace.table` to land in; `{topic}` in it becomes the topic's name, and with `{key}`,
        `{header:name}`, `{field}` each record chooses its table (templated)
    :param consumer_group: names the ledger in the table, and the Kafka group that mirrors it; default: the DAG's id
        (templated)
    :param format: format of values: `"json"`, `"avro"`, `"protobuf"`, `"json_schema"`, `"csv"`, `"raw"`
        (templated)
    :param key_format: decode keys into the column `_key`: `"string"`, `"raw"`, or a format above except CSV (templated)
    :param envelope: `"debezium"`: values are change events, to be flattened; `"connect"`: JSON with Connect's schema
        next to each payload (templated)
    :param schema_registry: a URL, a mapping with `url` in it, or the id of an Airflow connection, where all secrets
        belong; default: `schema.registry.url` in the Kafka connection's extra (templated)
    :param writer_schemas: schemas of Avro's single-object encoding, as JSON text (templated)
    :param kafka_conn_id: connection of type `kafka` (templated)
    :param iceberg_conn_id: connection of type `iceberg` (templated)
    :param table_format: `"iceberg"`, or `"delta"`: `table` is then an absolute path or a URI, see docs/delta.md
        (templated)
    :param storage_conn_id: with `"delta"`: connection of type `aws`, or `generic` with storage options; default: the
        worker's environment (templated)
    :param mode: `"resume"`: all records not landed yet, up to the ends at the start of the run; `"interval"`: the
        records of a time, by their timestamps; `"ranges"`: the offsets given in `ranges` (templated)
    :param interval_start: with `"interval"`: begin of the time, inclusive; default: from the run's conf or params, or
        the run's data interval (templated)
    :param interval_end: end of the time, exclusive (templated)
    :param ranges: with `"ranges"`: `[[partition, from, until], ...]`, also as JSON text (templated)
    :param replace: with `"interval"` or `"ranges"`: read their landed records again, and put the new rows in place
        of the old rows, in one snapshot (templated)
    :param start_offset: start of the group's first run: `"earliest"`, `"latest"`, `"timestamp"`, or
        `"committed"`, the group's committed offsets in Kafka; afterwards the ledger decides (templated)
    :param start_timestamp: with `"timestamp"`: ISO 8601, a datetime, or milliseconds since 1970 (templated)
    :param max_records: most records in one run, None until caught up (templated)
    :param max_batch_bytes: commit at the latest after this many bytes of keys and values (templated)
    :param checkpoint_interval: commit at the latest after this many seconds, a number or `"60s"` (templated)
    :param poll_timeout: seconds after which a partition that yields nothing short of its end is an error (templated)
    :param idle_timeout: 0 ends at the ends of the start; else go on until this many seconds had no record (templated)
    :param parallelism: processes that read, if there is much to read; default: one for each processor, at most 4
        (templated)
    :param schema: DDL such as `"id bigint not null, name string"`, or a PyIceberg or pyarrow schema; None uses the
        table's, or infers it from the first batch (templated)
    :param schema_evolution: allowed changes of the table's schema, in the commit of the run's rows: `"none"`,
        `"add"` for new columns, or `"widen"` for wider types, too (templated)
    :param unknown_fields: fields without a column: `"ignore"`, `"fail"`, `"rescue"` into the column `_rescued`, or
        `"evolve"` to add columns for them (templated)
    :param sql: a SELECT from `{{ input }}` that turns each record into one row, or leaves it out; also a file `.sql`
        next to the DAG; see docs/sql.md (templated)
    :param sql_input: its input: `"raw"`, keys and values as text; `"decoded"`, the columns in `schema` (templated)
    :param csv_delimiter: with `format="csv"`: the character between fields (templated)
    :param rename_columns: column names by field names in the records (templated)
    :param timestamps_finer: for timestamps and times that are finer than microseconds: `"reject"` makes the record a
        bad record, `"truncate"` drops the digits after the microseconds (templated)
    :param unavailable_placeholder: the connector's `unavailable.value.placeholder`, if it has another; also with `hex:`
        (templated)
    :param unavailable_values: with `envelope="debezium"`, for an event without a value that PostgreSQL stores out of
        line: `"reject"` makes it a bad record, `"null"` makes it NULL, with the column's name in `_unavailable`
        (templated)
    :param metadata_columns: of `topic`, `partition`, `offset`, `timestamp`, `key`, `headers` (templated)
    :param partition_by: such as `["day(timestamp)", "bucket(16, user_id)"]`, for a table to be created (templated)
    :param sort_order: such as `["timestamp", "user_id desc"]`; rows are sorted in each file (templated)
    :param table_properties: Iceberg table properties of a table to be created (templated)
    :param new_tables: if records choose tables: `"create"` creates a table for a new value; `"fail"` makes its record a
        bad record, and no table is created (templated)
    :param max_tables: if records choose tables: greatest number of tables (templated)
    :param home_table: if records choose tables: the table with the ledger; default: by topic and group (templated)
    :param on_error: for a record that fits no row without loss: `"reject"` keeps it, raw and with the reason, in
        `<table>__rejected`; `"skip"` counts it; `"fail"` fails the run (templated)
    :param max_rejected: most bad records that a run may reject or skip, a count or a share such as `0.01` or `"1%"`;
        more fail it before it commits. Default: half of the records; fewer than ten bad records never fail it. `1.0`
        allows any number (templated)
    :param tombstones: for a record without a value: `"keep"` makes it a row of nulls, `"skip"` counts it, `"reject"`
        makes it a bad record (templated)
    :param on_data_loss: `"fail"`, or `"record"` to write offsets that retention removed into the ledger (templated)
    :param checks: rules for the rows of each commit, checked before they are visible, such as
        `{"not_null": ["id"]}`; see docs/checks.md (templated)
    :param on_empty: `"success"` or `"skip"` for a run with nothing to land (templated)
    :param topic_url: address of the link Topic, such as `"https://kafka-ui/topics/{topic}"` (templated)
    :param table_url: address of the link Table, with `{table}` in it (templated)
    :param allow_group_overlap: land records that another group's ledger on this table holds already (templated)
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
        self.topic = topic
        self.table = table
        self.consumer_group = consumer_group
        self.format = format
        self.key_format = key_format
        self.envelope = envelope
        # As early as possible, before a DAG with a secret in it is stored anywhere.
        refuse_secrets(schema_registry or "")
        self.schema_registry = schema_registry
        self.writer_schemas = writer_schemas
        self.kafka_conn_id = kafka_conn_id
        self.iceberg_conn_id = iceberg_conn_id
        self.table_format = table_format
        self.storage_conn_id = storage_conn_id
        self.mode = mode
        self.interval_start = interval_start
        self.interval_end = interval_end
        self.ranges = ranges
        self.replace = replace
        self.start_offset = start_offset
        self.start_timestamp = start_timestamp
        self.max_records = max_records
        self.max_batch_bytes = max_batch_bytes
        self.checkpoint_interval = checkpoint_interval
        self.poll_timeout = poll_timeout
        self.idle_timeout = idle_timeout
        self.parallelism = parallelism
        self.schema = plain_schema(schema)
        self.schema_evolution = schema_evolution
        self.unknown_fields = unknown_fields
        # Errors that are visible without a run fail the parsing of the DAG.
        check_written_out(sql, sql_input)
        self.sql = sql
        self.sql_input = sql_input
        self.csv_delimiter = csv_delimiter
        self.rename_columns = rename_columns
        self.timestamps_finer = timestamps_finer
        self.unavailable_placeholder = unavailable_placeholder
        self.unavailable_values = unavailable_values
        self.metadata_columns = metadata_columns
        self.partition_by = partition_by
        self.sort_order = sort_order
        refuse_shown("table", table)
        refuse_shown("table_properties", table_properties)
        self.table_properties = table_properties or {}
        self.new_tables = new_tables
        self.max_tables = max_tables
        self.home_table = home_table
        self.on_error = on_error
        self.max_rejected = max_rejected
        self.tombstones = tombstones
        self.on_data_loss = on_data_loss
        self.checks = checks
        self.on_empty = on_empty
        self.topic_url = topic_url
        self.table_url = table_url
        self.allow_group_overlap = allow_group_overlap
        check_literals({name: getattr(self, name) for name in KafkaExtractOperator.template_fields})

    template_fields: Sequence[str] = templated(__init__)

    def configured(self, context: Context, kafka: KafkaHook) -> ExtractConfig:
        """Return the landing's configuration, with the run's interval for `mode="interval"`.

        Raises InvalidArgument.
        """
        from airflow_lakestream.hooks.registry import registry_of
        from airflow_lakestream.run.job import ExtractConfig

        # A single list of keywords: each field of the configuration is an attribute of the operator.
        arguments = {f.name: getattr(self, f.name) for f in fields(ExtractConfig)}
        if choose(ModeName, "mode", self.mode) is ModeName.INTERVAL:
            arguments |= resolve_interval(context, arguments)
        arguments["schema_registry"] = registry_of(self.schema_registry, kafka, self.format, self.key_format)
        return ExtractConfig(**arguments)
