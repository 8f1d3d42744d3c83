"""What the ledger costs: landings through the sink, and bare PyIceberg appends on a twin of the table, in turn.

The landings are real, Kafka is left out: rows come from memory. The twin is a copy of the table's metadata without
any trace of the ledger, so that what a ledger adds to the metadata is on our side of the scales. Both sides open the
table, write one file of the same rows and commit it. Also run by itself: `python -m dev.bench.commits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.iceberg.design import TableDesign
from airflow_lakestream.iceberg.schema import to_schema
from airflow_lakestream.iceberg.sink import IcebergSink

GROUP = "bench"
IDENTITY = TopicIdentity("clicks", "AAAAAAAAQACAAAAAAAAAAQ", "cluster-0123456789")
METADATA = pa.schema(
    [
        ("_kafka_topic", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
        ("_kafka_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
PAYLOAD = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = 100


class Bookkeeper:
    """Lands made-up records into one table: the same few rows each time, and honest ranges of offsets."""

    def __init__(
        self, folder: Path, *, partitions: int = 4, table: str = "bench.landed", properties: Mapping[str, str] = {}
    ) -> None:
        self.catalog = SqlCatalog(
            "iceberg_default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
        )
        self.name = table
        self.rows = rows()
        self._design = TableDesign(METADATA, schema=to_schema(PAYLOAD), properties=properties)
        self._partitions = partitions
        self._landed = 0

    def land(self) -> None:
        """Make one landing as a run does: look at the table, write, commit."""
        sink = IcebergSink(self.catalog, self.name, GROUP, self._design)
        sink.load(f"run-{self._landed}")
        sink.write(self.rows, IDENTITY)
        sink.commit(self._next())

    def table(self) -> Table:
        """Load the table anew."""
        return self.catalog.load_table(self.name)

    def _next(self) -> Landing:
        # Partitions grow at different speeds and from different offsets, as real ones do.
        ranges = [
            OffsetRange(IDENTITY.topic, p, at := 1_000_000 * (p + 1) + self._landed * (width := 1000 + p), at + width)
            for p in range(self._partitions)
        ]
        self._landed += 1
        landed = RangeSet(ranges)
        origin = {p: 1_000_000 * (p + 1) for p in range(self._partitions)} if self._landed == 1 else {}
        entry = TopicEntry(
            landed=landed,
            counts=Counts(landed.width, landed.width),
            origin=origin,
            epochs=dict.fromkeys(range(self._partitions), 7),
        )
        return Landing(f"{self._landed:032x}", f"scheduled__2026-01-01T00:{self._landed:06}", {IDENTITY: entry})


class Twin:
    """A copy of a table as it stands, without its ledger, to which rows are appended by PyIceberg alone."""

    def __init__(self, original: Table, catalog: SqlCatalog, name: str) -> None:
        metadata = FromInputFile.table_metadata(original.io.new_input(original.metadata_location))
        for snapshot in metadata.snapshots:
            summary = snapshot.summary.additional_properties if snapshot.summary else {}
            for key in [key for key in summary if key.startswith("lakestream.")]:
                del summary[key]
        kept = {key: value for key, value in metadata.properties.items() if not key.startswith("lakestream.")}
        location = f"{original.location()}/metadata/00000-{name}.metadata.json"
        ToOutputFile.table_metadata(
            metadata.model_copy(update={"properties": kept, "metadata_log": []}), original.io.new_output(location)
        )
        self.name = f"bench.{name}"
        self.catalog = catalog
        catalog.register_table(self.name, location)

    def append(self, rows: pa.Table) -> None:
        """Append as a script without us would."""
        self.catalog.load_table(self.name).append(rows)


def rows() -> pa.Table:
    """Make the rows of one landing."""
    numbers = pa.array(range(ROWS), pa.int64())
    columns = {
        "_kafka_topic": pa.repeat(pa.scalar(IDENTITY.topic), ROWS),
        "_kafka_partition": pa.repeat(pa.scalar(0, pa.int32()), ROWS),
        "_kafka_offset": numbers,
        "_kafka_timestamp": numbers.cast(pa.timestamp("us", tz="UTC")),
        "id": numbers,
        "name": numbers.cast(pa.string()),
    }
    return pa.table(columns, schema=pa.schema([*METADATA, *PAYLOAD]))
