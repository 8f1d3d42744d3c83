"""`lakestream adopt` and `lakestream hand-over`: from another tool to a ledger, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

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
    aside,
    group_of,
    open_connect,
    open_kafka,
    open_lake,
    open_store_properties,
)
from airflow_lakestream.core.ranges import RangeSet, shown
from airflow_lakestream.exceptions import InvalidArgument

if TYPE_CHECKING:
    from airflow_lakestream.adopt.claim import ToolPosition
    from airflow_lakestream.adopt.filled import FilledTable
    from airflow_lakestream.adopt.run import AdoptionResult

_SHOWN = 10
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


# Origins by the number of words that follow --from: no word, several words; otherwise a single word.
_ALONE, _MANY = (PositionSource.ROWS,), (PositionSource.RANGES,)


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
        str | None,
        typer.Option("--columns", help='columns with the positions: "topic=a,partition=b,offset=c.d"; topic may go'),
    ] = None,
    yes: Yes = False,
    watch: Annotated[
        str, typer.Option("--watch", help="how long the table must not change if the tool gives no sign of life")
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
    with aside():
        from airflow_lakestream.adopt.filled import open_filled
        from airflow_lakestream.adopt.run import TableAdoption
        from airflow_lakestream.core.policies import seconds
        from airflow_lakestream.run.job import ExtractConfig
        from airflow_lakestream.tables.positions import OWN_COLUMNS, PositionColumns

        # A run must be able to take the names, so the same checks apply.
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
        found = work.write(lake, tool) if yes else work.look(lake, tool, filled)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else "\n".join(_lines(found)))


def _names(origin: PositionSource, what: Sequence[str]) -> Sequence[str]:
    """Return the words after `--from`. Raises InvalidArgument for too many or too few words."""
    if origin in _ALONE and what:
        raise InvalidArgument(f"--from {origin}", f"takes no {what[0]!r}: the positions are in the rows.")
    if origin not in _ALONE and not what:
        raise InvalidArgument(f"--from {origin}", "needs a name, a path or ranges behind it.")
    if origin not in (*_ALONE, *_MANY) and len(what) > 1:
        raise InvalidArgument(f"--from {origin}", f"takes one name or path, not {len(what)}.")
    return what


# The source of the tool's position, opened by the connections; `filled` is the table that the tool has filled.
def _tool(
    origin: PositionSource,
    names: Sequence[str],
    kafka: KafkaConnection,
    filled: FilledTable,
    storage_conn: str | None,
    connect_conn: str,
) -> ToolPosition:

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


def _lines(found: AdoptionResult) -> Iterator[str]:
    entry, left = found.decision.entry, found.decision.left
    topic, source = found.decision.identity.topic, found.claim.source
    if found.snapshot_id is None:
        yield f"{found.table}: nothing is written yet. With --yes, {found.consumer_group} adopts {topic} from {source}:"
    else:
        yield f"{found.table}: {found.consumer_group} has adopted {topic} from {source}, in {found.snapshot_id}:"
    for name, ranges in (
        ("landed", entry.landed - entry.adopted),
        ("landed, not verifiable by audits", entry.adopted),
        ("taken as lost, no longer in Kafka", entry.lost),
        ("without a row, the next run lands", left),
    ):
        if ranges:
            yield f"  {name}: {_text(ranges)}"
    yield from (f"  proved: {line}" for line in found.proved)
    yield from (f"  on trust: {line}" for line in found.trusted)
    yield "  The rows do not show which time was covered (mode=interval): intervals that run again look again."


def _text(ranges: RangeSet) -> str:
    return shown([str(one) for one in ranges], _SHOWN)


class HeirKind(StrEnum):
    """Kinds of tools whose position a hand-over can set."""

    GROUP = "group"
    CONNECT = "connect"


def hand_over(
    table: AnyTable,
    topic: Topic,
    to: Annotated[HeirKind, typer.Option("--to", help="the tool to continue at the end of the ledger")],
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
    with aside():
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
    if as_json:
        typer.echo(json.dumps(done.to_dict(), indent=2))
        return
    places = ", ".join(f"{topic}[{p}] {offset}" for p, offset in sorted(done.offsets.items()))
    state = "goes on at" if done.done else "is not set yet; with --yes it goes on at"
    typer.echo(f"{table}: {done.to} {state} {places}")
