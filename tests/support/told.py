"""A table whose landings are told: landings and other commits in a folder, by PyIceberg alone, without Kafka."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_lakestream.core.codec import encode_summary
from airflow_lakestream.core.ledger import Counts, Landing, TopicEntry, TopicIdentity
from airflow_lakestream.core.ranges import RangeSet

TABLE, GROUP, TOPIC = "lake.told", "g", "orders"
HOUR_MS = 3_600_000
_ROWS = pa.table({"n": pa.array([1], pa.int64())})


class ToldTable:
    """`landed` are the ids of all landings, oldest first; each is of one row."""

    def __init__(self, folder: Path, rng: random.Random, name: str = TABLE) -> None:
        self.rng, self.name = rng, name
        self.where = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": (folder / "warehouse").as_uri()}
        self.landed: list[str] = []
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists(name.partition(".")[0])
        catalog.create_table(name, _ROWS.schema, properties={"format-version": "2"})

    def catalog(self) -> SqlCatalog:
        return SqlCatalog("iceberg_default", **self.where)

    @property
    def table(self) -> Table:
        return self.catalog().load_table(self.name)

    def land(self, *, covered: bool = False) -> str:
        """Land one record, as every engine does: what it lands stands in the snapshot's summary."""
        at, landing_id = len(self.landed), f"{self.rng.getrandbits(64):x}"
        part = ((at * HOUR_MS, (at + 1) * HOUR_MS),) if covered else ()
        entry = TopicEntry(landed=RangeSet.of(TOPIC, 0, at, at + 1), counts=Counts(1, 1), covered=part)
        landing = Landing(landing_id, f"run-{at}", {TopicIdentity(TOPIC, "id", "cluster"): entry})
        self.table.append(_ROWS, snapshot_properties=encode_summary(GROUP, landing))
        self.landed.append(landing_id)
        return landing_id

    def append(self) -> None:
        """Append as another writer."""
        self.table.append(_ROWS)

    def overwrite(self) -> None:
        """Delete all rows and write some: two snapshots."""
        self.table.overwrite(_ROWS)

    def compact(self) -> None:
        """Rewrite all files into one."""
        from tests.support.lake import compact

        compact(self.table)

    def roll_back(self) -> list[str]:
        """Take the newest commit back; return the landings that are no longer there."""
        table = self.table
        head = table.current_snapshot()
        if head is None or head.parent_snapshot_id is None:
            return []
        table.manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()
        gone = (head.summary.additional_properties if head.summary else {}).get("lakestream.landing-id")
        return [gone] if gone else []

    def other(self) -> None:
        """Do something that is no landing."""
        if self.table.current_snapshot() is None:
            return
        self.rng.choice([self.append, self.overwrite, self.compact])()
