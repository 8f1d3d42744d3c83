"""A batch on Spark that would reject most of what it read: the stream ends with the reason, and for good."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_lakestream.core.bad_records import TooManyRejected
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import DriverOutcome
from airflow_lakestream.driver.supervisor import (
    BackendState,
    SupervisionHistory,
    SupervisionLimits,
    SupervisorAction,
    decide,
    sight_of,
)
from airflow_lakestream.spark.stream import kafka_to_iceberg
from airflow_lakestream.tables.rejects.settlement import rejects_of
from dev.services.registry import Registry
from tests.support.broker import Producing
from tests.support.cdc import change, mirror_config
from tests.support.delta_lake import DELTA, DeltaLake
from tests.support.lake import TABLE, Lake
from tests.support.lake_reading import at, numbers, one_partition
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

SCHEMA = "n bigint not null"
BAD = ["no JSON"]


name = one_partition


def assert_the_supervisor_gives_up(checkpoint: Path, cause: str) -> None:
    lease = read_lease(str(checkpoint))
    assert lease is not None
    assert (lease.outcome, lease.terminal) == (DriverOutcome.FAILED, True)
    assert cause in lease.error
    now = time.time()
    seen = sight_of(lease, lease.generation, BackendState.FAILED, 0, now)
    decision = decide(SupervisionHistory(submitted_at=now), SupervisionLimits(), seen, now)
    assert (decision.action, decision.terminal) == (SupervisorAction.GIVE_UP, True)


def files_of(lake: Lake) -> set[str]:
    """Return the files that hold rows or records."""
    return {path for path in lake.files() if path.endswith((".parquet", ".arrows"))}


@pytest.mark.parametrize("on_error", ["reject", "skip"])
def test_a_stream_lands_good_batches_and_ends_before_a_bad_one(
    lake: Lake, name: str, produce: Producing, spark: SparkSession, on_error: str
) -> None:
    produce(name, 0, [*numbers(30), *(BAD * 5), *numbers(15), *(BAD * 50)])
    run = SparkRun(lake, name, {"schema": SCHEMA, "on_error": on_error})
    with pytest.raises(TooManyRejected, match=r"50 of 50 records of this run .* at stage decode: .*not valid JSON"):
        run.run(spark, max_offsets_per_trigger=50)
    # Of each batch it is counted anew; the one before stays.
    assert lake.offsets() == at(0, [*range(30), *range(35, 50)])
    assert lake.entry(name).landed.width == 50
    assert len(files_of(lake)) == (2 if on_error == "reject" else 1)
    assert_the_supervisor_gives_up(run.checkpoint, 'do not begin as a JSON object does, and format="json" was given')

    # The next query over the same checkpoint does the batch again; here the records are expected.
    run.run(spark, max_rejected=1.0)
    counts = Counts(read=100, written=45, rejected=55)
    assert lake.entry(name).counts == (counts if on_error == "reject" else Counts(100, 45, skipped=55))


def test_a_new_table_is_not_made_by_a_batch_of_another_format(
    lake: Lake, name: str, produce: Producing, registry: Registry, spark: SparkSession
) -> None:
    produce(name, 0, numbers(40))
    run = SparkRun(lake, name, {"schema": SCHEMA, "format": "avro", "schema_registry": registry.url})
    with pytest.raises(TooManyRejected, match="the values look like JSON"):
        run.run(spark)
    assert lake.has_nothing()
    assert_the_supervisor_gives_up(run.checkpoint, "the values look like JSON")
    with pytest.raises(TooManyRejected, match="40 of 40 records"):
        run.run(spark, mode="ranges", ranges=[[0, 0, 40]])
    assert lake.has_nothing()
    # A replace by executors is held to the same.
    lake.land(name, schema=SCHEMA)
    before = lake.snapshots(), files_of(lake)
    with pytest.raises(TooManyRejected, match="20 of 20 records"):
        run.run(spark, mode="ranges", ranges=[[0, 0, 20]], replace=True)
    assert (lake.snapshots(), files_of(lake)) == before
    assert rejects_of(TABLE) not in {".".join(one) for one in lake.catalog().list_tables("lake")}


@DELTA
def test_a_delta_table(lake: DeltaLake, name: str, produce: Producing, spark: SparkSession) -> None:
    run = partial(SparkRun(lake, name, {"schema": SCHEMA}).run, spark)
    produce(name, 0, BAD * 20)
    with pytest.raises(TooManyRejected, match="20 of 20 records"):
        run()
    # Executors have made a folder for what they hand over.
    assert [path for path in lake.folder.glob("events*/**/*") if path.is_file()] == []
    assert_the_supervisor_gives_up(lake.folder / "checkpoint", "do not begin as a JSON object does")
    run(max_rejected="100%")
    assert len(lake.rejected("_kafka_offset")) == 20
    assert DeltaTable(lake.place).version() == 0


def test_a_mirror(lake: Lake, name: str, produce: Producing, spark: SparkSession, tmp_path: Path) -> None:
    produce(name, 0, [*numbers(20), change("c", {"id": 1}, 1)])
    settings = {"key": ["id"], "on_error": "skip"}
    with pytest.raises(TooManyRejected, match=r"20 of 21 records .* not change events of Debezium"):
        kafka_to_iceberg(mirror_config(lake, name, tmp_path, **settings), spark)
    assert lake.has_nothing()
    assert_the_supervisor_gives_up(tmp_path / "checkpoint", "not change events of Debezium")
    kafka_to_iceberg(mirror_config(lake, name, tmp_path, max_rejected=1.0, **settings), spark)
    assert lake.table("lake.orders").scan().to_arrow()["id"].to_pylist() == [1]
