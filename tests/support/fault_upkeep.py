"""Maintenance in a sequence of the fault harness: the package's own, with the boundaries of a run around it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyiceberg.table import Table

from airflow_lakestream.iceberg.upkeep.compaction import compact
from airflow_lakestream.iceberg.upkeep.compaction_plan import CompactionRule
from airflow_lakestream.iceberg.upkeep.expiry import ExpiryRule, expire
from airflow_lakestream.iceberg.upkeep.manifest_merge import rewrite_manifests
from airflow_lakestream.iceberg.upkeep.old_rows import remove_old_rows
from airflow_lakestream.iceberg.upkeep.orphans import find_orphans, remove_orphans
from airflow_lakestream.tables.retention import RowRetention
from tests.support.fault_log import EPOCH_MS
from tests.support.fault_oracle import Violation
from tests.support.fault_ports import RunCatalog
from tests.support.fault_run import Asked, Run
from tests.support.lake import assert_files_are_whole

if TYPE_CHECKING:
    from tests.support.fault_world import World

DAY = 86_400.0
MAINTAIN = "maintain"
# Two files are worth a rewrite here.
_BOUNDARIES = ("load", "commit", "commit", "committed", "data file", "manifest", "write")
RULE = CompactionRule(target_bytes=2**29, least_files=2, most_deletes=1)


class Upkeep:
    """Works of maintenance, at random moments of a sequence."""

    def __init__(self, world: World) -> None:
        self._world, self._random = world, world.random
        self.cutoff_ms = 0
        self.tags: dict[str, list[Any]] = {}

    def maintain(self) -> None:
        """Begin a work on the table."""
        if self._world.table() is not None and len(self._world.alive) < 5:
            self.begin(Asked("upkeep", "", {"mode": MAINTAIN, "work": self._random.choice(sorted(self._works))}))

    def begin(self, asked: Asked) -> Run:
        """Begin a work, again or for the first time."""
        world, run = self._world, list[Run]()

        def work() -> None:
            self._works[asked.config["work"]](RunCatalog(world.catalog, run[0]), run[0])

        run.append(Run(len(world.runs), asked, world.fate(_BOUNDARIES), lambda: None, work))
        world.begin(run[0])
        return run[0]

    @property
    def _works(self) -> Mapping[str, Callable[[Any, Run], object]]:
        return {
            "compact": self._compact,
            "manifests": lambda catalog, run: rewrite_manifests(catalog, self._world.name),
            "expire": self._expire,
            "orphans": self._orphans,
            "retention": self._retention,
        }

    def _compact(self, catalog: Any, run: Run) -> None:
        compact(catalog, self._world.name, RULE, is_over=lambda: bool(run.at("write")))

    def _expire(self, catalog: Any, run: Run) -> None:
        expire(catalog, self._world.name, ExpiryRule(0, retain_last=self._random.randint(1, 4)))

    def _orphans(self, catalog: Any, run: Run) -> None:
        """Remove orphans of a day, on a day on which the files of runs that are alive or pending are young."""
        young = {path for one in self._world.runs if not one.is_over or one.pending for path in one.files}
        self._age({urlsplit(path).path for path in young})
        remove_orphans(catalog, self._world.name, DAY)

    def _retention(self, catalog: Any, run: Run) -> None:
        before = EPOCH_MS + self._random.randrange(-100, 700)
        self.cutoff_ms = max(self.cutoff_ms, before)
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=before + 1000)
        rule = RowRetention("_kafka_timestamp", 1.0, exact=self._random.random() < 0.5)
        remove_old_rows(catalog, self._world.name, rule, now=now)

    def _age(self, young: set[str]) -> None:
        for path in self._files():
            if str(path) not in young:
                os.utime(path, (1e9, 1e9))

    def _files(self) -> Iterator[Path]:
        for table in filter(None, (self._world.table(), self._world.rejects())):
            folder = Path(urlsplit(table.location()).path)
            yield from (path for path in folder.rglob("*") if path.is_file())

    def tag(self) -> None:
        """Tag a snapshot, or make a branch of it, and note its rows."""
        table = self._world.table()
        if table is None or not (snapshots := table.snapshots()):
            return
        place, name = self._random.randrange(len(snapshots)), f"kept{len(self.tags)}"
        chosen = snapshots[place].snapshot_id
        manage = table.manage_snapshots()
        is_tag = self._random.random() < 0.7
        (manage.create_tag(chosen, name) if is_tag else manage.create_branch(chosen, name)).commit()
        self.tags[name] = _rows(table, chosen)
        self._world.tell(f"{'tag' if is_tag else 'branch'} {name} of snapshot {place} of {len(snapshots)}")

    def check_tags(self) -> None:
        """Check that the snapshots of tags and branches have the rows that they had."""
        table = self._world.table()
        for name, rows in self.tags.items():
            assert table is not None
            if _rows(table, table.metadata.refs[name].snapshot_id) != rows:
                raise Violation(f"{name} has other rows than when it was made", self._world.story)

    def check_no_orphan_is_left(self) -> None:
        """Remove the orphans when nobody is at work any more: then each file is one that a snapshot needs."""
        self._age(set())
        for table in filter(None, (self._world.table(), self._world.rejects())):
            name = ".".join(table.name())
            try:
                remove_orphans(self._world.catalog, name, DAY)
                assert not find_orphans(self._world.catalog, name, DAY).files, "orphans are left"
                assert_files_are_whole(self._world.catalog.load_table(name))
            except (AssertionError, FileNotFoundError) as e:
                raise Violation(f"after the orphans went from {name}: {e}", self._world.story) from e


def _rows(table: Table, snapshot_id: int) -> list[Any]:
    return sorted(map(repr, table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()))
