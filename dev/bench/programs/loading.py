"""Loads a folder of pipelines, and prints the CPU seconds of it; Airflow and the operators are imported before."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path


def main(folder: str) -> None:
    """Print the seconds."""
    for name in ("kafka_extract", "kafka_extract_group", "kafka_mirror", "spark_streaming_submit"):
        importlib.import_module(f"airflow_lakestream.operators.{name}")
    from airflow_lakestream.pipelines.dags import load_folder

    began = time.process_time()
    made = load_folder(Path(folder))
    print(len(made), time.process_time() - began)


if __name__ == "__main__":
    main(sys.argv[1])
