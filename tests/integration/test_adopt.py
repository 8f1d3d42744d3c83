"""Tables that other tools filled get their ledger, and the next run lands exactly what they lack."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import (
    DoubleType,
    FixedType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
    UUIDType,
)

from airflow_lakestream.adopt.claim import CannotAdopt, GivenRanges, OwnRows, StillRunning, ToolPosition
from airflow_lakestream.adopt.hand_over import GroupTarget, HolesBelow, LedgerHandover
from airflow_lakestream.adopt.run import AdoptionResult, TableAdoption
from airflow_lakestream.adopt.tools import GroupPosition
from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.cli.app import run as lakestream
from airflow_lakestream.core.landing.plan import TopicReplaced
from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.groups import KafkaGroups
from airflow_lakestream.tables.positions import PositionColumns
from dev.services.kafka import Kafka
from tests.integration.test_foreign_rows import EACH, PAYLOAD, fill, written
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import GROUP, Lake, assert_landed_once, events, rows_of_events

pytestmark = pytest.mark.integration

BOTH = {0: EACH, 1: EACH}


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    """Give a topic with EACH records in each of two partitions."""
    made = topic(partitions=2)
    for partition in BOTH:
        produce(made, partition, events(partition, 0, EACH))
    return made


@pytest.fixture
def tool_group() -> str:
    """Give the name of another tool's group."""
    return f"tool-{uuid.uuid4().hex[:12]}"


def work(lake: Lake, topic: str, **more: Any) -> TableAdoption:
    return TableAdoption(table=lake.name, consumer_group=GROUP, topic=topic, kafka=lake.kafka, **{"watch": 0.0, **more})


def adopt(lake: Lake, topic: str, tool: ToolPosition, **more: Any) -> AdoptionResult:
    return work(lake, topic, **more).write(lake.catalog(), tool)


def groups(lake: Lake) -> KafkaGroups:
    return KafkaGroups(lake.kafka, "the broker")


def plain(counts: Mapping[int, int]) -> pa.Table:
    """Return rows that keep no positions."""
    return rows_of_events(counts).select([field.name for field in PAYLOAD])


def ids(lake: Lake) -> list[int]:
    return sorted(lake.scan()["id"].to_pylist())


def all_ids(counts: Mapping[int, int]) -> list[int]:
    return sorted(rows_of_events(counts)["id"].to_pylist())


# By the rows


@EACH_FORMAT
def test_rows_with_positions_are_adopted_and_the_next_run_lands_what_they_lack(lake: Lake, name: str) -> None:
    rows = written(name, {0: 30, 1: EACH})
    # A hole, as a sink leaves it that died.
    fill(lake, rows.filter(pa.compute.invert(pa.compute.is_in(rows["_kafka_offset"], pa.array([7, 8])))))
    before = lake.snapshots()

    look = work(lake, name).look(lake.catalog(), OwnRows())
    assert lake.snapshots() == before
    assert look.snapshot_id is None
    assert look.decision.left.width == 4
    assert "76 rows by partition and offset" in " ".join(look.decision.proved)

    done = adopt(lake, name, OwnRows())
    assert lake.snapshots() == [*before, done.snapshot_id]
    assert lake.audit().verdict is AuditVerdict.CLEAN

    assert lake.land(name).counts.written == 24
    assert_landed_once(lake, name, BOTH)
    for full in (False, True):
        assert lake.audit(full=full).verdict is AuditVerdict.CLEAN


@EACH_FORMAT
def test_positions_in_a_struct_under_other_names(lake: Lake, name: str) -> None:
    rows = written(name, {0: 20})
    meta = pa.StructArray.from_arrays(
        [rows["_kafka_partition"].combine_chunks(), rows["_kafka_offset"].combine_chunks()], ["part", "off"]
    )
    fill(lake, rows.select([field.name for field in PAYLOAD]).append_column("meta", meta))
    columns = PositionColumns.parse("partition=meta.part,offset=meta.off", name)

    done = adopt(lake, name, OwnRows(), columns=columns)

    assert done.decision.entry.landed.width == 20
    # Also before the table has the columns that audits read.
    assert lake.audit().verdict is AuditVerdict.CLEAN
    assert lake.land(name, schema_evolution="add").counts.written == 80
    assert ids(lake) == all_ids(BOTH)
    result = lake.audit()
    assert result.verdict is AuditVerdict.CLEAN
    assert not result.made
    assert not any(one.not_verifiable for one in result.partitions)

    lake.table().delete("id = 3")
    result = lake.audit()
    assert result.verdict is AuditVerdict.DAMAGE
    assert str(result.partitions[0].missing) == f"{name}[0] [3,4)"
    assert not [one.problem for one in result.counts if one.problem]


def test_a_column_that_is_not_there_or_can_not_be_a_position_is_refused(lake: Lake, name: str) -> None:
    fill(lake, plain({0: 20}))
    with pytest.raises(InvalidArgument, match=r"has no column meta\.part"):
        adopt(lake, name, OwnRows(), columns=PositionColumns.parse("partition=meta.part,offset=id", name))
    with pytest.raises(InvalidArgument, match=r"name is of type (large_)?string"):
        adopt(lake, name, OwnRows(), columns=PositionColumns.parse("partition=name,offset=id", name))


def test_rows_without_positions_are_not_adopted_by_themselves(lake: Lake, name: str) -> None:
    fill(lake, plain({0: 20}))
    with pytest.raises(CannotAdopt, match=r"has 20 rows, and no column _kafka_topic.*--columns"):
        adopt(lake, name, OwnRows())


def test_rows_of_a_topic_that_was_created_again_are_refused(
    lake: Lake, name: str, topic: Topics, produce: Producing
) -> None:
    fill(lake, written(name, BOTH))
    topic.delete(name)
    topic(partitions=2, name=name)
    produce(name, 0, events(0, 0, 3))
    with pytest.raises(Exception, match="another topic of the same name"):
        adopt(lake, name, OwnRows())


# By a group


@EACH_FORMAT
def test_a_groups_offsets_where_rows_keep_no_positions(lake: Lake, name: str, tool_group: str) -> None:
    fill(lake, plain({0: 20, 1: 10}))
    groups(lake).set_committed(tool_group, name, {0: 20, 1: 10})

    done = adopt(lake, name, GroupPosition(groups(lake), tool_group))

    assert done.decision.entry.adopted.width == 30
    assert any("30 rows, and no column" in line for line in done.decision.trusted)
    result = lake.audit()
    assert result.verdict is AuditVerdict.CLEAN
    assert f"adopted {name} from group {tool_group}" in " ".join(result.made)

    assert lake.land(name, schema_evolution="add").counts.written == 70
    assert ids(lake) == all_ids(BOTH)
    result = lake.audit()
    assert result.verdict is AuditVerdict.CLEAN
    assert sum(one.not_verifiable.width for one in result.partitions) == 30
    # Statistics of files from before the columns were added say nothing of them.
    assert lake.audit(full=False).verdict is AuditVerdict.COULD_NOT_LOOK


@EACH_FORMAT
def test_a_groups_offsets_are_checked_against_rows_that_keep_positions(lake: Lake, name: str, tool_group: str) -> None:
    fill(lake, written(name, {0: 20, 1: 10}))
    tool = GroupPosition(groups(lake), tool_group)

    groups(lake).set_committed(tool_group, name, {0: 19, 1: 10})
    with pytest.raises(CannotAdopt, match=r"has rows at .*\[0\] \[19,20\), beyond the position.*--from rows"):
        adopt(lake, name, tool)

    # Five records that it has read, and never wrote.
    groups(lake).set_committed(tool_group, name, {0: 25, 1: 10})
    done = adopt(lake, name, tool)
    assert done.decision.left.width == 5
    assert not done.decision.entry.adopted
    lake.land(name)
    assert_landed_once(lake, name, BOTH)


def test_positions_that_can_not_be_this_topics_are_refused(
    lake: Lake, name: str, tool_group: str, topic: Topics
) -> None:
    fill(lake, plain({0: 20}))
    tool = GroupPosition(groups(lake), tool_group)
    with pytest.raises(CannotAdopt, match="has no committed offset on"):
        adopt(lake, name, tool)
    groups(lake).set_committed(tool_group, name, {0: EACH + 1})
    with pytest.raises(CannotAdopt, match=f"at offset {EACH + 1}, ahead of the log, which ends at {EACH}"):
        adopt(lake, name, tool)
    wide = topic(partitions=3)
    groups(lake).set_committed(tool_group, wide, {2: 0})
    with pytest.raises(CannotAdopt, match="has no committed offset on"):
        adopt(lake, name, GroupPosition(groups(lake), "never-seen"))


def test_a_group_that_is_in_use_is_refused(lake: Lake, name: str, tool_group: str) -> None:
    fill(lake, plain({0: 20}))
    settings = {**lake.kafka, "group.id": tool_group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([name])
    try:
        assert consumer.poll(30) is not None
        with pytest.raises(StillRunning, match=f"group {tool_group} is still running: it has 1 members"):
            adopt(lake, name, GroupPosition(groups(lake), tool_group))
    finally:
        consumer.close()


# Ranges


def test_ranges_that_a_person_knows(lake: Lake, name: str) -> None:
    fill(lake, plain({0: 20}))
    with pytest.raises(InvalidArgument, match="is not the topic"):
        adopt(lake, name, GivenRanges(["other[0]:0-20"]))
    adopt(lake, name, GivenRanges([f"{name}[0]:0-20"]))
    lake.land(name, schema_evolution="add")
    assert ids(lake) == all_ids(BOTH)


# Against others


class _Busy(OwnRows):
    """A tool that writes while it is looked at."""

    def __init__(self, lake: Lake, rows: pa.Table) -> None:
        super().__init__()
        object.__setattr__(self, "write", lambda: fill(lake, rows))
        object.__setattr__(self, "reads", [])

    def read(self, topic: str) -> Any:
        self.reads.append(topic)  # type: ignore[attr-defined]
        if len(self.reads) == 2:  # type: ignore[attr-defined]
            self.write()  # type: ignore[attr-defined]
        return super().read(topic)


@EACH_FORMAT
def test_a_table_that_is_written_meanwhile_is_refused(lake: Lake, name: str) -> None:
    fill(lake, written(name, {0: 20}))
    with pytest.raises(StillRunning, match="was changed while it was looked at"):
        adopt(lake, name, _Busy(lake, written(name, {1: 5})))
    assert not lake.entry(name).landed


def test_a_second_tools_rows_are_added_to_a_ledger_that_is_there(lake: Lake, name: str) -> None:
    lake.land(name, mode="ranges", ranges=[[0, 0, 10]])
    rows = written(name, {0: 20})
    fill(lake, rows.filter(pa.compute.greater_equal(rows["_kafka_offset"], 10)).select(lake.columns().names))
    done = adopt(lake, name, OwnRows())
    assert done.decision.entry.landed.width == 10
    assert lake.audit().verdict is AuditVerdict.CLEAN
    with pytest.raises(CannotAdopt, match="nothing to adopt"):
        adopt(lake, name, OwnRows())


def test_adopted_rows_without_positions_are_never_replaced(lake: Lake, name: str) -> None:
    fill(lake, plain({0: 20}))
    adopt(lake, name, GivenRanges([f"{name}[0]:0-20"]))
    lake.land(name, schema_evolution="add")
    before = ids(lake)
    with pytest.raises(CannotReplace, match="adopted from another tool"):
        lake.land(name, mode="ranges", ranges=[[0, 5, 25]], replace=True)
    assert ids(lake) == before


def test_a_table_rolled_back_to_before_is_not_adopted_any_more(lake: Lake, name: str) -> None:
    fill(lake, plain({0: 20}))
    before = lake.snapshots()[-1]
    adopt(lake, name, GivenRanges([f"{name}[0]:0-20"]))
    assert lake.entry(name).adopted.width == 20
    lake.roll_back(before)
    assert not lake.entry(name).landed


# And back


@EACH_FORMAT
def test_a_group_goes_on_where_the_ledger_ends(lake: Lake, name: str, tool_group: str) -> None:
    lake.land(name, mode="ranges", ranges=[[0, 5, 20]])
    hand = LedgerHandover(table=lake.name, consumer_group=GROUP, topic=name, kafka=lake.kafka)
    to = GroupTarget(groups(lake), tool_group)

    with pytest.raises(HolesBelow, match=r"\[0\] \[0,5\)"):
        hand.run(lake.catalog(), to, write=True)
    lake.land(name, mode="ranges", ranges=[[0, 0, 5]])

    said = hand.run(lake.catalog(), to, write=False)
    assert said.offsets == {0: 20, 1: 0}
    assert groups(lake).committed(tool_group, name) == {}
    assert hand.run(lake.catalog(), to, write=True).done
    assert groups(lake).committed(tool_group, name) == {0: 20, 1: 0}

    consumer = Consumer({**lake.kafka, "group.id": tool_group, "auto.offset.reset": "error"})
    consumer.subscribe([name])
    try:
        assert consumer.poll(30) is not None
        with pytest.raises(StillRunning):
            hand.run(lake.catalog(), to, write=True)
    finally:
        consumer.close()


def test_a_ledger_of_another_topic_of_the_name_is_not_handed_over(
    lake: Lake, name: str, topic: Topics, tool_group: str
) -> None:
    lake.land(name)
    topic.delete(name)
    topic(partitions=2, name=name)
    hand = LedgerHandover(table=lake.name, consumer_group=GROUP, topic=name, kafka=lake.kafka)
    with pytest.raises(TopicReplaced):
        hand.run(lake.catalog(), GroupTarget(groups(lake), tool_group), write=True)


# Tables of any making


def test_a_table_with_partitions_required_columns_and_types_of_its_own(lake: Lake, name: str, tool_group: str) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "name", StringType()),
        NestedField(3, "score", DoubleType()),
        NestedField(4, "key", UUIDType()),
        NestedField(5, "tags", MapType(6, StringType(), 7, LongType())),
        NestedField(8, "code", FixedType(4)),
        NestedField(9, "at", TimestamptzType()),
    )
    spec = PartitionSpec(
        PartitionField(9, 1000, DayTransform(), "day"), PartitionField(1, 1001, BucketTransform(4), "b")
    )
    lake.catalog().create_namespace_if_not_exists("lake")
    table = lake.catalog().create_table(lake.name, schema=schema, partition_spec=spec)
    rows = plain({0: 3})
    lacking = {
        "key": pa.nulls(3, pa.uuid()),
        "tags": pa.nulls(3, pa.map_(pa.string(), pa.int64())),
        "code": pa.nulls(3, pa.binary(4)),
        "at": pa.array([0, 1, 2], pa.timestamp("us", "UTC")),
    }
    for column, values in lacking.items():
        rows = rows.append_column(column, values)
    table.append(rows.cast(table.schema().as_arrow()))
    groups(lake).set_committed(tool_group, name, {0: 3})

    adopt(lake, name, GroupPosition(groups(lake), tool_group))

    assert lake.entry(name).adopted.width == 3
    assert lake.audit().verdict is AuditVerdict.CLEAN
    lake.assert_whole()


def test_by_the_command(
    connections: Connections,
    kafka: Kafka,
    name: str,
    tool_group: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    catalog = connections.catalog
    catalog.create_namespace_if_not_exists("lake")
    rows = plain({0: 20}).append_column("p", pa.array([0] * 20, pa.int32())).append_column("o", pa.array(range(20)))
    catalog.create_table("lake.t", schema=rows.schema).append(rows)
    KafkaGroups(kafka.client_config(), "").set_committed(tool_group, name, {0: 20, 1: 0})
    of = ["--table", "lake.t", "--group", GROUP, "--topic", name]

    def said(code: int, *arguments: str) -> str:
        assert lakestream([*arguments]) == code
        out = capsys.readouterr()
        return out.err if code else out.out

    assert "takes no 'x'" in said(2, "adopt", *of, "--from", "rows", "x")
    assert "needs a name" in said(2, "adopt", *of, "--from", "group")
    assert "no column _kafka_topic" in said(2, "adopt", *of, "--from", "rows")
    assert "kafka_connect_default" in said(2, "adopt", *of, "--from", "connect", "sink")
    assert "has no checkpoint" in said(2, "adopt", *of, "--from", "spark-checkpoint", "/nowhere")
    assert "never completed" in said(2, "adopt", *of, "--from", "flink-savepoint", "/nowhere")

    columns = ["--columns", "partition=p,offset=o"]
    look = json.loads(said(0, "adopt", *of, "--from", "group", tool_group, *columns, "--json"))
    assert (look["written"], look["landed"], look["left"]) == (False, [[0, 0, 20]], [])
    assert "nothing is written yet" in said(0, "adopt", *of, "--from", "ranges", f"{name}[0]:0-20", *columns)
    done = said(0, "adopt", *of, "--from", "group", tool_group, *columns, "--yes")
    assert f"{GROUP} has adopted {name} from group {tool_group}" in done
    assert f"adopted from group {tool_group}" in said(0, "ledger", "history", "--table", "lake.t", "--group", GROUP)
    assert "adopted [0,20)" in said(0, "ledger", "show", "--table", "lake.t", "--group", GROUP)

    over = ["hand-over", *of, "--to", "group", f"{tool_group}-2"]
    assert f"is not set yet; with --yes it goes on at {name}[0] 20, {name}[1] 0" in said(0, *over)
    assert json.loads(said(0, *over, "--yes", "--json"))["written"]
    assert KafkaGroups(kafka.client_config(), "").committed(f"{tool_group}-2", name) == {0: 20, 1: 0}
