"""The app of an engine that is a plain process: it lands a topic by the core's own landing, under its lease.

    python app.py --config FILE

It lands what there is, and ends; with a `pause`, in seconds, it follows the topic until it is asked to end.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.driver.lease import HeldLease
from airflow_lakestream.driver.progress import ProgressLog
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.run.summary import batch_progress
from airflow_lakestream.run.topics import land_run

log = logging.getLogger(__name__)


def main(file: str) -> int:
    """Run the app; return its exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    config = json.loads(Path(file).read_text())
    try:
        with HeldLease.take(
            config["checkpoint_location"], config["fingerprint"], config["owner"], inputs=config["inputs"]
        ) as lease:
            _work(config, lease)
    except LakestreamError as e:
        log.error("%s: %s", type(e).__name__, e)
        return 1
    return 0


def _work(config: dict[str, Any], lease: HeldLease) -> None:
    landing, catalog = ExtractConfig(**config["landing"]), load_catalog("iceberg_default", **config["catalog"])
    progress, number = ProgressLog(config["checkpoint_location"]), 0
    while not lease.stop_requested():
        # A driver that was taken over while it was away learns it here, before it lands.
        lease.beat()
        started, run_id = time.monotonic(), f"{config['owner']}/{lease.record.generation}/{number}"
        report = land_run(landing, config["kafka"], catalog, run_id=run_id)
        if not report.changed_nothing:
            progress.report(batch_progress(number, report, time.monotonic() - started))
            number += 1
        elif config["pause"] is None:
            return
        else:
            progress.alive()
            time.sleep(config["pause"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[-1]))
