"""Iceberg's sink on a real Connect: topic, branch, main; the ledger equals the topic, whatever happens between."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyiceberg.exceptions import NoSuchTableError

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.checks import audit
from airflow_lakestream.connect.configuration import ConfigRefused
from airflow_lakestream.connect.connector import ConnectorAtDamage
from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.core.publishing.refusals import LandedAhead, PublicationRefused, RowsOnMain
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.supervisor import DriverLook, DriverState, SupervisorAction
from airflow_lakestream.exceptions import Terminal
from airflow_lakestream.run.damaged import ReceiptWriter
from dev.services.kafka import Kafka
from tests.support import hostile_checks
from tests.support.broker import Producing, TopicOf, poll_until
from tests.support.connecting import PATIENCE, Sinks, one_look
from tests.support.damaged_log import ALL, BROKEN, CHANGES, DamagedTopics
from tests.support.lake import GROUP, Lake, events
from tests.support.lake_reading import at
from tests.support.transactions import Transaction


def _positions(counts: dict[int, int]) -> list[tuple[int, int]]:
    return [(p, offset) for p, count in sorted(counts.items()) for offset in range(count)]


def test_extract_and_connect_take_turns_on_one_group(
    sinks: Sinks, lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    topic = topic_of(events(0, 0, 50), events(1, 0, 40))
    sinks.extract(topic)
    produce(topic, 0, events(0, 50, 300))
    produce(topic, 1, events(1, 40, 200))
    driving = sinks.run(topic, 590)
    assert (driving.finish().rows_in, driving.finish().rows_out) == (500, 500)
    assert lake.offsets() == _positions({0: 350, 1: 240})
    produce(topic, 0, events(0, 350, 10))
    sinks.extract(topic)
    produce(topic, 1, events(1, 240, 25))
    # It begins where the extract ended, not where it was itself.
    again = sinks.run(topic, 625)
    assert again.finish().rows_out == 25
    produce(topic, 0, events(0, 360, 5))
    sinks.extract(topic)
    assert lake.offsets() == _positions({0: 365, 1: 265})
    assert lake.landed(topic) == {0: [(0, 365)], 1: [(0, 265)]}
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_what_is_as_it_is_wanted_is_left_alone(sinks: Sinks, topic_of: TopicOf) -> None:
    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    sinks.extract(topic)
    sinks.driving(topic).begin()
    sinks.await_running()
    made = sinks.tasks_made()
    assert made == 2
    sinks.driving(topic).begin()
    assert one_look(sinks.driving(topic)).sight.driver is DriverState.RUNNING
    assert sinks.tasks_made() == made
    # Another configuration is sent.
    other = sinks.driving(topic, interval=3.0)
    other.begin()
    poll_until(lambda: sinks.tasks_made() > made, "new tasks", PATIENCE)
    assert sinks.client.config(sinks.name)["iceberg.control.commit.interval-ms"] == "3000"  # type: ignore[index]  # it is there


# What Confluent's serializers write where the id of the schema goes into a header: here its GUID.
IN_HEADER = [("__value_schema_id", b"\x01" + bytes(range(16)))]


@pytest.mark.parametrize(
    ("value", "headers", "said"),
    [
        (json.dumps({"id": "no number"}), None, ""),
        ("{no json", None, ""),
        # Avro, whose converter would be another one.
        (b"\x0a\x04n5", IN_HEADER, r"the id of its schema is in the header __value_schema_id.*producer\)"),
    ],
    ids=["unfit", "unreadable", "of a header"],
)
def test_a_record_that_no_task_gets_past_is_named(
    sinks: Sinks, lake: Lake, topic_of: TopicOf, produce: Producing, value: str | bytes, headers: Any, said: str
) -> None:
    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    sinks.extract(topic)
    driving = sinks.driving(topic)
    driving.begin()
    produce(topic, 1, events(1, 5, 3))
    produce(topic, 1, [value], headers=headers)
    produce(topic, 1, events(1, 9, 2))
    decision, restarts = driving.follow(lambda _: None), 0
    while decision.action is SupervisorAction.RESTART:
        restarts += 1
        driving.clear_away()
        driving.begin(decision.history.restarted(0.0 + decision.at))
        decision = driving.follow(lambda _: None)
    assert (decision.action, decision.terminal) == (SupervisorAction.GIVE_UP, True)
    assert re.search(rf"{topic}\[1\] offset 8\b.*{said}", decision.reason)
    assert 1 <= restarts <= 2
    if headers is not None:
        # The extract of JSON does not read it either: the connector's converter has to be another one.
        return
    # What the error says.
    assert "Run KafkaExtractOperator once with the same group" in decision.reason
    assert sinks.extract(topic).counts.rejected == 1
    produce(topic, 1, events(1, 11, 4))
    again = sinks.run(topic, 19)
    assert again.finish().rows_out == 4
    assert lake.offsets() == [*_positions({0: 5, 1: 8}), *((1, offset) for offset in range(9, 15))]
    assert lake.landed(topic) == {0: [(0, 5)], 1: [(0, 15)]}
    assert lake.audit().verdict is AuditVerdict.CLEAN


@pytest.mark.parametrize("damage", ["value", "gzip does not decompress", "length of 0"])
def test_a_damaged_batch_ends_the_task_and_the_sink_goes_on_behind_its_receipt(
    sinks: Sinks, lake: Lake, damaged: DamagedTopics, produce: Producing, damage: str
) -> None:
    how, end, codec = {**BROKEN, "value": (CHANGES["value"], 30, "none")}[damage]
    topic = damaged(how, codec)
    given: dict[str, Any] = {"schema": "v bigint, pad string"}
    lake.land(topic, mode="ranges", ranges=[[0, 0, 5]], **given)
    driving = sinks.driving(topic, limits={"stall_timeout": 10.0})
    driving.begin()
    with pytest.raises(ConnectorAtDamage, match="lakestream ledger forget --damaged") as caught:
        sinks.follow_until(driving, lambda _: False)
    assert isinstance(caught.value, Terminal)
    assert caught.value.ranges == RangeSet.of(topic, 0, 20, end)
    # What the error says.
    forgotten = ReceiptWriter(lake.catalog(), lake.name, GROUP, lake.kafka, "the test", poll_timeout=5).forget([topic])
    assert [receipt.ranges for receipt in forgotten] == [RangeSet.of(topic, 0, 20, end)]
    lake.land(topic, **given)
    produce(topic, 0, ['{"v": 1, "pad": "x"}'] * 10)
    sinks.run(topic, ALL - end + 30)
    assert lake.offsets() == at(0, [*range(20), *range(end, ALL + 10)])
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_offsets_that_were_set_back_are_refused_and_main_stays(
    sinks: Sinks, lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    sinks.extract(topic)
    produce(topic, 0, events(0, 5, 100))
    sinks.run(topic, 110)
    head = lake.table().current_snapshot()
    # By hand: at the REST interface, behind the operator's back.
    driving = sinks.driving(topic)
    driving.begin()
    sinks.client.stop(sinks.name)
    poll_until(lambda: not sinks.client.status(sinks.name).tasks, "the tasks to end", PATIENCE)
    sinks.groups.await_empty(sinks.sink(topic).group)
    sinks.client.set_offsets(sinks.name, topic, {0: 50, 1: 5})
    sinks.client.resume(sinks.name)
    sinks.await_running()
    produce(topic, 0, events(0, 105, 1))
    with pytest.raises(PublicationRefused, match="run this task again") as refused:
        sinks.follow_until(driving, lambda _: False)
    assert f"{topic}[0]" in str(refused.value)
    assert lake.table().current_snapshot() == head
    # What the error says.
    sinks.run(topic, 111)
    assert lake.offsets() == _positions({0: 106, 1: 5})
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_a_hole_of_the_ledger_is_the_extract_s_and_the_sink_goes_on_behind_it(
    sinks: Sinks, lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    sinks.extract(topic)
    # The sink makes no row of a value that is null in JSON.
    produce(topic, 1, [*events(1, 5, 1), "null", *events(1, 7, 1)])
    sinks.run(topic, 12)
    assert lake.landed(topic) == {0: [(0, 5)], 1: [(0, 6), (7, 8)]}
    for _ in range(2):
        with pytest.raises(LandedAhead, match="Run KafkaExtractOperator once with the group") as ahead:
            sinks.driving(topic).begin()
        assert ahead.value.ranges == RangeSet.of(topic, 1, 7, 8)
    # What the error says.
    assert sinks.extract(topic).counts.rejected == 1
    produce(topic, 1, events(1, 8, 3))
    sinks.run(topic, 15)
    assert lake.landed(topic) == {0: [(0, 5)], 1: [(0, 11)]}
    assert lake.offsets() == [*_positions({0: 5, 1: 6}), *((1, offset) for offset in range(7, 11))]
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_what_the_extract_has_landed_meanwhile_is_read_over_at_the_next_start(
    sinks: Sinks, lake: Lake, topic_of: TopicOf, produce: Producing, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    sinks.extract(topic)
    driving = sinks.driving(topic)
    driving.begin()
    sinks.await_running()
    produce(topic, 0, events(0, 5, 20))
    sinks.extract(topic)
    with pytest.raises(RowsOnMain, match="run this task again"):
        sinks.follow_until(driving, lambda _: False)
    produce(topic, 0, events(0, 25, 5))
    sinks.run(topic, 35)
    sinks.run(topic, 35)
    assert lake.offsets() == _positions({0: 30, 1: 5})
    assert lake.audit().verdict is AuditVerdict.CLEAN
    # Starting anew is no second coordinator.
    assert "coordinators of the sink" not in caplog.text


def test_rows_that_do_not_pass_their_checks_stay_on_the_sinks_branch(
    sinks: Sinks, lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    sinks.extract(topic)
    produce(topic, 0, events(0, 5, 100))
    heads = []

    def spoil_once_landed(_: DriverLook) -> bool:
        if not heads and len(lake.offsets()) >= 110:
            heads.append(lake.table().current_snapshot())
            produce(topic, 1, ['{"id":-1,"name":"bad","score":0.5}', *events(1, 6, 4)])
        return False

    driving = sinks.driving(topic, checks={"not_null": ["name"], "sql": "SELECT * FROM landing WHERE id < 0"})
    driving.begin()
    with pytest.raises(ChecksFailed) as failed:
        sinks.follow_until(driving, spoil_once_landed)
    assert f"{topic}[1] offset 5: id=-1" in str(failed.value)
    assert failed.value.branch == sinks.sink(topic).branch
    assert [lake.table().current_snapshot()] == heads
    assert lake.landed(topic) == {0: [(0, 105)], 1: [(0, 5)]}
    # The check is loosened: what the branch has is published.
    sinks.run(topic, 115, checks={"not_null": ["name"]})
    assert lake.offsets() == _positions({0: 105, 1: 10})
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_hostile_records_and_checks_are_failed_checks_within_bounds_and_the_next_landing_goes_on(
    sinks: Sinks, lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    sinks.extract(topic)
    produce(topic, 0, hostile_checks.RECORDS)
    driving = sinks.driving(topic, checks=hostile_checks.CHECKS)
    driving.begin()
    with hostile_checks.watched_checks(), pytest.raises(ChecksFailed) as failed:
        sinks.follow_until(driving, lambda _: False, patience=300)
    hostile_checks.assert_all_failed(str(failed.value))
    assert lake.landed(topic) == {0: [(0, 5)], 1: [(0, 5)]}
    count = len(hostile_checks.RECORDS)
    sinks.run(topic, 10 + count, checks={"not_null": ["id"]})
    assert lake.offsets() == _positions({0: 5 + count, 1: 5})
    assert lake.audit().verdict is AuditVerdict.CLEAN


@pytest.mark.timeout(1_500)
def test_hostile_records_times_hostile_checks_are_failed_checks_and_the_next_landing_goes_on(
    sinks: Sinks, lake: Lake, topic_of: TopicOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "SECONDS", 1.0)
    monkeypatch.setattr(audit, "SEARCH", 0.0)
    topic = topic_of(['{"s": "first", "n": 1}'])
    lake.land(topic, schema=hostile_checks.SCHEMA)
    produce, branch = hostile_checks.patient_producer(lake.kafka), sinks.sink(topic).branch

    def rows_of_branch() -> int:
        head = lake.table().snapshot_by_name(branch)
        return 0 if head is None or head.summary is None else int(head.summary["total-records"] or 0)

    def land(checks: Mapping[str, Any]) -> tuple[str, hostile_checks.Peak]:
        rows = 61 if not checks else 121
        driving = sinks.driving(topic, checks=checks or None)
        # Of this process, which looks after the sink and checks its rows; the sink itself runs in the worker.
        with hostile_checks.watched(os.getpid(), "airflow_lakestream") as peak:
            driving.begin()
            # All records before the first look, so that each check sees each.
            poll_until(lambda: rows_of_branch() >= rows, f"{rows} rows on the branch", PATIENCE)
            try:
                sinks.follow_until(driving, lambda _: len(lake.offsets()) >= rows, hostile_checks.MOST_SECONDS)
            except ChecksFailed as failed:
                return str(failed), peak
        return "", peak

    hostile_checks.play_product(
        land, lambda: produce(topic, 0, hostile_checks.records_of_texts()), f"{topic}[0] [61,121)"
    )
    assert lake.offsets() == _positions({0: 121})
    assert lake.column("s") == ["first", *hostile_checks.TEXTS * 2]
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_tasks_that_run_and_do_not_get_on_are_found(
    sinks: Sinks, lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    topic = topic_of(events(0, 0, 5), events(1, 0, 5))
    sinks.extract(topic)
    # It commits once in an hour: all tasks run, and nothing is heard of them.
    driving = sinks.driving(topic, interval=3600, limits={"stall_timeout": 6.0})
    driving.begin()
    sinks.await_running()
    idle = [one_look(driving).decision.action for _ in range(3)]
    assert idle == [SupervisorAction.WAIT] * 3
    produce(topic, 0, events(0, 5, 10))
    decision = driving.follow(lambda _: None)
    assert decision.action is SupervisorAction.RESTART
    assert "made no progress" in decision.reason


def test_no_aborted_record_is_landed(
    sinks: Sinks, lake: Lake, topic_of: TopicOf, kafka: Kafka, admin: AdminClient
) -> None:
    name = topic_of(events(0, 0, 5), events(1, 0, 5))
    sinks.extract(name)
    transaction = Transaction(kafka, admin)
    transaction.begin(name, 0, events(0, 5, 10))
    transaction.abort()
    transaction.begin(name, 0, events(0, 15, 7))
    transaction.commit()
    sinks.run(name, 17)
    found = lake.column("name")
    assert found == [f"p0-{n}" for n in (*range(5), *range(15, 22))] + [f"p1-{n}" for n in range(5)]
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_a_table_that_is_not_there_is_refused_before_the_sink_starts(
    sinks: Sinks, lake: Lake, topic_of: TopicOf
) -> None:
    topic = topic_of(events(0, 0, 5))
    with pytest.raises(ConfigRefused, match="there is no table"):
        sinks.driving(topic).begin()
    with pytest.raises(NoSuchTableError):
        lake.table()
    assert sinks.client.config(sinks.name) is None
