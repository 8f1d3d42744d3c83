"""`lakestream audit`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import typer

from airflow_lakestream.cli.connections import (
    Group,
    IcebergConn,
    Json,
    KafkaConn,
    Table,
    aside,
    open_catalog,
    open_kafka,
)


def audit(
    table: Table,
    group: Group,
    topic: Annotated[str | None, typer.Option("--topic", help="one topic of the ledger; default: all")] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    full: Annotated[
        bool, typer.Option("--full", help="read every row's position, and the topic; else file statistics only")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare a table with its ledger and with Kafka. Exit codes: 0 clean, 1 damage, 2 could not look."""
    with aside():
        from airflow_lakestream.audit.run import Audit

        look = Audit(table=table, consumer_group=group, topic=topic, full=full)
        if full:
            kafka = open_kafka(kafka_conn)
            look = replace(look, kafka=kafka.configuration, where=kafka.where)
        result = look.run(open_catalog(iceberg_conn))
    typer.echo(json.dumps(result.to_dict(), indent=2) if as_json else result.render())
    raise typer.Exit(result.verdict.exit_code)
