"""Makes a mirror of many rows that remembers deletions, its twins in both formats, and decoded events for them."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from airflow_lakestream.cdc.columns import COMMIT, OFFSET, PARTITION, POSITION
from airflow_lakestream.cdc.iceberg import entries_of
from airflow_lakestream.cdc.merge.entries import PART_ENTRIES
from airflow_lakestream.cdc.merge.memory import ROW, SUFFIX, entry_schema
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.tables.schema.types import arrow_schema
from dev.bench.lake import Lake
from dev.bench.programs.mirroring import decode, make, raw_batches, sink_of
from dev.bench.shop import changes


def main() -> None:
    """Make them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--twins", required=True, help="tables, with commas: other names of the same, and Delta's")
    parser.add_argument("--changes", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--deletions", type=int, required=True, help="what Iceberg's mirrors remember")
    args = parser.parse_args()
    lake = Lake(args.folder)
    catalog = lake.catalog()
    config = MirrorConfig(topic=args.topic, table=args.table, consumer_group="bench", key=["id"])
    make(lake, config, args.rows)
    if args.deletions:
        remember(lake, config, args.rows, args.deletions)
    names = [name for name in (args.table, f"{args.table}{SUFFIX}") if catalog.table_exists(name)]
    bases = {name.removeprefix(args.table): catalog.load_table(name).metadata_location for name in names}
    delta = list[str]()
    for twin in args.twins.split(","):
        if TableFormat.of(twin) is TableFormat.ICEBERG:
            for suffix, base in bases.items():
                catalog.register_table(f"{twin}{suffix}", base)
        elif delta:
            shutil.copytree(delta[0], twin)
        else:
            make(lake, replace(config, table=twin, table_format=TableFormat.DELTA), args.rows)
            delta.append(twin)
    sink = sink_of(lake, config)
    sink.load("events")
    records = changes(args.rows, args.changes * args.batches, recent=False)
    for batch in range(args.batches):
        part = list(islice(records, args.changes))
        handed = decode(config, sink.outline(), list(raw_batches(part, batch * args.changes)))
        files = [pq.read_table(file["file_path"].removeprefix("file://")) for file in handed["files"]]
        pq.write_table(pa.concat_tables(files), args.folder / f"events-{batch}.parquet")
    args.result.write_text("{}")


def remember(lake: Lake, config: MirrorConfig, rows: int, count: int) -> None:
    """Remember deletions of keys from all over the table, which have come back since."""
    catalog = lake.catalog()
    mirror = catalog.load_table(config.table)
    key = arrow_schema(Schema(mirror.schema().find_field("id")))
    entries = entries_of(catalog, config.table, mirror, ["id"])
    for start in range(0, count, PART_ENTRIES):
        numbers = np.arange(start, min(start + PART_ENTRIES, count))
        columns = {"id": numbers * rows // count, COMMIT: numbers * 0, POSITION: numbers, PARTITION: numbers * 0}
        part = pa.table({**columns, OFFSET: numbers, ROW: pa.nulls(len(numbers), pa.binary())})
        entries.add(part.cast(entry_schema(key)))


if __name__ == "__main__":
    main()
