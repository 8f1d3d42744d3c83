"""One topic into tables that its records choose: by `kafka_to_iceberg`'s executors, and by one process, in turn.

Each has tables of its own, with ledger and rejects as ever. They are made by a tenth of the topic, which also warms
what lands; the time is that of the rest.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
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
    from airflow_lakestream.core.ledger import union
    from airflow_lakestream.core.ranges import RangeSet
    from airflow_lakestream.kafka.source import KafkaSource
    from airflow_lakestream.run.topics import land_run
    from airflow_lakestream.spark.app_config import AppConfig
    from airflow_lakestream.spark.micro_batch import MicroBatches
    from airflow_lakestream.spark.session import open_session

    config = AppConfig.read(args.config)
    spark = open_session(config)
    spark.sparkContext.setLogLevel("WARN")
    told: dict[str, Any] = {}
    topic = config.landing["topic"]
    marks = KafkaSource(config.kafka, topic, "bench", config.extract.start, "the broker").look().marks
    tenth = {(topic, partition): mark.end // 10 for partition, mark in marks.items()}
    within = union(RangeSet.of(*key, 0, end) for key, end in tenth.items())
    rest = sum(mark.end for mark in marks.values()) - within.width
    for by in ("executors", "one"):
        landing = {**config.landing, "table": f"bench.{by}_{{site_id}}", "consumer_group": by}
        batches = MicroBatches(replace(config, landing=landing), spark)
        alone = partial(land_run, batches.extract, config.kafka, batches.catalog)
        if by == "executors":
            batches.land("first", tenth)
        else:
            alone(run_id="first", prepare=lambda job: replace(job, within=within))
        seen = len(clock.seconds)
        with Work() as work:
            batches.land("rest") if by == "executors" else alone(run_id="rest")
        told[by] = {**work.told(), "commits": clock.seconds[seen:], "records": rest}
    spark.stop()
    write_result(args.result, told)


if __name__ == "__main__":
    main()
