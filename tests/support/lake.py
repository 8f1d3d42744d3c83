"""A lake in a folder of the test: landings into one table, and the questions that a test asks of it afterwards.

The records are functions of their partition and offset (`events`), so that what came out can be compared by column.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.types import StringType

from airflow_lakestream.audit.result import AuditResult
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import Ledger, TopicEntry
from airflow_lakestream.iceberg.commit.manifest_writers import ManifestWriters, with_optional_values
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.iceberg.reject_table import counting_rows
from airflow_lakestream.iceberg.write.files import write_data_files
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.job import build_job
from airflow_lakestream.tables.rejects.settlement import PendingLanding, pending_of, rejects_of
from tests.support.broker import Producing, TopicOf
from tests.support.faults import Fault, FaultyCatalog

GROUP = "g"
TABLE = "lake.events"
# The partition and the offset of a row.
Position = tuple[int, int]
# PyIceberg's pauses between two tries of a commit, as short as they can be set.
QUICK_RETRIES = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}


class Lake:
    """One table in one folder, and the broker that it is landed from; `kind` of landing, by its configuration."""

    kind: type[ExtractConfig] = ExtractConfig

    def __init__(self, folder: Path, kafka: Mapping[str, Any]) -> None:
        self.folder = folder
        self.kafka = dict(kafka)

    def catalog(self, **properties: str) -> SqlCatalog:
        """Return a catalog client of its own, such as another process would have."""
        return SqlCatalog(
            "iceberg_default",
            uri=f"sqlite:///{self.folder}/catalog.db",
            warehouse=f"file://{self.folder}/warehouse",
            **properties,
        )

    def settings(self, topic: str, **config: Any) -> ExtractConfig:
        """Return the configuration of a landing."""
        wanted: dict[str, Any] = {"table": TABLE, "consumer_group": GROUP, "table_properties": QUICK_RETRIES}
        return self.kind(topic=topic, **(wanted | config))

    def job(self, topic: str, run_id: str = "", *, catalog: Any = None, **config: Any) -> LandingJob:
        """Return a job; give `run_id` to make it another try of a run."""
        made = self.settings(topic, **config)
        return build_job(made, self.kafka, catalog or self.catalog(), run_id=run_id or uuid.uuid4().hex)

    def land(
        self,
        topic: str,
        run_id: str = "",
        *,
        catalog: Any = None,
        kafka: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> LandingReport:
        """Land the topic; `kafka` adds to the client's configuration."""
        lake = copy(self)
        lake.kafka = {**self.kafka, **(kafka or {})}
        return land(lake.job(topic, run_id, catalog=catalog, **config))

    def table(self, name: str = TABLE) -> Table:
        """Load the table anew."""
        return self.catalog().load_table(name)

    @property
    def name(self) -> str:
        """The table, as a landing and a command name it."""
        return TABLE

    def snapshots(self) -> list[int]:
        """Return the ids of all snapshots, oldest first; none without a table."""
        if not self.catalog().table_exists(TABLE):
            return []
        return [s.snapshot_id for s in sorted(self.table().snapshots(), key=lambda s: s.sequence_number or 0)]

    def scan(self, behind: str = "") -> pa.Table:
        """Return all rows of the table, or of the one whose name has this behind it; none where there is none."""
        try:
            return self.table(TABLE + behind).scan().to_arrow()
        except NoSuchTableError:
            return pa.table({})

    def failing(self, *faults: Fault) -> Any:
        """Return a catalog client whose first commits meet faults, one after the other."""
        return FaultyCatalog(self.catalog(), *faults)

    def append(self, rows: pa.Table) -> None:
        """Append rows, as another writer would."""
        self.table().append(rows)

    def append_foreign(self, count: int = 3) -> None:
        """Append rows that come from no topic, as another writer would."""
        rows = [{"id": -1 - n, "name": "foreign", "score": 0.0} for n in range(count)]
        self.append(pa.Table.from_pylist(rows, schema=self.columns()))

    def columns(self) -> pa.Schema:
        """Return the table's columns."""
        return self.table().schema().as_arrow()

    def add_column(self, name: str) -> None:
        """Add a column of strings, as a person would."""
        with self.table().update_schema() as update:
            update.add_column(name, StringType())

    def live_files(self) -> set[str]:
        """Return the paths of the table's live data files."""
        return {task.file.file_path.removeprefix("file://") for task in self.table().scan().plan_files()}

    def pending(self) -> list[PendingLanding]:
        """Return the landings that the reject table notes as pending."""
        return pending_of(self.table(rejects_of(TABLE)).properties)

    def counting(self, group: str = GROUP) -> list[dict[str, Any]]:
        """Return the rows of the reject table that count: those of landings that the table has."""
        found = counting_rows(self.table(rejects_of(TABLE)), self.table(), group)
        return [row for part in found for row in part.to_pylist()]

    def compact(self) -> None:
        """Rewrite all files into one, as another tool would between two landings."""
        compact(self.table())

    def roll_back(self, snapshot_id: int) -> None:
        """Take the table back to a snapshot."""
        self.table().manage_snapshots().rollback_to_snapshot(snapshot_id).commit()

    def audit(self, *, full: bool = True, group: str = GROUP, topic: str | None = None) -> AuditResult:
        """Audit the table."""
        audit = lake_of(self.name).part("audit")
        look = audit(table=self.name, consumer_group=group, topic=topic, full=full, kafka=self.kafka)
        found: AuditResult = look.run(self.catalog())
        return found

    def assert_whole(self, *, leftovers_of_a_kill: bool = False) -> None:
        """Assert that no file of the table is over, or gone. See `assert_files_are_whole`."""
        assert_files_are_whole(self.table(), leftovers_of_a_kill=leftovers_of_a_kill)

    def ledger(self, consumer_group: str = GROUP) -> Ledger:
        """Read the ledger at the table's head."""
        return read_ledger(self.table(), consumer_group)

    def landed(self, topic: str, consumer_group: str = GROUP) -> dict[int, list[tuple[int, int]]]:
        """Return the ranges that the ledger holds, by partition."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for identity, entry in self.ledger(consumer_group).topics.items():
            for r in entry.landed if identity.topic == topic else ():
                found[r.partition].append((r.from_offset, r.until_offset))
        return dict(found)

    def rows(self, topic: str) -> pa.Table:
        """Return the topic's rows by partition and offset, metadata columns first."""
        found = self.scan()
        found = found.filter(pc.equal(found["_kafka_topic"], topic))
        found = found.select(["_kafka_partition", "_kafka_offset", "id", "name", "score"])
        return found.sort_by([("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")])

    def records(self) -> list[dict[str, Any]]:
        """Return the table's rows, in order of partition and offset."""
        return sorted(self.scan().to_pylist(), key=_position)

    def offsets(self) -> list[Position]:
        """Return (partition, offset) of every row, sorted; a row that is there twice stands twice."""
        return [_position(row) for row in self.records()]

    def column(self, name: str) -> list[Any]:
        """Return one column, in order of partition and offset."""
        return [row[name] for row in self.records()]

    def entry(self, topic: str, consumer_group: str = GROUP) -> TopicEntry:
        """Return the ledger's books of the topic's only incarnation; empty ones without a table."""
        if not self.snapshots():
            return TopicEntry()
        topics = self.ledger(consumer_group).topics
        entries = [entry for identity, entry in topics.items() if identity.topic == topic]
        assert len(entries) <= 1, f"{topic} stands in the ledger under {len(entries)} ids"
        return entries[0] if entries else TopicEntry()

    def committed_offsets(self, topic: str, consumer_group: str = GROUP) -> dict[int, int]:
        """Return what Kafka's group says: the mirror of the ledger."""
        client = AdminClient({**self.kafka, "log_level": 2})
        answer = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(consumer_group)])
        found = answer[consumer_group].result(30).topic_partitions
        return {tp.partition: tp.offset for tp in found if tp.topic == topic}

    def has_nothing(self) -> bool:
        """Tell whether there is no namespace and no file: not a trace of any run."""
        return not self.catalog().list_namespaces() and not list(self.files())

    def files(self) -> Iterator[str]:
        """Yield every file under the warehouse."""
        return (str(path) for path in (self.folder / "warehouse").rglob("*") if path.is_file())


def _position(row: Mapping[str, Any]) -> Position:
    return row["_kafka_partition"], row["_kafka_offset"]


def events(partition: int, first: int, count: int) -> list[str]:
    """Return the values for the next `count` records of a partition that holds `first` already."""
    return [
        f'{{"id":{partition * 10_000_000 + n},"name":"p{partition}-{n}","score":{n}.5}}'
        for n in range(first, first + count)
    ]


def rows_of_events(counts: Mapping[int, int]) -> pa.Table:
    """Return what `Lake.rows` gives when of each partition so many events are landed, once each."""
    parts = []
    for partition, count in sorted(counts.items()):
        offset = pa.array(range(count), pa.int64())
        names = pc.binary_join_element_wise(f"p{partition}", offset.cast(pa.string()), "-")
        columns = {
            "_kafka_partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
            "_kafka_offset": offset,
            "id": pc.add(offset, partition * 10_000_000),
            "name": names,
            "score": pc.add(offset.cast(pa.float64()), 0.5),
        }
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def assert_landed_once(lake: Lake, topic: str, counts: Mapping[int, int], consumer_group: str = GROUP) -> None:
    """Assert that the table has each event once, with its values, and that the ledger says so too."""
    found, expected = lake.rows(topic), rows_of_events(counts)
    found = found.cast(expected.schema)
    if not found.equals(expected):
        keys = zip(found["_kafka_partition"].to_pylist(), found["_kafka_offset"].to_pylist(), strict=True)
        times = Counter(keys)
        wanted = {(p, n) for p, count in counts.items() for n in range(count)}
        doubled = sorted(key for key, n in times.items() if n > 1)
        pytest.fail(
            f"doubled: {doubled[:5]} ({len(doubled)}), missing: {sorted(wanted - set(times))[:5]} "
            f"({len(wanted - set(times))}), never produced: {sorted(set(times) - wanted)[:5]}, else: other values"
        )
    assert lake.landed(topic, consumer_group) == {p: [(0, count)] for p, count in counts.items() if count}


def assert_files_are_whole(table: Table, *, leftovers_of_a_kill: bool = False) -> None:
    """Assert that no data file was added by two snapshots, and that under the table's folder no file lacks or is over.

    Metadata files (.json) that were written for a commit and lost are the catalog's own, and not looked at.

    :param leftovers_of_a_kill: files over are allowed: a killed process can't clean up.
    """
    needed: set[str] = set()
    # Removed by a snapshot; an expiry of the snapshots before has deleted some of them.
    removed: set[str] = set()
    added: dict[str, set[int]] = defaultdict(set)
    # Of each manifest the data files that it adds: later snapshots have it, too.
    adds: dict[str, set[str]] = {}
    for snapshot in table.snapshots():
        needed.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            path = manifest.manifest_path
            if path not in adds:
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                adds[path] = {one.data_file.file_path for one in entries if one.status == ManifestEntryStatus.ADDED}
                gone = {one.data_file.file_path for one in entries if one.status == ManifestEntryStatus.DELETED}
                needed |= {path, *(one.data_file.file_path for one in entries)} - gone
                removed |= gone
            for file in adds[path]:
                added[file].add(manifest.added_snapshot_id)
    assert not {path: ids for path, ids in added.items() if len(ids) > 1}, "data files added by two snapshots"
    live = [task.file.file_path for task in table.scan().plan_files()]
    assert len(live) == len(set(live)), "data files that the head holds twice"
    there = set(files_of(table))
    needed, removed = ({urlsplit(path).path for path in some} for some in (needed, removed))
    assert not needed - there, "files that snapshots need, but are gone"
    if not leftovers_of_a_kill:
        assert not there - needed - removed, "files that no snapshot needs"


def assert_totals_are_right(table: Table) -> None:
    """Assert that the head's summary counts what its manifests list."""
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    totals = dict.fromkeys(("data-files", "delete-files", "records", "position-deletes", "files-size"), 0)
    for manifest in head.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            kinds = ("data-files", "records")
            if entry.data_file.content is not DataFileContent.DATA:
                kinds = ("delete-files", "position-deletes")
                assert manifest.content is ManifestContent.DELETES
            totals[kinds[0]] += 1
            totals[kinds[1]] += entry.data_file.record_count
            totals["files-size"] += entry.data_file.file_size_in_bytes
    assert {name: int(head.summary[f"total-{name}"] or 0) for name in totals} == totals


def files_of(table: Table) -> list[str]:
    """Return the data files and manifests in the table's folder, needed or not."""
    root = Path(urlsplit(table.location()).path)
    return [str(path) for path in itertools.chain(root.glob("data/**/*.parquet"), root.glob("metadata/*.avro"))]


def compact(table: Table) -> None:
    """Rewrite all files of a table into one, in one snapshot, as another tool would between two landings."""
    old = [task.file for task in table.scan().plan_files()]
    new = write_data_files(table.metadata, table.io, table.scan().to_arrow(), "compacted")
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as producer:
        # Such a tool takes NULL for a required column of a struct that is NULL, as PyIceberg by itself does not.
        ManifestWriters(producer)
        # Nor does PyIceberg find the manifest of a file to delete by such a value.
        spec_of = producer.spec
        producer.spec = lambda spec_id: with_optional_values(spec_of(spec_id))  # type: ignore[method-assign]
        for file in old:
            producer.delete_data_file(file)
        for file in new:
            producer.append_data_file(file)


@pytest.fixture
def landed(lake: Lake, topic_of: TopicOf, produce: Producing) -> str:
    """Give a topic of two partitions, landed by two runs: offsets 0 to 29 of partition 0, 0 to 9 of partition 1."""
    name = topic_of(events(0, 0, 20), events(1, 0, 10))
    lake.land(name)
    produce(name, 0, events(0, 20, 10))
    lake.land(name)
    return name
