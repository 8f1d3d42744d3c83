"""The command `lakestream audit`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_lakestream.cli.connections import (
    AnyTable,
    GroupIfSeveral,
    IcebergConn,
    Json,
    KafkaConn,
    StorageConn,
    aside,
    group_of,
    open_kafka,
    open_lake,
    open_registry,
)
from airflow_lakestream.cli.decoding import takes_decoding
from airflow_lakestream.cli.from_pipeline import takes_pipeline
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import LakeCapability, lake_of

if TYPE_CHECKING:
    from airflow_lakestream.audit.result import AuditResult
    from airflow_lakestream.audit.run import Audit


@takes_pipeline
@takes_decoding("with --repair, or of a table by key: ")
def audit(
    table: AnyTable,
    group: GroupIfSeveral = None,
    topic: Annotated[str | None, typer.Option("--topic", help="one topic of the ledger; default: all")] = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    full: Annotated[
        bool, typer.Option("--full", help="read every row's position, and the topic; else file statistics only")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="land missing rows and remove doubled ones, in one snapshot; implies --full"),
    ] = False,
    tombstones: Annotated[
        str | None, typer.Option("--tombstones", help="with --repair: keep (default), skip or reject")
    ] = None,
    landing: Annotated[
        str | None,
        typer.Option("--landing", help="of a table by key or a fan-out: more arguments of its landing, as JSON"),
    ] = None,
    on_data_loss: Annotated[
        str | None,
        typer.Option("--on-data-loss", help="with --repair, if Kafka no longer has rows: fail (default) or record"),
    ] = None,
    as_json: Json = False,
    *,
    decoding: Mapping[str, Any],
) -> None:
    """Compare a table with the ledger and with Kafka. Exit codes: 0 clean, 1 damage, 2 could not look.

    A table by key is compared with its topic, folded by key; a fan-out by its home, or by the template of its tables:
    --full then decodes with the arguments of the landing. With --repair the exit code is about the table after the
    repair; 2 means that nothing was changed.
    """
    with aside():
        from airflow_lakestream.config.arguments import json_object
        from airflow_lakestream.run.fan_out_audit import audit_of, takes_landing
        from airflow_lakestream.run.repair import TableRepair

        more = {"tombstones": tombstones, "on_data_loss": on_data_loss}
        options = {**decoding, **{name: value for name, value in more.items() if value is not None}}
        lake = lake_of(table)
        if repair:
            lake.require(LakeCapability.REPAIR, "--repair", table)
        if "{" in table:
            table, landing = _home_of(table, topic, group, landing)
        opened = open_lake(table, iceberg_conn, storage_conn)
        group = group_of(opened, table, group)
        look = lake.part("audit")(table=table, consumer_group=group, topic=topic, full=full or repair)
        decodes = not repair and takes_landing(opened, table)
        if (options or landing) and not (repair or decodes):
            name = next(iter(options), "landing").replace("_", "-")
            problem = "belongs to --repair, a table by key, or a fan-out: this audit decodes nothing."
            raise InvalidArgument(f"--{name}", problem)
        work: Any = _with_kafka(look, kafka_conn)
        if decodes:
            registry = open_registry(decoding, kafka_conn) if full else {}
            work = audit_of(work, opened, {**json_object("--landing", landing), **options, **registry})
        elif repair:
            options |= open_registry(decoding, kafka_conn)
            work = TableRepair(audit=work, **options)
        result: AuditResult = work.run(opened)
    typer.echo(json.dumps(result.to_dict(), indent=2) if as_json else result.render())
    raise typer.Exit(result.verdict.exit_code)


def _home_of(table: str, topic: str | None, group: str | None, landing: str | None) -> tuple[str, str | None]:
    """Return the home of a fan-out, and its landing with the template of its tables; or the table of a topic.

    Raises InvalidArgument if the topic or the group is missing.
    """
    from airflow_lakestream.config.arguments import json_object
    from airflow_lakestream.core.routing import TableTemplate

    if topic is None or group is None:
        missing = "--topic" if topic is None else "--group"
        raise InvalidArgument(missing, f"is missing: with {table!r} it names the home of the fan-out.")
    template, given = TableTemplate.parse(table).of_topic(topic), json_object("--landing", landing)
    if not template.by_record:
        return template.text, landing
    home = given.pop("home_table", None)
    home = template.home(topic, group) if home is None else TableTemplate.parse(home).of_topic(topic).text
    return home, json.dumps({**given, "table": table})


def _with_kafka(look: Audit, conn_id: str) -> Audit:
    if not look.full:
        return look
    kafka = open_kafka(conn_id)
    return replace(look, kafka=kafka.configuration, where=kafka.where)
