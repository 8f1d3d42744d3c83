"""One quick and one full audit in a process of their own: what `dev.bench.audit` measures.

It tells the seconds that each took, its verdict, and the rows that the full one counted.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from airflow_lakestream.audit.result import AuditResult
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook
from dev.bench.programs.measured import write_result

# The id of the DAG that landed it.
GROUP = "measured"


def main() -> None:
    """Audit a table that the measured DAG has landed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--table", required=True)
    args = parser.parse_args()
    kafka = KafkaHook("kafka_default")
    look = Audit(table=args.table, consumer_group=GROUP, kafka=kafka.configuration(), where=kafka.where)
    quick, quick_result = timed(look)
    full, full_result = timed(replace(look, full=True))
    told = {
        "quick": quick,
        "quick_verdict": quick_result.verdict,
        "full": full,
        "full_verdict": full_result.verdict,
        "rows": sum(partition.rows for partition in full_result.partitions),
    }
    write_result(args.result, told)


def timed(look: Audit) -> tuple[float, AuditResult]:
    """Look once, from opening the catalog on; imports and connections are measured by nobody's bound."""
    catalog = IcebergHook("iceberg_default").open_catalog()
    began = time.perf_counter()
    result = look.run(catalog)
    return time.perf_counter() - began, result


if __name__ == "__main__":
    main()
