"""Commands on a landed table: `lakestream audit`, `rejects` and `mirror`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_lakestream.cli.arguments import offsets_by_partition, option_of, takes_decoding, takes_pipeline
from airflow_lakestream.cli.connections import (
    AnyTable,
    GroupIfSeveral,
    IcebergConn,
    Json,
    KafkaConn,
    StorageConn,
    group_of,
    like_the_airflow_command,
    open_kafka,
    open_lake,
    open_registry,
    open_store_properties,
    output_to_stderr,
    report_answer,
    report_text,
)
from airflow_lakestream.core.policies import seconds
from airflow_lakestream.core.printable import printable
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import lake_of

if TYPE_CHECKING:
    from airflow_lakestream.audit.result import AuditResult
    from airflow_lakestream.audit.source_database import DatabaseAddress


@takes_pipeline
@takes_decoding("with --repair, or of a table by key: ")
def audit(
    table: AnyTable,
    group: GroupIfSeveral = None,
    topic: Annotated[str | None, typer.Option(help="one topic of the ledger; default: all")] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    full: Annotated[
        bool, typer.Option("--full", help="read every row's position, and the topic; else file statistics only")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="land missing or wrong rows, remove doubled ones, in one commit; implies --full"),
    ] = False,
    against_database: Annotated[
        str | None,
        typer.Option("--against-database", help="connection of the database whose table a mirror is compared with"),
    ] = None,
    tombstones: Annotated[str | None, option_of("tombstones", "with --repair: ")] = None,
    landing: Annotated[
        str | None, typer.Option(help="of a table by key or a fan-out: more arguments of its landing, as JSON")
    ] = None,
    on_data_loss: Annotated[str | None, option_of("on_data_loss", "with --repair: ")] = None,
    as_json: Json = False,
    *,
    decoding: Mapping[str, Any],
) -> None:
    """Compare a table with the ledger and with Kafka. Exit codes: 0 clean, 1 damage, 2 could not look.

    A table by key is compared with its topic, folded by key; a fan-out by its home, or by the template of its tables:
    --full then decodes with the arguments of the landing. With --repair the exit code is about the table after the
    repair; 2 means that nothing was changed.
    """
    with output_to_stderr():
        from airflow_lakestream.config.arguments import json_object
        from airflow_lakestream.run.fan_out_audit import audit_of, takes_landing
        from airflow_lakestream.run.mirror_repair import can_repair, check_repair, repair_of

        if against_database is not None and (full or repair):
            raise InvalidArgument("--against-database", "goes without --full and --repair, which read the topic.")
        options = {**decoding, **given({"tombstones": tombstones, "on_data_loss": on_data_loss})}
        arguments: Mapping[str, Any] = json_object("--landing", landing)
        lake = lake_of(table)
        if "{" in table:
            table, arguments = _home_of(table, topic, group, arguments)
        opened = open_lake(table, iceberg_conn, storage_conn)
        if repair:
            check_repair(opened, table, "--repair")
        group = group_of(opened, table, group)
        # A repair and a comparison with the database need each row.
        full |= repair or against_database is not None
        work: Any = lake.part("audit")(table=table, consumer_group=group, topic=topic, full=full)
        decodes = not repair and takes_landing(opened, table)
        if (options or arguments) and not (repair or decodes):
            name = next(iter(options), "landing").replace("_", "-")
            problem = "belongs to --repair, a table by key, or a fan-out: this audit decodes nothing."
            raise InvalidArgument(f"--{name}", problem)
        if against_database is not None and not decodes:
            raise InvalidArgument("--against-database", f"{table} is not a mirror of a database's table.")
        if full:
            kafka = open_kafka(kafka_conn)
            work = replace(work, kafka=kafka.configuration, where=kafka.where)
        if decodes:
            registry = open_registry(decoding, kafka_conn) if full else {}
            work = audit_of(work, opened, {**arguments, **options, **registry}, _address_of(against_database))
        elif repair:
            options |= open_registry(decoding, kafka_conn)
            work = repair_of(work, opened, options, None if landing is None else arguments)
        result: AuditResult = work.run(opened)
        has_damage = bool(result.damages) and not (repair or as_json or against_database)
        can_be_repaired = has_damage and can_repair(opened, table)
    report_answer(result.to_dict(), result.render(), as_json=as_json)
    if can_be_repaired and (result.by_key or not decodes):
        report_text(
            f"to repair: lakestream audit --repair --table {table} --group {group} --dag ID, or --pipeline FILE"
        )
    raise typer.Exit(result.verdict.exit_code)


def _home_of(
    table: str, topic: str | None, group: str | None, landing: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    """Return a pair for a template of tables: the table to audit, and the arguments of its landing.

    For a fan-out by records the table is the home, whose ledger all tables share, and the arguments have the template.
    Otherwise it is the table of the topic. Raises InvalidArgument if the topic or the group is missing.
    """
    from airflow_lakestream.core.routing import TableTemplate

    if topic is None or group is None:
        missing = "--topic" if topic is None else "--group"
        raise InvalidArgument(missing, f"is missing: with {table!r} it names the home of the fan-out.")
    template = TableTemplate.parse(table).of_topic(topic)
    if not template.by_record:
        return template.text, landing
    other_arguments = {name: value for name, value in landing.items() if name != "home_table"}
    home = landing.get("home_table")
    home = template.home(topic, group) if home is None else TableTemplate.parse(home).of_topic(topic).text
    return home, {**other_arguments, "table": table}


def _address_of(conn_id: str | None) -> DatabaseAddress | None:
    """Return the address of a source database, or None without a connection. Raises InvalidArgument."""
    if conn_id is None:
        return None
    with like_the_airflow_command(conn_id):
        from airflow_lakestream.hooks.database import source_address

        return source_address(conn_id)


rejects_app = typer.Typer(
    help="Show the records that a table's runs rejected, and land them again.", no_args_is_help=True
)

Stage = Annotated[
    str | None, typer.Option("--stage", help="only those found bad at: record, decode, sql, route or write")
]
Reason = Annotated[str | None, typer.Option("--reason", help="only those whose reason has this text in it")]


@rejects_app.command()
def show(
    table: AnyTable,
    group: Annotated[str | None, typer.Option(help="consumer group; default: all")] = None,
    stage: Stage = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(help="most examples of each reason", min=0)] = 3,
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
) -> None:
    """Print the number of rejected records, by stage and reason, with examples."""
    with output_to_stderr():
        from airflow_lakestream.iceberg.upkeep.reject_summary import COLUMNS, by_reason
        from airflow_lakestream.run.rejected import open_rejected
        from airflow_lakestream.run.replay import RejectSelection

        chosen = RejectSelection(stage, reason)
        books = open_rejected(open_lake(table, iceberg_conn, storage_conn), table, group)
        groups = books.groups if group is None else (group,)
        parts = (part for ledger_group in groups for part in books.counting(ledger_group, columns=COLUMNS))
        bad_by_reason = by_reason(map(chosen.select, parts), limit)
        total = sum(bad.count for bad in bad_by_reason)
    reasons = [
        {
            "consumer_group": bad.consumer_group,
            "stage": bad.stage,
            "reason": bad.kind,
            "records": bad.count,
            "examples": [example.to_dict() for example in bad.examples],
        }
        for bad in bad_by_reason
    ]
    lines = [f"{table}: {total:,} rejected records"]
    for bad in bad_by_reason:
        lines.append(printable(f"  {bad.count:,} of group {bad.consumer_group}, stage {bad.stage}: {bad.kind}"))
        lines += [f"    {example.text}" for example in bad.examples]
    if bad_by_reason:
        lines.append(f"after a fix: lakestream rejects replay --table {table} --dag ID, or --pipeline FILE")
    report_answer({"table": table, "rejected": total, "reasons": reasons}, "\n".join(lines), as_json=as_json)


@rejects_app.command()
@takes_pipeline
@takes_decoding()
def replay(
    table: AnyTable,
    group: GroupIfSeveral = None,
    stage: Stage = None,
    reason: Reason = None,
    limit: Annotated[int | None, typer.Option(help="most records; default: all")] = None,
    schema_evolution: Annotated[str | None, option_of("schema_evolution")] = None,
    tombstones: Annotated[str | None, option_of("tombstones")] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
    *,
    decoding: Mapping[str, Any],
) -> None:
    """Land rejected records again, from the reject table; Kafka is not asked.

    Records that become rows leave the reject table; records that are still bad stay. They get the new reason with the
    arguments of the landing or of a fix: --dag, --pipeline, --schema, --format, --sql or --schema-registry. Without
    a new row and a new reason nothing is committed.
    """
    with output_to_stderr():
        from airflow_lakestream.core.landing.report import counts_to_dict
        from airflow_lakestream.run.replay import RejectReplay, RejectSelection
        from airflow_lakestream.run.summary import figures, rejects_of

        chosen = RejectSelection(stage, reason, limit)
        arguments = {**decoding, **given({"schema_evolution": schema_evolution, "tombstones": tombstones})}
        arguments |= open_registry(decoding, kafka_conn)
        lake = open_lake(table, iceberg_conn, storage_conn)
        group = group_of(lake, table, group)
        done = RejectReplay(table=table, consumer_group=group, chosen=chosen, decoding=arguments).run(lake)
    counts = done.counts
    shown = rejects_of(table, group, iceberg_conn) if counts.rejected else ""
    text = f"{table}: {counts.read:,} records replayed: {figures(counts_to_dict(counts))}.{done.note}{shown}"
    report_answer({"table": table, **done.to_dict()}, text, as_json=as_json)


mirror_app = typer.Typer(help="Work on mirrors of a database's tables.", no_args_is_help=True)

# Formats whose records may be Debezium's events.
_FORMATS = "json, json_schema or avro"


@mirror_app.command()
def resnapshot(
    table: AnyTable,
    group: GroupIfSeveral = None,
    topic: Annotated[str | None, typer.Option(help="default: the ledger's")] = None,
    signal_topic: Annotated[str | None, typer.Option(help="signal.kafka.topic; default: topic.prefix-signal")] = None,
    no_signal: Annotated[
        bool, typer.Option("--no-signal", help="use the last snapshot of the whole table in the topic")
    ] = False,
    since_offset: Annotated[
        list[str] | None, typer.Option(help="with --no-signal: look from partition:offset on; repeatable")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="the app's checkpoint_location: refuse while it runs")] = None,
    start_over: Annotated[bool, typer.Option("--anew", help="discard what an earlier run has begun")] = False,
    timeout: Annotated[str, typer.Option(help="how long to wait for Debezium's next row, such as 10m")] = "5m",
    key: Annotated[
        str | None, typer.Option(help="columns of the key; default: the records', else the mirror's")
    ] = None,
    value_format: Annotated[
        str | None, typer.Option("--format", help=f"of the events: {_FORMATS}; default json")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(help="columns as DDL, with types that the app was configured with: 'amount decimal(12, 2)'"),
    ] = None,
    schema_registry: Annotated[str | None, option_of("schema_registry")] = None,
    landing: Annotated[
        str | None, typer.Option(help="further arguments of the app's landing, as a JSON object")
    ] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
) -> None:
    """Let Debezium read the database's table again, and replace all rows of the mirror in a single commit.

    Until then readers see the old rows. If it is killed, run it again: it continues.
    """
    with output_to_stderr():
        from airflow_lakestream.run.resnapshot import MirrorResnapshot

        since = offsets_by_partition("--since-offset", since_offset or ())
        if since and not no_signal:
            raise InvalidArgument("--since-offset", "goes with --no-signal: Debezium is asked now.")
        named = {"format": value_format, "schema": schema, "key": key.split(",") if key else None}
        decoding: dict[str, Any] = {**_landing(landing), **given(named)}
        decoding |= open_registry({"schema_registry": schema_registry, "format": value_format}, kafka_conn)
        _refuse_running(checkpoint, storage_conn)
        kafka, lake = open_kafka(kafka_conn), open_lake(table, iceberg_conn, storage_conn)
        work = MirrorResnapshot(
            table=table,
            consumer_group=group_of(lake, table, group),
            kafka=kafka.configuration,
            where=kafka.where,
            topic=topic,
            decoding=decoding,
            signal_topic=signal_topic,
            by_signal=not no_signal,
            since=since,
            start_over=start_over,
            timeout=seconds("--timeout", timeout),
            report=partial(report_text, err=True),
        )
        done = work.run(lake)
    counts = "" if done.rows is None else f": {done.rows_before} rows before, {done.rows} now"
    text = f"{table} has the newly read rows from snapshot {done.snapshot_id} on{counts}"
    report_answer(done.to_dict(), text, as_json=as_json)


@mirror_app.command()
def tag(
    name: Annotated[str, typer.Argument(help="the tag, such as day_2026_01_31")],
    tables: Annotated[list[str], typer.Argument(help="the mirrors, namespace.table each, of one connector")],
    landing: Annotated[
        str,
        typer.Option(
            "--landing",
            help="arguments of the mirrors' landings that decide rows, of all or of one under its table's name, as "
            "JSON; '{}' for none",
        ),
    ],
    group: GroupIfSeveral = None,
    offsets_topic: Annotated[
        str | None,
        typer.Option("--offsets-topic", help="offset.storage.topic of Kafka Connect, for tables that seldom change"),
    ] = None,
    move: Annotated[bool, typer.Option("--replace", help="move the tag if it exists")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", help="how long to wait for a common position, such as 10m")
    ] = "5m",
    value_format: Annotated[
        str | None, typer.Option("--format", help=f"of the events: {_FORMATS}; default json")
    ] = None,
    schema_registry: Annotated[str | None, option_of("schema_registry")] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    as_json: Json = False,
) -> None:
    """Tag several mirrors at one position of the database, so that a query over the tags sees whole transactions.

    Lands each mirror up to exactly this position; landings by DAGs may go on.
    """
    with output_to_stderr():
        from airflow_lakestream.config.arguments import json_object
        from airflow_lakestream.run.mirror_tag import MirrorTag

        arguments = {**json_object("--landing", landing), **given({"format": value_format})}
        arguments |= open_registry({"schema_registry": schema_registry, "format": value_format}, kafka_conn)
        kafka = open_kafka(kafka_conn)
        work = MirrorTag(
            name=name,
            tables=tables,
            kafka=kafka.configuration,
            where=kafka.where,
            consumer_group=group,
            landing=arguments,
            offsets_topic=offsets_topic,
            replaces=move,
            timeout=seconds("--timeout", timeout),
            report=partial(report_text, err=True),
        )
        done = work.run(open_lake(tables[0], iceberg_conn, None))
    text = f"{len(done.snapshots)} mirrors have the tag {name}, at position {done.position}"
    report_answer(done.to_dict(), text, as_json=as_json)


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _landing(text: str | None) -> dict[str, Any]:
    """Return the arguments of `--landing`, except soft_delete. Raises InvalidArgument for an unknown argument."""
    from airflow_lakestream.config.arguments import json_object
    from airflow_lakestream.config.mirror import MirrorConfig

    arguments = json_object("--landing", text)
    known = MirrorConfig.__dataclass_fields__.keys() - {"topic", "table", "consumer_group", "table_format"}
    if unknown := sorted(arguments.keys() - known):
        raise InvalidArgument(
            "--landing", f"a mirror has no argument {', '.join(unknown)}, or it is the command's own."
        )
    # Whether deleted rows stay is a setting of the mirror's table.
    return {name: value for name, value in arguments.items() if name != "soft_delete"}


def _refuse_running(checkpoint: str | None, storage_conn: str | None) -> None:
    """Raise InvalidArgument if an app holds the lease of a checkpoint; for None there is nothing to check."""
    if checkpoint is None:
        return
    from airflow_lakestream.driver.lease import read_lease
    from airflow_lakestream.driver.lease_record import LeaseState

    record = read_lease(checkpoint, open_store_properties(storage_conn))
    if record is not None and record.state() is LeaseState.HELD:
        raise InvalidArgument(
            "--checkpoint",
            f"{checkpoint} is in use by {record}.",
            "Stop that app first: cancel its task in Airflow, or send its driver SIGTERM; then run this again.",
        )
