"""cdc_to_delta: a real broker and a real Spark; the app ends anywhere, repeats batches, loses its checkpoint."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.cdc.merge.pool import MergeWork
from airflow_lakestream.core.routing import IsMirror
from airflow_lakestream.spark import readers
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.apps import CDC_TO_DELTA
from airflow_lakestream.spark.readers import ExecutorMergePool
from airflow_lakestream.spark.stream import kafka_to_iceberg
from tests.support.broker import Producing, Topics
from tests.support.cdc import Source
from tests.support.delta_lake import DeltaLake
from tests.support.lake import GROUP

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("lake", ["delta"], indirect=True)]


@pytest.fixture
def done_by_tasks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Let executors work on the smallest files; count what other processes than the driver did, by kind of work."""
    monkeypatch.setattr(readers, "LEAST_BYTES", 1)
    done, do = Counter[str](), ExecutorMergePool.do

    def told(work: MergeWork) -> MergeWork:
        return replace(work, do=lambda item: (os.getpid(), work.do(item)))

    def counted(self: ExecutorMergePool, *works: MergeWork) -> Any:
        answers = do(self, *map(told, works))
        for work, of_work in zip(works, answers, strict=True):
            done[type(work.do).__name__] += sum(process != os.getpid() for process, _ in of_work)
        return [[answer for _, answer in of_work] for of_work in answers]

    monkeypatch.setattr(ExecutorMergePool, "do", counted)
    return done


def test_a_mirror_in_a_delta_table_is_its_source_wherever_the_app_ends(
    lake: DeltaLake, topic: Topics, produce: Producing, spark: SparkSession, done_by_tasks: Counter[str]
) -> None:
    read, source = topic(1), Source()
    checkpoint = lake.folder / "checkpoint"

    def run(**settings: object) -> None:
        landing = {"topic": read, "table": lake.place, "consumer_group": GROUP, "key": ["id"]}
        given = {"app": CDC_TO_DELTA, "kafka": lake.kafka, "landing": landing, "checkpoint_location": str(checkpoint)}
        kafka_to_iceberg(AppConfig.parse({**given, **settings}), spark)

    def assert_same() -> None:
        found = lake.scan().to_pylist()
        assert {row["id"]: row["total"] for row in found} == source.rows
        assert len(found) == len(source.rows)

    produce(read, 0, source.changes(60))
    run(max_offsets_per_trigger=30, max_batches=1)
    run(max_offsets_per_trigger=30)
    assert_same()
    # The driver died after its commit: Spark repeats the batch.
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    for entry in (checkpoint / "commits").glob(f"*{last}*"):
        entry.unlink()
    versions = lake.snapshots()
    run()
    assert lake.snapshots() == versions
    produce(read, 0, source.changes(20))
    checkpoint.rename(lake.folder / "lost")
    run()
    assert_same()
    assert not lake.stray()
    assert min(done_by_tasks[work] for work in ("KeyLookup", "FileRewriteTask")) >= 3
    with pytest.raises(IsMirror, match="can't be landed into"):
        lake.land(read)
