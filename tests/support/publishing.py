"""Another engine, played by PyIceberg: it appends to a branch what it reads of a model of Kafka, and we publish it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_lakestream.config.checks import auditor_of
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import Counts, Landing, LandingEngine, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.publishing.branch import BranchSnapshot, EngineJobLine
from airflow_lakestream.core.publishing.publish import PublicationJob, begin, begin_again, publish
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.iceberg.ledger_store import newest_sequence, read_ledger
from airflow_lakestream.iceberg.publishing.sink import PublishingSink
from airflow_lakestream.run.publication import KafkaLogView
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.ddl import parse_schema
from tests.support.fault_log import READABLE, Entry, Kind, ModelReader, ModelSource, PartitionLog, TopicLog
from tests.support.kept_folder import KeptFolder
from tests.support.lake import QUICK_RETRIES
from tests.support.replacing import offsets_of, ranges
from tests.support.shared_client import client_in

TOPIC, TABLE, GROUP, BRANCH = "orders", "lake.orders", "g", "engine"
ORDERS = TopicIdentity(TOPIC, "id-1", "cluster")
COMMIT = "engine.commit"
Position = tuple[int, int]


@dataclass
class SaidPositions:
    """`Positions` of the played engine: what it wrote down with each commit, as far as that is kept."""

    said: dict[str, dict[int, int]] = field(default_factory=dict)
    final: dict[int, int] | None = None
    line: EngineJobLine | None = None
    commits: set[str] = field(default_factory=set)
    has_line: bool = True

    def is_own(self, summary: Mapping[str, str]) -> bool:
        return COMMIT in summary

    def is_of_line(self, summary: Mapping[str, str]) -> bool:
        return summary.get(COMMIT) in self.commits

    def at(self, snapshot: BranchSnapshot) -> Mapping[int, int] | None:
        return self.said.get(snapshot.summary[COMMIT])

    def beyond(self) -> Mapping[int, int] | None:
        return self.final


class World:
    """A topic, a table with a branch, and an engine that reads the one into the other."""

    def __init__(self, folder: Path, partitions: int = 2, **design: Any) -> None:
        self.folder = folder
        self.log = TopicLog(TOPIC, ORDERS, [PartitionLog() for _ in range(partitions)])
        self.positions = SaidPositions()
        self.at: dict[int, int] = {}
        self._design = {"schema": parse_schema("n bigint"), "properties": QUICK_RETRIES, **design}

    def catalog(self) -> SqlCatalog:
        return client_in(self.folder)

    def table(self) -> Table:
        return self.catalog().load_table(TABLE)

    def job(self, catalog: Any = None, checks: Mapping[str, Any] | None = None, **job: Any) -> PublicationJob:
        """Return a publication of its own, such as another task would have.

        :param checks: what has to hold of the rows before they show.
        """
        auditor = auditor_of({"checks": checks})
        wanted = {**self._design, "schema": job.pop("schema", self._design["schema"])}
        design = TableDesign(metadata_schema(("topic", "partition", "offset")), **wanted)
        given: dict[str, Any] = {
            "run_id": uuid.uuid4().hex,
            "table": TABLE,
            "consumer_group": GROUP,
            "branch": BRANCH,
            "engine": LandingEngine.FLINK,
            "source": ModelSource(self.log),
            "log": KafkaLogView(ModelReader(self.log, 7)),
            "sink": PublishingSink(catalog or self.catalog(), TABLE, job.pop("group", GROUP), design, auditor),
            "positions": self.positions,
        }
        return PublicationJob(**(given | job))

    def begin(self, **job: Any) -> dict[int, int]:
        """Let the engine start without a state of its own."""
        is_new = not self.has_branch()
        self.at = begin(self.job(**job))
        if is_new:
            self._begin_line(self.at)
        return dict(self.at)

    def begin_again(self, **job: Any) -> dict[int, int]:
        """Let the engine start again, without what it had in its state."""
        self.at = begin_again(self.job(**job), self._begin_line)
        return dict(self.at)

    def has_branch(self) -> bool:
        return self.catalog().table_exists(TABLE) and BRANCH in self.table().refs()

    def _begin_line(self, starts: Mapping[int, int]) -> None:
        if self.positions.has_line:
            self.positions.line = EngineJobLine(newest_sequence(self.table().metadata), dict(starts))
            self.positions.commits.clear()

    def note_passed(self) -> None:
        """Note what the engine has behind it, as a driver does that looks on."""
        lows = {p: log.low for p, log in enumerate(self.log.partitions)}
        seen = union(RangeSet.of(TOPIC, p, lows[p], end) for p, end in self.at.items() if lows[p] < end)
        if (line := self.positions.line) is not None:
            self.positions.line = replace(line, passed=line.passed | seen)

    def restore(self, at: Mapping[int, int]) -> None:
        """Let the engine go on from an older checkpoint: what is behind that is read once more."""
        self.at = dict(at)
        if (line := self.positions.line) is not None:
            there = union(RangeSet.of(TOPIC, p, 0, end) for p, end in at.items())
            self.positions.line = replace(line, passed=line.passed & there)

    def publish(self, **job: Any) -> LandingReport:
        return publish(self.job(**job))

    def produce(self, partition: int, *kinds: Kind) -> None:
        """Write an entry of each kind."""
        entries = self.log.partitions[partition].entries
        for kind in kinds:
            number = partition * 1_000_000 + len(entries) if kind in READABLE - {Kind.TOMBSTONE} else None
            entries.append(Entry(kind, 1_700_000_000_000, number))

    def records(self, partition: int, count: int) -> None:
        self.produce(partition, *[Kind.DATA] * count)

    def read(self, upto: Mapping[int, int] | None = None) -> list[Position]:
        """Return what the engine reads next, up to these offsets or the log's end, and move it on.

        What the log has lost it passes over without a word, as consumers do that begin at the earliest record then.
        """
        ends = {p: log.end for p, log in enumerate(self.log.partitions)} if upto is None else upto
        found = []
        for p, end in ends.items():
            entries, first = self.log.partitions[p].entries, max(self.at.get(p, 0), self.log.partitions[p].low)
            found += [(p, o) for o in range(first, end) if entries[o].kind is Kind.DATA]
            self.at[p] = max(end, self.at.get(p, 0))
        return found

    def write(self, rows: Iterable[Position], *, branch: str = BRANCH, **columns: Any) -> int:
        """Commit rows to the branch with the engine's position, and return the snapshot's id."""
        commit = uuid.uuid4().hex
        self.positions.said[commit] = dict(self.at)
        if branch == BRANCH:
            self.positions.commits.add(commit)
        table = self.table()
        table.append(rows_of(rows, **columns), branch=branch, snapshot_properties={COMMIT: commit})
        return table.refs()[branch].snapshot_id

    def step(self, **write: Any) -> int:
        """Let the engine read all there is, and commit it."""
        return self.write(self.read(), **write)

    def land_by_hand(self, *what: tuple[int, int, int], group: str = GROUP) -> None:
        """Land a few records as the extract does."""
        sink = self.job(group=group).sink
        sink.load("hand")
        rows = offsets_of(ranges(*what))
        sink.write(rows_of(rows), ORDERS)
        entry = TopicEntry(landed=ranges(*what), counts=Counts(len(rows), len(rows)))
        sink.commit(Landing(f"hand-{what}", "hand", {ORDERS: entry}))

    def entry(self, group: str = GROUP) -> TopicEntry:
        return read_ledger(self.table(), group).entry(ORDERS)

    def rows(self, branch: str = "main") -> list[Position]:
        """Return the positions of a branch's rows, sorted; one that is there twice is there twice."""
        table = self.table()
        found = table.scan(snapshot_id=table.refs()[branch].snapshot_id).to_arrow()
        return sorted(zip(found["_kafka_partition"].to_pylist(), found["_kafka_offset"].to_pylist(), strict=True))

    def expected(self) -> list[Position]:
        """Return the positions of all records with a value, from where the group begins."""
        origin = self.entry().origin
        return [
            (p, o)
            for p, log in enumerate(self.log.partitions)
            for o, entry in enumerate(log.entries)
            if entry.kind is Kind.DATA and o >= origin.get(p, 0)
        ]

    def heads(self) -> int | None:
        head = self.table().current_snapshot()
        return None if head is None else head.snapshot_id

    def assert_main_has_it_all(self) -> None:
        """Assert that main has each record once, and that the ledger reaches the log's ends without a hole."""
        rows, entry = self.rows(), self.entry()
        assert rows == self.expected()
        assert entry.counts.written == len(rows)
        for p, log in enumerate(self.log.partitions):
            assert entry.held.first_missing(TOPIC, p, entry.origin.get(p, 0)) == log.end


class BegunWorld:
    """A world whose engine has begun: each test has it again as it was then."""

    def __init__(self, folder: Path) -> None:
        self._world = World(folder / "world")
        self._world.folder.mkdir()
        self._world.begin()
        self._kept = KeptFolder(self._world.folder, folder / "kept")

    def again(self, *records: int) -> World:
        """Return the world as it was when its engine had begun, and so many new records of each partition."""
        self._kept.restore()
        made = deepcopy(self._world)
        for partition, count in enumerate(records):
            made.records(partition, count)
        return made


def rows_of(positions: Iterable[Position], topic: str = TOPIC, **columns: Any) -> pa.Table:
    keys = list(positions)
    return pa.table(
        {
            "n": pa.array([p * 1_000_000 + o for p, o in keys], pa.int64()),
            "_kafka_topic": pa.array([topic] * len(keys), pa.string()),
            "_kafka_partition": pa.array([p for p, _ in keys], pa.int32()),
            "_kafka_offset": pa.array([o for _, o in keys], pa.int64()),
            **{k: v if isinstance(v, pa.Array) else pa.array([v] * len(keys)) for k, v in columns.items()},
        }
    )
