"""The command `lakestream doctor`: checks of a landing's requirements, with remedies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_lakestream.cli.connections import (
    IcebergConn,
    Json,
    KafkaConn,
    StorageConn,
    aside,
    connection_fields,
    open_catalog,
    open_storage,
    open_store_properties,
)
from airflow_lakestream.cli.preview import Servers, open_servers, without_logs
from airflow_lakestream.lakes import DEFAULT, LakeCapability, lake_of

if TYPE_CHECKING:
    from airflow_lakestream.onramp.doctor.finding import DoctorFinding
    from airflow_lakestream.registry.config import RegistryConfig


def doctor(
    topic: Annotated[str | None, typer.Option("--topic", help="look at this topic, too")] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="namespace.table, or the path or URI of a Delta table")
    ] = None,
    engine: Annotated[str, typer.Option("--engine", help="what lands: extract, group, spark or mirror")] = "extract",
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="with --engine spark: its checkpoint_location")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="write nothing: no scratch table, no file")] = False,
    schema_registry: Annotated[
        str | None, typer.Option("--schema-registry", help="a URL, or an Airflow connection; default: kafka's")
    ] = None,
    bootstrap_servers: Servers = None,
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
) -> None:
    """Check the requirements of a landing, from brokers to clocks, and print a remedy for each problem.

    Exit codes: 0 all is well, 1 something has to be mended, 2 something could not be checked. A scratch table and a
    scratch file are written, and removed again, unless --read-only is given.
    """
    with aside(), without_logs():
        from airflow_lakestream.core.names import check_topic
        from airflow_lakestream.core.policies import choose
        from airflow_lakestream.onramp.dag_file import DagEngine
        from airflow_lakestream.onramp.doctor.finding import exit_code

        if topic is not None:
            check_topic(topic)
        checks = _DoctorRun()
        lake = DEFAULT if table is None else lake_of(table)
        with_spark = choose(DagEngine, "--engine", engine) is DagEngine.SPARK
        checks.machine(with_spark=with_spark, extras=lake.extras)
        checks.kafka(bootstrap_servers, kafka_conn, schema_registry, topic)
        if LakeCapability.CATALOG in lake.can:
            checks.iceberg(iceberg_conn, table, read_only=read_only)
        else:
            checks.delta(str(table), storage_conn, read_only=read_only)
        if checkpoint is not None:
            checks.checkpoint(checkpoint, storage_conn, read_only=read_only)
    found = checks.findings
    report = {"findings": [one.to_dict() for one in found], "exit_code": exit_code(found)}
    typer.echo(json.dumps(report, indent=2) if as_json else "\n".join(map(str, found)))
    raise typer.Exit(exit_code(found))


class _DoctorRun:
    """All checks of a run; each method checks a part, and adds to `findings`.

    A connection with secrets is opened within its check, so that an error is a finding.
    """

    def __init__(self) -> None:
        self.findings: list[DoctorFinding] = []
        self._settings: list[Mapping[str, Any] | None] = []

    def machine(self, *, with_spark: bool, extras: Sequence[str]) -> None:
        from airflow_lakestream.onramp.doctor.machine import JAVA, PACKAGES, check_java, check_packages

        needed = [*(("spark",) if with_spark else ()), *extras]
        self._look(PACKAGES, lambda: check_packages(needed))
        self._look(JAVA, lambda: check_java(needed=with_spark))

    def kafka(self, servers: str | None, conn_id: str, schema_registry: str | None, topic: str | None) -> None:
        from airflow_lakestream.onramp.doctor import kafka as parts
        from airflow_lakestream.onramp.doctor.finding import DoctorFinding, PartHealth

        opened: list[tuple[Mapping[str, Any], str, RegistryConfig | None]] = []

        def brokers() -> Iterator[DoctorFinding]:
            self._know(None if servers else conn_id)
            kafka, registry = open_servers(servers, conn_id, schema_registry)
            self._settings += [kafka.configuration, None if registry is None else vars(registry)]
            opened.append((kafka.configuration, kafka.where, registry))
            yield from parts.check_brokers(kafka.configuration, kafka.where)

        answers = any(one.health is PartHealth.OK for one in self._look(parts.BROKERS, brokers))
        if not opened:
            return
        configuration, where, registry = opened[0]
        if topic is not None and answers:
            self._look(parts.TOPIC, lambda: parts.check_topic(configuration, topic, where))
        elif topic is not None:
            self.findings.append(
                DoctorFinding(parts.TOPIC, PartHealth.UNKNOWN, f"{topic}: the brokers have to answer first.")
            )
        self._look(parts.REGISTRY, lambda: parts.check_registry(registry, topic))

    def iceberg(self, conn_id: str, table: str | None, *, read_only: bool) -> None:
        from airflow_lakestream.onramp.doctor.lake import CATALOG, check_catalog

        def look() -> Iterator[DoctorFinding]:
            self._know(conn_id)
            yield from check_catalog(lambda: open_catalog(conn_id), table, read_only=read_only)

        self._look(CATALOG, look)

    def delta(self, table: str, conn_id: str | None, *, read_only: bool) -> None:
        from airflow_lakestream.onramp.doctor.lake import STORE, check_store

        def look() -> Iterator[DoctorFinding]:
            options = open_storage(conn_id).options
            self._settings.append(options)
            yield from check_store(table, options, read_only=read_only)

        self._look(STORE, look)

    def checkpoint(self, location: str, conn_id: str | None, *, read_only: bool) -> None:
        from airflow_lakestream.onramp.doctor.lake import STORE, check_store

        def look() -> Iterator[DoctorFinding]:
            properties = open_store_properties(conn_id)
            self._settings.append(properties)
            yield from check_store(location, properties, read_only=read_only)

        self._look(STORE, look)

    def _know(self, conn_id: str | None) -> None:
        """Record the secrets of a connection, to hide in all later texts; nothing for None."""
        self._settings.append(None if conn_id is None else connection_fields(conn_id))

    # Runs a check; an error becomes a finding. Secrets known by the end of the check are hidden.
    def _look(self, part: str, look: Callable[[], Iterable[DoctorFinding]]) -> list[DoctorFinding]:
        from airflow_lakestream.onramp.connection_lines import secret_values
        from airflow_lakestream.onramp.doctor.finding import findings_of

        found = findings_of(part, look, lambda: secret_values(*self._settings))
        self.findings += found
        return found
