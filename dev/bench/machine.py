"""What the measuring was done on, in words for the table's foot."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import psutil

from dev import jars
from dev.bench.lab import PEERS_PYTHON
from dev.bench.peers.spark import JARS as SPARK_JARS

OURS = ("apache-airflow", "apache-airflow-providers-apache-kafka", "pyiceberg", "pyarrow", "confluent-kafka", "pyspark")
PEERS = ("dlt",)


def describe() -> dict[str, str]:
    """Return machine and versions, by name."""
    memory = psutil.virtual_memory().total / 2**30
    found = {
        "machine": f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB of memory, {platform.system()}",
        "Python": platform.python_version(),
        "Kafka": jars.KAFKA.name.removeprefix("kafka-"),
        "kcat": _kcat(),
        "iceberg-spark-runtime": SPARK_JARS.modules[1][2],
    }
    found |= {name: metadata.version(name) for name in OURS}
    return found | {name: version for name in PEERS if (version := _peer_version(name))}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _kcat() -> str:
    if shutil.which("kcat") is None:
        return "none"
    told = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"Version (\S+).*?librdkafka ([\d.]+)", told, re.DOTALL)
    return f"{found[1]} (librdkafka {found[2]})" if found else "of an unknown version"


def _peer_version(name: str) -> str | None:
    if not PEERS_PYTHON.exists():
        return None
    code = f"import importlib.metadata, json; print(json.dumps(importlib.metadata.version({name!r})))"
    told = subprocess.run([PEERS_PYTHON, "-c", code], capture_output=True, text=True, check=False)
    return str(json.loads(told.stdout)) if told.returncode == 0 else None
