"""One run of the bundled clickstream DAG in a real Airflow process: what `python -m dev.bench` measures.

Prints one line of JSON: rows, and the seconds that the operator's `execute` took.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from airflow.dag_processing.dagbag import BundleDagBag

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from dev.service import CHECKOUT


def main() -> None:
    """Run the DAG once with the given topic and table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--topic", required=True)
    parser.add_argument("--table", required=True)
    args = parser.parse_args()
    folder = CHECKOUT / "dags"
    bag = BundleDagBag(str(folder), bundle_path=folder, bundle_name="dags-folder")
    took = time_execute()
    run = bag.dags["clickstream_to_lake"].test(run_conf={"topic": args.topic, "table": args.table})
    (result,) = took
    print(json.dumps({"state": str(run.state), "seconds": result[0], "rows": result[1]["rows"]}))


def time_execute() -> list[tuple[float, dict[str, Any]]]:
    """Take the time of `execute` alone: Airflow's own start is measured by nobody's bound."""
    took: list[tuple[float, dict[str, Any]]] = []
    execute = KafkaExtractOperator.execute

    def timed(self: KafkaExtractOperator, context: Any) -> dict[str, Any]:
        began = time.perf_counter()
        report = execute(self, context)
        took.append((time.perf_counter() - began, report))
        return report

    KafkaExtractOperator.execute = timed  # type: ignore[method-assign]
    return took


if __name__ == "__main__":
    main()
