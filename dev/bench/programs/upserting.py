"""Rows by key, by the peers: PyIceberg's `upsert`, or dlt's `merge` into an Iceberg table, of batches of changed rows.

Runs in the environment of the peers. Both get tables of Arrow, which are made before the clock starts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

from dev.bench.programs.measured import BATCH, Work, write_result
from dev.bench.shop import orders, records


def main() -> None:
    """Make the table, and merge the batches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--by", choices=("pyiceberg", "dlt"), required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--changes", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    args = parser.parse_args()
    first, log = orders(np.arange(args.rows)), records(args.rows, args.changes * args.batches, deletes=False)
    place = first.schema.get_field_index("placed_at")
    of_json = first.schema.set(place, pa.field("placed_at", pa.string()))
    batches = list[pa.Table]()
    while part := list(islice(log, args.changes)):
        # Both refuse, or double, a key that is twice in a batch.
        newest = {key: json.loads(value) for key, value in part if value is not None}
        batches.append(pa.Table.from_pylist(list(newest.values()), of_json).cast(first.schema))
    upsert, count = (_with_pyiceberg if args.by == "pyiceberg" else _with_dlt)(args.folder, args.table, first)
    measured = []
    for batch in batches:
        with Work() as work:
            upsert(batch)
        measured.append({BATCH: [work.seconds, work.cpu_seconds]})
    write_result(args.result, {"batches": measured, "rows": count()})


Merge = tuple[Callable[[pa.Table], object], Callable[[], int]]


def _with_pyiceberg(folder: Path, name: str, first: pa.Table) -> Merge:
    catalog = SqlCatalog("peer", uri=f"sqlite:///{folder}/peer.db", warehouse=f"file://{folder}/peer")
    catalog.create_namespace(name.partition(".")[0])
    table = catalog.create_table(name, first.schema)
    table.append(first)

    def upsert(batch: pa.Table) -> None:
        table.upsert(batch, join_cols=["id"])

    return upsert, lambda: len(catalog.load_table(name).scan().to_arrow())


def _with_dlt(folder: Path, name: str, first: pa.Table) -> Merge:
    import dlt
    from dlt.destinations import filesystem

    dataset, _, table = name.partition(".")
    pipeline = dlt.pipeline(
        "bench",
        pipelines_dir=str(folder / "pipelines"),
        destination=filesystem(bucket_url=f"file://{folder}/dlt"),
        dataset_name=dataset,
    )

    def upsert(batch: pa.Table) -> None:
        resource = dlt.resource(
            batch,
            name=table,
            table_format="iceberg",
            primary_key="id",
            write_disposition={"disposition": "merge", "strategy": "upsert"},
        )
        pipeline.run(resource).raise_on_failed_jobs()

    upsert(first)
    return upsert, lambda: len(table_in(folder / "dlt" / dataset / table).scan().to_arrow())


def table_in(folder: Path) -> StaticTable:
    """Open the table in a folder by its newest metadata: dlt keeps its catalog in memory."""
    newest = max((folder / "metadata").glob("*.metadata.json"), key=lambda path: path.name)
    return StaticTable.from_metadata(f"file://{newest}")


if __name__ == "__main__":
    main()
