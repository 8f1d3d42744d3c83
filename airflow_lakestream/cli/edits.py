"""Commands that change a table: of `lakestream ledger` rebuild, rename, reset and forget, and `lakestream maintain`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_lakestream.cli.connections import (
    AnyTable,
    GroupIfSeveral,
    IcebergConn,
    Json,
    KafkaConn,
    KafkaConnection,
    StorageConn,
    Table,
    group_of,
    of_iceberg,
    open_catalog,
    open_kafka,
    open_lake,
    output_to_stderr,
    report_answer,
    report_text,
)
from airflow_lakestream.cli.tables import given
from airflow_lakestream.core.ledger import Counts, Ledger, NotedLandings, TopicIdentity, union
from airflow_lakestream.core.policies import size_in_bytes
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument

if TYPE_CHECKING:
    import pyiceberg.table
    from pyiceberg.catalog import Catalog

    from airflow_lakestream.audit.log import RebuiltEntry
    from airflow_lakestream.audit.result import AuditResult


def rename(
    table: Table,
    to: Annotated[str, typer.Option(help="the group's new name")],
    group: Annotated[
        str | None, typer.Option(help="the group as it is called now; default: the only one of the table")
    ] = None,
    iceberg_conn: IcebergConn = "iceberg_default",
) -> None:
    """Rename a group's ledger; the next run, with the new name, continues at the end of the old ledger."""
    with output_to_stderr():
        from airflow_lakestream.audit.books import NoLedger, groups_of
        from airflow_lakestream.audit.run import load
        from airflow_lakestream.iceberg import ledger_store
        from airflow_lakestream.iceberg.upkeep import ledger_edit
        from airflow_lakestream.run.job import ExtractConfig

        # A later run must accept the new name: its checks are made here, too.
        ExtractConfig(topic="any", table=table, consumer_group=to)
        catalog = open_catalog(iceberg_conn)
        load(catalog, table)
        group = group_of(catalog, table, group)

        def decide(present: pyiceberg.table.Table) -> Mapping[str, Ledger]:
            ledger = ledger_store.read_ledger(present, group)
            if not ledger.topics:
                raise NoLedger(table, group, groups_of(present))
            if ledger_store.read_ledger(present, to).topics:
                raise InvalidArgument("--to", f"group {to!r} has a ledger of its own on {table}.", "Choose another.")
            return {group: Ledger(group), to: replace(ledger, consumer_group=to)}

        snapshot_id = ledger_edit.rename(catalog, table, group, to, decide)
    report_text(f"{table}: the ledger of {group} is that of {to} from snapshot {snapshot_id} on.")


def reset(
    table: Table,
    group: GroupIfSeveral = None,
    yes: Annotated[bool, typer.Option("--yes", help="do it; without this option, only print what it would do")] = False,
    iceberg_conn: IcebergConn = "iceberg_default",
) -> None:
    """Remove a group's ledger; the rows stay. The group's next run begins at start_offset, like a first run."""
    with output_to_stderr():
        from airflow_lakestream.audit.books import NoLedger, groups_of
        from airflow_lakestream.audit.run import load
        from airflow_lakestream.iceberg.upkeep.ledger_edit import restate_ledgers

        catalog = open_catalog(iceberg_conn)
        known = groups_of(load(catalog, table))
        group = group_of(catalog, table, group)
        if group not in known:
            raise NoLedger(table, group, known)
        if not yes:
            raise InvalidArgument(
                "--yes",
                f"is needed: without a ledger, the next run of {group!r} begins at its start_offset, like a "
                f"first run, and is refused if {table} has rows of its topic at or above that.",
                "To have no row twice, delete or rename the table first, or begin with start_offset=latest.",
            )
        snapshot_id = restate_ledgers(catalog, table, lambda _: {group: Ledger(group)})
    report_text(
        f"{table}: {group} has no ledger from snapshot {snapshot_id} on. Its next run begins at its start_offset, like "
        "a first run; the rows are still there."
    )


def rebuild(
    table: Table,
    group: GroupIfSeveral = None,
    topic: Annotated[list[str] | None, typer.Option(help="topics of the group; default: all of the rows'")] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
) -> None:
    """Make a ledger from the rows, if the table's metadata no longer contains the group's landings.

    An offset with a row counts as landed. An offset without a row is left for the next run if Kafka still shows its
    record, counts as lost if the log begins above it, and otherwise counts as landed. In each partition, the group
    begins at its first row.
    """
    with output_to_stderr():
        from airflow_lakestream.audit.run import load
        from airflow_lakestream.iceberg import fitness, ledger_store
        from airflow_lakestream.iceberg.upkeep.ledger_edit import EditOvertaken, restate_ledgers

        catalog, kafka = open_catalog(iceberg_conn), open_kafka(kafka_conn)
        fitness.check(catalog, load(catalog, table))
        group = group_of(catalog, table, group)
        head, known, rebuilt = _from_rows(catalog, kafka, table, group, topic or ())
        # The rows do not show which landings have a note in the reject table.
        noted = known.noted if known.topics else NotedLandings(complete=False)
        new_topics = {topic_entry.identity: topic_entry.entry for topic_entry in rebuilt}
        ledger = replace(known, topics={**known.topics, **new_topics}, noted=noted)

        def decide(present: pyiceberg.table.Table) -> Mapping[str, Ledger]:
            if ledger_store.head_of(present.metadata) != head:
                raise EditOvertaken(table)
            return {group: ledger}

        snapshot_id = restate_ledgers(catalog, table, decide)
    report_text(f"{table}: the ledger of {group} was made from the rows, in snapshot {snapshot_id}.")
    for topic_entry in rebuilt:
        counts = topic_entry.entry.counts
        report_text(f"  {topic_entry.identity.topic}: {counts.written} rows, landed {topic_entry.entry.landed}")
        for name, ranges in (("the next run lands", topic_entry.left), ("taken as lost", topic_entry.entry.lost)):
            if ranges:
                report_text(f"    without a row, {name}: {ranges}")
    report_text("  The rows do not show which time was covered (mode=interval): intervals that run again look again.")


def forget(
    table: AnyTable,
    group: GroupIfSeveral = None,
    rows: Annotated[
        list[str] | None, typer.Option(help="topic[partition]:from-until, until not included; repeatable")
    ] = None,
    missing: Annotated[bool, typer.Option("--missing", help="all that a full audit finds missing now")] = False,
    damaged: Annotated[
        bool, typer.Option("--damaged", help="batches that can't be read, of what the group still lacks")
    ] = False,
    topic: Annotated[str | None, typer.Option(help="with --damaged; default: the topics of the ledger")] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
) -> None:
    """Record by a receipt that offsets need no row, as rows were deleted on purpose, or batches are damaged."""
    if bool(rows) + missing + damaged != 1:
        raise InvalidArgument("--rows", "or --missing or --damaged is needed, one of them.")
    if damaged:
        with output_to_stderr():
            from airflow_lakestream.run.damaged import ReceiptWriter

            kafka, lake = open_kafka(kafka_conn), open_lake(table, iceberg_conn, storage_conn)
            group = group_of(lake, table, group)
            writer = ReceiptWriter(lake, table, group, kafka.configuration, kafka.where)
            receipts = writer.forget([topic] if topic else [])
        for receipt in receipts:
            report_text(f"{table}: recorded as lost, in snapshot {receipt.snapshot_id}: {receipt.ranges}")
        return
    of_iceberg(table)
    with output_to_stderr():
        from airflow_lakestream.adopt.claim import parse_ranges
        from airflow_lakestream.audit.run import Audit, load
        from airflow_lakestream.iceberg import fitness, ledger_store
        from airflow_lakestream.iceberg.upkeep import ledger_edit

        ranges_of_option = parse_ranges(rows or (), "--rows")
        catalog, kafka = open_catalog(iceberg_conn), open_kafka(kafka_conn)
        fitness.check(catalog, load(catalog, table))
        group = group_of(catalog, table, group)
        audit = Audit(table=table, consumer_group=group, full=True, kafka=kafka.configuration, where=kafka.where)
        result = audit.run(catalog)
        ledger = ledger_store.read_ledger(load(catalog, table), group)
        to_forget = union(partition.missing for partition in result.partitions) if missing else ranges_of_option
        if not to_forget:
            raise InvalidArgument("--missing", f"no row is missing in {table}.")
        receipts_of_rows = []
        for identity, ranges in _by_identity(ledger, to_forget, table):
            removed = _rows_gone(result, identity.topic, ranges)
            counts = Counts(read=removed, written=removed)
            snapshot_id = ledger_edit.forget(catalog, table, group, identity, ranges, counts)
            receipts_of_rows.append((snapshot_id, ranges, removed))
    for snapshot_id, ranges, removed in receipts_of_rows:
        report_text(f"{table}: {removed} rows are recorded as deleted on purpose, in snapshot {snapshot_id}: {ranges}")


def _from_rows(
    catalog: Catalog, kafka: KafkaConnection, table: str, group: str, topics: Sequence[str]
) -> tuple[int | None, Ledger, list[RebuiltEntry]]:
    """Return a triple: the head of the table, the group's present ledger, and the entries rebuilt from the rows.

    The ledger is empty, except for the facts about columns, if the metadata with its landings is gone. A topic without
    a row of this group has no entry.

    :param topics: the topics to rebuild; empty: all topics of the rows.

    Raises CannotRebuild if the ledger has landings of these topics, if rows have no position or an impossible one, or
    if each row belongs to another group; and the errors of Kafka.
    """
    from airflow_lakestream.audit.books import groups_of
    from airflow_lakestream.audit.log import CannotRebuild, rebuild_topic
    from airflow_lakestream.audit.rows import count_rows
    from airflow_lakestream.audit.run import load
    from airflow_lakestream.core.lineage import UndecidedLedger
    from airflow_lakestream.iceberg import ledger_store
    from airflow_lakestream.kafka.reader import KafkaReader
    from airflow_lakestream.kafka.source import KafkaSource, StartAt

    loaded = load(catalog, table)
    try:
        known = ledger_store.read_ledger(loaded, group)
    except UndecidedLedger:
        known = Ledger(group)
    columns = ledger_store.columns_of(loaded, group)
    known = replace(known, filled=columns.filled, types=columns.types)
    landed_topics = {identity.topic for identity, entry in known.topics.items() if entry.landed}
    if landed_topics and (not topics or landed_topics & set(topics)):
        raise CannotRebuild(
            f"the ledger of {group!r} on {table} exists and can be read: there is nothing to rebuild. To make it from "
            "the rows all the same, reset it first."
        )
    others = [ledger_store.read_ledger(loaded, other) for other in groups_of(loaded) if other != group]
    head = ledger_store.head_of(loaded.metadata)
    rows = count_rows(loaded, head)
    if rows.impossible:
        raise CannotRebuild(
            f"{table} has rows at positions that no record can have: "
            f"{', '.join(position.text for position in rows.impossible[:10])}. "
            "Delete them, or move them to another table, first."
        )
    if rows.without_position:
        raise CannotRebuild(
            f"{rows.without_position} rows of {table} have no topic, partition or offset: it is unknown whether "
            "they were landed, and from where. Delete them, or move them to another table, first."
        )
    rebuilt = []
    for topic in topics or sorted({topic for topic, _ in rows.tallies}):
        source = KafkaSource(kafka.configuration, topic, group, StartAt(), kafka.where)
        reader = KafkaReader(kafka.configuration, group, poll_timeout=30, where=kafka.where)
        landed_by_others = union(
            entry.landed for ledger in others for identity, entry in ledger.topics.items() if identity.topic == topic
        )
        topic_entry = rebuild_topic(topic, rows, landed_by_others, source, reader, threading.Event())
        if topic_entry.entry.landed:
            rebuilt.append(topic_entry)
    if not rebuilt:
        raise CannotRebuild(f"{table} has no row that no other group's ledger accounts for.")
    return head, known, rebuilt


def _by_identity(ledger: Ledger, wanted: RangeSet, table: str) -> list[tuple[TopicIdentity, RangeSet]]:
    """Return ranges by topic id, without the ranges that have a receipt already.

    Raises InvalidArgument if a range was never landed, or if all ranges have a receipt.

    :param wanted: the ranges that get a receipt.
    """
    own_ranges = []
    for identity, entry in ledger.topics.items():
        if own := (wanted & entry.landed) - entry.forgotten:
            own_ranges.append((identity, own))
    landed = union(entry.landed for entry in ledger.topics.values())
    if never_landed := wanted - landed:
        raise InvalidArgument("--rows", f"{never_landed} was never landed in {table} by this group.")
    if not own_ranges:
        raise InvalidArgument("--rows", f"{wanted} has a receipt already.")
    return own_ranges


def _rows_gone(result: AuditResult, topic: str, ranges: RangeSet) -> int:
    """Return how many rows of the ranges are gone from the table. Raises InvalidArgument if the ranges still have rows.

    :param result: of a full audit of the table.
    """
    of_topic = [one for one in result.partitions if one.topic == topic]
    for partition in of_topic:
        if ranges_with_rows := partition.with_rows(ranges):
            raise InvalidArgument(
                "--rows", f"{ranges_with_rows} still has rows.", "Delete them first, then write the receipt."
            )
    gone = sum((ranges & one.missing).width for one in of_topic)
    not_verifiable = sum((ranges & partition.not_verifiable).width for partition in of_topic)
    # Where Kafka no longer has the records, some of these offsets were holes: only counts show how many rows are gone.
    uncounted = sum(max(0, count.expected - count.found) for count in result.counts if count.topic == topic)
    return gone + min(not_verifiable, uncounted)


def maintain(
    tables: Annotated[
        list[str], typer.Argument(help='namespace.table, a pattern such as "lake.*", or paths of Delta tables')
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only print what would be gained; nothing is changed")
    ] = False,
    retention: Annotated[
        bool, typer.Option("--retention", help="remove rows older than lakestream.retention of the table says")
    ] = False,
    keep: Annotated[str | None, typer.Option(help='in place of the property, such as "90 days of event_time"')] = None,
    compact: Annotated[bool, typer.Option("--compact", help="rewrite small files, and files with deletes")] = False,
    rewrite_manifests: Annotated[bool, typer.Option("--rewrite-manifests", help="merge small manifests")] = False,
    expire: Annotated[
        bool, typer.Option("--expire", help="remove old snapshots, and files that only they need")
    ] = False,
    remove_orphans: Annotated[
        bool, typer.Option("--remove-orphans", help="delete old files that no snapshot has")
    ] = False,
    target_size: Annotated[str | None, typer.Option(help='size of a compacted file, such as "256MiB"')] = None,
    parallelism: Annotated[
        int | None, typer.Option(help="of --compact: the number of processes; default: 1", min=1)
    ] = None,
    zorder_by: Annotated[
        list[str] | None, typer.Option(help="of --compact: a column to Z-order Delta tables by")
    ] = None,
    expire_older_than: Annotated[str | None, typer.Option(help="least age of a snapshot; default: 5d")] = None,
    retain_last: Annotated[int | None, typer.Option(help="snapshots that stay; default: 1", min=1)] = None,
    orphans_older_than: Annotated[str | None, typer.Option(help="default: 3d")] = None,
    longest_run: Annotated[str | None, typer.Option(help="into the tables; default: 1d")] = None,
    budget: Annotated[str | None, typer.Option(help='time after which no work begins, such as "10m"')] = None,
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
) -> None:
    """Remove old rows, compact tables, merge manifests, remove old snapshots and orphans, as far as needed.

    Without an option for a work all are done. A work's bound, such as --expire-older-than, chooses the work. Landings
    and merges go on meanwhile. A run that ends early has changed nothing by halves, and the next one goes on.
    """
    with output_to_stderr():
        from airflow_lakestream.config.arguments import positive_seconds
        from airflow_lakestream.config.maintenance import MaintenanceSection, format_of
        from airflow_lakestream.run.maintenance.processes import rewriter_processes
        from airflow_lakestream.tables.retention import RowRetention

        size = None if target_size is None else size_in_bytes("--target-size", target_size)
        options = given({"target-file-size-bytes": size})
        compaction = given({"options": options or None, "parallelism": parallelism, "zorder_by": zorder_by or None})
        age = given({"older_than": expire_older_than, "retain_last": retain_last})
        orphans = given({"older_than": orphans_older_than, "longest_run": longest_run})
        compact, expire = compact or bool(compaction), expire or bool(age)
        remove_orphans = remove_orphans or bool(orphans)
        rule = None if keep is None else RowRetention.parse(keep, "--keep")
        all_works = not (retention or rule or compact or rewrite_manifests or expire or remove_orphans)
        section = MaintenanceSection.parse(
            {
                "tables": tables,
                "retention": asdict(rule) if rule is not None else retention or all_works,
                "compact": compaction if compact or all_works else None,
                "rewrite_manifests": rewrite_manifests or all_works,
                "expire": age if expire or all_works else None,
                "remove_orphans": orphans if remove_orphans or all_works else None,
            }
        )
        budget_seconds = None if budget is None else positive_seconds("--budget", budget)
        with rewriter_processes(section, dry_run) as children:
            lake = open_lake(tables[0], iceberg_conn, storage_conn)
            work = format_of(section.tables).part("upkeep")(lake, section, dry_run, budget_seconds, children=children)
            reports = work.run()
    report_answer([report.to_dict() for report in reports], "\n".join(map(str, reports)), as_json=as_json)
