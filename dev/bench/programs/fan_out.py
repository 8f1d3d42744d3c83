"""One topic into tables that its records choose: by `kafka_to_iceberg`'s executors, and by one process, in turn.

Each lands the whole topic into new tables of its own, with ledger and rejects as ever. Before that the executors land
it once, so that JVM and Python workers are warm.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from dev.bench.programs.measured import CommitClock, Work, write_result


def main() -> None:
    """Start Spark, and land in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--config", required=True)
    args = parser.parse_args()
    clock = CommitClock().start()
    # After the clock, which has to be there before PyIceberg is.
    from airflow_lakestream.run.topics import land_run
    from airflow_lakestream.spark.app_config import AppConfig
    from airflow_lakestream.spark.micro_batch import MicroBatches
    from airflow_lakestream.spark.session import open_session

    config = AppConfig.read(args.config)
    spark = open_session(config)
    spark.sparkContext.setLogLevel("WARN")
    told: dict[str, Any] = {}
    for by in ("warming", "executors", "one"):
        seen = len(clock.seconds)
        landing = {**config.landing, "table": f"bench.{by}_{{site_id}}", "consumer_group": by}
        batches = MicroBatches(replace(config, landing=landing), spark)
        with Work() as work:
            if by == "one":
                land_run(batches.extract, config.kafka, batches.catalog, run_id=by)
            else:
                batches.land(by)
        told[by] = {**work.told(), "commits": clock.seconds[seen:]}
    spark.stop()
    write_result(args.result, told)


if __name__ == "__main__":
    main()
