"""A table of each format, landed by hand: what the contract suite knows of a format, and nothing of it elsewhere.

A row says which record it is by its metadata columns, and by `version` which landing decoded it.
"""

from __future__ import annotations

import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.types import StringType

from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.names import REJECTED
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.decode.rejected import RECORD_SCHEMA
from airflow_lakestream.delta import committing as delta_commits
from airflow_lakestream.delta.reject_table import rejecting_sink as rejecting_delta_sink
from airflow_lakestream.delta.sink import DeltaSink
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.iceberg.commit import committing as iceberg_commits
from airflow_lakestream.iceberg.reject_table import rejecting_sink
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.ddl import parse_schema
from tests.support.delta_table import stray_files, versions
from tests.support.evolving import EvolvingRun
from tests.support.faults import Fault, FaultyCatalog
from tests.support.lake import QUICK_RETRIES, TABLE, assert_files_are_whole, compact
from tests.support.replacing import COORDINATES, GROUP, PAYLOAD, Row, Run
from tests.support.shared_client import client_in


@dataclass(frozen=True)
class Place:
    """Where a table of a test is: its folder, and what else its format has to be told."""

    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)


def sqlite_catalog(folder: Path) -> dict[str, str]:
    """Return the properties of a catalog in a folder, as is its warehouse."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


class FormatTable(ABC):
    """A table of one format in a folder; `design` is what each of its runs asks for.

    `commit_tries` is how often a sink tries a commit that others are in the way of: fewer times than it would.
    """

    commit_tries = 5
    # What the format's sink raises: for a commit without an answer, and for one that others beat each time.
    unknown: type[Exception]
    refused: type[Exception]
    # Whether it makes a column's type wider.
    widens: bool
    # What else it may be partitioned by than a column as it is.
    partitions: Sequence[str]

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, **design: Any) -> None:
        self.folder = folder
        self.patch = patch
        self._design = design

    def move(self, folder: Path) -> None:
        """Be the table of another folder."""
        self.folder = folder

    def design(
        self,
        schema: str | None = PAYLOAD,
        metadata: Sequence[str] = COORDINATES,
        evolution: str = "none",
        **design: Any,
    ) -> TableDesign:
        """Return a design as a user asks for it."""
        payload = None if schema is None else parse_schema(schema)
        wanted = {"evolution": SchemaEvolution(evolution), **self._design, **design}
        return TableDesign(metadata_schema(metadata), payload, **wanted)

    @abstractmethod
    def sink(self, design: TableDesign, group: str = GROUP, *, overlap: bool = False, rejects: bool = False) -> Any:
        """Return a sink of a run of its own, still to be loaded; with a reject table, if wanted."""

    def run(
        self, group: str = GROUP, *, overlap: bool = False, rejects: bool = False, run_id: str = "run", **design: Any
    ) -> Run:
        """Begin a run: it has looked at the table."""
        made = self.design(**design)
        return Run(self.sink(made, group, overlap=overlap, rejects=rejects), made.metadata.names, run_id)

    def evolving(self, schema: str | None, evolution: str = "none", **design: Any) -> EvolvingRun:
        """Begin a run that lands rows of a schema of its own."""
        made = self.design(schema=schema, evolution=evolution, **design)
        return EvolvingRun(self.sink(made), made.metadata.names)

    @abstractmethod
    def elsewhere(self, target: Any) -> Run:
        """Begin a run in another process, which knows of the table what a sink's outline says."""

    def land(self, *args: Any, **landing: Any) -> int:
        return self.run().land(*args, **landing)

    def replace(self, *args: Any, **landing: Any) -> Any:
        return self.run().replace(*args, **landing)

    def ledger(self, group: str = GROUP) -> Ledger:
        """Return a group's ledger, as its next run sees it."""
        return self.run(group, schema=None, metadata=()).state.ledger

    def rows(self) -> list[Row]:
        """Return all rows, sorted; a record that is there twice is there twice."""
        found = self.read()
        names = [name if name in found.column_names else None for name in ("_kafka_partition", "_kafka_offset")]
        keys = [found[name].to_pylist() if name else [None] * found.num_rows for name in names]
        return sorted(zip(*keys, found["version"].to_pylist(), strict=True), key=repr)

    def payload(self) -> list[dict[str, Any]]:
        """Return all rows by offset, without the metadata columns."""
        found = self.read().sort_by("_kafka_offset").to_pylist()
        return [{name: value for name, value in row.items() if not name.startswith("_kafka_")} for row in found]

    @abstractmethod
    def meet(self, *faults: Fault) -> None:
        """Let the next commits to the table meet faults, one after the other: those of the run that begins next."""

    @abstractmethod
    def commits(self) -> list[int]:
        """Return the ids of the commits in the table's history, oldest first."""

    @abstractmethod
    def schemas(self) -> int:
        """Return how many schemas the table has had."""

    @abstractmethod
    def read(self, table: str = "") -> pa.Table:
        """Return all rows, by the format's own reader.

        :param table: what stands behind the table's name.
        """

    def rejected(self) -> list[tuple[int, int, str]]:
        """Return partition, offset and error of the reject table's rows."""
        found = self.read(REJECTED)
        return sorted(
            zip(*(found[name].to_pylist() for name in ("_kafka_partition", "_kafka_offset", "error")), strict=True)
        )

    @abstractmethod
    def assert_whole(self) -> None:
        """Assert that no file of the table is gone, and that none is there that no commit has."""

    @abstractmethod
    def compact(self) -> None:
        """Rewrite all files into one, as another tool would."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Append rows as another writer would; columns that are not there are NULL."""

    def append_foreign(self, *versions: str) -> None:
        """Append rows that come from no topic."""
        self.append(pa.Table.from_pylist([{"version": one} for one in versions], schema=self.read().schema))

    @abstractmethod
    def add_column(self, name: str) -> None:
        """Add a column of strings, as a person would."""

    @abstractmethod
    def roll_back(self, commit: int) -> None:
        """Take the table back to a commit, or forward again."""

    @abstractmethod
    def drop(self) -> None:
        """Drop the table, with all that it had."""

    @abstractmethod
    def forget_history(self) -> None:
        """Expire all of the history that the format lets go."""


class IcebergTable(FormatTable):
    unknown = iceberg_commits.CommitOutcomeUnknown
    refused = iceberg_commits.CommitRefused
    widens = True
    partitions = ("truncate(8, _kafka_offset)",)

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, catalog: Mapping[str, str] | None = None, **design: Any
    ) -> None:
        """`catalog` has the properties of one whose warehouse is in the folder; by default it is there itself."""
        super().__init__(folder, patch, **design)
        patch.setattr(iceberg_commits, "RETRY_PAUSE", 0.0)
        patch.setattr(iceberg_commits, "COMMIT_TRIES", self.commit_tries)
        self._elsewhere = catalog
        self._next: Any = None
        self._reading: Catalog | None = None

    def catalog(self) -> Catalog:
        """Return a client of the catalog: of a server's one of its own, such as another process would have."""
        return load_catalog("iceberg_default", **self._elsewhere) if self._elsewhere else client_in(self.folder)

    def table(self, behind: str = "") -> Table:
        self._reading = self._reading or self.catalog()
        return self._reading.load_table(TABLE + behind)

    def design(self, *args: Any, properties: Mapping[str, str] | None = None, **design: Any) -> TableDesign:
        wanted = properties or self._design.get("properties", {})
        return super().design(*args, properties={**QUICK_RETRIES, **wanted}, **design)

    def sink(self, design: TableDesign, group: str = GROUP, *, overlap: bool = False, rejects: bool = False) -> Any:
        catalog, self._next = self._next or self.catalog(), None
        inner = IcebergSink(catalog, TABLE, group, design, allow_group_overlap=overlap)
        return rejecting_sink(inner, self.catalog(), TABLE, group, RECORD_SCHEMA) if rejects else inner

    def through(self, catalog: Any) -> IcebergTable:
        """Let the run that begins next have this catalog."""
        self._next = catalog
        return self

    def elsewhere(self, target: Any) -> Run:
        return Run(IcebergSink(target, TABLE, GROUP, self.design()), metadata_schema(COORDINATES).names)

    def meet(self, *faults: Fault) -> None:
        self.through(FaultyCatalog(self.catalog(), *faults))

    def commits(self) -> list[int]:
        return [s.snapshot_id for s in sorted(self.table().snapshots(), key=lambda s: s.sequence_number or 0)]

    def schemas(self) -> int:
        return len(self.table().schemas())

    def read(self, table: str = "") -> pa.Table:
        try:
            return self.table(table).scan().to_arrow()
        except NoSuchTableError:
            return pa.table({name: [] for name in ("version", *RECORD_SCHEMA.names)})

    def assert_whole(self) -> None:
        try:
            assert_files_are_whole(self.table())
        except NoSuchTableError:
            assert not list(self.folder.rglob("*.parquet"))

    def compact(self) -> None:
        compact(self.table())

    def append(self, rows: pa.Table) -> None:
        table = self.table()
        table.append(rows.cast(table.schema().as_arrow()))

    def add_column(self, name: str) -> None:
        with self.table().update_schema() as update:
            update.add_column(name, StringType())

    def roll_back(self, commit: int) -> None:
        self.table().manage_snapshots().set_current_snapshot(commit).commit()

    def drop(self) -> None:
        # PyIceberg's client of Hive can't purge.
        place = urlsplit(self.table().location()).path
        self.catalog().drop_table(TABLE)
        shutil.rmtree(place)

    def forget_history(self) -> None:
        table = self.table()
        gone = [s.snapshot_id for s in table.snapshots() if s != table.current_snapshot()]
        table.maintenance.expire_snapshots().by_ids(gone).commit()


class DeltaTableInFolder(FormatTable):
    unknown = delta_commits.DeltaCommitUnknown
    refused = delta_commits.DeltaCommitRefused
    widens = False
    partitions = ("_kafka_topic", "version")

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, **design: Any) -> None:
        super().__init__(folder, patch, **design)
        patch.setattr(delta_commits, "RETRY_PAUSE", 0.0)
        patch.setattr(delta_commits, "COMMIT_TRIES", self.commit_tries)

    @property
    def place(self) -> Path:
        """The table's folder."""
        return self.folder / "events"

    def table(self, behind: str = "") -> DeltaTable:
        return DeltaTable(f"{self.place}{behind}")

    def sink(self, design: TableDesign, group: str = GROUP, *, overlap: bool = False, rejects: bool = False) -> Any:
        tables, name = DeltaStorage(), str(self.place)
        inner = DeltaSink(tables, name, group, design, allow_group_overlap=overlap)
        return rejecting_delta_sink(inner, tables, name, group, RECORD_SCHEMA) if rejects else inner

    def elsewhere(self, target: Any) -> Run:
        return Run(DeltaSink(target, str(self.place), GROUP, self.design()), metadata_schema(COORDINATES).names)

    def meet(self, *faults: Fault) -> None:
        real, left = delta_commits.put_commit, iter(faults)

        def put(store: Any, *version: Any) -> Any:
            is_rejects = str(store.prefix).endswith(REJECTED)
            fault = None if is_rejects else next(left, None)
            return real(store, *version) if fault is None else fault(lambda: real(store, *version))

        self.patch.setattr(delta_commits, "put_commit", put)

    def commits(self) -> list[int]:
        return sorted(one["version"] for one in self.table().history())

    def schemas(self) -> int:
        actions = [action for version in versions(self.place) for action in version if "metaData" in action]
        return len({action["metaData"]["schemaString"] for action in actions})

    def read(self, table: str = "") -> pa.Table:
        if not DeltaTable.is_deltatable(f"{self.place}{table}"):
            return pa.table({name: [] for name in ("version", *RECORD_SCHEMA.names)})
        return self.table(table).to_pyarrow_table()

    def assert_whole(self) -> None:
        there = DeltaTable.is_deltatable(str(self.place))
        assert not (stray_files(self.place) if there else ())
        assert all(Path(one.removeprefix("file://")).is_file() for one in (self.table().file_uris() if there else ()))

    def compact(self) -> None:
        self.table().optimize.compact()

    def append(self, rows: pa.Table) -> None:
        write_deltalake(str(self.place), rows, mode="append")

    def add_column(self, name: str) -> None:
        rows = pa.table({"version": ["foreign"], name: ["more"]}).slice(0, 0)
        write_deltalake(str(self.place), rows, mode="append", schema_mode="merge")

    def roll_back(self, commit: int) -> None:
        self.table().restore(commit)

    def drop(self) -> None:
        self.place.rename(self.folder / uuid.uuid4().hex)

    def forget_history(self) -> None:
        self.table().create_checkpoint()
        for file in sorted((self.place / "_delta_log").glob("0*.json"))[:-1]:
            file.unlink()


FORMATS: Mapping[str, type[FormatTable]] = {"iceberg": IcebergTable, "delta": DeltaTableInFolder}
# And formats whose client tries a commit again by itself, told not to: that must not make a difference.
VARIANTS: Mapping[str, Callable[..., FormatTable]] = {
    **FORMATS,
    "iceberg without retries": partial(IcebergTable, properties={"commit.retry.num-retries": "0"}),
}
