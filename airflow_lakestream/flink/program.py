"""The driver's program: `python -m airflow_lakestream.flink.program --config app.json`.

Exit code 0: stopped on request. Else the last line of the log says what went wrong, and what to do.
"""

from __future__ import annotations

import argparse
import logging
import sys

from airflow_lakestream.driver.program import exit_code_of
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.flink.stream import run


def main() -> int:
    """Read the configuration, and look after the stream that it says."""
    parser = argparse.ArgumentParser(description="Look after a landing by Flink, and publish its branch.")
    parser.add_argument("--config", required=True, help="a JSON file that FlinkSqlOperator has written")
    given = parser.parse_args().config
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("pyiceberg").setLevel(logging.WARNING)
    return exit_code_of(lambda: run(FlinkConfig.read(given)), "The driver")


if __name__ == "__main__":
    sys.exit(main())
