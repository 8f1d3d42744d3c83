"""`lakestream audit`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_lakestream.cli.connections import (
    AnyTable,
    Group,
    IcebergConn,
    Json,
    KafkaConn,
    StorageConn,
    aside,
    open_kafka,
    open_lake,
    open_registry,
)
from airflow_lakestream.exceptions import InvalidArgument

if TYPE_CHECKING:
    from airflow_lakestream.audit.result import AuditResult
    from airflow_lakestream.audit.run import Audit


def audit(
    table: AnyTable,
    group: Group,
    topic: Annotated[str | None, typer.Option("--topic", help="one topic of the ledger; default: all")] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    full: Annotated[
        bool, typer.Option("--full", help="read every row's position, and the topic; else file statistics only")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="land what is missing, make doubled rows one, in one snapshot; implies --full"),
    ] = False,
    value_format: Annotated[
        str | None, typer.Option("--format", help="with --repair: how values are decoded, default json")
    ] = None,
    unknown_fields: Annotated[
        str | None, typer.Option("--unknown-fields", help="with --repair: ignore (default) or fail")
    ] = None,
    key_format: Annotated[str | None, typer.Option("--key-format", help="with --repair: as the operator's")] = None,
    envelope: Annotated[str | None, typer.Option("--envelope", help="with --repair: as the operator's")] = None,
    schema_registry: Annotated[
        str | None,
        typer.Option("--schema-registry", help="with --repair: a URL, or an Airflow connection; default: kafka's"),
    ] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", help="with --repair: the statement of a landing through SQL, rendered")
    ] = None,
    sql_input: Annotated[
        str | None, typer.Option("--sql-input", help="with --repair: raw (default) or decoded")
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", help="with --sql-input decoded: the columns that the statement reads")
    ] = None,
    tombstones: Annotated[
        str | None, typer.Option("--tombstones", help="with --repair: keep (default), skip or reject")
    ] = None,
    on_data_loss: Annotated[
        str | None,
        typer.Option("--on-data-loss", help="with --repair, for rows that Kafka has no more: fail (default) or record"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a table with its ledger and with Kafka. Exit codes: 0 clean, 1 damage, 2 could not look.

    With --repair the exit code tells how the table is afterwards; 2 says that nothing was changed.
    """
    with aside():
        from airflow_lakestream.lakes.formats import lake_of
        from airflow_lakestream.run.repair import Repair

        given = {
            "format": value_format,
            "unknown_fields": unknown_fields,
            "key_format": key_format,
            "envelope": envelope,
            "schema_registry": schema_registry,
            "sql": sql,
            "sql_input": sql_input,
            "schema": schema,
            "tombstones": tombstones,
            "on_data_loss": on_data_loss,
        }
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if options and not repair:
            name = next(iter(options)).replace("_", "-")
            raise InvalidArgument(f"--{name}", "goes with --repair: nothing is decoded to look.")
        lake = lake_of(table)
        if repair and not lake.has_catalog:
            problem = f"{table!r} is the place of a Delta table; repairs are for Iceberg tables."
            raise InvalidArgument("--repair", problem, 'Land the ranges anew: mode="ranges", replace=True.')
        look = lake.part("audit")(table=table, consumer_group=group, topic=topic, full=full or repair)
        work: Any = _with_kafka(look, kafka_conn)
        if repair:
            registry = open_registry(schema_registry, kafka_conn, value_format, key_format)
            options |= {"schema_registry": registry} if registry is not None else {}
            work = Repair(audit=work, **options)
        result: AuditResult = work.run(open_lake(table, iceberg_conn, storage_conn))
    typer.echo(json.dumps(result.to_dict(), indent=2) if as_json else result.render())
    raise typer.Exit(result.verdict.exit_code)


def _with_kafka(look: Audit, conn_id: str) -> Audit:
    if not look.full:
        return look
    kafka = open_kafka(conn_id)
    return replace(look, kafka=kafka.configuration, where=kafka.where)
