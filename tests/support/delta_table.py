"""A Delta table read without any of its libraries: the log's own JSON, and the live Parquet files through DuckDB."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta import committing
from airflow_lakestream.delta.sink import DeltaSink
from airflow_lakestream.delta.storage import DeltaStorage
from tests.support.faults import Fault, passed

GROUP = "g"
TOPIC = TopicIdentity("clicks", "id-1", "cluster-1")
SCHEMA = "id bigint not null, name string"


def versions(table: str | Path) -> list[list[dict[str, Any]]]:
    """Return the actions of each version, oldest first."""
    files = sorted(Path(table, "_delta_log").glob("0*.json"))
    return [[json.loads(line) for line in file.read_text().split("\n") if line] for file in files]


def live_files(table: str | Path) -> dict[str, dict[str, Any]]:
    """Return the `add` actions of the live files by path: the log replayed from its first version."""
    live: dict[str, dict[str, Any]] = {}
    for actions in versions(table):
        for action in actions:
            if "remove" in action:
                live.pop(unquote(action["remove"]["path"]))
        for action in actions:
            if "add" in action:
                assert unquote(action["add"]["path"]) not in live, "a file added twice"
                live[unquote(action["add"]["path"])] = action["add"]
    return live


def rows_of(table: str | Path, columns: str = "_kafka_partition, _kafka_offset, id, name") -> list[tuple[Any, ...]]:
    """Return the rows of all live files, sorted; read by DuckDB."""
    paths = [str(Path(table, path)) for path in live_files(table)]
    if not paths:
        return []
    query = f"select {columns} from read_parquet(?, union_by_name=true, hive_partitioning=false) order by all"
    return duckdb.execute(query, [paths]).fetchall()


def stray_files(table: str | Path) -> set[str]:
    """Return the data files that no version has ever added."""
    added = {unquote(a["add"]["path"]) for actions in versions(table) for a in actions if "add" in a}
    there = {str(path.relative_to(table)) for path in Path(table).rglob("*.parquet") if "_delta_log" not in path.parts}
    return there - added


def config(table: str | Path, **settings: Any) -> ExtractConfig:
    """Return the configuration of a landing into a Delta table."""
    wanted = {"schema": SCHEMA, "topic": TOPIC.topic, "consumer_group": GROUP, **settings}
    return ExtractConfig(table=str(table), table_format="delta", **wanted)


def a_sink(table: str | Path, **settings: Any) -> DeltaSink:
    """Return a sink of a run of its own; still to be loaded."""
    made = config(table, **settings)
    overlap = made.allow_group_overlap
    return DeltaSink(DeltaStorage(), str(table), made.consumer_group, made.design, allow_group_overlap=overlap)


def rows(start: int, end: int, partition: int = 0, **columns: Sequence[Any]) -> pa.Table:
    """Return rows of the offsets [start, end) of a partition."""
    offsets = pa.array(range(start, end), pa.int64())
    made: dict[str, Any] = {
        "id": pa.array([partition * 1000 + n for n in range(start, end)], pa.int64()),
        "name": pa.array([f"n{n}" for n in range(start, end)]),
        **columns,
        "_kafka_topic": pa.repeat(TOPIC.topic, end - start),
        "_kafka_partition": pa.array([partition] * (end - start), pa.int32()),
        "_kafka_offset": offsets,
        "_kafka_timestamp": pa.array([n * 1000 for n in range(start, end)], pa.timestamp("us", "UTC")),
    }
    return pa.table(made)


def append_foreign_row(table: str | Path) -> None:
    """Append a row that comes from no topic, as another writer would."""
    schema = pa.schema(DeltaTable(str(table)).schema())
    write_deltalake(str(table), pa.Table.from_pylist([{"id": -1, "name": "foreign"}], schema=schema), mode="append")


def landing(start: int, end: int, partition: int = 0, run_id: str = "r", identity: TopicIdentity = TOPIC) -> Landing:
    """Return the landing of these offsets, all written."""
    counts = Counts(end - start, end - start)
    entry = TopicEntry(landed=RangeSet.of(identity.topic, partition, start, end), counts=counts)
    return Landing(uuid.uuid4().hex, run_id, {identity: entry}, {identity: {partition: counts}})


def land(table: str | Path, start: int, end: int, partition: int = 0, run_id: str = "r", **settings: Any) -> int:
    """Land these offsets; return the version."""
    sink = a_sink(table, **settings)
    sink.load(run_id)
    sink.write(rows(start, end, partition), TOPIC)
    return sink.commit(landing(start, end, partition, run_id))


def expected(*ranges: tuple[int, int], partition: int = 0) -> list[tuple[Any, ...]]:
    """Return what `rows_of` gives for landed offsets of a partition."""
    return [(partition, n, partition * 1000 + n, f"n{n}") for start, end in ranges for n in range(start, end)]


def landed(table: str | Path, consumer_group: str = GROUP) -> str:
    """Return the ranges that the ledger holds, as text."""
    return str(a_sink(table, consumer_group=consumer_group).load("look").ledger.entry(TOPIC).landed)


def faulty(*faults: Fault) -> Callable[..., Any]:
    """Return a `put_commit` whose first calls meet the faults, one after the other; later ones go through."""
    real, left = committing.put_commit, iter(faults)

    def put(*request: Any) -> Any:
        return next(left, passed)(lambda: real(*request))

    return put
