"""A table whose landings are made by hand, each with a schema of its own: for tests of schema changes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.ddl import parse_schema
from airflow_lakestream.tables.schema.types import schema_text
from tests.support.lake import QUICK_RETRIES, TABLE
from tests.support.replacing import GROUP, ORDERS

METADATA = metadata_schema(("topic", "partition", "offset", "key"))
Row = Mapping[str, Any]


@dataclass
class Evolving:
    """A table in a folder."""

    folder: Path

    def catalog(self) -> SqlCatalog:
        """Return a catalog client of its own, such as another process would have."""
        uri = f"sqlite:///{self.folder}/catalog.db"
        return SqlCatalog("iceberg_default", uri=uri, warehouse=f"file://{self.folder}/warehouse")

    def table(self) -> Table:
        return self.catalog().load_table(TABLE)

    def schema(self) -> str:
        """Return the payload's columns as DDL."""
        whole = self.table().schema()
        return schema_text(type(whole)(*(f for f in whole.fields if not f.name.startswith("_kafka_"))))

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows by offset, without the metadata columns; a record that is there twice is there twice."""
        found = self.table().scan().to_arrow().sort_by("_kafka_offset").to_pylist()
        return [{name: value for name, value in row.items() if not name.startswith("_kafka_")} for row in found]

    def offsets(self) -> list[int]:
        return sorted(self.table().scan().to_arrow()["_kafka_offset"].to_pylist())

    def run(
        self,
        schema: str | None,
        evolution: str = "none",
        catalog: Catalog | None = None,
        metadata: Sequence[str] = ("topic", "partition", "offset"),
        **design: Any,
    ) -> EvolvingRun:
        """Begin a run: it has looked at the table."""
        plan = TableDesign(
            metadata_schema(metadata),
            None if schema is None else parse_schema(schema),
            properties=QUICK_RETRIES,
            evolution=SchemaEvolution(evolution),
            **design,
        )
        return EvolvingRun(IcebergSink(catalog or self.catalog(), TABLE, GROUP, plan), plan.metadata.names)


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
