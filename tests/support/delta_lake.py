"""Landings from the session's broker into one Delta table, asked the same questions as `support.lake.Lake`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from obstore.store import LocalStore

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.names import REJECTED
from airflow_lakestream.delta import committing
from airflow_lakestream.delta.ledger_store import read_ledger
from airflow_lakestream.delta.reject_table import DeltaMainLedgers
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.tables.coordinates import is_hit
from airflow_lakestream.tables.rejects.settlement import PendingLanding, RejectSettlement, pending_of
from dev.services.kafka import Kafka
from tests.support.delta_table import GROUP, live_files, stray_files
from tests.support.faults import Fault
from tests.support.lake import Lake


class FaultyStore(LocalStore):
    """A folder in which the next commits meet faults, one after the other."""

    faults: Iterator[Fault]


class FaultyStorage(DeltaStorage):
    """Storage in which the first commits to one table meet faults; later ones, and those to others, go through."""

    def __init__(self, place: str, *faults: Fault) -> None:
        super().__init__()
        object.__setattr__(self, "place", place)
        object.__setattr__(self, "faults", iter(faults))

    def store(self, table: str) -> Any:
        if table != self.place:
            return super().store(table)
        store = FaultyStore(table, mkdir=True)
        store.faults = self.faults
        return store


_put_commit = committing.put_commit


def _put_or_meet(store: Any, *request: Any) -> Any:
    fault = next(store.faults, None) if isinstance(store, FaultyStore) else None
    return _put_commit(store, *request) if fault is None else fault(lambda: _put_commit(store, *request))


# For good, in a process of tests: a store of any other kind notices nothing.
committing.put_commit = _put_or_meet


class DeltaLake(Lake):
    """One Delta table in a folder, and the broker that it is landed from."""

    @property
    def place(self) -> str:
        """Where the table lies."""
        return str(self.folder / "events")

    @property
    def name(self) -> str:
        return self.place

    def catalog(self, **properties: str) -> Any:
        """Return the storage, which stands in a catalog's place."""
        return DeltaStorage(properties)

    def settings(self, topic: str, **config: Any) -> ExtractConfig:
        wanted: dict[str, Any] = {"table": self.place, "table_format": "delta", "consumer_group": GROUP}
        return self.kind(topic=topic, **(wanted | config))

    def table(self, name: str = "") -> Any:
        """Load the table anew, as delta-rs gives it."""
        return DeltaTable(name or self.place)

    def failing(self, *faults: Fault) -> Any:
        return FaultyStorage(self.place, *faults)

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.place, rows.cast(self.columns()), mode="append")

    def columns(self) -> pa.Schema:
        return pa.schema(self.table().schema())

    def add_column(self, name: str) -> None:
        self.table().alter.add_columns([Field(name, "string")])

    def live_files(self) -> set[str]:
        return {str(Path(self.place, path)) for path in live_files(self.place)}

    def pending(self) -> list[PendingLanding]:
        rejects = DeltaStorage().open(f"{self.place}{REJECTED}")
        return [] if rejects is None else pending_of(rejects.properties)

    def counting(self, group: str = GROUP) -> list[dict[str, Any]]:
        main = DeltaStorage().open(self.place)
        assert main is not None
        books = DeltaMainLedgers(main, DeltaStorage().store(str(self.place)))
        settlement, rows = RejectSettlement.by(self.pending(), books), self.scan(REJECTED)
        in_doubt = pc.or_(settlement.stale(rows), settlement.undecided(rows))
        topics = self.ledger(group).topics.items()
        own = [pc.and_(settlement.is_of(rows, group, one), is_hit(rows, entry.landed)) for one, entry in topics]
        return [row for one in own for row in rows.filter(pc.and_not(one, in_doubt)).to_pylist()]

    def compact(self) -> None:
        self.table().optimize.compact()

    def roll_back(self, snapshot_id: int) -> None:
        self.table().restore(snapshot_id)

    def assert_whole(self, *, leftovers_of_a_kill: bool = False) -> None:
        assert leftovers_of_a_kill or not self.stray()
        assert all(Path(self.place, path).is_file() for path in live_files(self.place))

    def has_nothing(self) -> bool:
        return not Path(self.place).exists()

    def ledger(self, consumer_group: str = GROUP) -> Ledger:
        return read_ledger(DeltaStorage().open(self.place), consumer_group)

    def snapshots(self) -> list[int]:
        """Return all versions."""
        return [int(path.stem) for path in sorted(Path(self.place, "_delta_log").glob("0*.json"))]

    def scan(self, behind: str = "") -> pa.Table:
        """Return the rows of the live files, by the log's own JSON and DuckDB."""
        place = f"{self.place}{behind}"
        paths = [str(Path(place, path)) for path in live_files(place)]
        if not paths:
            return pa.table({})
        query = "select * from read_parquet($paths, union_by_name=true, hive_partitioning=false)"
        return duckdb.sql(query, params={"paths": paths}).to_arrow_table()

    def rejected(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return the rows of the reject table, in offset order."""
        found = self.scan(REJECTED)
        if not found.num_rows:
            return []
        found = found.sort_by([("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")])
        return list(zip(*(found[name].to_pylist() for name in columns), strict=True))

    def stray(self) -> set[str]:
        """Return the files that no version of the table, or of its reject table, has."""
        rejects = f"{self.place}{REJECTED}"
        return stray_files(self.place) | (stray_files(rejects) if Path(rejects).exists() else set())


LAKES = {"iceberg": Lake, "delta": DeltaLake}
# Stories that hold for every format of a table are played over each of them.
EACH_FORMAT = pytest.mark.parametrize("lake", LAKES, indirect=True)
DELTA = pytest.mark.parametrize("lake", ["delta"], indirect=True)


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path, kafka: Kafka) -> Lake:
    """Give an empty lake beside the session's broker: of Iceberg, where the test names no format."""
    return LAKES[getattr(request, "param", "iceberg")](tmp_path, kafka.client_config())


@pytest.fixture(params=LAKES)
def lake_of_each_format(request: pytest.FixtureRequest, tmp_path: Path, kafka: Kafka) -> Lake:
    """Give an empty lake of each format: for files all of whose tests are played over both."""
    return LAKES[request.param](tmp_path, kafka.client_config())
