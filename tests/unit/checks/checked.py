"""A table whose landings are checked, and what main, the branch of a failed check and the folder have of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.ledger import TopicEntry
from airflow_lakestream.iceberg import checked as branches
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.run.job import ExtractConfig, build_job
from tests.support.given_records import GROUP, TOPIC, GivenLake, GivenTopic, Record

SCHEMA = "id bigint, name string"
# A record without a name is bad. A check that is no statement takes one process, and no other to parse it.
NO_BAD = {"not_null": "name"}


def record(number: int, name: str | None = "good", at_ms: int | None = None) -> Record:
    """Return a record of now, or of another time."""
    text = "null" if name is None else f'"{name}"'
    at = int(time.time() * 1000) if at_ms is None else at_ms
    return Record(f'{{"id": {number}, "name": {text}}}'.encode(), at_ms=at)


def bad(number: int) -> Record:
    """Return a record that does not pass."""
    return record(number, None)


RECORDS = [record(1), record(2), record(3)]


class CheckedLake(GivenLake):
    """One table in a folder, and what there is of its landings."""

    def ids(self) -> list[int]:
        """Return the ids of main's rows, by offset."""
        return [row["id"] for row in self.rows()]

    def kept(self) -> list[branches.CheckBranch]:
        """Return the branches of failed checks."""
        return list(branches.kept_branches(self.iceberg(), GROUP))

    def entry(self) -> TopicEntry:
        """Return what the ledger has of the topic."""
        return ledger_store.read_ledger(self.iceberg(), GROUP).entry(TOPIC)

    def landed(self) -> int:
        """Return the number of offsets that the ledger has."""
        return self.entry().held.width

    def kept_ids(self) -> list[int]:
        """Return the ids of the only branch's rows, sorted."""
        (branch,) = self.kept()
        found: list[int] = self.iceberg().scan(snapshot_id=branch.snapshot.snapshot_id).to_arrow()["id"].to_pylist()
        return sorted(found)

    def parquet_files(self) -> set[str]:
        """Return the names of all data files in the folder."""
        return {path.name for path in self.folder.rglob("*.parquet")}

    def unreferenced(self) -> set[str]:
        """Return the names of the data files that no snapshot has."""
        known = self.iceberg().inspect.all_data_files()["file_path"].to_pylist()
        return self.parquet_files() - {Path(path).name for path in known}

    def assert_only(self, ids: Sequence[int]) -> None:
        """Assert that main has these rows, and that there is no branch and no other file."""
        assert (self.ids(), self.kept()) == (list(ids), [])
        assert self.parquet_files() == {Path(path).name for path in self.files()}

    def through(self, catalog: Any, records: Sequence[Record], run_id: str = "run", **config: Any) -> LandingJob:
        """Return a checked job whose sink commits through this catalog."""
        arguments = {"topic": TOPIC.topic, "table": self.name, "consumer_group": GROUP, "checks": NO_BAD, **config}
        job = build_job(ExtractConfig(**arguments), {}, catalog, run_id=run_id)
        topic: Any = GivenTopic(records)
        return replace(job, source=topic, reader=topic)
