"""The command `lakestream preview`: prints a topic's records, decoded as by a landing."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_lakestream.cli.arguments import offsets_by_partition, option_of, takes_decoding, takes_pipeline
from airflow_lakestream.cli.connections import (
    Json,
    KafkaConn,
    KafkaConnection,
    connection_fields,
    kafka_settings,
    open_kafka,
    open_registry,
    output_to_stderr,
    report_text,
)
from airflow_lakestream.core.printable import counted, printable
from airflow_lakestream.exceptions import InvalidArgument

if TYPE_CHECKING:
    from airflow_lakestream.onramp.preview import TopicPreview
    from airflow_lakestream.onramp.samples import SampledTopic
    from airflow_lakestream.registry.config import RegistryConfig

Servers = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", help="brokers, such as broker:9092, instead of an Airflow connection"),
]


@takes_pipeline
@takes_decoding()
def preview(
    topic: Annotated[str, typer.Argument(help="topic to look at")],
    limit: Annotated[int, typer.Option(help="records to show")] = 10,
    from_offset: Annotated[
        list[str] | None, typer.Option(help="from partition:offset on, such as 0:1200; may be repeated")
    ] = None,
    from_timestamp: Annotated[str | None, typer.Option(help="from a time on, such as 2026-11-20T10:00Z")] = None,
    tombstones: Annotated[str, option_of("tombstones")] = "keep",
    bootstrap_servers: Servers = None,
    kafka_conn: KafkaConn = "kafka_default",
    as_json: Json = False,
    *,
    decoding: Mapping[str, Any],
) -> None:
    """Show the newest records of a topic decoded, the columns a landing would make, and the records to reject.

    The format is guessed if it is not given. Nothing is written, and no consumer group is joined or changed.
    """
    with output_to_stderr(), without_logs():
        from airflow_lakestream.config.arguments import milliseconds
        from airflow_lakestream.onramp import preview as looking

        since_ms = None if from_timestamp is None else milliseconds("--from-timestamp", from_timestamp)
        selection = looking.check_wanted(limit, offsets_by_partition("--from-offset", from_offset or ()), since_ms)
        opened, registry = open_topic(topic, bootstrap_servers, kafka_conn, decoding)
        previewed = looking.preview(opened, decoding, selection, registry, tombstones)
    report_text(json.dumps(previewed.to_dict(), indent=2) if as_json else _render(previewed))


@contextmanager
def without_logs() -> Iterator[None]:
    """Silence all logging in the block: the command's answer has the same facts."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def open_topic(
    topic: str, bootstrap_servers: str | None, kafka_conn: str, decoding: Mapping[str, Any]
) -> tuple[SampledTopic, RegistryConfig | None]:
    """Return a pair: the topic to read from, and the registry, or None without a registry.

    Kafka is not asked yet. Raises InvalidArgument for an invalid name or connection.
    """
    from airflow_lakestream.core.names import check_topic
    from airflow_lakestream.onramp.dag_file import export_line
    from airflow_lakestream.onramp.samples import SampledTopic

    check_topic(topic)
    if bootstrap_servers is None and kafka_settings(kafka_conn) is None and connection_fields(kafka_conn) is None:
        line = export_line(kafka_conn, {"conn_type": "kafka", "extra": {"bootstrap.servers": "<broker:9092>"}})
        problem, remedy = f"there is no connection {kafka_conn!r}.", f"Give --bootstrap-servers, or run: {line}"
        raise InvalidArgument("--kafka-conn", problem, remedy)
    kafka, registry = open_servers(bootstrap_servers, kafka_conn, decoding.get("schema_registry"))
    return SampledTopic(kafka.configuration, topic, kafka.where), registry


def open_servers(
    bootstrap_servers: str | None, kafka_conn: str, schema_registry: str | None
) -> tuple[KafkaConnection, RegistryConfig | None]:
    """Return a pair: the brokers' configuration, and the registry, or None without a registry. Raises InvalidArgument.

    :param bootstrap_servers: addresses in place of a connection: Airflow is then not used.
    :param kafka_conn: the connection; ignored if `bootstrap_servers` is given.
    :param schema_registry: a URL, or a connection (refused with `bootstrap_servers`). None: the registry in the Kafka
        connection's extra.
    """
    from airflow_lakestream.registry.config import RegistryConfig, is_address

    if bootstrap_servers is None:
        # Avro stands for any format that needs a registry: the values' format is not known yet.
        registry = open_registry({"schema_registry": schema_registry, "format": "avro"}, kafka_conn)
        return open_kafka(kafka_conn), registry.get("schema_registry")
    kafka = KafkaConnection({"bootstrap.servers": bootstrap_servers}, f"--bootstrap-servers {bootstrap_servers}")
    if schema_registry is not None and not is_address(schema_registry):
        problem = f"{schema_registry!r} is not a URL, and --bootstrap-servers goes without Airflow's connections."
        raise InvalidArgument("--schema-registry", problem, "Give its URL, or --kafka-conn.")
    return kafka, None if schema_registry is None else RegistryConfig.parse(schema_registry)


def rounded(rate: float) -> str:
    """Return a rate as text: with three significant digits, from 100 on as a whole number."""
    return f"{rate:.3g}" if rate < 100 else f"{rate:,.0f}"


def topic_lines(previewed: TopicPreview) -> list[str]:
    """Return the known facts about a topic as lines: size, format, and notes."""
    rate = (
        "" if previewed.rate is None else f", about {rounded(previewed.rate)} records a minute by the newest timestamps"
    )
    lines = [
        f"{previewed.topic}: {counted(previewed.partitions, 'partition')}, {counted(previewed.offsets, 'offset')}{rate}"
    ]
    settings = {
        name: value for name, value in previewed.decoding.items() if isinstance(value, str) and name != "schema"
    }
    settings_text = ", ".join(f"{name}={value}" for name, value in settings.items())
    if previewed.reason and previewed.problem is None:
        lines.append(f"Guessed: {settings_text} ({previewed.reason})")
    elif settings_text:
        lines.append(f"Decoded by: {settings_text}")
    return [printable(line) for line in (*lines, *previewed.notes)]


def columns_of(previewed: TopicPreview) -> list[str]:
    """Return a line for each column, and for each remark about the columns; a single line if they are unknown."""
    if previewed.columns is None:
        return [printable(f"The columns are not known: {previewed.problem}")]
    return columns_lines(_heading(previewed), previewed.columns, previewed.remarks)


def _heading(previewed: TopicPreview) -> str:
    from airflow_lakestream.onramp.preview import ColumnsBy

    records = counted(previewed.looked_at, "record")
    return {
        ColumnsBy.SCHEMA: "Columns of the given schema:",
        ColumnsBy.SQL: "Columns that the statement makes:",
        ColumnsBy.RECORDS: f"Columns guessed from {records}; a first run guesses from its own first batch:",
        ColumnsBy.FORMAT: "Columns of a new table, by the format or by the registry's schema:",
    }[previewed.columns_by]


def columns_lines(heading: str, columns: str, remarks: Sequence[str]) -> list[str]:
    """Return a heading, a line for each column, and a line for each remark."""
    from pyiceberg.schema import Schema

    from airflow_lakestream.tables.schema.columns import to_timed_schema
    from airflow_lakestream.tables.schema.types import schema_text

    schema, times = to_timed_schema(columns)
    lines = [f"  {schema_text(Schema(column), times)}" for column in schema.fields]
    return [heading, *map(printable, [*lines, *(f"Look at {remark}" for remark in remarks)])]


def _render(previewed: TopicPreview) -> str:
    from airflow_lakestream.onramp.preview import excerpt

    lines = [*topic_lines(previewed), *columns_of(previewed)]
    if previewed.rows:
        lines.append(f"{counted(len(previewed.rows), 'row')}:")
        lines += [f"  {_position(row, '_kafka_')}  {_payload(row)}" for row in previewed.rows]
    if previewed.rejected:
        lines.append(f"{len(previewed.rejected)} rejected:")
        for record in previewed.rejected:
            reason = f"{record['stage']}: {excerpt(record['reason'], 200)}"
            lines.append(f"  {_position(record)}  {reason} (value {_quoted(record['value'])})")
    if previewed.skipped:
        lines.append(f"{previewed.skipped} skipped or filtered, by tombstones and sql")
    if previewed.undecoded:
        lines.append(f"{counted(len(previewed.undecoded), 'record')}, not decoded:")
        lines += [f"  {_position(record)}  {_quoted(record['value'])}" for record in previewed.undecoded]
    if not (previewed.rows or previewed.rejected or previewed.undecoded or previewed.skipped):
        lines.append("No record there.")
    return "\n".join(lines)


def _position(record: Mapping[str, Any], prefix: str = "") -> str:
    """Return partition, offset and time of a record as text; `prefix` begins their names in the record."""
    timestamp: Any = record.get(f"{prefix}timestamp")
    time = "no time"
    if hasattr(timestamp, "isoformat"):
        time = timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"[{record.get(f'{prefix}partition')}] {record.get(f'{prefix}offset')}  {time}"


def _payload(row: Mapping[str, Any]) -> str:
    from airflow_lakestream.onramp.preview import excerpt

    texts = (f"{name}={excerpt(_shown(value), 60)}" for name, value in row.items() if not name.startswith("_kafka_"))
    return excerpt(", ".join(texts), 240)


def _shown(value: Any) -> Any:
    """Return bytes and texts unchanged, and any other value as JSON text, with times in ISO 8601."""
    from airflow_lakestream.onramp.preview import json_ready

    if isinstance(value, str | bytes):
        return value
    ready = json_ready(value)
    return ready if isinstance(ready, str) else json.dumps(ready, ensure_ascii=False)


def _quoted(value: bytes | None) -> str:
    from airflow_lakestream.onramp.preview import excerpt

    return "null" if value is None else f"'{excerpt(value, 80)}'"
