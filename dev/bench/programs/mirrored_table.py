"""Makes a mirror of many rows, its twins in both formats, and decoded events for what merges into those."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import TableFormat
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
    args = parser.parse_args()
    lake = Lake(args.folder)
    catalog = lake.catalog()
    config = MirrorConfig(topic=args.topic, table=args.table, consumer_group="bench", key=["id"])
    make(lake, config, args.rows)
    base = catalog.load_table(args.table).metadata_location
    delta = list[str]()
    for twin in args.twins.split(","):
        if TableFormat.of(twin) is TableFormat.ICEBERG:
            catalog.register_table(twin, base)
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


if __name__ == "__main__":
    main()
