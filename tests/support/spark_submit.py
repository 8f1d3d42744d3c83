"""A `spark-submit` that submits nothing: what it was given is kept, and it says what the test wants."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.driver.backend import DriverBackend
from airflow_lakestream.driver.driver_folder import DriverConfig
from airflow_lakestream.hooks.spark import DriverSubmission


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let `spark-submit` say something, and end with a code."""
    binary = tmp_path / "bin" / "spark-submit"
    binary.parent.mkdir()
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")

    def says(text: str, code: int = 0) -> None:
        takes = "printf '%s\\n' \"$@\" > arguments.txt\ncp spark.properties taken.properties\nls > files.txt"
        binary.write_text(f"#!/bin/sh\n{takes}\necho '{text}'\nexit {code}\n")
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR)

    return says


def backend(conn_id: str, folder: Path, **options: Any) -> tuple[DriverBackend, DriverSubmission]:
    """Return the place of a connection's drivers, and a launch there whose configuration has a secret."""
    from airflow_lakestream.hooks.spark import SparkHook
    from airflow_lakestream.hooks.spark_cluster import backend_of

    hook = SparkHook(conn_id, **options)
    config = DriverConfig({"password": "canary"}, "", {})
    job = DriverSubmission("/app.py", folder, config, "s3://lake/checkpoint", hook.settings, hook.variables)
    return backend_of(hook), job
