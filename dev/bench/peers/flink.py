"""A landing by Flink, its branch published with the ledger: from the driver's start until main has all records.

The cluster runs already, as it does where it is used: a JobManager, a TaskManager on two cores, a gateway. The job
checkpoints each two seconds, and is published each five.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import psutil

from airflow_lakestream.driver.lease import request_stop
from airflow_lakestream.driver.progress import read_progress
from airflow_lakestream.flink.config import FlinkConfig
from dev.bench.lab import Lab
from dev.bench.lake import CATALOG, NAMESPACE, Lake
from dev.bench.peers import LandedWrong
from dev.bench.process_tree import CommandFailed, cpu_of_tree
from dev.bench.results import Sample
from dev.bench.rows import DDL, Row
from dev.bench.topics import Filled
from dev.services.flink import Flink

_TABLE = f"{NAMESPACE}.landed"
_WITHIN_S = 300.0


def missing(row: Row, lab: Lab) -> str | None:
    """Return what is not here that it needs: nothing, its jars are fetched."""
    return None


def run(rows: Sequence[Row], lab: Lab, number: int) -> Mapping[str, Sample]:
    """Land the topic in an empty lake."""
    (row,) = rows
    topic, flink = lab.topic(row.topic), lab.stack.up_flink()
    daemons = [psutil.Process(one.pid) for one in (flink.manager, flink.worker, flink.gateway)]
    with lab.lake(f"{row.name}-{number}") as lake:
        config = _config(lab, lake, topic, flink, row)
        file = lake.folder / "app.json"
        file.write_text(json.dumps(config.to_dict()))
        used, began = sum(map(_cpu, daemons)), time.time()
        command = [sys.executable, "-m", "airflow_lakestream.flink.program", "--config", str(file)]
        with (lake.folder / "driver.log").open("wb") as log:
            driver = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
        try:
            while _rows_of(config) < topic.records:
                if driver.poll() is not None or time.time() - began > _WITHIN_S:
                    raise CommandFailed(command, "did not land the topic", (lake.folder / "driver.log").read_text())
                time.sleep(0.1)  # Nothing tells of a publication.
            ended, own = time.time(), cpu_of_tree(driver.pid)
            used = sum(map(_cpu, daemons)) - used + own
            request_stop(config.checkpoint_location, "the benchmark")
            driver.wait(_WITHIN_S)
        finally:
            driver.kill()
        landed = lake.landed("landed")
        if landed.rows != topic.records:
            raise LandedWrong(row, topic.records, landed.rows)
        return {
            row.name: Sample(
                row=row.name,
                run=number,
                records=topic.records,
                value_bytes=topic.bytes_of(topic.records),
                seconds=ended - began,
                cpu_seconds=used,
                peak_rss=sum(one.memory_info().rss for one in daemons),
                peak_pss=0,
                watched=False,
                files=landed.files,
                commits=landed.commits,
                first_commit_seconds=landed.first_commit_at - began,
            )
        }


def _config(lab: Lab, lake: Lake, topic: Filled, flink: Flink, row: Row) -> FlinkConfig:
    catalog = {"type": "sql", "uri": f"sqlite:///{lake.database}", "warehouse": lake.uri}
    return FlinkConfig(
        catalog={"name": CATALOG, "properties": catalog},
        kafka=lab.kafka.client_config(),
        gateway={"url": flink.gateway.url},
        manager={"url": flink.manager.url},
        topic=topic.name,
        table=_TABLE,
        consumer_group="bench",
        columns=DDL,
        parallelism=2,
        checkpoint_location=str(lake.folder / "checkpoint"),
        checkpoint_interval=2.0,
        publish_interval=5.0,
        **row.options,
    )


def _rows_of(config: FlinkConfig) -> int:
    return read_progress(config.checkpoint_location).rows_out


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
