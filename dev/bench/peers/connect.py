"""Iceberg's sink in Kafka Connect, its branch published with the ledger: from its start until main has all records.

The worker runs already, as it does where it is used. The sink commits each five seconds, and is published as often.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence

import psutil

from airflow_lakestream.config.arguments import ALL, proven_share
from airflow_lakestream.connect.client import ConnectClient, ConnectWorkers
from airflow_lakestream.connect.configuration import complete_config
from airflow_lakestream.connect.connector import ConnectorKind, ConnectorSpec
from airflow_lakestream.connect.driving import ConnectorSupervision
from airflow_lakestream.connect.publishing import BranchPublisher
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.driver.supervisor import DriverLook, SupervisionLimits
from airflow_lakestream.kafka.groups import KafkaGroups
from airflow_lakestream.run.job import ExtractConfig, build_job
from dev.bench.lab import Lab
from dev.bench.lake import CATALOG, NAMESPACE, Lake
from dev.bench.peers import LandedWrong
from dev.bench.results import Sample
from dev.bench.rows import DDL, Row

_TABLE = f"{NAMESPACE}.landed"
_GROUP = "bench"
_INTERVAL_S = 5.0
# An extract makes the table with these; the sink lands all others.
_FIRST = 1_000


def missing(row: Row, lab: Lab) -> str | None:
    """Return what is not here that it needs: nothing, its jars are fetched."""
    return None


def run(rows: Sequence[Row], lab: Lab, number: int) -> Mapping[str, Sample]:
    """Land the topic in an empty lake."""
    (row,) = rows
    topic, connect = lab.topic(row.topic), lab.stack.up_connect()
    client, kafka = ConnectClient(ConnectWorkers([connect.url])), lab.kafka.client_config()
    with lab.lake(f"{row.name}-{number}") as lake:
        config = ExtractConfig(topic=topic.name, table=_TABLE, consumer_group=_GROUP, schema=DDL, max_records=_FIRST)
        land(build_job(config, kafka, lake.catalog(), run_id="first"))
        before = lake.landed("landed")
        name, worker, own = f"bench-{uuid.uuid4().hex[:8]}", psutil.Process(connect.pid), psutil.Process()
        share = proven_share("prove", row.options.get("prove", ALL))
        driving = _driving(name, topic.name, lake, kafka, client, share)
        used, began = _cpu(worker) + _cpu(own), time.time()
        driving.begin()
        ended = 0.0

        def stop_when_all_is_there(look: DriverLook) -> None:
            nonlocal ended
            if not ended and look.progress.rows_out >= topic.records - before.rows:
                ended = time.time()
                client.stop(name)

        driving.follow(stop_when_all_is_there)
        used = _cpu(worker) + _cpu(own) - used
        connect.release(name)
        landed = lake.landed("landed")
        if landed.rows != topic.records:
            raise LandedWrong(row, topic.records, landed.rows)
        records = topic.records - before.rows
        return {
            row.name: Sample(
                row=row.name,
                run=number,
                records=records,
                value_bytes=topic.bytes_of(records),
                seconds=ended - began,
                cpu_seconds=used,
                peak_rss=worker.memory_info().rss + own.memory_info().rss,
                peak_pss=0,
                watched=False,
                files=landed.files - before.files,
                commits=driving.finish().batches,
            )
        }


def _driving(
    name: str, topic: str, lake: Lake, kafka: Mapping[str, str], client: ConnectClient, share: float
) -> ConnectorSupervision:
    given = {
        "topics": topic,
        "iceberg.tables": _TABLE,
        "tasks.max": "4",
        "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "iceberg.catalog.uri": f"jdbc:sqlite:{lake.database}?busy_timeout=30000",
        "iceberg.catalog.warehouse": lake.uri,
        "iceberg.catalog.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    sink = complete_config(name, given, CATALOG, _INTERVAL_S)
    limits = SupervisionLimits(stall_timeout=sink.commit_bound)
    kind, group = ConnectorKind.ICEBERG_SINK, sink.coordinator_group
    spec = ConnectorSpec(name, kind, sink.config, limits, 0.5, _INTERVAL_S, sink, group)
    publisher = BranchPublisher(sink, lake.catalog(), kafka, "the broker", _GROUP, name, share=share)
    return ConnectorSupervision(spec, client, KafkaGroups(kafka, "the broker"), publisher, time.sleep)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
