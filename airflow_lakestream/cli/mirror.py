"""The command `lakestream mirror`: work on a mirror of a database's table."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from airflow_lakestream.cli.connections import (
    AnyTable,
    GroupIfSeveral,
    IcebergConn,
    Json,
    KafkaConn,
    StorageConn,
    aside,
    group_of,
    open_kafka,
    open_lake,
    open_registry,
    open_store_properties,
)
from airflow_lakestream.core.policies import seconds
from airflow_lakestream.exceptions import InvalidArgument

app = typer.Typer(help="Work on a mirror of a database's table.", no_args_is_help=True)

# Formats whose records may be Debezium's events.
_FORMATS = "json, json_schema or avro"
_OFFSET = re.compile(r"(\d+):(\d+)")


# Makes Typer keep the command group: a single command would become the program itself.
@app.callback()
def _mirror() -> None:
    """Work on a mirror of a database's table."""


@app.command()
def resnapshot(
    table: AnyTable,
    group: GroupIfSeveral = None,
    topic: Annotated[str | None, typer.Option("--topic", help="default: the ledger's")] = None,
    signal_topic: Annotated[
        str | None, typer.Option("--signal-topic", help="signal.kafka.topic; default: topic.prefix-signal")
    ] = None,
    no_signal: Annotated[
        bool, typer.Option("--no-signal", help="use the last snapshot of the whole table in the topic")
    ] = False,
    since_offset: Annotated[
        list[str] | None,
        typer.Option("--since-offset", help="with --no-signal: look from partition:offset on; repeatable"),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="the app's checkpoint_location: refuse while it runs")
    ] = None,
    start_over: Annotated[bool, typer.Option("--anew", help="discard what an earlier run has begun")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", help="how long to wait for Debezium's next row, such as 10m")
    ] = "5m",
    key: Annotated[
        str | None, typer.Option("--key", help="columns of the key; default: the records', else the mirror's")
    ] = None,
    value_format: Annotated[
        str | None, typer.Option("--format", help=f"of the events: {_FORMATS}; default json")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema", help="columns as DDL, with types that the app was configured with: 'amount decimal(12, 2)'"
        ),
    ] = None,
    schema_registry: Annotated[
        str | None, typer.Option("--schema-registry", help="a URL, or an Airflow connection; default: kafka's")
    ] = None,
    landing: Annotated[
        str | None, typer.Option("--landing", help="further arguments of the app's landing, as a JSON object")
    ] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
) -> None:
    """Let Debezium read the database's table again, and replace all rows of the mirror in a single commit.

    Until then readers see the old rows. If it is killed, run it again: it continues.
    """
    with aside():
        from airflow_lakestream.run.resnapshot.run import MirrorResnapshot

        since = _offsets(since_offset or ())
        if since and not no_signal:
            raise InvalidArgument("--since-offset", "goes with --no-signal: Debezium is asked now.")
        given = {"format": value_format, "schema": schema, "key": key.split(",") if key else None}
        named = {name: value for name, value in given.items() if value is not None}
        decoding: dict[str, Any] = {**_landing(landing), **named}
        decoding |= open_registry({"schema_registry": schema_registry, "format": value_format}, kafka_conn)
        _refuse_running(checkpoint, storage_conn)
        kafka, lake = open_kafka(kafka_conn), open_lake(table, iceberg_conn, storage_conn)
        work = MirrorResnapshot(
            table=table,
            consumer_group=group_of(lake, table, group),
            kafka=kafka.configuration,
            where=kafka.where,
            topic=topic,
            decoding=decoding,
            signal_topic=signal_topic,
            by_signal=not no_signal,
            since=since,
            start_over=start_over,
            timeout=seconds("--timeout", timeout),
            report=lambda text: typer.echo(text, err=True),
        )
        done = work.run(lake)
    if as_json:
        typer.echo(json.dumps(done.to_dict(), indent=2))
        return
    counts = "" if done.rows is None else f": {done.rows_before} rows before, {done.rows} now"
    typer.echo(f"{table} has the newly read rows from snapshot {done.snapshot_id} on{counts}")


def _landing(text: str | None) -> dict[str, Any]:
    """Return the arguments of `--landing`, except soft_delete. Raises InvalidArgument for an unknown argument."""
    from airflow_lakestream.config.arguments import json_object
    from airflow_lakestream.config.mirror import MirrorConfig

    given = json_object("--landing", text)
    known = MirrorConfig.__dataclass_fields__.keys() - {"topic", "table", "consumer_group", "table_format"}
    if unknown := sorted(given.keys() - known):
        raise InvalidArgument(
            "--landing", f"a mirror has no argument {', '.join(unknown)}, or it is the command's own."
        )
    # The mirror itself knows whether deleted rows stay.
    return {name: value for name, value in given.items() if name != "soft_delete"}


def _offsets(texts: Sequence[str]) -> dict[int, int]:
    found = {}
    for text in texts:
        match = _OFFSET.fullmatch(text.strip())
        if match is None:
            raise InvalidArgument(
                "--since-offset", f"{text!r} is not a position.", 'Write "0:1200": partition and offset.'
            )
        found[int(match[1])] = int(match[2])
    return found


def _refuse_running(checkpoint: str | None, storage_conn: str | None) -> None:
    """Refuse to go on while an app holds the lease of a checkpoint. Raises InvalidArgument.

    :param checkpoint: None: there is nothing to check.
    """
    if checkpoint is None:
        return
    from airflow_lakestream.driver.lease import read_lease
    from airflow_lakestream.driver.lease_record import LeaseState

    record = read_lease(checkpoint, open_store_properties(storage_conn))
    if record is not None and record.state() is LeaseState.HELD:
        raise InvalidArgument(
            "--checkpoint",
            f"{checkpoint} is in use by {record}.",
            "Stop that app first: cancel its task in Airflow, or send its driver SIGTERM; then run this again.",
        )
