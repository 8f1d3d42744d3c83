"""The command `lakestream rejects`: prints rejected records, and lands rejected records again after a fix."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    open_lake,
    open_registry,
)
from airflow_lakestream.cli.decoding import one_of, takes_decoding
from airflow_lakestream.cli.from_pipeline import takes_pipeline
from airflow_lakestream.core.policies import SchemaEvolution, Tombstones
from airflow_lakestream.core.printable import printable
from airflow_lakestream.exceptions import InvalidArgument

app = typer.Typer(help="Show the records that a table's runs rejected, and land them again.", no_args_is_help=True)

Stage = Annotated[
    str | None, typer.Option("--stage", help="only those found bad at: record, decode, sql, route or write")
]
Reason = Annotated[str | None, typer.Option("--reason", help="only those whose reason has this text in it")]


@app.command()
def show(
    table: AnyTable,
    group: Annotated[str | None, typer.Option("--group", help="consumer group; default: all")] = None,
    stage: Stage = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option("--limit", help="most examples of each reason", min=0)] = 3,
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
) -> None:
    """Print the number of rejected records, by stage and reason, with examples."""
    with aside():
        from airflow_lakestream.iceberg.upkeep.reject_summary import COLUMNS, by_reason
        from airflow_lakestream.run.rejected import open_rejected
        from airflow_lakestream.run.replay import RejectSelection

        chosen = RejectSelection(stage, reason)
        books = open_rejected(open_lake(table, iceberg_conn, storage_conn), table, group)
        groups = books.groups if group is None else (group,)
        parts = (part for one in groups for part in books.counting(one, columns=COLUMNS))
        found = by_reason(map(chosen.select, parts), limit)
    if as_json:
        reasons = [
            {
                "consumer_group": one.consumer_group,
                "stage": one.stage,
                "reason": one.kind,
                "records": one.count,
                "examples": [example.to_dict() for example in one.examples],
            }
            for one in found
        ]
        total = sum(one.count for one in found)
        typer.echo(json.dumps({"table": table, "rejected": total, "reasons": reasons}, indent=2))
        return
    typer.echo(f"{table}: {sum(one.count for one in found):,} rejected records")
    for one in found:
        typer.echo(printable(f"  {one.count:,} of group {one.consumer_group}, stage {one.stage}: {one.kind}"))
        for example in one.examples:
            typer.echo(f"    {example.text}")


@app.command()
@takes_pipeline
@takes_decoding()
def replay(
    table: AnyTable,
    group: GroupIfSeveral = None,
    stage: Stage = None,
    reason: Reason = None,
    limit: Annotated[int | None, typer.Option("--limit", help="most records; default: all")] = None,
    schema_evolution: Annotated[
        str | None,
        typer.Option("--schema-evolution", help=f"how far the table may be changed: {one_of(SchemaEvolution)}"),
    ] = None,
    tombstones: Annotated[
        str | None, typer.Option("--tombstones", help=f"of records without a value: {one_of(Tombstones)}")
    ] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
    *,
    decoding: Mapping[str, Any],
) -> None:
    """Land rejected records again, from the reject table; Kafka is not asked.

    Records that become rows leave the reject table; records that are still bad stay, with the new reason. Without
    a new row and a new reason nothing is committed.
    """
    with aside():
        from airflow_lakestream.core.landing.report import counts_to_dict
        from airflow_lakestream.run.replay import RejectReplay, RejectSelection
        from airflow_lakestream.run.summary import figures, rejects_of

        if limit is not None and limit < 1:
            raise InvalidArgument("--limit", f"{limit} is not a number of records above 0.")
        more = {"schema_evolution": schema_evolution, "tombstones": tombstones}
        arguments = {**decoding, **{name: value for name, value in more.items() if value is not None}}
        arguments |= open_registry(decoding, kafka_conn)
        lake = open_lake(table, iceberg_conn, storage_conn)
        group = group_of(lake, table, group)
        work = RejectReplay(
            table=table, consumer_group=group, chosen=RejectSelection(stage, reason, limit), decoding=arguments
        )
        done = work.run(lake)
    if as_json:
        typer.echo(json.dumps({"table": table, **done.to_dict()}, indent=2))
        return
    counts = done.counts
    shown = rejects_of(table, group, iceberg_conn) if counts.rejected else ""
    typer.echo(f"{table}: {counts.read:,} records replayed: {figures(counts_to_dict(counts))}.{done.note}{shown}")
