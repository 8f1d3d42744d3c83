"""What the log of a run tells, and its last line: what became of the records, and what is left and why."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest

from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.landing import run_log
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.batch import RunLimits
from airflow_lakestream.core.landing.modes import IntervalMode
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.landing.run_log import ReadProgress
from airflow_lakestream.core.ledger import Counts, TopicEntry
from airflow_lakestream.core.ports import TimeBoundary
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.run.job import ExtractConfig
from airflow_lakestream.run.summary import last_line
from airflow_lakestream.run.topics import RunReport
from tests.unit.core.test_landing import FakeDecoders, FakeTable, FakeTopic, job

HOUR = 3_600_000
CONFIG = ExtractConfig(topic="orders", table="lake.orders", consumer_group="g")
TO_TEN = {"mode": "interval", "interval_start": 9 * HOUR, "interval_end": 10 * HOUR}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO, "airflow_lakestream")
    return Lines(caplog)


class Lines:
    """The messages of runs at INFO and above."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def take(self) -> list[str]:
        """Return those since the last time."""
        taken = [record.getMessage() for record in self._caplog.records]
        self._caplog.clear()
        return taken


def run_of(report: LandingReport) -> RunReport:
    tables = Counter({report.table: report.counts.written})
    return RunReport(report.topic, report.table, report.consumer_group, {report.topic: report}, tables)


def report(read: int = 0, **more: Any) -> LandingReport:
    counts = more.pop("counts", Counts(read, read))
    return LandingReport("orders", "lake.orders", "g", entry=TopicEntry(counts=counts), **more)


def test_a_run_says_what_there_is_and_what_was_committed_and_a_second_one_contradicts_nothing(lines: Lines) -> None:
    topic, table = FakeTopic({0: (0, 7), 1: (2, 5)}), FakeTable()
    first = land(job(topic, table))
    said = lines.take()
    assert said[0] == "To land: orders into lake.orders, 10 offsets: orders[0] [0,7), orders[1] [2,5)."
    assert said[1].startswith("Committed 10 rows to lake.orders in snapshot 1 (")
    assert said[1].endswith(" s): orders[0] [0,7), orders[1] [2,5).")
    assert len(said) == 2
    assert last_line(run_of(first), CONFIG) == (
        "Landed 10 rows (0 rejected, 0 skipped, 0 filtered) of orders in lake.orders, in 1 snapshot. "
        "Nothing is left to land."
    )

    second = land(job(topic, table, run_id="next"))
    assert lines.take() == []
    assert last_line(run_of(second), CONFIG) == (
        "Nothing to land: lake.orders holds all records of orders that are in Kafka now."
    )


def test_a_commit_says_what_is_left_of_the_plan(lines: Lines) -> None:
    land(job(FakeTopic({0: (0, 1200)}, chunk_size=600), FakeTable(), limits=RunLimits(max_batch_bytes=1000)))
    first, second = (line for line in lines.take() if line.startswith("Committed"))
    assert first.endswith("orders[0] [0,600). Of the plan 600 offsets are left.")
    assert second.endswith("orders[0] [600,1200).")


def test_many_ranges_are_counted_not_listed(lines: Lines) -> None:
    land(job(FakeTopic(dict.fromkeys(range(40), (0, 1))), FakeTable()))
    planned = lines.take()[0]
    assert planned.startswith("To land: orders into lake.orders, 40 offsets: orders[0] [0,1), ")
    assert planned.endswith("orders[15] [0,1) and 24 ranges more.")


def test_a_backfill_names_its_time(lines: Lines) -> None:
    class Timed(FakeTopic):
        def boundaries(self, state: Any, at_ms: int) -> dict[int, TimeBoundary]:
            return {0: TimeBoundary(2 if at_ms == 9 * HOUR else 5, is_open=False)}

    topic, table = Timed({0: (0, 7)}), FakeTable()
    done = land(job(topic, table, mode=IntervalMode(9 * HOUR, 10 * HOUR)))
    time = "from 1970-01-01T09:00:00+00:00 to 1970-01-01T10:00:00+00:00"
    assert lines.take()[0] == f"To land: orders {time} into lake.orders, 3 offsets: orders[0] [2,5)."
    config = ExtractConfig(topic="orders", table="lake.orders", consumer_group="g", **TO_TEN)
    assert last_line(run_of(done), config) == (
        f"Landed 3 rows (0 rejected, 0 skipped, 0 filtered) of orders {time} in lake.orders, in 1 snapshot. "
        "Nothing is left to land."
    )


def test_a_table_that_was_not_created_is_not_said_to_hold_anything(lines: Lines) -> None:
    done = land(job(FakeTopic({0: (0, 0)}), FakeTable(exists=False), decoders=FakeDecoders()))
    assert lines.take() == []
    assert last_line(run_of(done), CONFIG) == (
        "Nothing to land: no record of orders shows the columns of lake.orders, and no schema is given. The table was "
        "not created."
    )


def test_rejected_records_are_found_by_the_command_in_the_last_line() -> None:
    one = report(counts=Counts(25, 0, 22, 1, 2), snapshot_ids=[1])
    assert last_line(run_of(one), CONFIG, "my lake") == (
        "Landed 0 rows (22 rejected, 1 skipped, 2 filtered) of orders in lake.orders, in 1 snapshot. "
        "The rejected records are in lake.orders__rejected; this shows them: lakestream rejects show --table "
        "lake.orders --group g --iceberg-conn 'my lake' . Nothing is left to land."
    )


@pytest.mark.parametrize(
    ("left", "arguments", "said"),
    [
        ({"remaining_lag": 4}, {}, "4 offsets came meanwhile: the next run lands them."),
        (
            {"remaining_lag": 1200},
            {"max_records": 3},
            "1,200 offsets are left, since max_records=3 are read: the next run goes on.",
        ),
        (
            {"completes": False},
            TO_TEN,
            "The interval is not complete: Kafka has no record yet at or after its end in every partition, so more of "
            "its records may come. A later run lands them.",
        ),
        (
            {"completes": True, "remaining_lag": 9},
            TO_TEN,
            "Outside of what this run covers, 9 offsets are not landed.",
        ),
    ],
)
def test_the_last_line_says_what_is_left_and_why(left: dict[str, Any], arguments: dict[str, Any], said: str) -> None:
    config = ExtractConfig(topic="orders", table="lake.orders", consumer_group="g", **arguments)
    line = last_line(run_of(report(3, snapshot_ids=[1, 2], **left)), config)
    assert line.startswith("Landed 3 rows (0 rejected, 0 skipped, 0 filtered) of orders")
    assert line.endswith(f" in 2 snapshots. {said}")


def test_a_long_run_says_each_half_minute_how_far_it_is(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now[0])
    progress = ReadProgress("orders", width=1_000_000)
    for now[0] in (110.0, 120.0, 129.9):
        progress.add(OffsetRange("orders", 0, 0, 100_000), 90_000)
    assert lines.take() == []
    now[0] = 140.0
    progress.add(OffsetRange("orders", 0, 0, 100_000), 90_000)
    assert lines.take() == ["Reading orders: 40% of it, 360,000 records, 9,000 a second, some 60 s left."]
    now[0] = 160.0
    progress.add(OffsetRange("orders", 0, 0, 100_000), 90_000)
    assert lines.take() == []


def test_bad_records_of_a_commit_are_a_warning(lines: Lines) -> None:
    run_log.log_commit("lake.t", 7, Counts(5, 3, 2), BadRecords(2), RangeSet.of("orders", 0, 0, 5), 0.2)
    assert lines.take()[0] == "Committed 3 rows, 2 rejected to lake.t in snapshot 7 (0.20 s): orders[0] [0,5)."


def test_a_mirror_applies_events() -> None:
    config = MirrorConfig(topic="orders", table="lake.orders", consumer_group="g")
    one = report(counts=Counts(7, 4, 0, 3), snapshot_ids=[1])
    assert last_line(run_of(one), config) == (
        "Applied 4 events (0 rejected, 3 skipped, 0 filtered) of orders to lake.orders, in 1 snapshot. "
        "Nothing is left to land."
    )
    assert last_line(run_of(report()), config) == (
        "Nothing to land: lake.orders holds all records of orders that are in Kafka now."
    )
