"""A mirror in a folder of the test, events made by hand, and the slow way to say what they come to."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_lakestream.cdc.columns import DELETED, UNAVAILABLE
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.sink import MirrorSink
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.iceberg.design import TableDesign

IDENTITY = TopicIdentity("shop.public.orders", "topic-id", "cluster")
TABLE = "lake.orders"

Values = tuple[Any, Any]


@dataclass(frozen=True)
class Event:
    """One change event: what happened to which key, where in the source, and where in the topic."""

    op: str
    key: int | None
    values: Values | None
    commit: int
    position: int
    partition: int = 0
    offset: int = 0

    @property
    def version(self) -> tuple[int, ...]:
        """What says which of two is the later one."""
        return (self.commit, self.position, self.partition, self.offset)


SOURCE = pa.struct([("sequence", pa.string()), ("lsn", pa.int64()), ("ts_ms", pa.int64())])
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("big", pa.string()),
        ("_op", pa.string()),
        ("_source", SOURCE),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
    ]
)


def rows_of(events: Iterable[Event]) -> pa.Table:
    """Return events as the decoder gives them."""
    return pa.Table.from_pylist(
        [
            {
                "id": one.key,
                "name": one.values[0] if one.values else None,
                "big": one.values[1] if one.values else None,
                "_op": one.op,
                "_source": {"sequence": f'["{one.commit}","{one.position}"]', "lsn": one.position, "ts_ms": 1},
                "_kafka_partition": one.partition,
                "_kafka_offset": one.offset,
            }
            for one in events
        ],
        COLUMNS,
    )


def come_to(events: Iterable[Event]) -> dict[int, Values]:
    """Return the rows that events come to, one after the other in the order of the source."""
    rows: dict[int, Values] = {}
    moved: dict[tuple[int, int], Values] = {}
    for one in sorted(set(events), key=lambda one: one.version):
        if one.op == "t":
            rows = {}
        elif one.op == "d":
            moved[one.commit, one.position] = rows.pop(one.key, (None, None))
        else:
            before = rows.get(one.key) or moved.get((one.commit, one.position), (None, None))
            name, big = one.values or (None, None)
            rows[one.key] = (name, before[1] if big == UNAVAILABLE else big)
    return rows


class HandMirror:
    """One mirror, landed into by hand."""

    def __init__(self, folder: Path, *, soft_delete: bool = False, **properties: str) -> None:
        self.catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
        table = TableDesign(metadata=pa.schema([]), properties=properties)
        self.design = MirrorDesign(table, key=("id",), soft_delete=soft_delete)

    def sink(self) -> MirrorSink:
        """Return a sink of its own, such as another process would have."""
        return MirrorSink(self.catalog, TABLE, "g", self.design)

    def land(self, events: Sequence[Event], sink: MirrorSink | None = None) -> int:
        """Land events in one commit."""
        sink = sink or self.sink()
        sink.load("run")
        sink.write(rows_of(events), IDENTITY)
        return sink.commit(landing_of(events))

    def table(self) -> Table:
        """Load the table anew."""
        return self.catalog.load_table(TABLE)

    def rows(self) -> dict[int, Values]:
        """Return the rows that are not deleted; each key once, or it is an error."""
        found = [row for row in self.table().scan().to_arrow().to_pylist() if not row.get(DELETED)]
        rows = {row["id"]: (row["name"], row["big"]) for row in found}
        assert len(rows) == len(found), "a key is there twice"
        return rows


def landing_of(events: Iterable[Event]) -> Landing:
    """Return the landing of exactly these events."""
    counts: dict[int, Counts] = {}
    for one in events:
        counts[one.partition] = counts.get(one.partition, Counts()) + Counts(read=1, written=1)
    ranges = RangeSet(OffsetRange(IDENTITY.topic, one.partition, one.offset, one.offset + 1) for one in events)
    entry = TopicEntry(landed=ranges, counts=sum(counts.values(), Counts()))
    return Landing(uuid.uuid4().hex, "run", {IDENTITY: entry}, {IDENTITY: counts})


def again(events: Sequence[Event], offset: int) -> list[Event]:
    """Return events as a connector that was restarted sends them once more."""
    return [replace(one, offset=offset + number) for number, one in enumerate(events)]
