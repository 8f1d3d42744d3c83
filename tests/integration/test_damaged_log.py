"""A log that was damaged on a broker's disk: no changed byte lands, and what can't be read is given up by a receipt."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.core.landing.plan import DamagedBatch
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument, Terminal
from airflow_lakestream.run.damaged import DamageReceipt, ReceiptWriter
from tests.support.damaged_log import ALL, BROKEN, CHANGES, FIRST_TIME, DamagedTopics, put
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import GROUP, Lake
from tests.support.lake_reading import at
from tests.support.shared_run import SharedRun
from tests.support.spark import by_spark

pytestmark = pytest.mark.integration

SCHEMA = "v bigint, pad string"
REFUSED = ("length of 0", "negative length")
# Nobody says anything of it: each look at an offset waits its whole time.
SILENT = ("length of a record", "unknown format")


def forget(lake: Lake, name: str) -> list[DamageReceipt]:
    return ReceiptWriter(lake.catalog(), lake.name, GROUP, lake.kafka, "the test", poll_timeout=5).forget([name])


@EACH_FORMAT
@pytest.mark.parametrize("change", CHANGES)
def test_no_changed_byte_lands(change: str, lake: Lake, damaged: DamagedTopics) -> None:
    name = damaged(CHANGES[change])
    given: dict[str, Any] = {"schema": SCHEMA, "metadata_columns": ["topic", "partition", "offset", "timestamp", "key"]}
    lake.land(name, mode="ranges", ranges=[[0, 0, 5]], **given)

    with pytest.raises(DamagedBatch, match=r"\[0\] \[20,30\): .*forget --damaged") as caught:
        lake.land(name, **given)

    assert isinstance(caught.value, Terminal)
    assert caught.value.ranges == RangeSet.of(name, 0, 20, 30)
    assert lake.offsets() == at(0, range(5))
    # What is before it lands, and what is behind it.
    lake.land(name, mode="ranges", ranges=[[0, 0, 20], [0, 30, 40]], **given)
    assert lake.offsets() == at(0, [*range(20), *range(30, 40)])
    # The user's choice.
    lake.land(name, kafka={"check.crcs": False}, **given)
    assert lake.offsets() == at(0, range(ALL))


# Reading is the same for each table format; what a receipt is in each, the tests below say.
@pytest.mark.parametrize("broken", BROKEN)
def test_a_damaged_batch_is_given_up_by_a_receipt_and_the_stream_goes_on(
    broken: str, lake: Lake, damaged: DamagedTopics
) -> None:
    damage, end, codec = BROKEN[broken]
    name = damaged(damage, codec)
    given: dict[str, Any] = {"schema": SCHEMA, "poll_timeout": 5}
    with pytest.raises(DamagedBatch) as caught:
        lake.land(name, **given)
    assert caught.value.ranges == RangeSet.of(name, 0, 20, end)
    assert caught.value.is_unreadable_by_broker == (broken in REFUSED)
    assert lake.has_nothing()
    with pytest.raises(InvalidArgument, match=r'does not exist yet.*mode="ranges"'):
        forget(lake, name)
    lake.land(name, mode="ranges", ranges=[[0, 0, 20]], **given)
    if broken in REFUSED:
        lake.land(name, on_data_loss="record", **given)
    else:
        # The policy asks no more than whether it is refused, and another search would wait as long again.
        if broken not in SILENT:
            with pytest.raises(DamagedBatch):
                lake.land(name, on_data_loss="record", **given)
        assert [receipt.ranges for receipt in forget(lake, name)] == [RangeSet.of(name, 0, 20, end)]
        lake.land(name, **given)
    entry = lake.entry(name)
    assert (entry.lost, entry.origin) == (RangeSet.of(name, 0, 20, end), {0: 0})
    assert lake.offsets() == at(0, [*range(20), *range(end, ALL)])
    assert lake.audit().verdict is AuditVerdict.CLEAN
    with pytest.raises(InvalidArgument, match="can be read"):
        forget(lake, name)


# A checksum does not cover its batch's own offset.
@EACH_FORMAT
@pytest.mark.parametrize("to", [1_000_020, 45, 25], ids=["beyond the end", "among others", "overlapping"])
def test_a_batch_at_a_higher_offset_is_given_up_at_its_own(to: int, lake: Lake, damaged: DamagedTopics) -> None:
    name = damaged(put(0, struct.pack(">q", to), sealed=False))
    lake.land(name, schema=SCHEMA, mode="ranges", ranges=[[0, 0, 20]])
    with pytest.raises(DamagedBatch, match="its own offset is wrong") as caught:
        lake.land(name)
    assert caught.value.ranges == RangeSet.of(name, 0, 20, 30)
    assert [receipt.ranges for receipt in forget(lake, name)] == [RangeSet.of(name, 0, 20, 30)]
    lake.land(name)
    assert lake.offsets() == at(0, [*range(20), *range(30, ALL)])
    assert lake.column("v") == [1000 + n for n in (*range(20), *range(30, ALL))]
    assert lake.audit().verdict is AuditVerdict.CLEAN


@EACH_FORMAT
@pytest.mark.parametrize("to", [10, 15, 0, -7])
def test_a_batch_at_a_lower_offset_is_found_where_its_records_come_at_all(
    to: int, lake: Lake, damaged: DamagedTopics
) -> None:
    name = damaged(put(0, struct.pack(">q", to), sealed=False))
    with pytest.raises(DamagedBatch, match="its own offset is wrong") as caught:
        lake.land(name, schema=SCHEMA, mode="ranges", ranges=[[0, 0, 25]])
    assert caught.value.ranges == RangeSet.of(name, 0, 20, 25)
    assert lake.has_nothing()


@EACH_FORMAT
def test_each_of_several_damaged_batches_has_its_receipt(lake: Lake, damaged: DamagedTopics) -> None:
    name = damaged(CHANGES["value"])
    for which in (3, 5):
        damaged.damage(name, put(FIRST_TIME, bytes(8), sealed=False), which)
    lake.land(name, schema=SCHEMA, mode="ranges", ranges=[[0, 0, 1]])
    lost = RangeSet.of(name, 0, 20, 40) | RangeSet.of(name, 0, 50, 60)
    assert [receipt.ranges for receipt in forget(lake, name)] == [lost]
    lake.land(name)
    assert lake.offsets() == at(0, [*range(20), *range(40, 50)])


@EACH_FORMAT
def test_tasks_of_a_group_leave_what_the_broker_refuses_to_the_commit(lake: Lake, damaged: DamagedTopics) -> None:
    name = damaged(BROKEN["length of 0"][0])
    lake.land(name, schema=SCHEMA, mode="ranges", ranges=[[0, 0, 1]])
    shared = SharedRun(lake, name, {"on_data_loss": "record", "poll_timeout": 5})
    plan = shared.plan(most=1)
    shared.commit(plan, shared.read_all(plan))
    assert lake.entry(name).lost == RangeSet.of(name, 0, 20, ALL)
    assert lake.offsets() == at(0, range(20))


@EACH_FORMAT
def test_an_audit_says_which_landed_batch_is_damaged_now(lake: Lake, damaged: DamagedTopics) -> None:
    name = damaged(None)
    lake.land(name, schema=SCHEMA)
    damaged.damage(name, CHANGES["value"])
    found = lake.audit()
    assert found.verdict is not AuditVerdict.DAMAGE, found.render()
    assert f"{name}[0] [20,30): damaged in Kafka" in found.render()


@EACH_FORMAT
def test_spark_says_the_same_and_goes_on_behind_the_receipt(
    lake: Lake, damaged: DamagedTopics, spark: SparkSession
) -> None:
    name = damaged(CHANGES["value"])
    lake.land(name, schema=SCHEMA, mode="ranges", ranges=[[0, 0, 1]])
    run = by_spark(lake, name, {}, spark)
    with pytest.raises(DamagedBatch, match=r"\[0\] \[20,30\)"):
        run()
    forget(lake, name)
    run()
    assert lake.offsets() == at(0, [*range(20), *range(30, ALL)])
