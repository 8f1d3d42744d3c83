"""An Airflow home for measured processes: its database, and the two connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from dev.service import CHECKOUT
from dev.services.kafka import Kafka


def airflow_env(kafka: Kafka, folder: Path) -> Mapping[str, str]:
    """Make an Airflow home with its database, and the two connections, for the measured processes."""
    folder.mkdir(parents=True)
    iceberg = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    env |= {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": kafka.client_config()}),
        "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps({"conn_type": "iceberg", "extra": iceberg}),
    }
    subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"],
        env=env,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return env
