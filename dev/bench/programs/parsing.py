"""Imports the operator of extracts, makes a DAG, and prints the CPU seconds of each, after Airflow's import."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

from airflow.sdk import DAG, BaseOperator

TASKS = 300


def main(source: str) -> None:
    """Print the seconds; the package has to be that of the source."""
    began = time.process_time()
    module = importlib.import_module("airflow_lakestream.operators.kafka_extract")
    imported = time.process_time()
    assert Path(str(module.__file__)).is_relative_to(source), module.__file__
    kind: type[BaseOperator] = module.KafkaExtractOperator
    with DAG("parsed", schedule=None):
        for number in range(TASKS):
            kind(
                task_id=f"land_{number}",
                topic=f"topic_{number}",
                table="lake.{topic}",
                schema="id bigint not null, name string",
                partition_by=["day(_kafka_timestamp)"],
                max_records="100000",
                checkpoint_interval="60s",
                on_error="reject",
                checks={"not_null": ["id"]},
            )
    print(imported - began, time.process_time() - imported)


if __name__ == "__main__":
    main(sys.argv[1])
