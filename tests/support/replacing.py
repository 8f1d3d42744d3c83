"""A table whose landings are made by hand, and the rows that it has to hold: for tests of replace without a broker.

A row says which records it is by its metadata columns, and by `version` which landing decoded it.
"""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.ports import TableState
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.decode.rejected import RECORD_SCHEMA
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.ddl import parse_schema
from tests.support.lake import QUICK_RETRIES, TABLE

TOPIC = "orders"
ORDERS = TopicIdentity(TOPIC, "id-1", "cluster")
GROUP = "g"
COORDINATES = ("topic", "partition", "offset")
PAYLOAD = "version string, score double, at timestamp"
# Rows as the tests compare them: partition, offset, version; the coordinates of a foreign row are None.
Row = tuple[int | None, int | None, str]


def ranges(*parts: tuple[int, int, int], topic: str = TOPIC) -> RangeSet:
    return RangeSet(OffsetRange(topic, partition, start, end) for partition, start, end in parts)


def offsets_of(these: RangeSet) -> list[tuple[int, int]]:
    return [(r.partition, offset) for r in these for offset in range(r.from_offset, r.until_offset)]


def rows(these: Iterable[tuple[int, int]], version: str, columns: Iterable[str], topic: str = TOPIC) -> pa.Table:
    """Return rows as a decoder gives them. Scores are NaN or NULL here and there, which partitions have to bear."""
    keys = list(these)
    table = pa.table(
        {
            "version": pa.array([version] * len(keys), pa.string()),
            "score": pa.array([(0.5, float("nan"), None)[offset % 3] for _, offset in keys], pa.float64()),
            "at": pa.array(
                [dt.datetime(2026, 1, 1 + o % 4, tzinfo=dt.UTC) for _, o in keys], pa.timestamp("us", "UTC")
            ),
            "_kafka_topic": pa.array([topic] * len(keys), pa.string()),
            "_kafka_partition": pa.array([partition for partition, _ in keys], pa.int32()),
            "_kafka_offset": pa.array([offset for _, offset in keys], pa.int64()),
        }
    )
    return table.select([name for name in table.column_names if name in columns or not name.startswith("_kafka_")])


@dataclass
class HandMade:
    """A table in a folder, landed by hand."""

    folder: Path
    partition_by: tuple[str, ...] | None = None
    sort_order: tuple[str, ...] | None = None
    metadata: tuple[str, ...] = COORDINATES
    properties: Mapping[str, str] = field(default_factory=dict)
    _reading: Catalog | None = None

    def catalog(self) -> SqlCatalog:
        """Return a catalog client of its own, such as another process would have."""
        uri = f"sqlite:///{self.folder}/catalog.db"
        return SqlCatalog("iceberg_default", uri=uri, warehouse=f"file://{self.folder}/warehouse")

    def table(self) -> Table:
        if self._reading is None:
            self._reading = self.catalog()
        return self._reading.load_table(TABLE)

    def ledger(self, group: str = GROUP, identity: TopicIdentity = ORDERS) -> TopicEntry:
        return read_ledger(self.table(), group).entry(identity)

    def rows(self) -> list[Row]:
        """Return all rows, sorted; a record that is there twice is there twice."""
        found = self.table().scan().to_arrow()
        names = [name if name in found.column_names else None for name in ("_kafka_partition", "_kafka_offset")]
        keys = [found[name].to_pylist() if name else [None] * found.num_rows for name in names]
        return sorted(zip(*keys, found["version"].to_pylist(), strict=True), key=repr)

    def run(
        self,
        catalog: Catalog | None = None,
        group: str = GROUP,
        metadata: Iterable[str] | None = None,
        overlap: bool = False,
    ) -> Run:
        """Begin a run: it has looked at the table."""
        columns = metadata_schema(tuple(self.metadata if metadata is None else metadata))
        properties = {**QUICK_RETRIES, **self.properties}
        design = TableDesign(columns, parse_schema(PAYLOAD), self.partition_by, self.sort_order, properties)
        sink = IcebergSink(catalog or self.catalog(), TABLE, group, design, allow_group_overlap=overlap)
        return Run(sink, columns.names)

    def land(self, these: RangeSet, version: str = "old", **landing: Any) -> int:
        return self.run().land(these, version, **landing)

    def replace(self, these: RangeSet, version: str = "new") -> tuple[int, Landing]:
        return self.run().replace(these, version)


class Run:
    """One run with its sink; it plans, so to say, when it is made."""

    def __init__(self, sink: Any, columns: Sequence[str], run_id: str = "run") -> None:
        self.sink, self.columns, self.run_id = sink, columns, run_id
        self.state: TableState = sink.load(run_id)

    def land(
        self,
        these: RangeSet,
        version: str = "old",
        identity: TopicIdentity = ORDERS,
        without: Iterable[tuple[int, int]] = (),
        filtered: int = 0,
        bad: Iterable[tuple[int, int]] = (),
    ) -> int:
        """Land the ranges; discards after an error, as a run does.

        :param without: offsets that the log has not, or of records that were filtered: so many.
        :param bad: those of rejected records.
        """
        rejected = list(bad)
        keys = [key for key in offsets_of(these) if key not in {*without, *rejected}]
        counts = Counts(len(keys) + filtered + len(rejected), len(keys), rejected=len(rejected), filtered=filtered)
        try:
            self.write(keys, version, identity)
            self.reject(rejected, version)
            return self.commit(TopicEntry(landed=these, counts=counts), identity)
        except BaseException:
            self.sink.discard()
            raise

    def commit(self, entry: TopicEntry, identity: TopicIdentity = ORDERS) -> int:
        counts = by_partition(entry)
        landed: int = self.sink.commit(self.landing({identity: entry}, {identity: counts}))
        return landed

    def landing(self, topics: Mapping[TopicIdentity, TopicEntry], counts: Any = None) -> Landing:
        return Landing(uuid.uuid4().hex, self.run_id, topics, counts or {})

    def reject(self, keys: Sequence[tuple[int, int]], error: str) -> None:
        """Give the sink rejected records with an error."""
        if keys:
            self.sink.reject(bad_records(keys, error))

    def replace(
        self,
        these: RangeSet,
        version: str = "new",
        again: Iterable[tuple[int, int]] | None = None,
        bad: Iterable[tuple[int, int]] = (),
    ) -> tuple[int, Landing]:
        """Replace the ranges; `again` are the records that were read again, all of the ranges if not given.

        Discards after an error, as a run does. `bad` are those that are rejected now.
        """
        rejected = list(bad)
        keys = [key for key in (offsets_of(these) if again is None else again) if key not in rejected]
        # Files and memory hold them in more than one piece.
        for piece in itertools.batched(keys, 7) if hasattr(itertools, "batched") else (keys[:7], keys[7:]):
            self.write(piece, version, ORDERS)
        self.reject(rejected, version)
        for key in rejected:
            self.pass_over(*key)
        counts = Counts(len(keys) + len(rejected), len(keys), rejected=len(rejected))
        entry = TopicEntry(replaced=these, counts=counts)
        try:
            done: tuple[int, Landing] = self.sink.replace(self.landing({ORDERS: entry}))
            return done
        except BaseException:
            self.sink.discard()
            raise

    def pass_over(self, partition: int, offset: int) -> None:
        self.sink.pass_over(ORDERS, partition, pa.array([offset], pa.int64()))

    def write(self, keys: Iterable[tuple[int, int]], version: str, identity: TopicIdentity) -> None:
        self.sink.write(rows(keys, version, self.columns, identity.topic), identity)


def by_partition(entry: TopicEntry) -> dict[int, Counts]:
    """Return the counts of a landing that wrote all of its records, by partition."""
    widths = {(r.partition, r.until_offset - r.from_offset) for r in entry.landed}
    return {partition: Counts(width, width) for partition, width in widths}


def bad_records(keys: Sequence[tuple[int, int]], error: str, topic: str = TOPIC) -> pa.Table:
    """Return rejected records as a decoder gives them."""
    rows = [
        {"value": b"bad", "stage": "decode", "error": error, "_kafka_topic": topic}
        | {"_kafka_partition": partition, "_kafka_offset": offset}
        for partition, offset in keys
    ]
    return pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)


def append_foreign_rows(table: Table, count: int = 2) -> None:
    """Append rows that come from no topic, as another writer would."""
    foreign = [{"version": f"foreign-{n}"} for n in range(count)]
    table.append(pa.Table.from_pylist(foreign, schema=table.schema().as_arrow()))
