"""The summary that the demo prints when enough runs have landed."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table as Grid

from airflow_lakestream.iceberg.upkeep.reads import live_rows
from dev import lake
from dev.services.airflow import ICEBERG_CONNECTION, Airflow, environment_of
from dev.services.kafka import Kafka

_SNAPSHOTS = 5
_ROWS = 6
# What fits a terminal of 80 characters.
_COLUMNS = ("_kafka_partition", "_kafka_offset", "timestamp", "event", "user_id", "url")
_URL = 16
_MORE = {
    "clickstream_backfill": "any day of the clickstream again, by the hour",
    "clickstream_parallel": "the clickstream by several tasks, in one commit",
    "clickstream_spark_micro_batch": "Spark lands what is there, and ends",
    "clickstream_enriched": "the clickstream, joined with a table of sites by a function of DataFrames",
    "clickstream_windows": "windows of five minutes and sessions, whose state Spark keeps",
    "customers_by_id": "the newest record of each customer, from a topic of plain records",
    "prices_history": "each price with the time in which it was valid (SCD type 2)",
    "flights_to_lake": "20,000 flights of 2013 into a table designed by hand",
    "clickstream_streaming": "a supervised Spark query without an end; pause the DAG, then mark its task failed",
    "supervise_lakestream": "whether the stream is fresh, keeps up and loses nothing",
    "lake_maintenance": "compacts and expires, and leaves the ledger whole",
}
_CONNECTIONS = ("AIRFLOW_CONN_KAFKA_DEFAULT", "AIRFLOW_CONN_ICEBERG_DEFAULT")
_CDC = {
    "customers_mirror": "mirrors a small table of PostgreSQL in the worker, each minute",
    "orders_cdc": "mirrors a table of PostgreSQL by Spark, a merge each minute",
}


def print_summary(
    console: Console,
    table: Table,
    kafka: Kafka,
    *,
    group: str,
    topic: str,
    first_rows_after: float | None,
) -> None:
    """Print rows, snapshots, ranges per partition with their lag, and the last rows."""
    partitions = lake.partitions(table, group, topic, kafka.client_config())
    name = ".".join(table.name())
    landings = lake.landings(table)
    console.print()
    console.print(f"[bold]{name}[/bold]: {live_rows(table):,} rows from {len(landings)} landings")
    if first_rows_after is not None:
        console.print(f"first rows {first_rows_after:.0f} s after the start")
    console.print(_snapshots(landings))
    console.print(_ranges(partitions, topic))
    console.print(_rows(lake.last_rows(table, partitions, _ROWS).to_pylist()))


def print_mirror(console: Console, mirror: Table, kafka: Kafka, *, group: str, topic: str, rows: int) -> None:
    """Print what a mirror did: its merges, its offsets, and whether it has as many rows as the database's table.

    :param rows: of the database's table, whose number does not change.
    """
    name, landings = ".".join(mirror.name()), lake.landings(mirror)
    console.print()
    console.print(f"[bold]{name}[/bold] mirrors {topic}: {live_rows(mirror):,} rows, {rows:,} in PostgreSQL")
    console.print(_snapshots(landings, "Merges", "rows in new files"))
    console.print(_ranges(lake.partitions(mirror, group, topic, kafka.client_config()), topic))


def print_login(console: Console, airflow: Airflow) -> None:
    """Print how to get into the UI."""
    console.print(
        Panel(
            f"[bold]{airflow.url}[/bold]\nlogin [bold]{airflow.username}[/bold], password "
            f"[bold]{airflow.password}[/bold]\nall streams: [bold]Lakestream[/bold] in the menu",
            title="Airflow's UI",
            expand=False,
        )
    )


def print_more(console: Console, *, cdc: bool) -> None:
    """Print which of the other DAGs can be triggered here, and what each of them shows."""
    grid = _grid("More to trigger in the UI")
    grid.add_column("DAG", no_wrap=True)
    grid.add_column("what it does")
    for dag, what in _MORE.items():
        grid.add_row(dag, what)
    for dag, what in _CDC.items() if cdc else ():
        grid.add_row(dag, f"{what}{' (is on)' if dag == 'customers_mirror' else ''}")
    console.print(grid)
    if not cdc:
        console.print(f"make demo CDC=1 also has {' and '.join(_CDC)}, which mirror tables of a PostgreSQL.")
    console.print("Spark fetches its packages the first time, some 100 MB.")


def print_next(console: Console, airflow: Airflow, kafka: Kafka, *, table: str, group: str) -> None:
    """Print what to try in another terminal, to be copied: connections, commands, and a query."""
    variables = environment_of(airflow, kafka.client_config())
    catalog = f"type='sql', uri='{airflow.catalog_uri}', warehouse='{airflow.warehouse}'"
    query = (
        f"from pyiceberg.catalog import load_catalog as load; "
        f"clicks = load('{ICEBERG_CONNECTION}', {catalog}).load_table('{table}').scan().to_duckdb('clicks'); "
        "clicks.sql('select event, count(*) from clicks group by all').show()"
    )
    lines = [
        f"export AIRFLOW_HOME={shlex.quote(airflow.home)}",
        *(f"export {name}={shlex.quote(variables[name])}" for name in _CONNECTIONS),
        f".venv/bin/lakestream status --table {table} --watch",
        f".venv/bin/lakestream ledger show --table {table} --group {group}",
        f".venv/bin/lakestream audit --table {table} --group {group}",
        f'.venv/bin/python -c "{query}"',
    ]
    console.print("\n[bold]Next, in another terminal, in this folder:[/bold]\n")
    # To be copied: nothing is wrapped, and a bracket opens no style.
    console.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)
    place = unquote(urlsplit(airflow.warehouse).path)
    console.print(f"\nThe table's files are below {place}/{table.replace('.', '/')}", soft_wrap=True, highlight=False)


def _snapshots(landings: list[Snapshot], what: str = "Landings", rows: str = "rows") -> Grid:
    grid = _grid(f"{what} (the last {_SNAPSHOTS})" if len(landings) > _SNAPSHOTS else what)
    grid.add_column("at")
    grid.add_column("snapshot")
    grid.add_column(rows, justify="right")
    grid.add_column("run", no_wrap=True)
    for snapshot in landings[-_SNAPSHOTS:]:
        at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).strftime("%H:%M:%SZ")
        grid.add_row(at, str(snapshot.snapshot_id), f"{lake.rows_of(snapshot):,}", _short(lake.run_of(snapshot)))
    return grid


def _short(run_id: str) -> str:
    """Shorten dag/task/scheduled__2026-01-01T00:00:00+00:00/-1 to what differs between runs."""
    parts = run_id.split("/")
    return (parts[2] if len(parts) > 2 else run_id).replace("__", " ").replace("+00:00", "Z")


def _ranges(partitions: list[lake.Partition], topic: str) -> Grid:
    grid = _grid(f"Offsets of {topic}, by the ledger")
    grid.add_column("partition", justify="right")
    grid.add_column("offsets landed")
    grid.add_column("topic ends at", justify="right")
    grid.add_column("lag", justify="right")
    for partition in partitions:
        ranges = ", ".join(f"[{r.from_offset:,}, {r.until_offset:,})" for r in partition.landed) or "none yet"
        # A bracket would open a style.
        grid.add_row(str(partition.number), ranges.replace("[", r"\["), f"{partition.end:,}", f"{partition.lag:,}")
    grid.add_row("", "", "[bold]together[/bold]", f"[bold]{sum(p.lag for p in partitions):,}[/bold]")
    return grid


def _rows(rows: list[dict[str, Any]]) -> Grid:
    grid = _grid("The last rows (some of their columns)")
    columns = [column for column in _COLUMNS if rows and column in rows[0]]
    for column in columns:
        grid.add_column(column.removeprefix("_kafka_"), no_wrap=True)
    for row in rows:
        grid.add_row(*(_cell(row[column]) for column in columns))
    return grid


def _grid(title: str) -> Grid:
    return Grid(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return value.strftime("%H:%M:%S.%f")[:-3]
    text = str(value).removeprefix("https://")
    return text if len(text) <= _URL else f"{text[: _URL - 1]}…"
