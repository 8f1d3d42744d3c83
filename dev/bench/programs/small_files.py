"""Tables of small files: a table, twins of the same files, and a Delta table of links to the files."""

from __future__ import annotations

import argparse
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from airflow_lakestream.iceberg.write.files import write_data_files
from dev.bench.lake import Lake
from dev.bench.programs.measured import write_result
from dev.sources.clickstream import make_event

# Different events, which come again and again, each time with an address of their own.
_EVENTS = 50_000
_FIRST = 1_790_000_000_000_000
# Rows of which a file is made to learn their size.
_TRIAL = 20_000


class EventRows:
    """Rows as landings have them, without end: a clickstream event each, and the place of the record."""

    def __init__(self) -> None:
        rng, now = random.Random(7), datetime.now(UTC)
        events = pa.Table.from_pylist([make_event(rng, now) for _ in range(_EVENTS)])
        self._events = events.drop_columns(["timestamp"])
        self._rng, self._sent = np.random.default_rng(7), 0

    def take(self, count: int) -> pa.Table:
        """Return the next rows."""
        offsets = np.arange(self._sent, self._sent + count)
        self._sent += count
        times = pa.array(_FIRST + offsets * 1_000).cast(pa.timestamp("us", "UTC"))
        rows = self._events.take(pa.array(self._rng.integers(0, _EVENTS, count)))
        url = pc.binary_join_element_wise(
            rows["url"], pa.array(self._rng.integers(0, 10**9, count)).cast("string"), "&r="
        )
        rows = rows.set_column(rows.schema.get_field_index("url"), "url", url)
        beside = {
            "timestamp": times,
            "_kafka_topic": pa.repeat("clicks", count),
            "_kafka_partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "_kafka_offset": pa.array(offsets),
            "_kafka_timestamp": times,
        }
        for name, column in beside.items():
            rows = rows.append_column(name, column)
        return rows


def main() -> None:
    """Make the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--bytes", type=int, required=True, help="of all files together")
    parser.add_argument("--file-bytes", type=int, required=True, help="of each file, about")
    parser.add_argument("--twins", required=True, help="further names of the table, with commas")
    parser.add_argument("--delta", type=Path, help="folder of the Delta table")
    args = parser.parse_args()
    lake, rows = Lake(args.folder), EventRows()
    table = lake.catalog().create_table(args.table, rows.take(0).schema)
    [trial] = write_data_files(table.metadata, table.io, rows.take(_TRIAL), "small")
    each = max(1, _TRIAL * args.file_bytes // trial.file_size_in_bytes)
    files, size = [trial], trial.file_size_in_bytes
    while size < args.bytes:
        files += write_data_files(table.metadata, table.io, rows.take(each), "small")
        size += files[-1].file_size_in_bytes
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in files:
            append.append_data_file(file)
    table = lake.catalog().load_table(args.table)
    for twin in filter(None, args.twins.split(",")):
        lake.catalog().register_table(twin, table.metadata_location)
    if args.delta is not None:
        link(table, files, args.delta)
    write_result(args.result, {"files": len(files), "bytes": size, "rows": sum(file.record_count for file in files)})


def link(table: Table, files: list[DataFile], folder: Path) -> None:
    """Make a Delta table of links to the files."""
    folder.mkdir(parents=True)
    schema = table.schema().as_arrow()
    plain = pa.schema([pa.field(one.name, _small(one.type), one.nullable) for one in schema])
    delta = DeltaTable.create(str(folder), plain)
    actions = list[Any]()
    for number, file in enumerate(files):
        name = f"part-{number:06}.parquet"
        os.link(file.file_path.removeprefix("file://"), folder / name)
        # Without statistics: delta-rs does not need them for a compaction, and writes those of new files.
        actions.append(AddAction(name, file.file_size_in_bytes, {}, 0, True, "{}"))
    delta.create_write_transaction(actions, "append", plain)


def _small(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_large_string(kind) else kind


if __name__ == "__main__":
    main()
