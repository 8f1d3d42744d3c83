"""The rows that other readers find in a mirror: position deletes are taken off by each with code of its own."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.table import Table

from airflow_lakestream.cdc.columns import VERSION
from airflow_lakestream.spark.lake_settings import catalog_settings
from airflow_lakestream.spark.maintenance.work import times_of_day
from dev.bench.lab import PEERS_PYTHON
from tests.support.hostile import duckdb_reader
from tests.support.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Found = Counter[tuple[Any, ...]]


@dataclass
class Readers:
    """Spark, and DuckDB where the peers' environment is there (`make soak-cdc` makes it)."""

    spark: SparkSession
    duckdb: subprocess.Popen[str] | None

    def differences(self, table: Table, ours: pa.Table) -> Iterator[str]:
        """Yield how the events that a reader finds the last ones of rows differ from those that PyIceberg finds."""
        expected = Counter(tuple(row.values()) for row in ours.select(VERSION).to_pylist())
        for name, found in self._found(table):
            if found != expected:
                yield f"{name} reads rows too many {list(found - expected)[:4]}, too few {list(expected - found)[:4]}"

    def names(self, table: Table) -> list[str]:
        """Return who reads a table."""
        return [*([] if times_of_day(table.schema()) else ["Spark"]), *([] if self.duckdb is None else ["DuckDB"])]

    def _found(self, table: Table) -> Iterator[tuple[str, Found]]:
        names = self.names(table)
        if "Spark" in names:
            columns = ", ".join(f"`{one}`" for one in VERSION)
            quoted = ".".join(f"`{one}`" for one in (table.catalog.name, *table.name()))
            yield "Spark", Counter(tuple(row) for row in self.spark.sql(f"select {columns} from {quoted}").collect())
        if self.duckdb is not None:
            _pipe(self.duckdb.stdin).write(json.dumps([table.metadata_location, VERSION]) + "\n")
            _pipe(self.duckdb.stdin).flush()
            yield "DuckDB", Counter(map(tuple, json.loads(_pipe(self.duckdb.stdout).readline())))


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@contextmanager
def readers_of(lake: Lake, spark: SparkSession, folder: Path) -> Iterator[Readers]:
    """Give readers of a lake's tables."""
    # A session keeps the first catalog of a name.
    spark, catalog = spark.newSession(), lake.catalog()
    for key, value in catalog_settings(catalog.name, {"type": "sql", **catalog.properties}, {}).items():
        spark.conf.set(key, value)
    if not PEERS_PYTHON.exists():
        yield Readers(spark, None)
        return
    command = [str(PEERS_PYTHON), duckdb_reader.__file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Readers(spark, process)
        finally:
            process.kill()
