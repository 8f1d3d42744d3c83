"""An Airflow home for measured tasks: its database, and the DAG that makes a task of what the environment says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dev.bench.lake import Lake
from dev.service import CHECKOUT
from dev.services.kafka import Kafka

DAGS = CHECKOUT / "dev" / "bench" / "dags"


def airflow_env(folder: Path, settings: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Make an Airflow home with its database; return the environment of processes that use it.

    :param settings: variables of the environment that it has besides, such as those that lead to another database.
    """
    folder.mkdir(parents=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    env |= {
        "PYTHONPATH": str(CHECKOUT),
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        **(settings or {}),
    }
    command = [sys.executable, "-m", "airflow", "db", "migrate"]
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return env


def task_env(kafka: Kafka, lake: Lake, operator: str, arguments: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what a process needs besides: the connections, and the one task of the DAG.

    :param operator: as "module:Class".
    """
    task = json.dumps({"operator": operator, "arguments": dict(arguments)})
    return {**connections(kafka, lake), "LAKESTREAM_BENCH_TASK": task}


def connections(kafka: Kafka, lake: Lake) -> Mapping[str, str]:
    """Return the variables that hold the connections to a broker and to a lake."""
    # The official consumer subscribes in a group, and begins where the connection says.
    grouped = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    extras = {
        "AIRFLOW_CONN_KAFKA_DEFAULT": kafka.client_config(),
        "AIRFLOW_CONN_KAFKA_CONSUMER": {**kafka.client_config(), **grouped, "group.id": lake.folder.name},
    }
    env = {name: json.dumps({"conn_type": "kafka", "extra": extra}) for name, extra in extras.items()}
    return {**env, "AIRFLOW_CONN_ICEBERG_DEFAULT": lake.connection()}
