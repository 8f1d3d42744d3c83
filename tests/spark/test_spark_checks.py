"""Batches of Spark that are checked before they show, on a real Spark and a real broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.iceberg import checked as branches
from tests.support import frames, hostile_checks, streams
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.hostile_checks import Peak, number_of
from tests.support.lake import GROUP, TABLE, Lake, assert_landed_once, events
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

BAD = '{"id":-1,"name":"bad","score":0.5}'
NO_BAD = {"sql": "SELECT * FROM landing WHERE id < 0", "unique": "id"}


def failed(run: SparkRun, spark: SparkSession, **settings: int) -> ChecksFailed:
    """Run, and return which checks failed: the driver's lease has them, and that a restart can't help."""
    with pytest.raises(ChecksFailed) as caught:
        run.run(spark, **settings)
    lease = read_lease(str(run.checkpoint))
    assert lease is not None
    assert (lease.terminal, lease.error) == (True, str(caught.value))
    return caught.value


def kept(lake: Lake) -> list[str]:
    """Return the branches whose rows are not published; Delta tables have none."""
    return [one.name for one in branches.kept_branches(lake.table(), GROUP)] if lake.name == TABLE else []


@EACH_FORMAT
def test_a_batch_that_does_not_pass_ends_the_query(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    name = topic(partitions=2)
    produce(name, 0, events(0, 0, 40))
    produce(name, 1, [*events(1, 0, 10), BAD, *events(1, 11, 29)])
    run = SparkRun(lake, name, {"schema": frames.SCHEMA, "checks": NO_BAD})
    error = failed(run, spark, max_offsets_per_trigger=20)
    assert f"{name}[1] offset 10: id=-1" in str(error)
    assert lake.landed(name) == {0: [(0, 10)], 1: [(0, 10)]}
    assert_landed_once(lake, name, {0: 10, 1: 10})
    # Once more: the batch is read anew, and takes the branch's place.
    error = failed(run, spark, max_offsets_per_trigger=20)
    assert kept(lake) == ([error.branch] if lake.name == TABLE else [])
    assert lake.landed(name) == {0: [(0, 10)], 1: [(0, 10)]}
    run.run(spark, checks={"unique": "id"})
    assert lake.landed(name) == {0: [(0, 40)], 1: [(0, 40)]}
    assert lake.offsets() == [(p, o) for p in (0, 1) for o in range(40)]
    assert kept(lake) == []
    lake.assert_whole()


@EACH_FORMAT
def test_hostile_records_and_checks_are_failed_checks_within_bounds_and_the_next_batch_goes_on(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    name = topic(partitions=1)
    produce(name, 0, hostile_checks.RECORDS)
    run = SparkRun(lake, name, {"schema": frames.SCHEMA, "checks": hostile_checks.CHECKS})
    with hostile_checks.watched_checks():
        hostile_checks.assert_all_failed(str(failed(run, spark)))
    assert lake.offsets() == []
    run.run(spark, checks={"not_null": "id"})
    assert lake.offsets() == [(0, offset) for offset in range(len(hostile_checks.RECORDS))]
    lake.assert_whole()


def land_by_program(run: SparkRun, checks: Mapping[str, Any]) -> tuple[str, Peak]:
    """Land in a process of its own, whose memory is that of the driver, its JVM and all workers."""
    log = run.lake.folder / "driver.log"
    before = log.stat().st_size if log.exists() else 0
    with (
        run.start(**({"checks": dict(checks)} if checks else {})) as app,
        hostile_checks.watched(app.pid) as peak,
    ):
        code = app.wait(hostile_checks.MOST_SECONDS)
    lease, said = read_lease(str(run.checkpoint)), log.read_bytes()[before:].decode()
    assert lease is not None
    assert (code, lease.terminal) in ((0, False), (1, True)), said[-3000:]
    # The lease has the beginning of a long error, and the log all of it.
    return said if lease.error else "", peak


@pytest.mark.timeout(1_500)
@EACH_FORMAT
def test_hostile_records_times_hostile_checks_are_failed_checks_and_the_next_batch_goes_on(
    lake: Lake, topic: Topics
) -> None:
    name, produce = topic(partitions=1), hostile_checks.patient_producer(lake.kafka)
    run = SparkRun(lake, name, {"schema": hostile_checks.SCHEMA}, through=hostile_checks.THROUGH)
    hostile_checks.play_product(
        lambda checks: land_by_program(run, checks),
        lambda: produce(name, 0, hostile_checks.records_of_texts()),
        f"{name}[0] [60,120)",
    )
    assert lake.column("s") == hostile_checks.TEXTS * 2
    lake.assert_whole()


def test_what_functions_make_is_checked(lake: Lake, topic: Topics, produce: Producing, spark: SparkSession) -> None:
    name = topic(partitions=1)
    produce(name, 0, streams.clicks(0, range(300)))
    given = {"schema": streams.SCHEMA, "stream_transform": "tests.support.streams:windows"}
    run = SparkRun(lake, name, {**given, "checks": {"row_count": {"max": 0}}})
    # The batch that closes windows has no records.
    told = str(failed(run, spark, max_offsets_per_trigger=75))
    assert "the rows of a batch without records did not pass" in told
    assert "rows, more than 0" in told
    assert lake.scan().num_rows == 0
    assert lake.landed(name) == {0: [(0, 150)]}
    run.run(spark, checks={"not_null": ["k", "n"]})
    assert lake.landed(name) == {0: [(0, 150)]}
    assert {row["start"].second for row in lake.scan().to_pylist()} == {0, 10}
    assert kept(lake) == []
    lake.assert_whole()


def change(op: str, key: int, name: str | None, commit: int, **columns: Any) -> str:
    """Return a change event of PostgreSQL."""
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders", "lsn": commit, "ts_ms": 1}
    row = {"id": key, "name": name, **columns}
    return json.dumps({"before": None, "after": row, "source": source | {"sequence": f'[null,"{commit}"]'}, "op": op})


@EACH_FORMAT
def test_an_event_behind_the_failed_batch_of_a_mirror_mends_it(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    name, keys = topic(partitions=1), [json.dumps({"id": number}) for number in range(6)]
    produce(name, 0, [change("c", number, "good", number + 1) for number in range(4)], keys=keys[:4])
    app = "cdc_to_iceberg" if lake.name == TABLE else "cdc_to_delta"
    run = SparkRun(lake, name, {"key": ["id"], "checks": {"sql": "SELECT * FROM landing WHERE name = 'bad'"}})
    run.settings |= {"app": app, "max_offsets_per_trigger": 2}
    run.run(spark)
    produce(name, 0, [change("c", 4, "bad", 5), change("c", 5, "good", 6)], keys=keys[4:])
    produce(name, 0, [change("u", number, "new", number + 7) for number in range(4)], keys=keys[:4])
    assert f"{name}[0] [4,10)" in str(failed(run, spark))
    assert lake.landed(name) == {0: [(0, 4)]}
    # The row is mended in the database, far behind the batch that Spark's checkpoint repeats.
    produce(name, 0, [change("u", 4, "mended", 11)], keys=keys[4:5])
    run.run(spark)
    assert lake.landed(name) == {0: [(0, 11)]}
    named = {row["id"]: row["name"] for row in lake.scan().to_pylist()}
    assert named == {0: "new", 1: "new", 2: "new", 3: "new", 4: "mended", 5: "good"}
    # The query goes on as before.
    produce(name, 0, [change("u", 5, "newer", 12)], keys=keys[5:])
    run.run(spark)
    assert {row["id"]: row["name"] for row in lake.scan().to_pylist()} == named | {5: "newer"}


@EACH_FORMAT
def test_hostile_rows_and_checks_of_a_mirror_are_failed_checks_within_bounds(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    rows = [json.loads(one) for one in hostile_checks.RECORDS]
    name, keys = topic(partitions=1), [json.dumps({"id": number}) for number in range(len(rows))]
    # The huge number is no key here: the checks that read it pass, or fail for the texts.
    events = [change("c", number, row["name"], number + 1) for number, row in enumerate(rows)]
    produce(name, 0, events, keys=keys)
    checks = [one for one in hostile_checks.CHECKS["sql"] if "id" not in one and "score" not in one]
    app = "cdc_to_iceberg" if lake.name == TABLE else "cdc_to_delta"
    run = SparkRun(lake, name, {"key": ["id"], "checks": {"sql": checks}})
    run.settings |= {"app": app}
    with hostile_checks.watched_checks():
        said = str(failed(run, spark))
    assert [one for one in checks if one.removeprefix("SELECT * FROM landing WHERE ")[:45] not in said] == []
    assert "ends the process that it runs in: killed by signal" in said, said
    run.run(spark, checks={"not_null": "id"})
    assert {row["id"]: row["name"] for row in lake.scan().to_pylist()} == {
        at: row["name"] for at, row in enumerate(rows)
    }


@pytest.mark.timeout(1_500)
@EACH_FORMAT
def test_hostile_records_times_hostile_checks_of_a_mirror_are_failed_checks_and_the_next_batch_goes_on(
    lake: Lake, topic: Topics
) -> None:
    name, produce = topic(partitions=1), hostile_checks.patient_producer(lake.kafka)
    texts, keys = hostile_checks.TEXTS, [json.dumps({"id": number}) for number in range(60)]
    ordered, commits = iter((texts[::-1], texts)), itertools.count(1)

    def produce_each() -> None:
        each = [(key, next(commits), {"s": one, "n": number_of(one)}) for key, one in enumerate(next(ordered))]
        events = [change("c" if commit <= 60 else "u", key, None, commit, **row) for key, commit, row in each]
        produce(name, 0, events, keys=keys)

    run = SparkRun(lake, name, {"key": ["id"]}, through=hostile_checks.THROUGH)
    run.settings |= {"app": "cdc_to_iceberg" if lake.name == TABLE else "cdc_to_delta"}
    hostile_checks.play_product(lambda checks: land_by_program(run, checks), produce_each, f"{name}[0] [60,120)")
    assert {row["id"]: row["s"] for row in lake.scan().to_pylist()} == dict(enumerate(texts))
