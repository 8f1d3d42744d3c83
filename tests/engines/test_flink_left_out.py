"""A real Flink whose records leave Kafka, whose branch loses rows, and whose table gets another column meanwhile."""

from __future__ import annotations

from contextlib import suppress

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg.types import StringType

from airflow_lakestream.core.ranges import RangeSet
from tests.support.broker import Producing, poll_until
from tests.support.flink import COLUMNS, PATIENCE, FlinkLanding
from tests.support.lake import events

pytestmark = pytest.mark.integration

ODD = "SELECT * FROM source WHERE MOD(id, 2) = 1"


def kept_by_odd(*ends: range) -> list[int]:
    return [n for part in ends for n in part if n % 2]


def test_what_retention_took_before_the_job_read_it_was_not_left_out(
    landing: FlinkLanding, produce: Producing, admin: AdminClient
) -> None:
    landing.config = {"sql": ODD, "schema": COLUMNS}
    produce(landing.topic, 0, events(0, 0, 100))
    landing.start()
    landing.await_landed({0: 100})
    landing.kill_driver()
    landing.jobs.cancel(landing.await_running())
    produce(landing.topic, 0, events(0, 100, 100))
    where = TopicPartition(landing.topic, 0, 150)
    admin.delete_records([where])[where].result(30)
    # Flink begins at the earliest record that there is, and says nothing.
    assert landing.start().wait(PATIENCE) == 1, landing.log
    assert landing.lease is not None
    assert landing.lease.terminal
    assert f"{landing.topic}[0] [100,150) are no longer in Kafka" in landing.lease.error
    assert 'on_data_loss="record"' in landing.lease.error
    landing.config["on_data_loss"] = "record"
    landing.start()
    landing.until(lambda: (0, 199) in landing.lake.offsets(), "what is left to be landed")
    landing.stop()
    entry = landing.lake.entry(landing.topic)
    assert entry.lost == RangeSet.of(landing.topic, 0, 100, 150)
    assert (entry.counts.written, entry.counts.filtered) == (75, 75)
    landing.assert_once({0: kept_by_odd(range(100), range(150, 200))})


def test_unpublished_rows_that_left_the_branch_were_not_left_out(landing: FlinkLanding, produce: Producing) -> None:
    landing.config = {"sql": ODD, "schema": COLUMNS}
    produce(landing.topic, 0, events(0, 0, 100))
    landing.start()
    landing.await_landed({0: 100})
    landing.kill_driver()
    branch = landing.configured().on_branch
    before = landing.lake.table().refs()[branch].snapshot_id
    produce(landing.topic, 0, events(0, 100, 50))

    def rows_came() -> bool:
        head = landing.lake.table().snapshot_by_id(landing.lake.table().refs()[branch].snapshot_id)
        return head is not None and head.snapshot_id != before and int(head.summary["added-records"] or 0) > 0

    poll_until(rows_came, "rows in the branch", PATIENCE)
    table = landing.lake.table()
    main = table.current_snapshot()
    assert main is not None
    with table.manage_snapshots() as changed:
        changed.remove_branch(branch)
    with landing.lake.table().manage_snapshots() as changed:
        changed.create_branch(main.snapshot_id, branch)
    produce(landing.topic, 0, events(0, 150, 50))
    assert landing.start().wait(PATIENCE) == 1, landing.log
    assert "BranchCut" in landing.log
    assert landing.lake.landed(landing.topic) == {0: [(0, 100)]}
    # The way out that the error names.
    landing.drop_branch()
    landing.start()
    landing.await_landed({0: 200})
    landing.stop()
    landing.assert_once({0: kept_by_odd(range(200))})
    assert landing.lake.entry(landing.topic).counts.filtered == 100


def test_a_column_dropped_and_added_again_while_the_job_runs_is_filled_by_the_next_job(
    landing: FlinkLanding, produce: Producing
) -> None:
    produce(landing.topic, 0, events(0, 0, 50))
    driver = landing.start()
    landing.await_landed({0: 50})
    with landing.lake.table().update_schema() as change:
        change.delete_column("name")
    with landing.lake.table().update_schema() as change:
        change.add_column("name", StringType())
    produce(landing.topic, 0, events(0, 50, 50))
    assert driver.wait(PATIENCE) == 1, landing.log
    assert "'name' of before" in landing.log
    assert landing.lease is not None
    assert not landing.lease.terminal
    # A busy Flink may not have ended the job yet, and the next driver then says the same of it.
    next_one = landing.start()
    with suppress(AssertionError):
        landing.await_landed({0: 100})
    if next_one.poll() is not None:
        landing.start()
        landing.await_landed({0: 100})
    landing.stop()
    landing.assert_once({0: [*range(100)]})
    rows = landing.lake.table().scan().to_arrow()
    named = {row["_kafka_offset"] for row in rows.to_pylist() if row["name"] is not None}
    assert named == {*range(50, 100)}


def test_what_the_extract_has_landed_for_it_and_main_has_lost_again_is_landed_while_the_driver_runs(
    landing: FlinkLanding, produce: Producing
) -> None:
    sql = "SELECT CAST(json_value(value, '$.id') AS BIGINT) AS id FROM {{ input }} WHERE value NOT LIKE '%9%'"
    landing.config = {"sql": sql, "columns": ""}
    produce(landing.topic, 0, events(0, 0, 40))
    landing.start()
    landing.await_landed({0: 40})
    # Back to the publication, behind which the extract has landed what the statement leaves out.
    *_, published, _ = landing.lake.snapshots()
    landing.lake.roll_back(published)
    assert landing.lake.landed(landing.topic) != {0: [(0, 40)]}
    landing.await_landed({0: 40})
    landing.stop()
    landing.assert_once({0: [n for n in range(40) if "9" not in str(n)]})
