"""Random histories of a table: landings, deletes, evolution and upkeep; the rows and the ledger are always right."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.core.landing.algorithm import land as run_landing
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.policies import MaintainMode
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.replace.takeout import live_files
from airflow_lakestream.iceberg.upkeep.compaction import CompactionReport, compact
from airflow_lakestream.iceberg.upkeep.expiry import ExpiryRule, expire
from airflow_lakestream.iceberg.upkeep.manifest_merge import rewrite_manifests
from airflow_lakestream.iceberg.upkeep.orphans import find_orphans, remove_orphans
from airflow_lakestream.iceberg.write.deletes import deleted_positions
from airflow_lakestream.run.maintenance import after_landing
from airflow_lakestream.run.maintenance.after_landing import LandingUpkeep
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.given_records import GROUP, GivenLake, Record
from tests.support.partitioning import assert_partitions_are_right, partition_by
from tests.unit.maintenance.test_compaction import RULE, land
from tests.unit.maintenance.test_removal import assert_whole

STEPS = int(os.environ.get("LAKESTREAM_STEPS", "25"))
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else [1, 2]


class CompactingLake(GivenLake):
    """Lake whose landings compact what they can."""

    def land(self, records: Sequence[Record | bytes | None], **config: Any) -> LandingReport:
        job = self.job(records, **config)
        report = run_landing(job)
        LandingUpkeep(self.catalog(), MaintainMode.AUTO, job.stop).run(job, report)
        return report


@pytest.fixture(autouse=True)
def compacting_landings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Let landings compact after a few files, and never fail at it."""
    monkeypatch.setattr(after_landing, "LEAST_FILES", 5)
    monkeypatch.setattr(after_landing, "FURTHER_FILES", 1)
    yield
    assert "compaction after the landing failed" not in caplog.text


class TableHistory:
    """One table, and beside it the rows that it should have: by `n`, which no two rows share."""

    def __init__(self, lake: GivenLake, seed: int, *, deletes: bool) -> None:
        self.lake, self.rng, self.deletes = lake, random.Random(seed), deletes
        self.rows: dict[int, dict[str, Any]] = {0: {"name": "a", "extra": None}}
        self.next = 1
        self.name = "name"
        self.extra = self.renamed = False
        self.tags = dict[str, dict[int, dict[str, Any]]]()
        land(lake, [{"n": 0, "name": "a"}], schema="n bigint, name string")

    @property
    def table(self) -> Table:
        return self.lake.iceberg()

    def step(self) -> None:
        works: list[Callable[[], object]] = [self.land] * 6 + [self.compact] * 4 + [self.expire, self.orphans]
        works += [self.evolve, self.partition, self.sort, self.tag, lambda: rewrite_manifests(*self.place)]
        works += [self.delete_positions] * 3 + [self.delete_equal] * 2 if self.deletes else []
        self.rng.choice(works)()

    @property
    def place(self) -> tuple[Any, str]:
        return self.lake.catalog(), self.lake.name

    def land(self) -> None:
        new = []
        for _ in range(self.rng.randint(1, 4)):
            row = {"n": self.next, self.name: self.rng.choice(["a", "b", None])}
            new.append(row | ({"extra": self.next} if self.extra else {}))
            self.next += 1
        land(self.lake, new)
        self.rows |= {row["n"]: {"name": row[self.name], "extra": row.get("extra")} for row in new}

    def compact(self, between: Callable[[], object] = lambda: None) -> CompactionReport:
        rule = replace(RULE, part_bytes=self.rng.choice([1, 2**30]), most_deletes=self.rng.choice([1, 3]))
        meanwhile = [self.land] if self.rng.random() < 0.4 else []
        if self.deletes and self.rng.random() < 0.3:
            meanwhile.append(self.rng.choice([self.delete_positions, self.delete_equal]))
        left = [meanwhile]

        def is_over() -> bool:
            for act in left.pop() if left else ():
                act()
            return self.rng.random() < 0.05

        return compact(*self.place, rule, is_over=is_over)

    def expire(self) -> None:
        expire(*self.place, ExpiryRule(0, retain_last=self.rng.randint(1, 4)))

    def orphans(self) -> None:
        """Remove orphans of a day, after a day: nobody else is at work."""
        folder = Path(urlsplit(self.table.location()).path)
        (folder / "data" / "lost.parquet").write_bytes(b"lost")
        for path in folder.rglob("*"):
            os.utime(path, (1e9, 1e9))
        remove_orphans(*self.place, 86_400)
        assert find_orphans(*self.place, 86_400).files == ()
        assert_whole(self.table)

    def evolve(self) -> None:
        with self.table.update_schema() as schema:
            if not self.extra:
                schema.add_column("extra", LongType())
                self.extra = True
            else:
                new = "called" if self.name == "name" else "name"
                schema.rename_column(self.name, new)
                self.name, self.renamed = new, True

    def partition(self) -> None:
        # Later the columns, by whose order the fields are numbered, are others.
        if not self.extra and len(self.table.specs()) < 4:
            terms = [(self.name, IdentityTransform()), ("n", BucketTransform(4))]
            partition_by(self.table, *self.rng.sample(terms, 1))

    def sort(self) -> None:
        with self.table.update_sort_order() as order:
            order.desc("n", IdentityTransform())

    def tag(self) -> None:
        head = self.table.current_snapshot()
        if head is not None and not self.has_equality_deletes():
            name = f"t{len(self.tags)}"
            self.table.manage_snapshots().create_tag(head.snapshot_id, name).commit()
            self.tags[name] = dict(self.rows)

    def has_equality_deletes(self) -> bool:
        head, io = self.table.current_snapshot(), self.table.io
        manifests = [] if head is None else head.manifests(io)
        entries = (entry for one in manifests for entry in one.fetch_manifest_entry(io))
        return any(entry.data_file.content is DataFileContent.EQUALITY_DELETES for entry in entries)

    def delete_positions(self) -> None:
        if self.has_equality_deletes() or not self.rows:
            return
        table = self.table
        task = self.rng.choice(live_files(table))
        gone = set(deleted_positions(table.io, task).tolist())
        left = [at for at in range(task.file.record_count) if at not in gone]
        if not left:
            return
        at = self.rng.choice(left)
        numbers = _numbers(Path(urlsplit(task.file.file_path).path))
        delete_positions(table, task.file.file_path, [at], task.file)
        del self.rows[numbers[at]]

    def delete_equal(self) -> None:
        """Delete by the first spec, which has no partitions: for files of all specs."""
        chosen = self.rng.sample(sorted(self.rows), min(2, len(self.rows)))
        delete_equal(self.table, "n", [*chosen, None], 0)
        for n in chosen:
            del self.rows[n]

    def check(self) -> None:
        ledger = ledger_store.read_ledger(self.table, GROUP)
        assert sum(entry.landed.width for entry in ledger.topics.values()) == self.next
        if not self.has_equality_deletes():
            assert self.found(self.table.scan().to_arrow().to_pylist()) == self.rows
            # That test helper knows no renamed columns.
            if not self.renamed:
                assert_partitions_are_right(self.table)
        for tag, rows in self.tags.items():
            reference = self.table.metadata.refs[tag]
            assert self.found(self.table.scan(snapshot_id=reference.snapshot_id).to_arrow().to_pylist()) == rows

    def found(self, rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        found = {row["n"]: {"name": row.get("name", row.get("called")), "extra": row.get("extra")} for row in rows}
        assert len(found) == len(rows), "a row is there twice"
        return found


def _numbers(path: Path) -> list[int]:
    numbers: list[int] = pq.ParquetFile(path).read(["n"])["n"].to_pylist()
    return numbers


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_and_ledger_are_right_after_each_step(tmp_path: Path, seed: int) -> None:
    history = TableHistory(CompactingLake(tmp_path), seed, deletes=True)
    for _ in range(STEPS):
        history.step()
        history.check()
    while (done := history.compact()).files or done.lost:
        history.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_audit_is_clean_after_each_step_without_deletes(tmp_path: Path, seed: int) -> None:
    history = TableHistory(CompactingLake(tmp_path), 1000 + seed, deletes=False)
    for _ in range(STEPS):
        history.step()
        history.check()
        assert (
            Audit(table=history.lake.name, consumer_group=GROUP).run(history.lake.catalog()).verdict
            is AuditVerdict.CLEAN
        )
    history.orphans()
    by_duckdb = {row["n"] for row in history.lake.by_duckdb()}
    assert by_duckdb == set(history.rows)
