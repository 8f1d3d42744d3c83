"""Runs that land and replace by hand, and the rows that a table has to hold: for tests without a broker.

A row says which records it is by its metadata columns, and by `version` which landing decoded it.
"""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.ports import TableState
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.decode.rejected import RECORD_SCHEMA

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


def versions(*parts: tuple[tuple[int, int, int], str], foreign: tuple[str, ...] = ()) -> list[Row]:
    """Return a table's rows: for each record the last version that is given for it, and rows of no record."""
    rows = {key: version for part, version in parts for key in offsets_of(ranges(part))}
    strange = [(None, None, version) for version in foreign]
    return sorted([*((*key, version) for key, version in rows.items()), *strange], key=repr)


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
