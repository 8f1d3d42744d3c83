"""Kafka topics into Delta tables, by Spark: a supervised query, or an interval or ranges at once.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 kafka_to_delta.py --config app.json

Exit code 0: done, or stopped on request. Else the last line of the log contains the error, and the remedy.
"""

from __future__ import annotations

import argparse
import sys

from airflow_lakestream.spark.program import run_program
from airflow_lakestream.spark.stream import kafka_to_iceberg


def main() -> int:
    """Read the configuration, and land the topics; return the exit code.

    The work is the same as for Iceberg tables: the app name in the configuration decides the table format.
    """
    parser = argparse.ArgumentParser(description="Land Kafka topics in Delta tables, exactly once.")
    parser.add_argument("--config", required=True, help="the app's configuration, a JSON file; see docs/delta.md")
    return run_program(parser.parse_args().config, kafka_to_iceberg)


if __name__ == "__main__":
    sys.exit(main())
