"""The command `lakestream plan`: prints the next resuming run's plan, without a landing."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass, replace
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
)
from airflow_lakestream.cli.decoding import one_of
from airflow_lakestream.cli.from_pipeline import takes_pipeline
from airflow_lakestream.core.policies import OnDataLoss, StartOffset
from airflow_lakestream.core.printable import counted
from airflow_lakestream.lakes import lake_of

if TYPE_CHECKING:
    from airflow_lakestream.core.landing.job import LandingJob
    from airflow_lakestream.core.landing.plan import Plan

# Records that are read of each partition to estimate the size of all.
SAMPLE = 500


@dataclass(frozen=True)
class DryRun:
    """Plan of a run that is not executed.

    `records` counts offsets, including holes: an upper bound. `payload` is the estimated number of bytes of keys and
    values, from `sampled` offsets, since Kafka does not report the size of ranges; None without a sample. `commits` is
    a lower bound.
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
    topic: Annotated[str, typer.Option("--topic", help="topic to land")],
    group: GroupIfSeveral = None,
    start_offset: Annotated[
        str, typer.Option("--start-offset", help=f"where a first run begins: {one_of(StartOffset)}")
    ] = "earliest",
    start_timestamp: Annotated[
        str | None, typer.Option("--start-timestamp", help="with timestamp: such as 2026-11-20T10:00Z")
    ] = None,
    max_records: Annotated[
        str | None, typer.Option("--max-records", help="most records of a run; default: all")
    ] = None,
    max_batch_bytes: Annotated[
        str, typer.Option("--max-batch-bytes", help="commit after this number of bytes of keys and values")
    ] = "256MiB",
    on_data_loss: Annotated[
        str, typer.Option("--on-data-loss", help=f"of offsets that Kafka no longer has: {one_of(OnDataLoss)}")
    ] = "fail",
    kafka_conn: KafkaConn = "kafka_default",
    iceberg_conn: IcebergConn = "iceberg_default",
    storage_conn: StorageConn = None,
    as_json: Json = False,
) -> None:
    """Print the records to land by the next run with mode="resume"; Kafka and the table stay unchanged."""
    with aside():
        from airflow_lakestream.run.job import ExtractConfig, build_job

        # Check arguments before anything is read.
        config = ExtractConfig(
            topic=topic,
            table=table,
            table_format=lake_of(table).format,
            consumer_group=group or "the-only-one",
            start_offset=start_offset,
            start_timestamp=start_timestamp,
            max_records=max_records,
            max_batch_bytes=max_batch_bytes,
            on_data_loss=on_data_loss,
        )
        kafka = open_kafka(kafka_conn)
        lake = open_lake(table, iceberg_conn, storage_conn)
        config = replace(config, consumer_group=group_of(lake, table, group))
        job = build_job(config, kafka.configuration, lake, run_id="dry run", where=kafka.where, dry=True)
        found = dry_run(job, lake)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.render())


def dry_run(job: LandingJob, lake: Any) -> DryRun:
    """Return the plan of a resuming run, and read a sample. Raises the errors of a run before the first record.

    The sequence of checks is the same as in a run.

    :param lake: catalog of the table, or store of the Delta table.
    """
    from airflow_lakestream.core.landing.plan import LandedByAnotherGroup, check_identity, check_log, resume_plan
    from airflow_lakestream.core.landing.refusing import refuse_doubling
    from airflow_lakestream.core.ranges import RangeSet

    table = lake_of(job.table).part("state")(lake, job.table, job.consumer_group)
    ledger, others = table.ledger, table.other_ledgers
    state = job.source.look()
    check_identity(ledger, state.identity, job.table)
    entry = ledger.entry(state.identity)
    check_log(entry, state, job.table)
    starts = {} if entry.origin else job.source.starts(state)
    plan = resume_plan(entry, state, starts, job.on_data_loss, job.table)
    for other, theirs in others.items():
        if taken := plan.ranges & theirs.entry(state.identity).landed:
            raise LandedByAnotherGroup(taken, job.consumer_group, other, job.table)
    plan = refuse_doubling(job, table, entry, plan, RangeSet())
    records = min(plan.ranges.width, job.limits.max_records or plan.ranges.width)
    size, sampled = _sample(job, plan)
    payload = round(records * size / sampled) if sampled else (0 if not records else None)
    by_bytes = math.ceil((payload or 0) / job.limits.max_batch_bytes)
    commits = max(by_bytes, 1 if plan.changes_the_ledger else 0)
    return DryRun(job.table, state.identity.topic, plan, records, payload, sampled, commits)


def _sample(job: LandingJob, plan: Plan) -> tuple[int, int]:
    """Read the first records of each partition's ranges.

    Returns the bytes of keys and values, and the number of offsets in the ranges that were read.
    """
    from dataclasses import replace

    from airflow_lakestream.core.ranges import RangeSet

    heads = RangeSet()
    for topic, partition in plan.ranges.partitions:
        start, end = plan.ranges.intervals(topic, partition)[0]
        heads |= RangeSet.of(topic, partition, start, min(end, start + SAMPLE))
    size = 0
    for chunk in job.reader.read(replace(plan, ranges=heads), threading.Event()):
        size += chunk.size
    return size, heads.width
