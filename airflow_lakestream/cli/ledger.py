"""The command `lakestream ledger`: prints a table's ledgers, and changes a ledger if no run can."""

from __future__ import annotations

import json

import typer

from airflow_lakestream.cli.connections import (
    AnyTable,
    GroupIfSeveral,
    IcebergConn,
    Json,
    StorageConn,
    Table,
    aside,
    group_of,
    open_catalog,
    open_storage,
)
from airflow_lakestream.cli.ledger_edits import forget, rebuild, rename, reset
from airflow_lakestream.cli.ledger_text import history_json, history_text, ledger_json, ledger_text
from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.exceptions import InvalidArgument

app = typer.Typer(help="Show and change the ledger of a table: which Kafka offsets it holds.", no_args_is_help=True)


@app.command()
def show(
    table: AnyTable,
    group: GroupIfSeveral = None,
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
) -> None:
    """Print the offsets held by the table for the group, the beginning of each partition, and lost offsets."""
    if TableFormat.of(table) is TableFormat.DELTA:
        _show_delta(table, group, storage_conn, as_json=as_json)
        return
    with aside():
        from airflow_lakestream.audit.books import TableLedgers
        from airflow_lakestream.audit.run import load
        from airflow_lakestream.iceberg.fan_out.books import note_on

        catalog = open_catalog(iceberg_conn)
        group = group_of(catalog, table, group)
        loaded = load(catalog, table)
        ledger = TableLedgers.of(loaded, group, None).own
    if note := note_on(loaded.metadata.properties):
        typer.echo(f"{table}: {note}", err=True)
    typer.echo(json.dumps(ledger_json(ledger), indent=2) if as_json else ledger_text(ledger))


@app.command()
def history(
    table: Table,
    group: GroupIfSeveral = None,
    iceberg_conn: IcebergConn = "iceberg_default",
    as_json: Json = False,
) -> None:
    """Print the group's landings, newest first, with the data files of each unexpired snapshot."""
    with aside():
        from airflow_lakestream.audit.books import check_group
        from airflow_lakestream.audit.run import load
        from airflow_lakestream.iceberg.upkeep.landing_history import landings

        catalog = open_catalog(iceberg_conn)
        loaded, group = load(catalog, table), group_of(catalog, table, group)
        check_group(loaded, group)
        found = list(landings(loaded, group))
    typer.echo(json.dumps(history_json(found), indent=2) if as_json else history_text(found))


def _show_delta(table: str, group: str | None, storage_conn: str | None, *, as_json: bool) -> None:
    with aside():
        storage = open_storage(storage_conn)
        from airflow_lakestream.delta.ledger_store import check_not_taken_away, read_ledger

        if (head := storage.open(table)) is None:
            raise InvalidArgument("table", f"there is no Delta table at {table}.")
        group = group_of(storage, table, group)
        check_not_taken_away(head, group, storage.store(table))
        ledger = read_ledger(head, group)
    typer.echo(json.dumps(ledger_json(ledger), indent=2) if as_json else ledger_text(ledger))


for command in (rebuild, rename, reset, forget):
    app.command()(command)
