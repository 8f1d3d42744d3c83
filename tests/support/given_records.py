"""Records that a test gives by hand, landed by the real decoders, writers and commits; only Kafka is not there.

What a record's content can do to a run is told by its bytes alone, so no broker is needed to try a hundred of them.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.plan import PartitionWatermarks, Plan, TopicState
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import RecordChunk, TimeBoundary
from airflow_lakestream.core.ranges import OffsetRange
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.metadata import NO_TIMESTAMP, metadata_schema
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.run.job import ExtractConfig, build_job
from tests.support.delta_table import live_files
from tests.support.registry import FakeRegistry
from tests.support.shared_client import client_in

GROUP = "g"
TOPIC = TopicIdentity("given", "id-1", "cluster-1")
FORMATS = ("iceberg", "delta")


@dataclass(frozen=True)
class Record:
    """One record of the topic's only partition."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str | None, bytes | None]] | None = None
    at_ms: int = NO_TIMESTAMP


@dataclass(frozen=True)
class GivenTopic:
    """`core.ports.Source` and `core.ports.Reader` on records; the offset of each is its place, all in one chunk."""

    records: Sequence[Record]

    def look(self) -> TopicState:
        return TopicState(TOPIC, {0: PartitionWatermarks(0, len(self.records))})

    def identity(self) -> TopicIdentity:
        return TOPIC

    def starts(self, state: TopicState) -> Mapping[int, int]:
        return {}

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, TimeBoundary]:
        raise AssertionError("these records are landed by offsets, not by times")

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        pass

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        for r in plan.ranges:
            some = self.records[r.from_offset : r.until_offset]
            key, headers = (one.type for one in metadata_schema(("key", "headers")))
            given = [
                None if one.headers is None else [{"key": name, "value": value} for name, value in one.headers]
                for one in some
            ]
            batch = RawBatch(
                TOPIC.topic,
                0,
                range(r.from_offset, r.until_offset),
                [one.at_ms for one in some],
                pa.array([one.value for one in some], pa.binary()),
                keys=pa.array([one.key for one in some], key),
                headers=pa.array(given, headers),
            )
            yield RecordChunk(OffsetRange(r.topic, 0, r.from_offset, r.until_offset), batch, batch.values.nbytes)


@dataclass(frozen=True)
class GivenLake:
    """One table of a kind in a folder. `land(records, **config)` is one run, `rows` and `rejected` what it left."""

    folder: Path
    table_format: str = "iceberg"
    schemas: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    kind: type[ExtractConfig] = ExtractConfig

    @property
    def name(self) -> str:
        """The table's name, or its folder."""
        return "lake.events" if self.table_format == "iceberg" else str(self.folder / "events")

    def catalog(self) -> SqlCatalog:
        """Return the catalog's client."""
        return client_in(self.folder, "lake", "w")

    def job(self, records: Sequence[Record | bytes | None], **config: Any) -> LandingJob:
        """Return the job that lands these records."""
        given = [one if isinstance(one, Record) else Record(one) for one in records]
        wanted = {"topic": TOPIC.topic, "table": self.name, "consumer_group": GROUP, "table_format": self.table_format}
        if self.schemas:
            wanted["schema_registry"] = "http://127.0.0.1:1"
        lake: Any = self.catalog() if self.table_format == "iceberg" else DeltaStorage()
        job = build_job(self.kind(**(wanted | config)), {}, lake, run_id=uuid.uuid4().hex)
        if self.schemas:
            payload: Any = job.decoders
            # In the place of the client that the payload would make for itself.
            vars(payload.payload)["registry_client"] = FakeRegistry(
                self.schemas, {f"{TOPIC.topic}-value": sorted(self.schemas)}
            )
        topic: Any = GivenTopic(given)
        return replace(job, source=topic, reader=topic)

    def land(self, records: Sequence[Record | bytes | None], **config: Any) -> LandingReport:
        """Land these records."""
        return land(self.job(records, **config))

    def iceberg(self, name: str = "") -> Table:
        """Load the Iceberg table anew."""
        return self.catalog().load_table(name or self.name)

    def rows(self, name: str = "") -> list[dict[str, Any]]:
        """Return the rows by offset: of an Iceberg table as PyIceberg reads them, of a Delta table as DuckDB does."""
        found = self.by_pyiceberg(name) if self.table_format == "iceberg" else self.by_duckdb(name)
        return sorted(found, key=lambda row: row["_kafka_offset"])

    def rejected(self) -> dict[int, dict[str, Any]]:
        """Return the rows of the reject table by offset; nothing where there is no such table."""
        name = f"{self.name}__rejected"
        there = self.catalog().table_exists(name) if self.table_format == "iceberg" else Path(name).exists()
        return {row["_kafka_offset"]: row for row in self.rows(name)} if there else {}

    def by_pyiceberg(self, name: str = "") -> list[dict[str, Any]]:
        """Return the rows as PyIceberg reads them."""
        rows: list[dict[str, Any]] = self.iceberg(name).scan().to_arrow().to_pylist()
        return rows

    def by_duckdb(self, name: str = "") -> list[dict[str, Any]]:
        """Return the rows of the live files as DuckDB reads them."""
        paths = self.files(name)
        if not paths:
            return []
        query = "select * from read_parquet($paths, union_by_name=true, hive_partitioning=false)"
        rows: list[dict[str, Any]] = duckdb.sql(query, params={"paths": paths}).to_arrow_table().to_pylist()
        return rows

    def files(self, name: str = "") -> list[str]:
        """Return the paths of the live data files."""
        if self.table_format == "delta":
            place = name or self.name
            return [str(Path(place, path)) for path in live_files(place)]
        found = self.iceberg(name).scan().plan_files()
        return [task.file.file_path.removeprefix("file://") for task in found]
