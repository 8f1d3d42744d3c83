"""Twins of one mirror, merged by copy-on-write and by merge-on-read; what it takes to read them as batches come.

Both have the maintenance of the bundled DAG now and then; that of the second one is measured. Each reads three columns
of all rows: PyIceberg, which applies deletes in Python, and Spark. They take turns, and read once before to get warm.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.iceberg.upkeep.reads import ReadCounts
from airflow_lakestream.spark.maintenance.config import MaintenanceConfig
from airflow_lakestream.spark.maintenance.work import maintain, open_maintenance_session, own_session
from dev.bench.lake import CATALOG, NAMESPACE, Lake
from dev.bench.programs.measured import Work, write_result
from dev.bench.programs.mirroring import decode, land_batch, make, raw_batches
from dev.bench.reads import COPY, IN_PLACE
from dev.bench.shop import changes

COLUMNS = ("customer", "amount", "items")
# So often each reader reads each twin; the median counts.
TIMES = 3


def main() -> None:
    """Merge and maintain, and read now and then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--changes", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--every", type=int, required=True, help="batches between two runs of the maintenance")
    args = parser.parse_args()
    lake, twins = Lake(args.folder), dict[str, MirrorConfig]()
    for mode in (COPY, IN_PLACE):
        table = f"{NAMESPACE}.{mode.replace('-', '_')}"
        twins[mode] = MirrorConfig(topic="orders", table=table, consumer_group="bench", key=["id"], merge_mode=mode)
        make(lake, twins[mode], args.rows)
    upkeep = {mode: _maintenance(lake, config.table) for mode, config in twins.items()}
    spark = open_maintenance_session(upkeep[IN_PLACE])
    spark.sparkContext.setLogLevel("ERROR")
    session = own_session(upkeep[IN_PLACE], spark)
    records = changes(args.rows, args.changes * args.batches, recent=False)
    looks = []
    for batch in range(1, args.batches + 1):
        part = list(islice(records, args.changes))
        for config in twins.values():
            land_batch(lake, config, list(raw_batches(part, (batch - 1) * args.changes)), decode)
        if batch % args.every:
            continue
        looks.append({"batch": batch, "maintained": False, **_look(lake, session, twins)})
        maintain(upkeep[COPY], spark)
        with Work() as work:
            maintain(upkeep[IN_PLACE], spark)
        looks.append({"batch": batch, "maintained": True, "maintenance": work.told(), **_look(lake, session, twins)})
    spark.stop()
    write_result(args.result, {"looks": looks})


def _maintenance(lake: Lake, table: str) -> MaintenanceConfig:
    """Return the usual work of Spark's app, without what only deletes files."""
    properties = {"type": "sql", "uri": f"sqlite:///{lake.database}", "warehouse": lake.uri}
    return MaintenanceConfig(
        catalog={"name": CATALOG, "properties": properties},
        maintenance={"tables": [table], "compact": True, "rewrite_manifests": True},
        spark={
            "spark.master": "local[2]",
            "spark.driver.memory": "2g",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
        },
    )


def _look(lake: Lake, session: SparkSession, twins: Mapping[str, MirrorConfig]) -> dict[str, Any]:
    catalog = lake.catalog()

    def by_pyiceberg(name: str) -> int:
        return int(catalog.load_table(name).scan(selected_fields=COLUMNS).to_arrow().num_rows)

    def by_spark(name: str) -> int:
        session.sql(f"REFRESH TABLE {CATALOG}.{name}")
        columns = "count(*) n, sum(customer), max(amount), sum(items)"
        [row] = session.sql(f"SELECT {columns} FROM {CATALOG}.{name}").collect()
        return int(row["n"])

    readers: Mapping[str, Callable[[str], int]] = {"PyIceberg": by_pyiceberg, "Spark": by_spark}
    cpu: dict[str, dict[str, list[float]]] = {one: {mode: [] for mode in twins} for one in readers}
    counted = set()
    for number in range(TIMES + 1):
        for reader, read in readers.items():
            for mode, config in twins.items():
                with Work() as work:
                    counted.add(read(config.table))
                if number:
                    cpu[reader][mode].append(work.cpu_seconds)
    if len(counted) != 1:
        raise AssertionError(f"the twins, and the readers, have different rows: {counted}")
    files = {mode: asdict(ReadCounts.of(catalog.load_table(config.table))) for mode, config in twins.items()}
    return {"cpu": cpu, "files": files}


if __name__ == "__main__":
    main()
