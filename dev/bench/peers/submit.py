"""What a submit costs: one app with the same few records by a bare `spark-submit`, and by the operator.

Both drivers are told the same, have the same jars, and are measured until their process is gone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_lakestream.spark.apps import app_path
from airflow_lakestream.spark.packages import kafka_packages, resolve
from dev.bench.airflow_home import task_env
from dev.bench.lab import Lab
from dev.bench.lake import NAMESPACE, Lake
from dev.bench.peers import LandedWrong
from dev.bench.peers import spark as plain
from dev.bench.peers.landing import sample_of
from dev.bench.peers.landing_app import SETTINGS, configuration
from dev.bench.process_tree import run_measured
from dev.bench.results import Sample
from dev.bench.rows import Row
from dev.service import CHECKOUT

OPERATOR = "dev.bench.programs.submitting:SubmitToTheEnd"
TABLE = "landed"
_BIN = Path(sys.executable).parent


def missing(row: Row, lab: Lab) -> str | None:
    """Return what is not here that it needs."""
    return plain.missing(row, lab)


def run(rows: Sequence[Row], lab: Lab, number: int) -> Mapping[str, Sample]:
    """Land the topic's first records in an empty lake."""
    (row,) = rows
    topic = lab.topic(row.topic)
    records = min(topic.records, row.most or topic.records)
    with lab.lake(f"{row.name}-{number}") as lake:
        limits = {"max_offsets_per_trigger": records, "max_batches": 1}
        landing = {"table": f"{NAMESPACE}.{TABLE}", "topic": topic.name}
        if row.options["by"] == "operator":
            told, done = _by_operator(lab, lake, {"app_config": landing, **limits})
        else:
            # The jars and folders of a session that the app starts itself are not for one that is submitted.
            config = replace(configuration(lab, lake, topic, landing, **limits), spark={})
            told, done = _bare(lab, config.write(lake.folder / "app.json"))
        landed = lake.landed(TABLE)
        if not 0 < landed.rows <= records:
            raise LandedWrong(row, records, landed.rows)
        return {row.name: sample_of(row, number, topic, records, told, done, landed)}


def _bare(lab: Lab, config: Path) -> tuple[dict[str, Any], Any]:
    settings = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    command = [str(_BIN / "spark-submit"), "--master", "local[*]", "--jars", ",".join(resolve(kafka_packages()))]
    began = time.time()
    command += [*settings, app_path("kafka_to_iceberg"), "--config", str(config)]
    done = run_measured(command, _env(os.environ), watch=lab.watches)
    return {"seconds": done.seconds, "cpu_seconds": done.cpu_seconds, "began_at": began, "commits": []}, done


def _by_operator(lab: Lab, lake: Lake, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    given = {
        **arguments,
        "app": "kafka_to_iceberg",
        "checkpoint_location": str(lake.folder / "checkpoint"),
        "driver_folder": str(lake.folder / "drivers"),
        "conf": SETTINGS,
    }
    env = _env({**lab.airflow, **task_env(lab.kafka, lake, OPERATOR, given)})
    env["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": "local[*]"})
    return lab.run_program("airflow_task", {}, env)


def _env(env: Mapping[str, str]) -> dict[str, str]:
    # `spark-submit` and the Python of its driver are those of this environment.
    path = os.pathsep.join([str(_BIN), env.get("PATH", "")])
    return {**env, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(CHECKOUT)}
