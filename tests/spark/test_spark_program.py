"""kafka_to_iceberg as a program in a process of its own: plainly submitted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_lakestream.spark.apps import app_path
from airflow_lakestream.spark.packages import kafka_packages, resolve
from dev.services.kafka import Kafka
from tests.support.broker import Producing, Topics
from tests.support.lake import Lake, events
from tests.support.spark import SETTINGS, SparkRun

pytestmark = pytest.mark.integration


def submit(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Submit as a user does, in an interpreter that has no Airflow."""
    hidden = config.parent / "without"
    hidden.mkdir(exist_ok=True)
    (hidden / "airflow.py").write_text("raise ModuleNotFoundError('No module named airflow')")
    root = str(Path(__file__).parents[2])
    python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join([str(hidden), root])}
    settings = [part for key, value in SETTINGS.items() for part in ("--conf", f"{key}={value}")]
    command = [str(Path(sys.executable).with_name("spark-submit")), *settings, *arguments]
    return subprocess.run(
        [*command, app_path("kafka_to_iceberg"), "--config", str(config)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **python},
        timeout=400,
    )


def test_plain_spark_submit_through_sasl_ssl_leaves_no_password_anywhere(
    tmp_path: Path, kafka: Kafka, topic: Topics, produce: Producing
) -> None:
    lake, name = Lake(tmp_path, kafka.secure_client_config()), topic(partitions=2)
    produce(name, 0, events(0, 0, 30))
    logs = tmp_path / "events"
    logs.mkdir()
    config = SparkRun(lake, name).config().write(tmp_path / "app.json")
    done = submit(
        config,
        *("--jars", ",".join(resolve(kafka_packages()))),
        *("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir=file://{logs}"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert lake.offsets() == [(0, n) for n in range(30)]
    secret = kafka.password
    assert secret not in done.stdout + done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != config]
    assert any(path.is_relative_to(logs) for path in files)
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_without_the_package_the_log_says_which_one(lake: Lake) -> None:
    config = SparkRun(lake, "t").config().write(lake.folder / "app.json")
    done = submit(config)
    assert done.returncode == 1
    # `spark-submit` hands on what the program logs as its own output.
    last = done.stdout.strip().splitlines()[-1]
    assert re.search(rf"ERROR .* Spark has no Kafka source\. .*--packages {kafka_packages()[0]}", last)
