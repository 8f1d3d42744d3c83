"""Random histories of a table with upkeep, whose runs are killed at random; the table is checked after each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote

import obstore
import pytest
from deltalake import DeltaTable
from deltalake.schema import PrimitiveType

from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.config.maintenance import MaintenanceSection
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.run.maintenance import delta as delta_upkeep
from airflow_lakestream.run.maintenance.delta import DeltaUpkeep
from airflow_lakestream.run.maintenance.upkeep import TableUpkeep
from tests.support.delta_table import versions
from tests.support.fault_run import (
    APPLIED_TIMED_OUT,
    FAIL,
    KILL,
    TIMED_OUT,
    Asked,
    Fate,
    InjectedDiskFault,
    InjectedFault,
    Run,
)
from tests.support.fault_turns import Killed
from tests.support.faults import CatalogDown, ReadTimeout

FAULTS = (Killed, InjectedFault, InjectedDiskFault, CatalogDown, ReadTimeout)
# Two files are worth a rewrite here. Files that are to be old are made so.
WORKS: dict[str, Any] = {
    "compact": {"options": {"min-input-files": 2}},
    "rewrite_manifests": True,
    "expire": {"older_than": "0s"},
    "remove_orphans": {"older_than": "2d", "longest_run": "1d"},
}
OLD, NEW = timedelta(days=100), timedelta(days=1)
# A vacuum without an age then leaves the files of the newest version.
AT_ONCE = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}


class StoreOfRuns:
    """Puts and deletions of Delta's own store, with the boundaries of the run that is at work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run: Run | None = None
        self._open = DeltaStorage.open
        self._put, self._delete = obstore.put, obstore.delete
        monkeypatch.setattr(obstore, "put", self.put)
        monkeypatch.setattr(obstore, "delete", self.delete)
        monkeypatch.setattr(DeltaStorage, "open", lambda storage, table: self.open(storage, table))

    def open(self, storage: DeltaStorage, table: str) -> Any:
        if self.run is not None:
            self.run.at("load")
        return self._open(storage, table)

    def put(self, store: Any, path: str, data: Any, **more: Any) -> Any:
        if (run := self.run) is None:
            return self._put(store, path, data, **more)
        is_commit = path.startswith("_delta_log")
        what = run.at("commit" if is_commit else "data file")
        if what == TIMED_OUT:
            raise ReadTimeout
        done = self._put(store, path, data, **more)
        if what == APPLIED_TIMED_OUT:
            raise ReadTimeout
        if is_commit:
            run.at("committed")
        return done

    def delete(self, store: Any, paths: Any) -> Any:
        if self.run is not None and self.run.dead:
            raise Killed
        return self._delete(store, paths)


class UpkeepHistory(ABC):
    """Random history of a table. Every choice results from the seed; `story` has what was done."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, Random(seed)
        self.runs, self.story = list[Run](), [f"SEED={seed}"]

    def play(self, steps: int) -> None:
        """Play the history to its end. The error of a failed one has the story."""
        try:
            self.produce()
            for _ in range(steps):
                self.rng.choice(self.actions)()
            self.settle()
        except Exception as e:  # any error gets the story
            raise AssertionError("\n  ".join([*self.story, repr(e)])) from e
        finally:
            for run in self.alive:
                run.dead = True
                run.go_on()

    @property
    def actions(self) -> list[Callable[[], object]]:
        return [self.produce] * 2 + [self.start] * 4 + [self.maintain] * 4 + [self.roll_back]

    @property
    def alive(self) -> list[Run]:
        return [run for run in self.runs if not run.is_over]

    def start(self) -> None:
        self.begin("land", self.land, self.fate())

    def maintain(self) -> None:
        chosen = self.rng.sample(sorted(WORKS), self.rng.randint(1, len(WORKS)))
        works = {name: WORKS[name] for name in sorted(chosen)} | self.retention()
        self.begin(f"maintain {works}", lambda run: self.upkeep(run, works), self.fate())

    def begin(self, what: str, work: Callable[[Run], object], fate: Fate) -> None:
        """Let a run begin. It may wait, or end in an error that its fate explains."""
        made = list[Run]()
        run = Run(len(self.runs), Asked(what, "", {"mode": what}), fate, lambda: None, lambda: work(made[0]))
        made.append(run)
        for other in self.alive:
            other.beside += 1
            run.beside += 1
        self.runs.append(run)
        self.story.append(f"#{run.number} {what}, {fate}")
        self.go_on(run)

    def go_on(self, run: Run) -> None:
        """Let a run go on to its next pause, or to its end; then check the table."""
        self.turn(run)
        if not run.is_over:
            self.story.append(f"#{run.number} waits")
            return
        self.story.append(f"#{run.number} ended: {run.error!r}")
        if run.error is not None and not self.is_explained(run, run.error):
            raise run.error
        self.check()

    def turn(self, run: Run) -> None:
        run.go_on()

    def is_explained(self, run: Run, error: BaseException) -> bool:
        return isinstance(error, FAULTS)

    @abstractmethod
    def fate(self) -> Fate: ...

    @abstractmethod
    def produce(self) -> None:
        """Produce some further records."""

    @abstractmethod
    def land(self, run: Run) -> None:
        """Land all records that the ledger lacks, in one commit."""

    @abstractmethod
    def retention(self) -> dict[str, Any]:
        """Return the setting of retention, or nothing."""

    @abstractmethod
    def upkeep(self, run: Run, works: dict[str, Any]) -> None:
        """Maintain the tables."""

    @abstractmethod
    def roll_back(self) -> None:
        """Set the table back to a kept version, if there is one."""

    @abstractmethod
    def check(self) -> None:
        """Check rows, ledger, and the files of all kept versions."""

    @abstractmethod
    def settle(self) -> None:
        """Let all runs end, land the rest and remove orphans, and check that nothing is missing or left."""


class DeltaHistory(UpkeepHistory):
    """Runs come one after the other: delta-rs, which rewrites and deletes files, can't be interrupted."""

    store: StoreOfRuns
    place: str
    # The first version that can be restored.
    first = 0

    @property
    def actions(self) -> list[Callable[[], object]]:
        return [*super().actions, self.vacuum]

    def fate(self) -> Fate:
        if self.rng.random() < 0.2:
            return Fate()
        point = self.rng.choice(("load", "data file", "commit", "commit", "committed"))
        whats = {"commit": (KILL, TIMED_OUT, APPLIED_TIMED_OUT), "committed": (KILL,)}.get(point, (KILL, FAIL))
        return Fate(point, self.rng.choice([1, 1, 1, 2]), self.rng.choice(whats))

    def turn(self, run: Run) -> None:
        self.store.run = run
        run.go_on()
        self.store.run = None

    def places(self) -> list[str]:
        return [one for one in (self.place, self.place + SUFFIX) if any(Path(one, "_delta_log").glob("*.json"))]

    def upkeep(self, run: Run, works: dict[str, Any]) -> None:
        for place in self.places():
            before = data_files(place)
            # Of its own numbers: the histories of a seed stay the same.
            if "compact" in works and (dice := Random(run.number)).random() < 0.5:
                kept, fields = DeltaTable(place).metadata().partition_columns, DeltaTable(place).schema().fields
                names = [one.name for one in fields if isinstance(one.type, PrimitiveType) and one.name not in kept]
                works = {**works, "compact": {"zorder_by": [dice.choice(names)]}}
            section = MaintenanceSection.parse({"tables": [place], **works})
            report = DeltaUpkeep(DeltaStorage(), section)._maintain(place)
            self.check_report(report, works)
            # Each file is younger than two days.
            assert data_files(place) >= before

    def check_report(self, report: TableUpkeep, works: dict[str, Any]) -> None:
        assert report.failure is None or isinstance(report.failure, FAULTS), report.failure

    def vacuum(self) -> None:
        """Remove all files that the newest version lacks: nobody is at work."""
        if self.place in self.places():
            table = DeltaTable(self.place)
            self.first = table.version()
            delta_upkeep.vacuum(table, 0.0, dry_run=False)
            assert data_files(self.place) == live_at(self.place)[-1]
            self.story.append("vacuum")
            self.check()

    def roll_back(self) -> None:
        # The newest version can't be restored.
        if self.place in self.places() and (newest := DeltaTable(self.place).version()) > self.first:
            chosen = self.rng.randrange(self.first, newest)
            DeltaTable(self.place).restore(chosen)
            self.story.append(f"version {newest} restored to {chosen}")
            self.check()

    def check_files(self) -> None:
        for place in self.places():
            there = data_files(place)
            kept = live_at(place)[self.first if place == self.place else -1 :]
            assert all(live <= there for live in kept)


def data_files(place: str) -> set[str]:
    return {str(path.relative_to(place)) for path in Path(place).rglob("*.parquet") if "_delta_log" not in path.parts}


def live_at(place: str) -> list[set[str]]:
    """Return the live files of each version."""
    live, found = set[str](), list[set[str]]()
    for actions in versions(place):
        live = live - {unquote(one["remove"]["path"]) for one in actions if "remove" in one}
        live |= {unquote(one["add"]["path"]) for one in actions if "add" in one}
        found.append(live)
    return found
