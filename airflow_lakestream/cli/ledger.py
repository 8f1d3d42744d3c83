"""The command `lakestream ledger`: prints a table's ledgers, and changes a ledger if no run can."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

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
    open_lake,
)
from airflow_lakestream.cli.ledger_edits import forget, rebuild, rename, reset
from airflow_lakestream.core.ledger import Counts, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import RangeSet, shown

if TYPE_CHECKING:
    from airflow_lakestream.iceberg.upkeep.landing_history import PastLanding

# More files of a landing would hide the important lines.
_FILES = 5
# Deletes replace scattered single offsets, so a partition may have many ranges.
_RANGES = 4


def ledger_json(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger as JSON-ready values; ranges as [partition, from, until], times as ISO 8601."""
    topics = [_entry_json(identity, ledger.topics[identity]) for identity in sorted(ledger.topics)]
    return {"consumer_group": ledger.consumer_group, "topics": topics}


def ledger_text(ledger: Ledger) -> str:
    """Return a ledger as text."""
    lines = [f"consumer group {ledger.consumer_group}"]
    for identity in sorted(ledger.topics):
        lines += _entry_lines(identity, ledger.topics[identity])
    return "\n".join(lines)


def history_json(landings: Sequence[PastLanding]) -> list[dict[str, Any]]:
    """Return landings as JSON-ready values, newest first; ids as text, since browsers round 64-bit numbers."""
    return [
        {
            "snapshot_id": str(past.snapshot_id),
            "at": past.at.isoformat() if past.at else None,
            "run_id": past.landing.run_id,
            "landing_id": past.landing.landing_id,
            "adopted_from": past.landing.adopted,
            "topics": [_entry_json(identity, entry) for identity, entry in sorted(past.landing.topics.items())],
            "files": None if past.files is None else list(past.files),
        }
        for past in landings
    ]


def history_text(landings: Sequence[PastLanding]) -> str:
    """Return landings as text, newest first."""
    return "\n".join(line for past in landings for line in _landing_lines(past)) or "no landings"


def _landing_lines(past: PastLanding) -> Iterator[str]:
    at = past.at.isoformat(timespec="seconds") if past.at else "time unknown"
    yield f"snapshot {past.snapshot_id}, {at}, run {past.landing.run_id}: {past.landing.rows:,} rows"
    if past.landing.adopted is not None:
        yield f"  adopted from {past.landing.adopted}"
    for _, entry in sorted(past.landing.topics.items()):
        for name, ranges in _named_ranges(entry):
            for topic, p in ranges.partitions:
                intervals = ranges.intervals(topic, p)
                ranges_text = shown([f"[{start},{end})" for start, end in intervals], _RANGES)
                in_all = ranges.of_partition(topic, p).width
                yield f"  {name} {topic}[{p}] {ranges_text}" + (
                    f": {in_all:,} offsets" if len(intervals) > _RANGES else ""
                )
    if past.files is None:
        yield "  files: unknown, the snapshot has expired"
        return
    yield from (f"  file {path}" for path in past.files[:_FILES])
    if len(past.files) > _FILES:
        yield f"  and {len(past.files) - _FILES} more files (--json lists all)"


def _entry_lines(identity: TopicIdentity, entry: TopicEntry) -> Iterator[str]:
    yield f"  topic {identity.topic}, id {identity.topic_id or '(none)'}, cluster {identity.cluster_id}"
    yield f"    {_counts(entry.counts)}"
    for partition in sorted(
        {*entry.origin, *(p for ranges in (entry.landed, entry.lost) for _, p in ranges.partitions)}
    ):
        begins = entry.origin.get(partition)
        yield f"    [{partition}]" + ("" if begins is None else f" from {begins}") + ":"
        for name, ranges in _named_ranges(entry):
            texts = [f"[{start},{end})" for start, end in ranges.intervals(identity.topic, partition)]
            if texts:
                yield f"      {name} {', '.join(texts)}"
    yield from (f"    covered time {start} to {end}" for start, end in _covered(entry))


def _covered(entry: TopicEntry) -> list[tuple[str, str]]:
    # Imported here, since it imports NumPy, which the help of a command does not need.
    from airflow_lakestream.tables.coordinates import iso

    return [(iso(start, shortly=False), iso(end, shortly=False)) for start, end in entry.covered]


# The kinds of ranges that an entry has, by the names in the output.
def _named_ranges(entry: TopicEntry) -> list[tuple[str, RangeSet]]:
    named = [("landed", entry.landed), ("lost", entry.lost), ("replaced", entry.replaced)]
    named += [("forgotten", entry.forgotten), ("adopted", entry.adopted)]
    return [(name, ranges) for name, ranges in named if ranges]


def _entry_json(identity: TopicIdentity, entry: TopicEntry) -> dict[str, Any]:
    named = {name: _triples(ranges) for name, ranges in _named_ranges(entry)}
    return {
        "topic": identity.topic,
        "topic_id": identity.topic_id,
        "cluster_id": identity.cluster_id,
        "landed": _triples(entry.landed),
        "lost": _triples(entry.lost),
        **named,
        "origin": {str(p): offset for p, offset in sorted(entry.origin.items())},
        "covered": [list(times) for times in _covered(entry)],
        "counts": asdict(entry.counts),
    }


def _counts(counts: Counts) -> str:
    words = [f"{counts.read:,} records read", f"{counts.written:,} rows"]
    rest = {"rejected": counts.rejected, "skipped": counts.skipped, "filtered": counts.filtered}
    return ", ".join([*words, *(f"{n:,} {name}" for name, n in rest.items() if n)])


def _triples(ranges: RangeSet) -> list[list[int]]:
    return [[r.partition, r.from_offset, r.until_offset] for r in ranges]


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
    with aside():
        from airflow_lakestream.run.rejected import open_rejected

        lake = open_lake(table, iceberg_conn, storage_conn)
        group = group_of(lake, table, group)
        books = open_rejected(lake, table, group)
        ledger = books.ledger(group)
    if note := books.note:
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


for command in (rebuild, rename, reset, forget):
    app.command()(command)
