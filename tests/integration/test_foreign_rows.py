"""A first landing onto a table that another tool filled with rows of the same topic doubles none of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.cli.app import run as lakestream
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.plan import LandedByAnotherGroup
from airflow_lakestream.core.landing.unaccounted import RowBounds, RowsUnaccounted
from airflow_lakestream.core.sharing.parallel import plan_shares
from airflow_lakestream.iceberg.replace import takeout
from airflow_lakestream.run.topics import land_run
from dev.services.kafka import Kafka
from tests.integration.test_start_offsets import commit
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.delta_lake import DELTA, EACH_FORMAT, DeltaLake
from tests.support.lake import GROUP, TABLE, Lake, events, rows_of_events
from tests.support.parallel_run import ParallelRun
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

EACH = 50
BOTH = {0: EACH, 1: EACH}
PAYLOAD = [pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("score", pa.float64())]
POSITION = [
    pa.field("_kafka_topic", pa.string()),
    pa.field("_kafka_partition", pa.int32()),
    pa.field("_kafka_offset", pa.int64()),
    pa.field("_kafka_timestamp", pa.timestamp("us", "UTC")),
]
SCHEMA = pa.schema([*PAYLOAD, *POSITION])


def written(topic: str, counts: Mapping[int, int]) -> pa.Table:
    """Return the rows that another tool writes for the first records of each partition."""
    rows = rows_of_events(counts)
    rows = rows.append_column("_kafka_topic", pa.repeat(topic, len(rows)))
    rows = rows.append_column("_kafka_timestamp", pa.nulls(len(rows), pa.timestamp("us", "UTC")))
    return rows.select(SCHEMA.names).cast(SCHEMA)


def fill(lake: Lake, rows: pa.Table, name: str = TABLE) -> None:
    """Write rows as another tool does, into a table of its own making."""
    if isinstance(lake, DeltaLake):
        write_deltalake(lake.place, rows, mode="append")
        return
    catalog = lake.catalog()
    catalog.create_namespace_if_not_exists("lake")
    catalog.create_table_if_not_exists(name, schema=rows.schema).append(rows)


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    """Give a topic with EACH records in each of two partitions."""
    made = topic(partitions=2)
    for partition in BOTH:
        produce(made, partition, events(partition, 0, EACH))
    return made


@pytest.fixture
def group() -> str:
    """Give a group of this test alone: Kafka's groups outlive tests."""
    return f"g-{uuid.uuid4().hex[:12]}"


def refused(act: Callable[[], object]) -> RowsUnaccounted:
    with pytest.raises(RowsUnaccounted) as caught:
        act()
    return caught.value


def in_order(rows: pa.Table) -> list[tuple[int, int]]:
    return sorted(zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True))


# Refused before anything is read


@EACH_FORMAT
def test_rows_of_another_tool_are_not_doubled(lake: Lake, name: str) -> None:
    fill(lake, written(name, BOTH))
    before = lake.snapshots()

    error = refused(lambda: lake.land(name))

    assert error.rows == 2 * EACH
    assert error.boxes == (RowBounds((0, 1), (0, EACH - 1), 2 * EACH),)
    assert f"{name}[0..1] offsets 0 to {EACH - 1} ({2 * EACH} rows)" in str(error)
    assert f"lakestream adopt --table {lake.name} --group {GROUP} --topic {name} --from rows" in str(error)
    assert lake.snapshots() == before


def test_by_every_way_to_land(lake: Lake, name: str, spark: SparkSession) -> None:
    fill(lake, written(name, {0: 10}))
    ways: list[Callable[[], object]] = [
        lambda: ParallelRun(lake, name).land(),
        lambda: plan_shares(lake.job(name), 2),
        lambda: lake.land(name, start_offset="timestamp", start_timestamp=0),
        lambda: lake.land(name, mode="ranges", ranges=[[0, 9, 20]]),
        lambda: lake.land(name, mode="interval", interval_start=0, interval_end=4_000_000_000_000),
        lambda: lake.land(name, mode="ranges", ranges=[[0, 9, 20]], replace=True),
        lambda: SparkRun(lake, name).run(spark, mode="ranges", ranges=[[0, 0, EACH]]),
        lambda: SparkRun(lake, name).run(spark),
    ]
    for way in ways:
        refused(way)
    assert len(lake.snapshots()) == 1


@DELTA
def test_by_spark_into_delta(lake: DeltaLake, name: str, spark: SparkSession) -> None:
    fill(lake, written(name, {0: 10}))
    refused(lambda: SparkRun(lake, name).run(spark, mode="ranges", ranges=[[0, 0, EACH]]))
    assert lake.snapshots() == [0]


def test_a_plan_tells_the_same(
    connections: Connections, tmp_path: Path, kafka: Kafka, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = connections.catalog
    catalog.create_namespace_if_not_exists("lake")
    catalog.create_table(TABLE, schema=SCHEMA).append(written(name, {0: 10}))

    assert lakestream(["plan", "--table", TABLE, "--group", GROUP, "--topic", name]) == 2

    assert "10 rows of" in (told := capsys.readouterr().err)
    assert f"lakestream adopt --table {TABLE} --group {GROUP} --topic {name} --from rows" in told

    # The way out, as it was told.
    adopt = ["adopt", "--table", TABLE, "--group", GROUP, "--topic", name, "--from", "rows", "--watch", "0s"]
    assert lakestream([*adopt, "--yes"]) == 0
    assert lakestream(["plan", "--table", TABLE, "--group", GROUP, "--topic", name]) == 0
    assert f"{name}[0] [10,{EACH})" in capsys.readouterr().out


def test_the_table_that_a_record_chooses(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of(['{"id":0,"kind":"a"}', '{"id":1,"kind":"b"}'])
    rows = pa.table({"id": [1], "kind": ["b"], "_kafka_topic": [name], "_kafka_partition": [0], "_kafka_offset": [1]})
    schema = pa.schema([PAYLOAD[0], pa.field("kind", pa.string()), *POSITION[:3]])
    fill(lake, rows.cast(schema), "lake.b")
    home = f"lake.{name.replace('-', '_')}__{GROUP}__home"
    with lake.table("lake.b").transaction() as changes:
        # By its owner: else no record may reach it, and this one would be rejected.
        changes.set_properties({f"lakestream.fan-out.home.{home}": "let in"})
    columns = ["topic", "partition", "offset"]
    given = {"consumer_group": GROUP, "new_tables": "create", "metadata_columns": columns}
    config = ExtractConfig(topic=name, table="lake.{kind}", schema="id bigint, kind string", **given)

    error = refused(lambda: land_run(config, lake.kafka, lake.catalog(), run_id="r"))

    assert (error.table, error.rows) == ("lake.b", 1)
    assert [name[1] for name in lake.catalog().list_tables("lake")] == ["b"]
    assert lake.table("lake.b").scan().to_arrow().num_rows == 1


# What is not in the way


@EACH_FORMAT
def test_a_group_that_begins_behind_the_other_tools_rows_leaves_them(
    lake: Lake, name: str, admin: AdminClient, group: str, produce: Producing
) -> None:
    fill(lake, written(name, {0: 30, 1: 20}))
    commit(admin, group, name, {0: 30, 1: 20})

    report = lake.land(name, consumer_group=group, start_offset="committed")

    assert report.foreign_rows == report.to_dict()["rows_beside"] == 50
    assert_all_once(lake, name)
    for full in (True, False):
        result = lake.audit(group=group, full=full)
        assert result.verdict is AuditVerdict.CLEAN, result.render()
        assert any("below where the group began" in note for note in result.notes), result.notes
        if full:
            assert any(f"50 rows of {name} are below" in note for note in result.notes)
    # From then on the ledger decides; later runs say nothing of them.
    produce(name, 0, events(0, EACH, 3))
    assert lake.land(name, consumer_group=group, start_offset="committed").foreign_rows == 0


@EACH_FORMAT
def test_an_offset_that_was_committed_below_the_rows_is_refused(
    lake: Lake, name: str, admin: AdminClient, group: str
) -> None:
    fill(lake, written(name, {0: 30, 1: 20}))
    # The tool wrote offset 29, and died before it committed 30.
    commit(admin, group, name, {0: 29, 1: 20})

    error = refused(lambda: lake.land(name, consumer_group=group, start_offset="committed"))

    assert error.boxes == (RowBounds((0, 0), (29, 29), 1),)


@EACH_FORMAT
def test_a_range_beside_the_rows_lands(lake: Lake, name: str) -> None:
    fill(lake, written(name, {0: 30, 1: 20}))
    report = lake.land(name, mode="ranges", ranges=[[0, 30, EACH]])
    assert (report.counts.written, report.foreign_rows) == (20, 50)
    # But what resumes then would come to them.
    assert refused(lambda: lake.land(name)).rows == 50


@EACH_FORMAT
def test_a_group_that_only_has_an_origin_looks_again(lake: Lake, name: str, produce: Producing) -> None:
    lake.land(name, start_offset="latest", schema="id bigint, name string, score double")
    produce(name, 0, events(0, EACH, 5))
    fill(lake, written(name, {0: EACH + 2}))
    error = refused(lambda: lake.land(name, start_offset="latest"))
    assert error.boxes == (RowBounds((0, 0), (EACH, EACH + 1), 2),)


@EACH_FORMAT
def test_what_another_group_landed_is_that_groups(lake: Lake, name: str) -> None:
    lake.land(name)
    with pytest.raises(LandedByAnotherGroup):
        lake.land(name, consumer_group="other")
    report = lake.land(name, consumer_group="other", allow_group_overlap=True)
    assert (report.counts.written, report.foreign_rows) == (2 * EACH, 0)


@EACH_FORMAT
def test_rows_of_other_topics_and_of_none_are_not_in_the_way(lake: Lake, name: str) -> None:
    fill(lake, written("another", BOTH))
    fill(lake, written(name, {0: 3}).set_column(3, POSITION[0], pa.nulls(3, pa.string())))
    assert lake.land(name).counts.written == 2 * EACH


@EACH_FORMAT
def test_a_table_that_keeps_no_positions_can_not_tell(lake: Lake, name: str) -> None:
    fill(lake, written(name, BOTH).select([field.name for field in PAYLOAD]))
    assert lake.land(name, metadata_columns=[]).counts.written == 2 * EACH


def test_deleted_rows_do_not_count(lake: Lake, name: str) -> None:
    fill(lake, written(name, {0: EACH}))
    [task] = lake.table().scan().plan_files()
    delete_positions(lake.table(), task.file.file_path, list(range(10, EACH)))
    assert refused(lambda: lake.land(name)).rows == 10
    report = lake.land(name, mode="ranges", ranges=[[0, 10, EACH]])
    assert (report.counts.written, report.foreign_rows) == (40, 10)


def test_what_equality_deletes_took_counts_as_there(lake: Lake, name: str) -> None:
    fill(lake, written(name, {0: EACH}))
    delete_equal(lake.table(), "_kafka_offset", list(range(EACH)))
    assert refused(lambda: lake.land(name)).rows == EACH


def test_files_that_statistics_judge_are_not_opened(lake: Lake, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = takeout.read_rows

    def watched(metadata: Any, io: Any, task: Any, **more: Any) -> Any:
        opened.append(task.file.file_path)
        return real(metadata, io, task, **more)

    monkeypatch.setattr(takeout, "read_rows", watched)
    fill(lake, written(name, {0: 30}))
    fill(lake, written("t", {0: 30}))
    lake.land(name, mode="ranges", ranges=[[0, 30, 40]])
    assert opened == []


def assert_all_once(lake: Lake, topic: str) -> None:
    rows = lake.rows(topic)
    assert in_order(rows) == [(p, n) for p, count in BOTH.items() for n in range(count)]
