"""Commands on ledgers: `lakestream ledger` prints and changes, `adopt` takes over, `hand-over` gives back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_lakestream.cli.connections import (
    AnyTable,
    ConnectConn,
    GroupIfSeveral,
    IcebergConn,
    Json,
    KafkaConn,
    KafkaConnection,
    StorageConn,
    Table,
    group_of,
    open_catalog,
    open_connect,
    open_kafka,
    open_lake,
    open_store_properties,
    output_to_stderr,
    report_answer,
    report_text,
)
from airflow_lakestream.cli.edits import forget, rebuild, rename, reset
from airflow_lakestream.core.ledger import Counts, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import RangeSet, shown
from airflow_lakestream.exceptions import InvalidArgument

if TYPE_CHECKING:
    from airflow_lakestream.adopt.claim import ToolPosition
    from airflow_lakestream.adopt.filled import FilledTable
    from airflow_lakestream.adopt.run import AdoptionResult
    from airflow_lakestream.iceberg.upkeep.landing_history import PastLanding

_MOST_FILES = 5  # most files of a landing that the text names: more would hide the important lines
# Most ranges of a partition that the text names: deletes replace scattered single offsets, so there may be many.
_MOST_RANGES = 4


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


def history_text(landings: Sequence[PastLanding], ledger: Ledger) -> str:
    """Return landings as text, newest first; and a line if the ledger has earlier landings whose snapshots are gone."""
    lines = [line for past in landings for line in _landing_lines(past)]
    missing = ledger.topics.keys() - {identity for past in landings for identity in past.landing.topics}
    if missing:
        topics = ", ".join(sorted({identity.topic for identity in missing}))
        lines.append(
            f"the snapshots of all landings of {topics} have expired: `lakestream ledger show` has their offsets"
        )
    return "\n".join(lines) or "no landings"


def _landing_lines(past: PastLanding) -> Iterator[str]:
    """Yield the lines of a landing: snapshot, run and rows, then ranges, then files."""
    at = past.at.isoformat(timespec="seconds") if past.at else "time unknown"
    yield f"snapshot {past.snapshot_id}, {at}, run {past.landing.run_id}: {past.landing.rows:,} rows"
    if past.landing.adopted is not None:
        yield f"  adopted from {past.landing.adopted}"
    for _, entry in sorted(past.landing.topics.items()):
        for name, ranges in _named_ranges(entry):
            for topic, p in ranges.partitions:
                intervals = ranges.intervals(topic, p)
                line = f"  {name} {topic}[{p}] {shown([f'[{start},{end})' for start, end in intervals], _MOST_RANGES)}"
                if len(intervals) > _MOST_RANGES:
                    line += f": {ranges.of_partition(topic, p).width:,} offsets"
                yield line
    if past.files is None:
        yield "  files: unknown, the snapshot has expired"
        return
    yield from (f"  file {path}" for path in past.files[:_MOST_FILES])
    if len(past.files) > _MOST_FILES:
        yield f"  and {len(past.files) - _MOST_FILES} more files (--json lists all)"


def _entry_lines(identity: TopicIdentity, entry: TopicEntry) -> Iterator[str]:
    """Yield the lines of a topic in a ledger: identity and counts, then ranges by partition."""
    yield f"  topic {identity.topic}, id {identity.topic_id or '(none)'}, cluster {identity.cluster_id}"
    yield f"    {_counts(entry.counts)}"
    with_ranges = {p for ranges in (entry.landed, entry.lost) for _, p in ranges.partitions}
    for partition in sorted(with_ranges | entry.origin.keys()):
        begin = entry.origin.get(partition)
        yield f"    [{partition}]:" if begin is None else f"    [{partition}] from {begin}:"
        for name, ranges in _named_ranges(entry):
            texts = [f"[{start},{end})" for start, end in ranges.intervals(identity.topic, partition)]
            if texts:
                yield f"      {name} {', '.join(texts)}"
    yield from (f"    covered time {start} to {end}" for start, end in _covered(entry))


def _covered(entry: TopicEntry) -> list[tuple[str, str]]:
    # Imported here, since it imports NumPy, which the help of a command does not need.
    from airflow_lakestream.tables.coordinates import iso

    return [(iso(start, shortly=False), iso(end, shortly=False)) for start, end in entry.covered]


def _named_ranges(entry: TopicEntry) -> list[tuple[str, RangeSet]]:
    """Return the ranges of an entry that are not empty, each with the name for the output."""
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
    without_row = {"rejected": counts.rejected, "skipped": counts.skipped, "filtered": counts.filtered}
    words += [f"{number:,} {name}" for name, number in without_row.items() if number]
    return ", ".join(words)


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
    with output_to_stderr():
        from airflow_lakestream.run.rejected import open_rejected

        lake = open_lake(table, iceberg_conn, storage_conn)
        group = group_of(lake, table, group)
        books = open_rejected(lake, table, group)
        ledger = books.ledger(group)
    if note := books.note:
        report_text(f"{table}: {note}", err=True)
    report_answer(ledger_json(ledger), ledger_text(ledger), as_json=as_json)


@app.command()
def history(
    table: Table, group: GroupIfSeveral = None, iceberg_conn: IcebergConn = "iceberg_default", as_json: Json = False
) -> None:
    """Print the group's landings, newest first, with the data files of each unexpired snapshot."""
    with output_to_stderr():
        from airflow_lakestream.audit.books import check_group
        from airflow_lakestream.audit.run import load
        from airflow_lakestream.iceberg.ledger_store import read_ledger
        from airflow_lakestream.iceberg.upkeep.landing_history import landings

        catalog = open_catalog(iceberg_conn)
        loaded, group = load(catalog, table), group_of(catalog, table, group)
        check_group(loaded, group)
        past_landings, ledger = list(landings(loaded, group)), read_ledger(loaded, group)
    report_answer(history_json(past_landings), history_text(past_landings, ledger), as_json=as_json)


for command in (rebuild, rename, reset, forget):
    app.command()(command)


_MOST_ADOPTED = 10  # most ranges in a line of `adopt`
Topic = Annotated[str, typer.Option("--topic", help="the topic that the rows come from")]
Yes = Annotated[bool, typer.Option("--yes", help="write it; without, only print what would be written")]


class PositionSource(StrEnum):
    """Sources of the position up to which another tool has filled a table."""

    ROWS = "rows"
    GROUP = "group"
    SPARK_CHECKPOINT = "spark-checkpoint"
    FLINK_SAVEPOINT = "flink-savepoint"
    CONNECT = "connect"
    RANGES = "ranges"


# Sources by the number of words behind --from: no word, or several words. Each other source needs one word.
_WITHOUT_WORD, _WITH_WORDS = (PositionSource.ROWS,), (PositionSource.RANGES,)


def adopt(
    table: AnyTable,
    topic: Topic,
    origin: Annotated[PositionSource, typer.Option("--from", help="the source of the position")],
    group: GroupIfSeveral = None,
    what: Annotated[
        list[str] | None,
        typer.Argument(help="a group's or connector's name, a checkpoint's path, or ranges such as orders[0]:0-250"),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help='columns with the positions: "topic=a,partition=b,offset=c.d"; topic may go')
    ] = None,
    yes: Yes = False,
    watch: Annotated[
        str, typer.Option(help="how long the table must not change if the tool gives no sign of life")
    ] = "10s",
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    connect_conn: ConnectConn = "kafka_connect_default",
    as_json: Json = False,
) -> None:
    """Give a table filled by another tool a ledger, with which the next run lands exactly the missing records.

    Prints first the ledger, its proofs, and the parts taken on trust; --yes writes it, in one commit without rows.
    Stop the other tool before.
    """
    with output_to_stderr():
        from airflow_lakestream.adopt.filled import open_filled
        from airflow_lakestream.adopt.run import TableAdoption
        from airflow_lakestream.core.policies import seconds
        from airflow_lakestream.run.job import ExtractConfig
        from airflow_lakestream.tables.positions import OWN_COLUMNS, PositionColumns

        # A later run must accept the names: its checks are made here, too.
        ExtractConfig(topic=topic, table=table, consumer_group="any" if group is None else group)
        names = _names(origin, what or ())
        kafka = open_kafka(kafka_conn)
        lake = open_lake(table, iceberg_conn, storage_conn)
        group = group_of(lake, table, group)
        work = TableAdoption(
            table=table,
            consumer_group=group,
            topic=topic,
            kafka=kafka.configuration,
            where=kafka.where,
            columns=OWN_COLUMNS if columns is None else PositionColumns.parse(columns, topic),
            watch=seconds("--watch", watch),
        )
        filled = open_filled(lake, table, group)
        tool = _tool(origin, names, kafka, filled, storage_conn, connect_conn)
        adoption = work.write(lake, tool) if yes else work.look(lake, tool, filled)
    report_answer(adoption.to_dict(), "\n".join(_lines(adoption)), as_json=as_json)


def _names(origin: PositionSource, what: Sequence[str]) -> Sequence[str]:
    """Return the words behind `--from`. Raises InvalidArgument for too many or too few words."""
    if origin in _WITHOUT_WORD and what:
        raise InvalidArgument(f"--from {origin}", f"takes no {what[0]!r}: the positions are in the rows.")
    if origin not in _WITHOUT_WORD and not what:
        raise InvalidArgument(f"--from {origin}", "needs a name, a path or ranges behind it.")
    if origin not in (*_WITHOUT_WORD, *_WITH_WORDS) and len(what) > 1:
        raise InvalidArgument(f"--from {origin}", f"takes one name or path, not {len(what)}.")
    return what


def _tool(
    origin: PositionSource,
    names: Sequence[str],
    kafka: KafkaConnection,
    filled: FilledTable,
    storage_conn: str | None,
    connect_conn: str,
) -> ToolPosition:
    """Open and return the source of the other tool's position; `filled` is the table that the tool has filled."""
    from airflow_lakestream.adopt import tools
    from airflow_lakestream.adopt.claim import GivenRanges, OwnRows
    from airflow_lakestream.kafka.groups import KafkaGroups

    match origin:
        case PositionSource.ROWS:
            return OwnRows()
        case PositionSource.RANGES:
            return GivenRanges(names)
        case PositionSource.GROUP:
            return tools.GroupPosition(KafkaGroups(kafka.configuration, kafka.where), names[0])
        case PositionSource.SPARK_CHECKPOINT:
            return tools.SparkCheckpoint(names[0], filled, open_store_properties(storage_conn))
        case PositionSource.CONNECT:
            sink = tools.SinkConnector(
                open_connect(connect_conn), KafkaGroups(kafka.configuration, kafka.where), names[0]
            )
            return tools.ConnectSinkPosition(sink, filled)
        case PositionSource.FLINK_SAVEPOINT:
            return tools.FlinkSavepoint(names[0], filled, open_store_properties(storage_conn))


def _lines(adoption: AdoptionResult) -> Iterator[str]:
    entry, group = adoption.decision.entry, adoption.consumer_group
    topic, source = adoption.decision.identity.topic, adoption.claim.source
    if adoption.snapshot_id is None:
        yield f"{adoption.table}: nothing is written yet. With --yes, {group} adopts {topic} from {source}:"
    else:
        yield f"{adoption.table}: {group} has adopted {topic} from {source}, in {adoption.snapshot_id}:"
    for name, ranges in (
        ("landed", entry.landed - entry.adopted),
        ("landed, not verifiable by audits", entry.adopted),
        ("taken as lost, no longer in Kafka", entry.lost),
        ("without a row, the next run lands", adoption.decision.left),
    ):
        if ranges:
            yield f"  {name}: {_text(ranges)}"
    yield from (f"  proved: {line}" for line in adoption.decision.proved)
    yield from (f"  on trust: {line}" for line in adoption.decision.trusted)
    yield "  The rows do not show which time was covered (mode=interval): intervals that run again look again."


def _text(ranges: RangeSet) -> str:
    return shown([str(offset_range) for offset_range in ranges], _MOST_ADOPTED)


class HeirKind(StrEnum):
    """Kinds of tools whose position a hand-over can set."""

    GROUP = "group"
    CONNECT = "connect"


def hand_over(
    table: AnyTable,
    topic: Topic,
    to: Annotated[HeirKind, typer.Option(help="the tool to continue at the end of the ledger")],
    name: Annotated[str, typer.Argument(help="the group's or connector's name")],
    group: GroupIfSeveral = None,
    yes: Yes = False,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    connect_conn: ConnectConn = "kafka_connect_default",
    as_json: Json = False,
) -> None:
    """Set another tool's position to the end of the ledger, for a start without a gap or a doubled record.

    Pause the DAG before. Refused while the ledger has holes, and while the other tool runs.
    """
    with output_to_stderr():
        from airflow_lakestream.adopt.hand_over import GroupTarget, LedgerHandover, PositionTarget
        from airflow_lakestream.adopt.tools import ConnectorTarget, SinkConnector
        from airflow_lakestream.kafka.groups import KafkaGroups

        kafka, lake = open_kafka(kafka_conn), open_lake(table, iceberg_conn, storage_conn)
        group = group_of(lake, table, group)
        work = LedgerHandover(
            table=table, consumer_group=group, topic=topic, kafka=kafka.configuration, where=kafka.where
        )
        groups = KafkaGroups(kafka.configuration, kafka.where)
        target: PositionTarget = GroupTarget(groups, name)
        if to is HeirKind.CONNECT:
            target = ConnectorTarget(SinkConnector(open_connect(connect_conn), groups, name))
        done = work.run(lake, target, write=yes)
    places = ", ".join(f"{topic}[{p}] {offset}" for p, offset in sorted(done.offsets.items()))
    state = "goes on at" if done.done else "is not set yet; with --yes it goes on at"
    report_answer(done.to_dict(), f"{table}: {done.to} {state} {places}", as_json=as_json)
