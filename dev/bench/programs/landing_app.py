"""`kafka_to_iceberg` as its users run it, `availableNow`, twice in one session: cold, then warm.

Each query lands the whole topic in a table of its own, with ledger and rejects as ever.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from dev.bench.programs.measured import CommitClock, Work, write_result


def main() -> None:
    """Start Spark, land the topic cold, then warm."""
    started = time.time()
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--config", required=True)
    args = parser.parse_args()
    clock = CommitClock().start()
    # After the clock, which has to be there before PyIceberg is.
    from airflow_lakestream.spark.app_config import AppConfig
    from airflow_lakestream.spark.session import open_session
    from airflow_lakestream.spark.stream import kafka_to_iceberg

    config = AppConfig.read(args.config)
    with Work() as start:
        spark = open_session(config)
    spark.sparkContext.setLogLevel("WARN")
    told: dict[str, Any] = {"start": start.told() | {"began_at": started}}
    for name in ("cold", "warm"):
        seen = len(clock.seconds)
        landing = {**config.landing, "table": f"bench.{name}", "consumer_group": name}
        one = replace(config, landing=landing, checkpoint_location=f"{config.checkpoint_location}-{name}")
        with Work() as work:
            kafka_to_iceberg(one, spark)
        told[name] = {**work.told(), "commits": clock.seconds[seen:]}
    spark.stop()
    write_result(args.result, told)


if __name__ == "__main__":
    main()
