"""A table whose landings are made by hand, and the rows that it has to hold: for tests of replace without a broker.

A row says which records it is by its metadata columns, and by `version` which landing decoded it.
"""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.decode.metadata import metadata_schema
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

    def run(self, catalog: Catalog | None = None, group: str = GROUP, **design: Any) -> Run:
        """Begin a run: it has looked at the table."""
        return Run(self, catalog or self.catalog(), group, **design)

    def land(self, these: RangeSet, version: str = "old", **landing: Any) -> int:
        return self.run().land(these, version, **landing)

    def replace(self, these: RangeSet, version: str = "new") -> tuple[int, Landing]:
        return self.run().replace(these, version)


class Run:
    """One run with its sink; it plans, so to say, when it is made."""

    def __init__(
        self, made: HandMade, catalog: Catalog, group: str, metadata: Iterable[str] | None = None, overlap: bool = False
    ) -> None:
        names = tuple(made.metadata if metadata is None else metadata)
        self.columns = metadata_schema(names).names
        design = TableDesign(
            metadata_schema(names),
            parse_schema(PAYLOAD),
            made.partition_by,
            made.sort_order,
            {**QUICK_RETRIES, **made.properties},
        )
        self.sink = IcebergSink(catalog, TABLE, group, design, allow_group_overlap=overlap)
        self.sink.load("run")

    def land(
        self,
        these: RangeSet,
        version: str = "old",
        identity: TopicIdentity = ORDERS,
        without: Iterable[tuple[int, int]] = (),
        filtered: int = 0,
    ) -> int:
        """Land the ranges; `without` are offsets that the log has not, or of records that were filtered: so many."""
        keys = [key for key in offsets_of(these) if key not in set(without)]
        self.write(keys, version, identity)
        counts = Counts(read=len(keys) + filtered, written=len(keys), filtered=filtered)
        return self.sink.commit(_landing({identity: TopicEntry(landed=these, counts=counts)}))

    def replace(
        self, these: RangeSet, version: str = "new", again: Iterable[tuple[int, int]] | None = None
    ) -> tuple[int, Landing]:
        """Replace the ranges; `again` are the records that were read again, all of the ranges if not given.

        Discards after an error, as a run does.
        """
        keys = offsets_of(these) if again is None else list(again)
        # Files and memory hold them in more than one piece.
        for piece in itertools.batched(keys, 7) if hasattr(itertools, "batched") else (keys[:7], keys[7:]):
            self.write(piece, version, ORDERS)
        counts = Counts(read=len(keys), written=len(keys))
        try:
            return self.sink.replace(_landing({ORDERS: TopicEntry(replaced=these, counts=counts)}))
        except BaseException:
            self.sink.discard()
            raise

    def write(self, keys: Iterable[tuple[int, int]], version: str, identity: TopicIdentity) -> None:
        self.sink.write(rows(keys, version, self.columns, identity.topic), identity)


def _landing(topics: Mapping[TopicIdentity, TopicEntry]) -> Landing:
    return Landing(uuid.uuid4().hex, "run", topics)


def append_foreign_rows(table: Table, count: int = 2) -> None:
    """Append rows that come from no topic, as another writer would."""
    foreign = [{"version": f"foreign-{n}"} for n in range(count)]
    table.append(pa.Table.from_pylist(foreign, schema=table.schema().as_arrow()))
