"""A driver whose JVM gets SIGTERM, as in a pod that is deleted: its lease is given back before Python dies with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import DriverOutcome
from tests.support.broker import poll_until

PATIENCE = 400.0
_PROGRAM = """
import sys, time
from pyspark.sql import SparkSession
from airflow_lakestream.spark.lease import Lease

spark = SparkSession.builder.getOrCreate()
with Lease.take({location!r}, "f", "test"):
    print("works", flush=True)
    if "ends" not in sys.argv:
        time.sleep(600)  # until the signal
spark.stop()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(_PROGRAM.format(location=str(tmp_path / "checkpoint")))
    return file


def submitted(program: Path, *arguments: str) -> subprocess.Popen[str]:
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [f"{Path(sys.executable).parent}/spark-submit", "--master", "local[1]", str(program), *arguments]
    return subprocess.Popen(
        command, env={**os.environ, **python}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_sigterm_to_the_jvm_gives_the_lease_back(program: Path) -> None:
    location = str(program.parent / "checkpoint")
    with submitted(program) as process:
        poll_until(lambda: read_lease(location) is not None, "the lease", PATIENCE)
        lease = read_lease(location)
        assert lease is not None
        # The JVM alone, as tini hands a pod's signal on: Python is its child.
        jvm = psutil.Process(lease.process.pid).ppid()
        assert jvm != os.getpid()
        assert process.stdout is not None
        assert any(line == "works\n" for line in process.stdout)
        os.kill(jvm, signal.SIGTERM)
        process.wait(PATIENCE)
    lease = read_lease(location)
    assert lease is not None
    assert (lease.outcome, lease.terminal) == (DriverOutcome.FAILED, False)
    assert lease.error.startswith("ended by SIGTERM")


def test_an_end_of_its_own_is_not_disturbed(program: Path) -> None:
    with submitted(program, "ends") as process:
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert "Py4J" not in said
    lease = read_lease(str(program.parent / "checkpoint"))
    assert lease is not None
    assert lease.outcome is DriverOutcome.DONE
