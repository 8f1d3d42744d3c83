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
        list[str] | None,
        typer.Option(help="from partition:offset on, such as 0:1200; may be repeated"),
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
        wanted = looking.check_wanted(limit, offsets_by_partition("--from-offset", from_offset or ()), since_ms)
        opened, registry = open_topic(topic, bootstrap_servers, kafka_conn, decoding)
        found = looking.preview(opened, decoding, wanted, registry, tombstones)
    report_text(json.dumps(found.to_dict(), indent=2) if as_json else _render(found))


@contextmanager
def without_logs() -> Iterator[None]:
    """Silence all logging within the block: the answer of the command contains the same facts."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def open_topic(
    topic: str, bootstrap_servers: str | None, kafka_conn: str, decoding: Mapping[str, Any]
) -> tuple[SampledTopic, RegistryConfig | None]:
    """Return the topic to read from, and the registry, or None without a registry.

    Raises InvalidArgument for a wrong name or connection. Kafka is not asked yet.
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
    """Return the brokers' configuration, and the registry, or None without a registry.

    :param bootstrap_servers: addresses in place of a connection; Airflow is then not used.
    :param kafka_conn: the connection; ignored if `bootstrap_servers` is given.
    :param schema_registry: a URL, or a connection, which does not go with `bootstrap_servers`; None: of the Kafka
        connection.

    Raises InvalidArgument.
    """
    from airflow_lakestream.registry.config import RegistryConfig, is_address

    if bootstrap_servers is None:
        # Any format with a registry, since the values' format is not known yet.
        found = open_registry({"schema_registry": schema_registry, "format": "avro"}, kafka_conn)
        return open_kafka(kafka_conn), found.get("schema_registry")
    given = {"bootstrap.servers": bootstrap_servers}
    kafka = KafkaConnection(given, f"--bootstrap-servers {bootstrap_servers}")
    if schema_registry is not None and not is_address(schema_registry):
        problem = f"{schema_registry!r} is not a URL, and --bootstrap-servers goes without Airflow's connections."
        raise InvalidArgument("--schema-registry", problem, "Give its URL, or --kafka-conn.")
    return kafka, None if schema_registry is None else RegistryConfig.parse(schema_registry)


def rounded(rate: float) -> str:
    """Return a rate with three digits at least, and no exponent."""
    return f"{rate:.3g}" if rate < 100 else f"{rate:,.0f}"


def topic_lines(found: TopicPreview) -> list[str]:
    """Return the known facts about a topic as lines: size, format, and notes."""
    rate = "" if found.rate is None else f", about {rounded(found.rate)} records a minute by the newest timestamps"
    lines = [f"{found.topic}: {counted(found.partitions, 'partition')}, {counted(found.offsets, 'offset')}{rate}"]
    settings = {name: value for name, value in found.decoding.items() if isinstance(value, str) and name != "schema"}
    settings_text = ", ".join(f"{name}={value}" for name, value in settings.items())
    if found.reason and found.problem is None:
        lines.append(f"Guessed: {settings_text} ({found.reason})")
    elif settings_text:
        lines.append(f"Decoded by: {settings_text}")
    return [printable(line) for line in (*lines, *found.notes)]


def columns_of(found: TopicPreview) -> list[str]:
    """Return the columns and the remarks about the columns, a line for each; a single line if they are unknown."""
    if found.columns is None:
        return [printable(f"The columns are not known: {found.problem}")]
    return columns_lines(_heading(found), found.columns, found.remarks)


def _heading(found: TopicPreview) -> str:
    from airflow_lakestream.onramp.preview import ColumnsBy

    records = counted(found.looked_at, "record")
    return {
        ColumnsBy.SCHEMA: "Columns of the given schema:",
        ColumnsBy.SQL: "Columns that the statement makes:",
        ColumnsBy.RECORDS: f"Columns guessed from {records}; a first run guesses from its own first batch:",
        ColumnsBy.FORMAT: "Columns of a new table, by the format or by the registry's schema:",
    }[found.columns_by]


def columns_lines(heading: str, columns: str, remarks: Sequence[str]) -> list[str]:
    """Return a heading, a line for each column, and a line for each remark."""
    from pyiceberg.schema import Schema

    from airflow_lakestream.tables.schema.columns import to_timed_schema
    from airflow_lakestream.tables.schema.types import schema_text

    schema, times = to_timed_schema(columns)
    lines = [f"  {schema_text(Schema(one), times)}" for one in schema.fields]
    return [heading, *map(printable, [*lines, *(f"Look at {remark}" for remark in remarks)])]


def _render(found: TopicPreview) -> str:
    from airflow_lakestream.onramp.preview import excerpt

    lines = [*topic_lines(found), *columns_of(found)]
    if found.rows:
        lines.append(f"{counted(len(found.rows), 'row')}:")
        lines += [f"  {_place(row)}  {_payload(row)}" for row in found.rows]
    if found.rejected:
        lines.append(f"{len(found.rejected)} rejected:")
        lines += [
            f"  {_at(one)}  {one['stage']}: {excerpt(one['reason'], 200)} (value {_quoted(one['value'])})"
            for one in found.rejected
        ]
    if found.skipped:
        lines.append(f"{found.skipped} skipped or filtered, by tombstones and sql")
    if found.undecoded:
        lines.append(f"{counted(len(found.undecoded), 'record')}, not decoded:")
        lines += [f"  {_at(one)}  {_quoted(one['value'])}" for one in found.undecoded]
    if not (found.rows or found.rejected or found.undecoded or found.skipped):
        lines.append("No record there.")
    return "\n".join(lines)


def _place(row: Mapping[str, Any]) -> str:
    named = ("_kafka_partition", "_kafka_offset", "_kafka_timestamp")
    partition, offset, at = (row.get(name) for name in named)
    return _at({"partition": partition, "offset": offset, "timestamp": at})


def _at(record: Mapping[str, Any]) -> str:
    at = record["timestamp"]
    time = at.isoformat(timespec="milliseconds").replace("+00:00", "Z") if hasattr(at, "isoformat") else "no time"
    return f"[{record['partition']}] {record['offset']}  {time}"


def _payload(row: Mapping[str, Any]) -> str:
    from airflow_lakestream.onramp.preview import excerpt

    shown = (f"{k}={excerpt(_shown(v), 60)}" for k, v in row.items() if not k.startswith("_kafka_"))
    return excerpt(", ".join(shown), 240)


def _shown(value: Any) -> Any:
    """Return bytes and texts as they are, other values as in JSON, with times in ISO 8601."""
    from airflow_lakestream.onramp.preview import json_ready

    if isinstance(value, str | bytes):
        return value
    ready = json_ready(value)
    return ready if isinstance(ready, str) else json.dumps(ready, ensure_ascii=False)


def _quoted(value: bytes | None) -> str:
    from airflow_lakestream.onramp.preview import excerpt

    return "null" if value is None else f"'{excerpt(value, 80)}'"
