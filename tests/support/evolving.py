"""Runs that land rows by hand, each with a schema of its own: for tests of schema changes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.decode.metadata import metadata_schema
from tests.support.replacing import ORDERS

METADATA = metadata_schema(("topic", "partition", "offset", "key"))
Row = Mapping[str, Any]


class EvolvingRun:
    """One run with its sink."""

    def __init__(self, sink: Any, metadata: Sequence[str]) -> None:
        self.sink = sink
        self.metadata = metadata
        self.schema: pa.Schema = sink.load("run").schema

    def write(self, first: int, rows: Sequence[Row], schema: pa.Schema | None = None) -> None:
        """Write rows as records from offset `first` on, in the columns that the sink asked for, or in others."""
        payload = pa.Table.from_pylist(list(rows), schema=self.schema if schema is None else schema)
        count = len(rows)
        columns = [
            pa.array([ORDERS.topic] * count, pa.string()),
            pa.array([0] * count, pa.int32()),
            pa.array(range(first, first + count), pa.int64()),
            pa.array([b"key"] * count, pa.binary()),
        ]
        for field, column in zip(METADATA, columns, strict=True):
            if field.name not in self.metadata:
                continue
            payload = payload.append_column(field, column)
        self.sink.write(payload, ORDERS)

    def commit(self, first: int, count: int) -> int:
        entry = TopicEntry(landed=_range(first, count), counts=Counts(read=count, written=count))
        commit: int = self.sink.commit(Landing(uuid.uuid4().hex, "run", {ORDERS: entry}))
        return commit

    def land(self, first: int, rows: Sequence[Row]) -> list[str]:
        """Land rows; return what that changed in the schema. Discards after an error, as a run does."""
        try:
            self.write(first, rows)
            return list(self.sink.schema_changes(self.commit(first, len(rows))))
        except BaseException:
            self.sink.discard()
            raise

    def replace(self, first: int, rows: Sequence[Row]) -> list[str]:
        """Replace the records from `first` on by rows."""
        try:
            self.write(first, rows)
            counts = Counts(read=len(rows), written=len(rows))
            entry = TopicEntry(replaced=_range(first, len(rows)), counts=counts)
            snapshot_id, _ = self.sink.replace(Landing(uuid.uuid4().hex, "run", {ORDERS: entry}))
            return list(self.sink.schema_changes(snapshot_id))
        except BaseException:
            self.sink.discard()
            raise


def _range(first: int, count: int) -> RangeSet:
    return RangeSet([OffsetRange(ORDERS.topic, 0, first, first + count)])
