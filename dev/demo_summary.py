"""The summary that the demo prints when enough runs have landed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyiceberg.table import Table
from rich.console import Console
from rich.panel import Panel
from rich.table import Table as Grid

from airflow_lakestream.core.codec import SUMMARY_RUN_ID
from dev import lake
from dev.services.airflow import Airflow
from dev.services.kafka import Kafka

_SNAPSHOTS = 5
_ROWS = 6


def print_summary(
    console: Console,
    table: Table,
    airflow: Airflow,
    kafka: Kafka,
    *,
    group: str,
    topic: str,
    first_rows_after: float | None,
) -> None:
    """Print rows, snapshots, ranges per partition with their lag, the last rows, and how to get into the UI."""
    partitions = lake.partitions(table, group, topic, kafka.client_config())
    name = ".".join(table.name())
    landings = lake.landings(table)
    console.print()
    console.print(f"[bold]{name}[/bold]: {lake.total_rows(table):,} rows from {len(landings)} landings")
    if first_rows_after is not None:
        console.print(f"first rows {first_rows_after:.0f} s after the start")
    console.print(_snapshots(landings))
    console.print(_ranges(partitions, topic))
    console.print(_rows(lake.last_rows(table, partitions, _ROWS).to_pylist()))
    console.print(
        Panel(
            f"[bold]{airflow.url}[/bold]\nlogin [bold]{airflow.username}[/bold], password "
            f"[bold]{airflow.password}[/bold]",
            title="Airflow's UI",
            expand=False,
        )
    )


def _snapshots(landings: list[Any]) -> Grid:
    grid = Grid(title=f"Landings (the last {_SNAPSHOTS})", title_justify="left")
    for column, justify in (("at", "left"), ("snapshot", "left"), ("rows", "right"), ("run", "left")):
        grid.add_column(column, justify=justify)  # type: ignore[arg-type]
    for snapshot in landings[-_SNAPSHOTS:]:
        at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000).strftime("%H:%M:%S")
        run = snapshot.summary.additional_properties.get(SUMMARY_RUN_ID, "")
        grid.add_row(at, str(snapshot.snapshot_id), f"{lake.rows_of(snapshot):,}", run)
    return grid


def _ranges(partitions: list[lake.Partition], topic: str) -> Grid:
    grid = Grid(title=f"What the table holds of {topic}, by its own ledger", title_justify="left")
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
    grid = Grid(title="The last rows", title_justify="left")
    if not rows:
        return grid
    columns = [name for name in rows[0] if name not in ("_kafka_topic", "_kafka_timestamp")]
    for column in columns:
        grid.add_column(column, overflow="ellipsis", no_wrap=True, max_width=30)
    for row in rows:
        grid.add_row(*(_cell(row[column]) for column in columns))
    return grid


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return value.strftime("%H:%M:%S.%f")[:-3]
    return str(value)
