"""A topic by a real Flink to a branch, and from there to main: each record once, whatever is killed on the way."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.lease_record import DriverOutcome
from airflow_lakestream.flink.rest import FlinkJobState
from airflow_lakestream.run.damaged import ReceiptWriter
from dev.services.kafka import Kafka
from tests.support import hostile_checks
from tests.support.broker import Producing, poll_until
from tests.support.damaged_log import ALL, BROKEN, CHANGES, DamagedTopics
from tests.support.flink import PATIENCE, FlinkLanding
from tests.support.lake import GROUP, events
from tests.support.transactions import Transaction

pytestmark = pytest.mark.integration


def test_a_topic_gets_to_main_and_a_stop_is_gone_on_from(landing: FlinkLanding, produce: Producing) -> None:
    produce(landing.topic, 0, events(0, 0, 3000))
    produce(landing.topic, 1, events(1, 0, 500))
    landing.start()
    landing.await_landed({0: 3000, 1: 500})
    produce(landing.topic, 1, [None, *events(1, 501, 200)])
    landing.await_landed({0: 3000, 1: 701})
    first = landing.await_running()
    landing.stop()
    assert landing.lease is not None
    assert landing.lease.outcome is DriverOutcome.STOPPED
    assert landing.note is not None
    assert landing.note.savepoint
    landing.assert_once({0: [*range(3000)], 1: [*range(500), *range(501, 701)]})
    counts = landing.lake.entry(landing.topic).counts
    assert (counts.read, counts.written, counts.skipped) == (3701, 3700, 1)

    savepoint = landing.note.savepoint
    produce(landing.topic, 0, events(0, 3000, 100))
    landing.start()
    landing.await_landed({0: 3100, 1: 701})
    assert landing.await_running() != first
    assert landing.note.restored == savepoint
    # Also without a record after it: what was read last is a marker, a tombstone, or left out.
    produce(landing.topic, 0, [None])
    landing.stop()
    landing.await_nothing_left({0: 3101, 1: 701})
    landing.assert_once({0: [*range(3100)], 1: [*range(500), *range(501, 701)]})


def test_the_driver_killed_leaves_the_job_which_the_next_one_adopts(landing: FlinkLanding, produce: Producing) -> None:
    produce(landing.topic, 0, events(0, 0, 500))
    driver = landing.start()
    job = landing.await_running()
    landing.await_landed({0: 500})
    driver.kill()
    driver.wait()
    produce(landing.topic, 0, events(0, 500, 500))
    assert landing.lease is not None
    landing.forget_process()
    landing.start()
    landing.await_landed({0: 1000})
    assert landing.await_running() == job
    # A second driver for the stream finds that it has one.
    second = landing.start()
    assert second.wait(60) == 1
    assert "in use by" in landing.log
    landing.drop_newest()
    landing.stop()
    landing.assert_once({0: [*range(1000)]})


def test_a_transactional_topic_has_no_aborted_row(
    landing: FlinkLanding, produce: Producing, kafka: Kafka, admin: object
) -> None:
    transaction = Transaction(kafka, admin)  # type: ignore[arg-type]
    transaction.begin(landing.topic, 0, events(0, 0, 100))
    transaction.commit()
    transaction.begin(landing.topic, 0, events(0, 101, 50))
    transaction.abort()
    transaction.begin(landing.topic, 0, events(0, 152, 100))
    transaction.commit()
    # Flink's offset is behind its last record: the marker at the end follows with a later record.
    produce(landing.topic, 0, events(0, 253, 10))
    landing.start()
    landing.await_landed({0: 263})
    landing.stop()
    landing.assert_once({0: [*range(100), *range(152, 252), *range(253, 263)]})
    assert landing.lake.entry(landing.topic).counts.read == 210


def test_a_statement_that_leaves_every_record_out_lands_offsets_alone(
    landing: FlinkLanding, produce: Producing
) -> None:
    produce(landing.topic, 0, events(0, 0, 300))
    landing.config = {"sql": "SELECT * FROM source WHERE id < 0", "schema": "id bigint, name string, score double"}
    landing.start()
    landing.await_running()
    poll_until(lambda: landing.jobs.manager.completed(landing.await_running()) >= 3, "checkpoints", 180)
    landing.stop()
    assert landing.lake.landed(landing.topic) == {0: [(0, 300)]}
    counts = landing.lake.entry(landing.topic).counts
    assert (counts.read, counts.written, counts.filtered) == (300, 0, 300)
    landing.assert_once({})


def test_rows_that_do_not_pass_their_checks_stay_on_the_branch_until_the_statement_is_mended(
    landing: FlinkLanding, produce: Producing
) -> None:
    landing.config = {"checks": {"sql": "SELECT * FROM landing WHERE id < 0"}}
    produce(landing.topic, 0, events(0, 0, 100))
    driver = landing.start()
    landing.await_landed({0: 100})
    job = landing.await_running()
    main = landing.lake.table().current_snapshot()
    produce(landing.topic, 0, ['{"id":-1,"name":"bad","score":0.5}', *events(0, 101, 50)])
    assert driver.wait(120) == 1, landing.log
    assert "ChecksFailed" in landing.log
    assert landing.lake.table().current_snapshot() == main
    assert landing.lake.landed(landing.topic) == {0: [(0, 100)]}
    assert landing.lease is not None
    assert landing.lease.terminal
    assert f"{landing.topic}[0] offset 100: id=-1" in landing.lease.error
    # Flink answers before it has canceled a job.
    poll_until(lambda: landing.jobs.manager.state(job) is FlinkJobState.CANCELED, "the job to be canceled", 180)
    landing.start(sql="SELECT * FROM source WHERE id >= 0", schema="id bigint, name string, score double")
    landing.await_landed({0: 151})
    landing.stop()
    landing.assert_once({0: [*range(100), *range(101, 151)]})
    assert landing.lake.entry(landing.topic).counts.filtered == 1


def test_hostile_records_and_checks_are_failed_checks_within_bounds_and_the_next_landing_goes_on(
    landing: FlinkLanding, produce: Producing
) -> None:
    landing.config = {"checks": hostile_checks.CHECKS}
    produce(landing.topic, 0, hostile_checks.RECORDS)
    with hostile_checks.watched_checks():
        assert landing.start().wait(300) == 1, landing.log
    assert "ChecksFailed" in landing.log
    assert landing.lease is not None
    hostile_checks.assert_all_failed(landing.lease.error)
    assert landing.lake.landed(landing.topic) == {}
    landing.start(checks={"not_null": "id"})
    landing.await_landed({0: len(hostile_checks.RECORDS)})
    landing.stop()
    landing.assert_once({0: [*range(len(hostile_checks.RECORDS))]})


@pytest.mark.timeout(1_500)
def test_hostile_records_times_hostile_checks_are_failed_checks_and_the_next_landing_goes_on(
    landing: FlinkLanding,
) -> None:
    produce, topic = hostile_checks.patient_producer(landing.lake.kafka), landing.topic
    # All records in one checkpoint, so that each check sees each.
    landing.through = hostile_checks.THROUGH
    landing.config = {"columns": hostile_checks.SCHEMA, "checkpoint_interval": 10.0}

    def land(checks: Mapping[str, Any]) -> tuple[str, hostile_checks.Peak]:
        driver = landing.start(**({"checks": dict(checks)} if checks else {}))
        with hostile_checks.watched(driver.pid) as peak:
            if len(checks.get("sql", ())) > 1:
                assert driver.wait(hostile_checks.MOST_SECONDS) == 1, landing.log
            else:
                landing.await_landed({0: 120 if checks else 60})
                landing.stop()
        assert landing.lease is not None
        # The lease has the beginning of a long error, and the log all of it.
        return landing.log if landing.lease.error else "", peak

    hostile_checks.play_product(
        land, lambda: produce(topic, 0, hostile_checks.records_of_texts()), f"{topic}[0] [60,120)"
    )
    landing.assert_once({0: [*range(120)]})
    assert landing.lake.column("s") == hostile_checks.TEXTS * 2


def test_a_record_that_fits_no_column_fails_the_job_and_is_named(landing: FlinkLanding, produce: Producing) -> None:
    produce(landing.topic, 0, ['{"id": "no number"}'])
    assert landing.start().wait(150) == 1
    assert "Flink's job" in landing.log
    assert f"{landing.topic}[0] offset 0: " in landing.log
    assert landing.lake.offsets() == []


@pytest.mark.parametrize("damage", ["value", "gzip does not decompress", "length of 0"])
def test_a_damaged_batch_ends_the_stream_which_goes_on_behind_its_receipt(
    landing: FlinkLanding, damaged: DamagedTopics, produce: Producing, damage: str
) -> None:
    how, end, codec = {**BROKEN, "value": (CHANGES["value"], 30, "none")}[damage]
    topic = landing.topic = damaged(how, codec)
    landing.config = {"columns": "v bigint, pad string"}
    assert landing.start().wait(PATIENCE) == 1, landing.log
    assert landing.lease is not None
    assert landing.lease.terminal, landing.log
    assert f"{topic}[0] [20,{end}): the batch of records at offset 20 is damaged in Kafka" in landing.lease.error
    assert "lakestream ledger forget --damaged" in landing.lease.error
    # What the error says.
    lake = landing.lake
    forgotten = ReceiptWriter(lake.catalog(), lake.name, GROUP, lake.kafka, "the test", poll_timeout=5).forget([topic])
    assert [receipt.ranges for receipt in forgotten] == [RangeSet.of(topic, 0, 20, end)]
    lake.land(topic, schema=landing.config["columns"])
    produce(topic, 0, ['{"v": 1, "pad": "x"}'] * 10)
    landing.start()
    landing.until(lambda: (0, ALL + 9) in lake.offsets(), "what is behind to be landed")
    landing.stop()
    landing.assert_once({0: [*range(20), *range(end, ALL + 10)]})


def test_what_flink_s_json_lets_pass_never_shows_until_the_extract_has_rejected_it(
    landing: FlinkLanding, produce: Producing
) -> None:
    columns = "id bigint, amount decimal(4, 2)"
    landing.config = {"columns": columns}
    # Flink makes NULL of what is too long, and says nothing.
    produce(landing.topic, 0, ['{"id": 0, "amount": 1.25}', '{"id": 1, "amount": 12345.6}', '{"id": 2, "amount": 2}'])
    assert landing.start().wait(150) == 1
    assert f"{landing.topic}[0] offset 1: " in landing.log
    assert "Run KafkaExtractOperator once with the same group" in landing.log
    assert (0, 1) not in landing.lake.offsets()
    assert landing.lake.land(landing.topic, schema=columns).counts.rejected == 1
    produce(landing.topic, 0, ['{"id": 3, "amount": 3.5}'])
    landing.start()
    landing.await_landed({0: 4})
    landing.stop()
    landing.assert_once({0: [0, 2, 3]})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"sql": "SELECT id FROM source"}, "sql: its rows lack _kafka_topic, _kafka_partition, _kafka_offset"),
        ({"sql": "SELECT id, FROM source"}, "sql: Flink refuses it"),
        ({"sql": "SELECT *, 1 AS more FROM source"}, "sql: lake.events has no column more"),
        (
            {"sql": "SELECT source.* FROM source CROSS JOIN UNNEST(ARRAY[1, 2]) AS t(x)"},
            "sql: its plan has Join, Exchange, Correlate",
        ),
        ({"sql": "SELECT DISTINCT * FROM source"}, "sql: its plan has "),
    ],
    ids=["without-positions", "no-sql", "strange-column", "several-rows", "aggregate"],
)
def test_a_statement_that_can_not_work_is_refused_before_a_job_is_submitted(
    landing: FlinkLanding, produce: Producing, config: dict[str, str], said: str
) -> None:
    produce(landing.topic, 0, events(0, 0, 1))
    assert landing.start(**config, schema="id bigint, name string, score double").wait(90) == 1
    assert said in landing.log
    assert landing.note is not None
    assert landing.jobs.manager.state(landing.note.job) is FlinkJobState.GONE


def test_an_older_checkpoint_restored_by_hand_is_refused_with_main_unchanged(
    landing: FlinkLanding, produce: Producing, tmp_path: Path
) -> None:
    produce(landing.topic, 0, events(0, 0, 100))
    landing.start()
    landing.await_landed({0: 100})
    job = landing.await_running()
    newest = landing.jobs.checkpoints.newest(job)
    assert newest is not None
    # Flink keeps the last twenty.
    old = shutil.copytree(newest.removeprefix("file://"), tmp_path / "old")
    produce(landing.topic, 0, events(0, 100, 100))
    landing.await_landed({0: 200})
    landing.kill_driver()
    landing.jobs.cancel(job)
    head = landing.lake.snapshots()
    main = landing.lake.table().current_snapshot()
    # Somebody restores it, and the stream's driver finds the job.
    landing.submit_by_hand(old.as_uri())
    driver = landing.start()
    assert driver.wait(120) == 1, landing.log
    assert "RowsOnMain" in landing.log
    assert landing.lake.table().current_snapshot() == main
    assert head
    assert landing.lease is not None
    assert landing.lease.terminal
    # What the error says.
    assert "run this task again" in landing.log
    landing.start()
    produce(landing.topic, 0, events(0, 200, 10))
    landing.await_landed({0: 210})
    landing.stop()
    landing.assert_once({0: [*range(210)]})
