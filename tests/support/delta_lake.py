"""Landings from the session's broker into one Delta table, asked the same questions as `support.lake.Lake`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import Job
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.delta.ledger_store import read_ledger
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.run.job import ExtractConfig, build_job
from tests.support.delta_table import GROUP, live_files, stray_files
from tests.support.lake import Lake


class DeltaLake(Lake):
    """One Delta table in a folder, and the broker that it is landed from."""

    @property
    def place(self) -> str:
        """Where the table lies."""
        return str(self.folder / "events")

    def settings(self, topic: str, **config: Any) -> ExtractConfig:
        """Return the configuration of a landing."""
        wanted: dict[str, Any] = {"table": self.place, "table_format": "delta", "consumer_group": GROUP}
        return ExtractConfig(topic=topic, **(wanted | config))

    def job(self, topic: str, run_id: str = "", *, catalog: Any = None, **config: Any) -> Job:
        """Return a job; give `run_id` to make it another try of a run."""
        made = self.settings(topic, **config)
        return build_job(made, self.kafka, catalog or DeltaStorage(), run_id=run_id or uuid.uuid4().hex)

    def land(self, topic: str, run_id: str = "", *, catalog: Any = None, **config: Any) -> LandingReport:
        """Land the topic."""
        return land(self.job(topic, run_id, catalog=catalog, **config))

    def ledger(self, consumer_group: str = GROUP) -> Ledger:
        """Read the ledger at the table's head."""
        return read_ledger(DeltaStorage().open(self.place), consumer_group)

    def snapshots(self) -> list[int]:
        """Return all versions."""
        return [int(path.stem) for path in sorted(Path(self.place, "_delta_log").glob("0*.json"))]

    def all_rows(self, place: str = "") -> pa.Table:
        """Return the rows of the live files, by the log's own JSON and DuckDB."""
        paths = [str(Path(place or self.place, path)) for path in live_files(place or self.place)]
        query = "select * from read_parquet($paths, union_by_name=true, hive_partitioning=false)"
        return duckdb.sql(query, params={"paths": paths}).to_arrow_table()

    def rows(self, topic: str) -> pa.Table:
        """Return the topic's rows by partition and offset, metadata columns first."""
        found = self.all_rows()
        found = found.filter(pc.equal(found["_kafka_topic"], topic))
        found = found.select(["_kafka_partition", "_kafka_offset", "id", "name", "score"])
        return found.sort_by([("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")])

    def rejected(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return the rows of the reject table, in offset order."""
        place = f"{self.place}__rejected"
        if not Path(place).exists() or not live_files(place):
            return []
        found = self.all_rows(place).sort_by([("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")])
        return list(zip(*(found[name].to_pylist() for name in columns), strict=True))

    def stray(self) -> set[str]:
        """Return the files that no version of the table, or of its reject table, has."""
        rejects = f"{self.place}__rejected"
        return stray_files(self.place) | (stray_files(rejects) if Path(rejects).exists() else set())


def config_of(lake: DeltaLake) -> Mapping[str, Any]:
    """Return what another process needs to make the same lake."""
    return {"folder": str(lake.folder), "kafka": lake.kafka}
