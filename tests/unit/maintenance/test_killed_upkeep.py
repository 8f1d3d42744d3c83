"""Mirrors and Delta tables with upkeep, restored and killed at random: rows, receipts and files are right.

Mirrors are those of a database's table, and tables by key of plain records. Appends to Iceberg tables are played by
`tests/faults`. `LAKESTREAM_HISTORIES=500` plays more, `SEED=7` one again, and with both the seeds from 7 on.
"""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.config.maintenance import MaintenanceSection
from airflow_lakestream.core.landing import job as landing_job
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.core.ports import Conflict
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.delta import committing as delta_committing
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.iceberg.commit import committing
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
from airflow_lakestream.iceberg.upkeep import ledger_edit
from airflow_lakestream.iceberg.upkeep.ledger_edit import EditNotDone
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.run.maintenance.upkeep import IcebergUpkeep, TableUpkeep
from airflow_lakestream.tables.retention import RetentionRefused
from tests.support.fault_ports import RunCatalog
from tests.support.fault_run import (
    POINTS,
    Fate,
    Run,
)
from tests.support.given_records import GROUP, TOPIC
from tests.support.lake import QUICK_RETRIES, assert_files_are_whole
from tests.support.mirror_logs import EventLog, MirrorLog, RecordLog
from tests.support.mirroring import (
    IDENTITY,
    TABLE,
    HandDeltaMirror,
    HandMirror,
)
from tests.support.upkeep_history import AT_ONCE, NEW, OLD, WORKS, DeltaHistory, StoreOfRuns, UpkeepHistory
from tests.unit.maintenance.test_old_rows import OldRowsLake

HISTORIES = int(os.environ.get("LAKESTREAM_HISTORIES", "3"))
STEPS = int(os.environ.get("LAKESTREAM_STEPS", "15"))
FIRST = int(os.environ.get("SEED", "0"))
SEEDS = range(FIRST, FIRST + (1 if "SEED" in os.environ and "LAKESTREAM_HISTORIES" not in os.environ else HISTORIES))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commits be tried again at once."""
    for module in (committing, ledger_edit, delta_committing):
        monkeypatch.setattr(module, "RETRY_PAUSE", 0.0)
    monkeypatch.setattr(landing_job, "GIVE_WAY", 0.0)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> StoreOfRuns:
    return StoreOfRuns(monkeypatch)


class MirrorHistory(UpkeepHistory):
    """Random history of a mirror, with a log of this kind."""

    mirror: HandMirror

    def __init__(self, folder: Path, seed: int, kind: type[MirrorLog[Any]]) -> None:
        super().__init__(folder, seed)
        self.log = kind(self.rng)
        self.lands_all = False

    def produce(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            self.log.produce()
        self.story.append(f"{len(self.log.entries)} records")

    def land_by(self, sink: Any) -> None:
        state = sink.load("run")
        entries = self.log.entries_in(RangeSet(state.ledger.entry(IDENTITY).landed), inside=False)
        if entries:
            # What was one landing before a rollback may be several after it.
            if not self.lands_all and self.rng.random() < 0.4:
                entries = entries[: self.rng.randint(1, len(entries))]
            self.log.land(self.mirror, sink, state.schema, entries)

    def retention(self) -> dict[str, Any]:
        # A mirror refuses it, and the other works go on.
        return {"retention": {"column": "name", "keep": "1d"}} if self.rng.random() < 0.2 else {}

    def check_refusal(self, report: TableUpkeep, works: dict[str, Any]) -> None:
        is_refused = isinstance(report.failure, RetentionRefused)
        assert is_refused == ("retention" in works and not report.table.endswith(SUFFIX)), report

    def landed(self) -> RangeSet:
        ledger = self.mirror.sink().load("look").ledger
        return RangeSet(ledger.entry(IDENTITY).landed)

    def check(self) -> None:
        """Compare the rows with the landed records, also if the memory of deleted rows knows later ones."""
        if landed := self.landed():
            self.log.check(self.mirror, self.log.entries_in(landed, inside=True))
        self.check_files()

    def check_all(self) -> None:
        self.lands_all = True
        self.begin("land", self.land, Fate())
        self.lands_all = False
        assert self.landed() == self.log.ranges
        self.check()

    @abstractmethod
    def check_files(self) -> None:
        """Check that no file is missing that a kept version needs."""


class IcebergMirrorHistory(MirrorHistory):
    """Runs go on in turns; commits may be refused, lost, or applied late."""

    def __init__(self, folder: Path, seed: int, kind: type[MirrorLog[Any]]) -> None:
        super().__init__(folder, seed, kind)
        keep = self.rng.choice(["all", "all", "1000", "2", "4"])
        properties = {**QUICK_RETRIES, "lakestream.snapshots.keep": keep}
        modes = self.rng.sample([*MergeMode], 2)
        self.mirror = HandMirror(folder, modes=modes, **properties)
        self.mirror.design = self.log.design(self.mirror.design)
        self.tags = dict[str, Any]()
        self.manifests = dict[str, set[str]]()

    @property
    def actions(self) -> list[Callable[[], object]]:
        return [*super().actions, self.tag, self.some_run_goes_on, self.some_run_goes_on, self.late_request]

    def fate(self) -> Fate:
        if self.rng.random() < 0.2 or len(self.alive) > 3:
            return Fate()
        point = self.rng.choice(("load", "commit", "commit", "committed", "data file", "manifest"))
        return Fate(point, self.rng.choice([1, 1, 1, 2]), self.rng.choice(POINTS[point]))

    def is_explained(self, run: Run, error: BaseException) -> bool:
        if isinstance(error, CommitOutcomeUnknown | EditNotDone):
            return run.met_commit_fault
        return super().is_explained(run, error) or (isinstance(error, Conflict) and run.beside > 0)

    def land(self, run: Run) -> None:
        mirror = copy.copy(self.mirror)
        mirror.catalog = cast(Any, RunCatalog(self.mirror.catalog, run))
        self.land_by(mirror.sink())

    def tables(self) -> list[Table]:
        names = (TABLE, TABLE + SUFFIX)
        return [self.mirror.catalog.load_table(one) for one in names if self.mirror.catalog.table_exists(one)]

    def upkeep(self, run: Run, works: dict[str, Any]) -> None:
        if "expire" in works:
            works = {**works, "expire": {**works["expire"], "retain_last": self.rng.randint(1, 4)}}
        if "remove_orphans" in works:
            self.age({path for one in self.runs if not one.is_over or one.pending for path in one.files})
        for table in self.tables():
            name = ".".join(table.name())
            section = MaintenanceSection.parse({"tables": [name], **works})
            report = IcebergUpkeep(RunCatalog(self.mirror.catalog, run), section)._maintain(name)
            self.check_refusal(report, works)

    def age(self, young: set[str]) -> None:
        kept = {urlsplit(path).path for path in young}
        for table in self.tables():
            for path in Path(urlsplit(table.location()).path).rglob("*"):
                if path.is_file() and str(path) not in kept:
                    os.utime(path, (1e9, 1e9))

    def some_run_goes_on(self) -> None:
        if self.alive:
            run = self.rng.choice(self.alive)
            run.fate = self.fate()
            self.story.append(f"#{run.number} goes on, {run.fate}")
            self.go_on(run)

    def late_request(self) -> None:
        if waiting := [run for run in self.runs if run.pending is not None]:
            self.apply(self.rng.choice(waiting))

    def apply(self, run: Run) -> None:
        request, run.pending = run.pending, None
        assert request is not None
        try:
            request()
            self.story.append(f"a late request of #{run.number} is applied")
        except CommitFailedException:
            self.story.append(f"a late request of #{run.number} is refused")
        except ValueError as e:
            # Rolled back to its base, whose next sequence number is taken.
            if "sequence number" not in str(e):
                raise

    def roll_back(self) -> None:
        if not (tables := self.tables()) or (head := tables[0].current_snapshot()) is None:
            return
        kept, known = list[int](), {one.snapshot_id: one for one in tables[0].snapshots()}
        at: int | None = head.snapshot_id
        while at is not None and at in known:
            kept.append(at)
            at = known[at].parent_snapshot_id
        chosen = self.rng.choice(kept)
        tables[0].manage_snapshots().rollback_to_snapshot(chosen).commit()
        self.story.append(f"rolled back by {kept.index(chosen)}")
        self.check()

    def tag(self) -> None:
        # The memory of deleted rows may be there before the mirror.
        if (tables := self.tables()) and self.mirror.catalog.table_exists(TABLE) and (some := tables[0].snapshots()):
            name, chosen = f"kept{len(self.tags)}", self.rng.choice(some).snapshot_id
            tables[0].manage_snapshots().create_tag(chosen, name).commit()
            self.tags[name] = _rows(tables[0], chosen)
            self.story.append(f"tag {name}")

    def check_files(self) -> None:
        for table in self.tables():
            for snapshot in table.snapshots():
                needed = {snapshot.manifest_list}
                for manifest in snapshot.manifests(table.io):
                    path = manifest.manifest_path
                    if path not in self.manifests:
                        entries = manifest.fetch_manifest_entry(table.io)
                        self.manifests[path] = {one.data_file.file_path for one in entries}
                    needed |= {path, *self.manifests[path]}
                lost = [path for path in needed if not Path(urlsplit(path).path).exists()]
                assert not lost, f"snapshot {snapshot.snapshot_id} of {table.name()} lacks {lost}"

    def settle(self) -> None:
        for run in self.alive:
            run.fate, run.dead = Fate(), self.rng.random() < 0.3
            self.go_on(run)
        for run in self.runs:
            if run.pending is not None:
                self.apply(run)
        self.check_all()
        works = {**WORKS, "compact": {"options": {"min-input-files": 2, "delete-file-threshold": 1}}}
        self.begin("maintain all", lambda run: self.upkeep(run, works), Fate())
        for table in self.tables():
            assert_files_are_whole(table)
        for name, rows in self.tags.items():
            table = self.tables()[0]
            assert _rows(table, table.metadata.refs[name].snapshot_id) == rows
        self.roll_back()
        self.check_all()


def _rows(table: Table, snapshot_id: int) -> list[str]:
    return sorted(map(repr, table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()))


class DeltaMirrorHistory(DeltaHistory, MirrorHistory):
    def __init__(self, folder: Path, seed: int, kind: type[MirrorLog[Any]], store: StoreOfRuns) -> None:
        MirrorHistory.__init__(self, folder, seed, kind)
        self.store = store
        mirror = HandDeltaMirror(folder, **AT_ONCE)
        self.mirror, self.place = mirror, mirror.place
        mirror.design = self.log.design(mirror.design)

    def land(self, run: Run) -> None:
        self.land_by(self.mirror.sink())

    def check_report(self, report: TableUpkeep, works: dict[str, Any]) -> None:
        self.check_refusal(report, works)

    def settle(self) -> None:
        self.check_all()
        self.begin("maintain all", lambda run: self.upkeep(run, WORKS), Fate())
        self.vacuum()
        self.roll_back()
        self.check_all()


class DeltaRowsHistory(DeltaHistory):
    """Random history of a table of records, from which old rows are removed."""

    def __init__(self, folder: Path, seed: int, store: StoreOfRuns) -> None:
        super().__init__(folder, seed)
        self.store = store
        self.lake = OldRowsLake(folder, "delta")
        self.place = self.lake.name
        self.config: dict[str, Any] = {"table_properties": AT_ONCE}
        if self.rng.random() < 0.5:
            self.config["partition_by"] = ["day"]

    def produce(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            at = datetime.now(UTC) - self.rng.choice([OLD, NEW])
            number = len(self.lake.records)
            self.lake.records.append({"n": number, "at": at.isoformat(), "day": at.date().isoformat()})
        self.story.append(f"{len(self.lake.records)} records")

    def land(self, run: Run) -> None:
        self.lake.add([], **self.config)

    def retention(self) -> dict[str, Any]:
        rule = {"column": "at", "keep": "90 days", "exact": self.rng.random() < 0.5}
        return {"retention": rule} if self.rng.random() < 0.5 else {}

    def is_old(self, offset: int) -> bool:
        return datetime.fromisoformat(self.lake.records[offset]["at"]) < datetime.now(UTC) - OLD / 2

    def check(self) -> None:
        """Check that each landed offset has its row, or the receipt of an old row."""
        if not self.places():
            return
        entry, rows = self.lake.ledger().entry(TOPIC), self.lake.rows()
        offsets = [row["_kafka_offset"] for row in rows]
        assert [row["n"] for row in rows] == offsets == sorted(set(offsets))
        there = RangeSet(OffsetRange(TOPIC.topic, 0, one, one + 1) for one in offsets)
        assert there | entry.forgotten == entry.landed
        assert not there & entry.forgotten
        assert all(self.is_old(at) for one in entry.forgotten for at in range(one.from_offset, one.until_offset))
        assert entry.counts.written == len(rows)
        audit: Any = lake_of(self.place).part("audit")(table=self.place, consumer_group=GROUP)
        assert audit.run(DeltaStorage()).verdict is AuditVerdict.CLEAN
        self.check_files()

    def settle(self) -> None:
        self.begin("land", self.land, Fate())
        assert self.lake.ledger().entry(TOPIC).landed == RangeSet.of(TOPIC.topic, 0, 0, len(self.lake.records))
        works = {**WORKS, "retention": {"column": "at", "keep": "90 days", "exact": True}}
        self.begin("maintain all", lambda run: self.upkeep(run, works), Fate())
        assert [row["n"] for row in self.lake.rows()] == [
            n for n in range(len(self.lake.records)) if not self.is_old(n)
        ]
        self.vacuum()


@pytest.mark.parametrize("kind", [EventLog, RecordLog])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_mirror_in_iceberg_is_right_after_each_step(tmp_path: Path, seed: int, kind: type[MirrorLog[Any]]) -> None:
    IcebergMirrorHistory(tmp_path, seed, kind).play(STEPS)


@pytest.mark.parametrize("kind", [EventLog, RecordLog])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_mirror_in_delta_is_right_after_each_step(
    tmp_path: Path, store: StoreOfRuns, seed: int, kind: type[MirrorLog[Any]]
) -> None:
    DeltaMirrorHistory(tmp_path, seed, kind, store).play(STEPS)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_and_receipts_in_delta_are_right_after_each_step(tmp_path: Path, store: StoreOfRuns, seed: int) -> None:
    DeltaRowsHistory(tmp_path, seed, store).play(STEPS)
