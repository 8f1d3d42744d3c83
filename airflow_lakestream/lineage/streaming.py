"""Facts about a stream that a driver lands, from the driver's reports of batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.routing import is_pattern
from airflow_lakestream.driver.progress import DriverProgress
from airflow_lakestream.lineage.facts import LineageFacts
from airflow_lakestream.lineage.looking import look


def add_batches(
    facts: LineageFacts, progress: DriverProgress, before: Mapping[str, Any], names: Mapping[str, Any]
) -> None:
    """Add a driver's landings since `before` to the facts.

    The counts of a topic are known only if the batches read a single topic, and the snapshots of a table only if they
    wrote a single table.

    :param before: earlier sums, in the form of `DriverProgress.sums`.
    :param names: `topic` and `table`, if known; used if the driver reports no rows by table or no ranges.
    """
    since = progress.since(before)
    ranges: dict[str, list[OffsetRange]] = {}
    for topic, partition, begin, end in since["landed"]:
        ranges.setdefault(topic, []).append(OffsetRange(topic, partition, begin, end))
    if not ranges and names.get("topic") and not is_pattern(str(names["topic"])):
        facts.topic(str(names["topic"]))
    for topic, landed in ranges.items():
        read = facts.topic(topic)
        read.ranges = RangeSet(landed)
        read.counts = _counts(since) if len(ranges) == 1 else None
    for table, rows in _rows(since, names).items():
        facts.table(table).rows = rows
    if len(facts.tables) == 1:
        _add_snapshots(facts, progress, since["batches"])


def look_at_tables(facts: LineageFacts, lake: Any) -> None:
    """Add place, size and files to the facts' tables, by a look at each table.

    Tables chosen by records have no snapshots here, and so neither size nor files.
    """
    for table, written in facts.tables.items():
        commit = look(lake, table, written.snapshots)
        if commit is None:
            continue
        written.place = commit.place
        if written.knows_all:
            written.size, written.files = commit.size, commit.files


def _add_snapshots(facts: LineageFacts, progress: DriverProgress, batches: int) -> None:
    [written] = facts.tables.values()
    last_batches = progress.last[-batches:] if batches else ()
    with_rows = (batch for batch in last_batches if batch.rows_in)
    written.snapshots = list(dict.fromkeys(snapshot for batch in with_rows for snapshot in batch.snapshot_ids))
    # The progress keeps only the last batches.
    written.knows_all = len(last_batches) == batches


def _counts(since: Mapping[str, Any]) -> Counts:
    not_written = {name: since[name] for name in ("rejected", "skipped", "filtered")}
    # A function may make more rows than records came, or fewer.
    written = max(0, since["rows_in"] - sum(not_written.values()))
    return Counts(read=written + sum(not_written.values()), written=written, **not_written)


def _rows(since: Mapping[str, Any], names: Mapping[str, Any]) -> Mapping[str, int]:
    if since["tables"]:
        return {str(table): int(rows) for table, rows in since["tables"].items()}
    table = str(names.get("table") or "")
    # A table chosen by records or topics is not known before it has rows.
    return {table: since["rows_out"]} if table and "{" not in table else {}
