r"""Maintenance of Iceberg tables: compaction, expiry of snapshots, removal of orphan files, rewriting of manifests.

    spark-submit --packages org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0 \
        maintain_iceberg.py --config app.json

Exit code 0: all tables are done. Else the last line of the log names the tables that are not, with reasons.
"""

from __future__ import annotations

import argparse
import sys

from airflow_lakestream.spark.maintenance.config import MaintenanceConfig
from airflow_lakestream.spark.maintenance.work import maintain, open_maintenance_session
from airflow_lakestream.spark.program import run_app


def main() -> int:
    """Read the configuration, and maintain the tables; return the exit code."""
    parser = argparse.ArgumentParser(description="Maintain Iceberg tables, their ledgers kept readable.")
    parser.add_argument("--config", required=True, help="the app's configuration, a JSON file; see docs/maintenance.md")
    return run_app(parser.parse_args().config, MaintenanceConfig.read, open_maintenance_session, maintain)


if __name__ == "__main__":
    sys.exit(main())
