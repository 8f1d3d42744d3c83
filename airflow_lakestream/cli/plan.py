"""Commands before a landing: `lakestream plan` prints the plan of the next run, `doctor` checks a setup."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_lakestream.cli.arguments import option_of, takes_pipeline
from airflow_lakestream.cli.connections import (
    AnyTable,
    GroupIfSeveral,
    IcebergConn,
    Json,
    KafkaConn,
    StorageConn,
    connection_fields,
    group_of,
    open_catalog,
    open_kafka,
    open_lake,
    open_storage,
    open_store_properties,
    output_to_stderr,
    report_answer,
)
from airflow_lakestream.cli.preview import Servers, open_servers, without_logs
from airflow_lakestream.core.printable import counted
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import DEFAULT, LakeCapability, lake_of

if TYPE_CHECKING:
    from airflow_lakestream.core.landing.job import LandingJob
    from airflow_lakestream.core.landing.plan import Plan
    from airflow_lakestream.onramp.doctor.finding import DoctorFinding
    from airflow_lakestream.registry.config import RegistryConfig

SAMPLE = 500  # offsets of each partition that are read to estimate the bytes of all records


@dataclass(frozen=True)
class DryRun:
    """Plan of a run that is not executed.

    `records` is the number of offsets, holes included: an upper bound. `payload` is the number of bytes of keys and
    values, estimated by a sample of `sampled` offsets, since Kafka does not report the size of ranges; None without a
    sample. `commits` is a lower bound.
    """

    table: str
    topic: str
    plan: Plan
    records: int
    payload: int | None
    sampled: int
    commits: int

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "table": self.table,
            "topic": self.topic,
            "ranges": [[r.partition, r.from_offset, r.until_offset] for r in self.plan.ranges],
            "lost": [[r.partition, r.from_offset, r.until_offset] for r in self.plan.lost],
            "origin": {str(p): offset for p, offset in self.plan.origin.items()},
            "records_at_most": self.records,
            "bytes_estimated": self.payload,
            "offsets_sampled": self.sampled,
            "commits_at_least": self.commits,
            "rows_beside": self.plan.foreign_rows,
        }

    def render(self) -> str:
        """Return the plan as text for people."""
        size = f"at most {counted(self.records, 'record')} in at least {counted(self.commits, 'commit')}"
        lines = [f"{self.topic} -> {self.table}: {size}"]
        if self.payload is not None:
            lines.append(f"  about {self.payload:,} bytes of keys and values, by a sample of {self.sampled:,} offsets")
        lines += [f"  {r}: {len(r):,} offsets" for r in self.plan.ranges]
        lines += [f"  lost to retention: {r}" for r in self.plan.lost]
        lines += [f"  begins here: {self.topic}[{p}] {offset}" for p, offset in sorted(self.plan.origin.items())]
        if self.plan.foreign_rows:
            lines.append(f"  in addition, in no ledger and not doubled: {self.plan.foreign_rows:,} rows")
        if not self.plan.changes_the_ledger:
            lines.append("  nothing to do: the table holds all of it")
        return "\n".join(lines)


@takes_pipeline
def plan(
    table: AnyTable,
    topic: Annotated[str | None, option_of("topic")] = None,
    group: GroupIfSeveral = None,
    start_offset: Annotated[str, option_of("start_offset")] = "earliest",
    start_timestamp: Annotated[str | None, option_of("start_timestamp")] = None,
    max_records: Annotated[str | None, option_of("max_records")] = None,
    max_batch_bytes: Annotated[str, option_of("max_batch_bytes")] = "256MiB",
    on_data_loss: Annotated[str, option_of("on_data_loss")] = "fail",
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
) -> None:
    """Print the records to land by the next run with mode="resume"; Kafka and the table stay unchanged."""
    with output_to_stderr():
        from airflow_lakestream.run.job import ExtractConfig, build_job

        # Arguments are checked before the table and the topic are read.
        texts: dict[str, Any] = {"start_offset": start_offset, "start_timestamp": start_timestamp}
        texts |= {"max_records": max_records, "max_batch_bytes": max_batch_bytes, "on_data_loss": on_data_loss}
        config = ExtractConfig(
            # A missing name is found in the ledger below.
            topic=topic or "the-only-one",
            table=table,
            table_format=lake_of(table).format,
            consumer_group=group or "the-only-one",
            **texts,
        )
        kafka = open_kafka(kafka_conn)
        lake = open_lake(table, iceberg_conn, storage_conn)
        remedy = "Give --group and --topic to plan the first run into a new table."
        group = group_of(lake, table, group, remedy)
        config = replace(config, consumer_group=group, topic=_topic_of(lake, table, group, topic))
        job = build_job(config, kafka.configuration, lake, run_id="dry run", where=kafka.where, dry=True)
        next_plan = dry_run(job, lake)
    report_answer(next_plan.to_dict(), next_plan.render(), as_json=as_json)


def _topic_of(lake: Any, table: str, group: str, given: str | None) -> str:
    """Return the given topic, or the only topic in a group's ledger. Raises InvalidArgument without or with several."""
    if given is not None:
        return given
    books = lake_of(table).part("books").at(lake, table)
    known = sorted({identity.topic for identity in books.ledger(group).topics}) if books is not None else []
    if len(known) == 1:
        return str(known[0])
    problem = (
        f"{table} has rows of {', '.join(known)} by {group}." if known else f"{group} has landed nothing in {table}."
    )
    raise InvalidArgument("--topic", problem, "Name the topic to land.")


def dry_run(job: LandingJob, lake: Any) -> DryRun:
    """Return the plan of a run with mode="resume". Raises the errors that a run raises before the first record.

    The checks have the same order as in a run.

    :param lake: catalog of the table, or store of the Delta table.
    """
    from airflow_lakestream.core.landing.landed_rows import refuse_doubling
    from airflow_lakestream.core.landing.plan import LandedByAnotherGroup, check_identity, check_log, resume_plan
    from airflow_lakestream.core.ranges import RangeSet

    table = lake_of(job.table).part("state")(lake, job.table, job.consumer_group)
    ledger, others = table.ledger, table.other_ledgers
    state = job.source.look()
    check_identity(ledger, state.identity, job.table)
    entry = ledger.entry(state.identity)
    check_log(entry, state, job.table)
    starts = {} if entry.origin else job.source.starts(state)
    plan = resume_plan(entry, state, starts, job.on_data_loss, job.table)
    for other_group, other_ledger in others.items():
        if landed := plan.ranges & other_ledger.entry(state.identity).landed:
            raise LandedByAnotherGroup(landed, job.consumer_group, other_group, job.table)
    plan = refuse_doubling(job, table, entry, plan, RangeSet())
    records = min(plan.ranges.width, job.limits.max_records or plan.ranges.width)
    size, sampled = _sample(job, plan)
    payload: int | None = 0
    if records:
        payload = round(records * size / sampled) if sampled else None
    # Each commit has at most `max_batch_bytes`; a run without records may still change the ledger.
    commits = max(math.ceil((payload or 0) / job.limits.max_batch_bytes), 1 if plan.changes_the_ledger else 0)
    return DryRun(job.table, state.identity.topic, plan, records, payload, sampled, commits)


def _sample(job: LandingJob, plan: Plan) -> tuple[int, int]:
    """Read the first records of each partition's ranges, at most SAMPLE offsets of each partition.

    Returns a pair: the bytes of keys and values, and the number of offsets that were read.
    """
    from airflow_lakestream.core.ranges import RangeSet

    heads = RangeSet()
    for topic, partition in plan.ranges.partitions:
        start, end = plan.ranges.intervals(topic, partition)[0]
        heads |= RangeSet.of(topic, partition, start, min(end, start + SAMPLE))
    size = 0
    for chunk in job.reader.read(replace(plan, ranges=heads), threading.Event()):
        size += chunk.size
    return size, heads.width


def doctor(
    topic: Annotated[str | None, typer.Option(help="look at this topic, too")] = None,
    table: Annotated[str | None, typer.Option(help="namespace.table, or the path or URI of a Delta table")] = None,
    engine: Annotated[str, typer.Option(help="what lands: extract, group, spark or mirror")] = "extract",
    checkpoint: Annotated[str | None, typer.Option(help="with --engine spark: its checkpoint_location")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="write nothing: no scratch table, no file")] = False,
    schema_registry: Annotated[str | None, option_of("schema_registry")] = None,
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
    with output_to_stderr(), without_logs():
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
            checks.store(str(table), lambda: open_storage(storage_conn).options, read_only=read_only)
        if checkpoint is not None:
            checks.store(checkpoint, lambda: open_store_properties(storage_conn), read_only=read_only)
    findings = checks.findings
    report = {"findings": [finding.to_dict() for finding in findings], "exit_code": exit_code(findings)}
    report_answer(report, "\n".join(map(str, findings)), as_json=as_json)
    raise typer.Exit(exit_code(findings))


class _DoctorRun:
    """All checks of the doctor. Each method checks a part, and adds to `findings`.

    A check opens its own connection, so that an error of the connection becomes a finding. `_settings` has settings
    with secrets, which are hidden in the findings.
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

        answers = any(finding.health is PartHealth.OK for finding in self._look(parts.BROKERS, brokers))
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

    def store(self, location: str, properties_of: Callable[[], Mapping[str, str] | None], *, read_only: bool) -> None:
        from airflow_lakestream.onramp.doctor.lake import STORE, check_store

        def look() -> Iterator[DoctorFinding]:
            properties = properties_of()
            self._settings.append(properties)
            yield from check_store(location, properties, read_only=read_only)

        self._look(STORE, look)

    def _know(self, conn_id: str | None) -> None:
        """Remember a connection's secrets, to hide them in later findings. Does nothing for None."""
        self._settings.append(None if conn_id is None else connection_fields(conn_id))

    def _look(self, part: str, look: Callable[[], Iterable[DoctorFinding]]) -> list[DoctorFinding]:
        """Run a check and return its findings; an error is a finding, too. Secrets known at its end are hidden."""
        from airflow_lakestream.onramp.dag_file import secret_values
        from airflow_lakestream.onramp.doctor.finding import findings_of

        findings = findings_of(part, look, lambda: secret_values(*self._settings))
        self.findings += findings
        return findings
