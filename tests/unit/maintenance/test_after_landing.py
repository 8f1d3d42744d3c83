"""Compaction at the end of landings: a clock of minutes on real files, bounds, and failures that fail no landing.

`make soak-upkeep DAYS=365` plays a year; LAKESTREAM_DAYS is the number of simulated days.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.policies import MaintainMode
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.upkeep.compaction import SUMMARY_COMPACTED
from airflow_lakestream.iceberg.upkeep.file_use import FileUse
from airflow_lakestream.run.maintenance import after_landing
from airflow_lakestream.run.maintenance.after_landing import FURTHER_FILES, LEAST_FILES, LandingUpkeep
from tests.support.given_records import GROUP, GivenLake, Record

DAYS = int(os.environ.get("LAKESTREAM_DAYS", "0"))
# Without days: an hour before midnight, and a quarter more after it.
BEGIN = datetime(2026, 1, 1, tzinfo=UTC) if DAYS else datetime(2026, 1, 1, 23, tzinfo=UTC)
MINUTES = DAYS * 1440 or 135
ROWS = 20
COLUMNS = {"schema": "id bigint, at timestamp, name string", "partition_by": ["day(at)"]}


class MinuteRecords(Sequence[bytes]):
    """Records of the first minutes, some in each, made when they are read."""

    def __init__(self, minutes: int) -> None:
        self.minutes = minutes

    def __len__(self) -> int:
        return self.minutes * ROWS

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        moment = BEGIN + timedelta(minutes=at // ROWS, seconds=at % ROWS)
        return json.dumps({"id": at, "at": moment.isoformat(), "name": f"n{at % 7}"}).encode()


class LazyLake(GivenLake):
    """Lake whose topic is not in memory."""

    def job(self, records: Any, **config: Any) -> LandingJob:
        job = super().job([], **config)
        vars(job.source)["records"] = _AsRecords(records)
        return job


class _AsRecords(Sequence[Any]):
    def __init__(self, values: Sequence[bytes]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: Any) -> Any:
        return [Record(one) for one in self.values[at]]


def run(lake: GivenLake, records: Any, mode: MaintainMode | None = MaintainMode.AUTO, **config: Any) -> LandingUpkeep:
    """Land as a run does."""
    job = lake.job(records, **config)
    report = land(job)
    work = LandingUpkeep(lake.catalog(), mode, job.stop)
    work.run(job, report)
    return work


def compactions(table: Table) -> int:
    return sum(SUMMARY_COMPACTED in dict(one.summary.additional_properties) for one in table.snapshots() if one.summary)


def files_of(lake: GivenLake, day: str) -> list[Path]:
    return [path for one in lake.files() if f"at_day={day}" in one and (path := Path(one))]


def test_a_table_landed_each_minute_stays_in_few_files_and_a_day_reads_as_one_ideal_file(tmp_path: Path) -> None:
    lake = LazyLake(tmp_path)
    most_files = most_manifests = 0
    landing = upkeep = 0.0
    for minute in range(1, MINUTES + 1):
        job = lake.job(MinuteRecords(minute), **COLUMNS)
        began = time.process_time()
        report = land(job)
        landing += (between := time.process_time()) - began
        LandingUpkeep(lake.catalog(), MaintainMode.AUTO, threading.Event()).run(job, report)
        upkeep += time.process_time() - between
        table = lake.iceberg()
        use = FileUse.of(table.metadata)
        days = 1 + minute // 1440
        # A day ends as four files of five hours, and four of an hour; its last files wait for the next look.
        most_files = max(most_files, (use.files or 0) - 9 * (days - 1))
        if minute % 50 == 0:
            head = table.current_snapshot()
            assert head is not None
            most_manifests = max(most_manifests, len(head.manifests(table.io)))
        if minute % 1440 == 0:
            print(f"day {days}: {use.files} files; CPU of landings {landing:.0f} s, upkeep {upkeep:.1f} s", flush=True)
    assert most_files < LEAST_FILES + FURTHER_FILES + 10
    assert most_manifests < LEAST_FILES + FURTHER_FILES + after_landing.LEAST_MANIFESTS
    day = "2026-01-01"
    ideal = LazyLake(tmp_path / "ideal")
    ideal.folder.mkdir()
    ideal.land(MinuteRecords(min(MINUTES, 1440)), **COLUMNS)
    sizes = [sum(path.stat().st_size for path in files_of(one, day)) for one in (lake, ideal)]
    assert sizes[0] <= 1.3 * sizes[1]
    assert len(files_of(lake, day)) < 10
    if not DAYS:
        assert [row["id"] for row in lake.rows()] == list(range(MINUTES * ROWS))
    assert Audit(table=lake.name, consumer_group=GROUP).run(lake.catalog()).verdict is AuditVerdict.CLEAN
    print(f"CPU of upkeep: {upkeep / landing:.1%} of landings; bytes of a day: {sizes[0] / sizes[1]:.2f} of ideal")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look after few files."""
    monkeypatch.setattr(after_landing, "LEAST_FILES", 5)
    monkeypatch.setattr(after_landing, "FURTHER_FILES", 2)


def landed(lake: GivenLake, runs: int, mode: MaintainMode | None = MaintainMode.AUTO, **config: Any) -> None:
    first = len(lake.rows()) if lake.catalog().table_exists(lake.name) else 0
    for number in range(first + 1, runs + 1):
        run(lake, [b'{"n": 1}'] * number, mode, schema="n bigint", **config)


@pytest.mark.usefixtures("few")
def test_the_property_asks_for_it_and_the_argument_decides(tmp_path: Path) -> None:
    lakes = [GivenLake(tmp_path / name) for name in "abc"]
    for one in lakes:
        one.folder.mkdir()
    wanted = {"table_properties": {"lakestream.maintain": "auto"}}
    landed(lakes[0], 6, None)
    landed(lakes[1], 6, None, **wanted)
    landed(lakes[2], 6, MaintainMode.NEVER, **wanted)
    assert [compactions(one.iceberg()) for one in lakes] == [0, 1, 0]
    assert [len(one.files()) for one in lakes] == [6, 1, 6]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("error", [OSError("gone"), InvalidArgument("table", "is odd.")])
def test_an_error_is_a_warning_and_the_rows_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    lake = GivenLake(tmp_path)
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(after_landing, "compact", fail)
        landed(lake, 7)
    assert "the compaction after the landing failed" in caplog.text
    assert len(lake.files()) == 7
    # A later run does it.
    landed(lake, 9)
    assert len(lake.rows()) == 9
    assert len(lake.files()) < 4


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("bound", "value"), [("MOST_SECONDS", 0.0), ("MOST_MANIFEST_BYTES", 1), ("MOST_BYTES", 1), (None, None)]
)
def test_a_bound_leaves_the_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str | None, value: float | None
) -> None:
    if bound is not None:
        monkeypatch.setattr(after_landing, bound, value)
    lake = GivenLake(tmp_path)
    landed(lake, 6)
    assert compactions(lake.iceberg()) == (bound is None)


@pytest.mark.usefixtures("few")
def test_a_run_without_time_left_and_a_stopped_one_compact_nothing(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    landed(lake, 5, MaintainMode.NEVER)
    job = lake.job([b'{"n": 1}'] * 6)
    report = land(job)
    stopped = threading.Event()
    stopped.set()
    for stop, deadline in ((threading.Event(), time.monotonic()), (stopped, None)):
        LandingUpkeep(lake.catalog(), MaintainMode.AUTO, stop, deadline).run(job, report)
        assert compactions(lake.iceberg()) == 0
    LandingUpkeep(lake.catalog(), MaintainMode.AUTO, threading.Event()).run(job, report)
    assert compactions(lake.iceberg()) == 1


def test_a_look_costs_nothing_between_two_marks_and_counts_files_of_a_partition(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    wanted = {"schema": "n bigint", "partition_by": ["n"]}
    values = [json.dumps({"n": number % 4}).encode() for number in range(40)]
    for number in range(4, 41, 4):
        run(lake, values[:number], None, **wanted)
    use = FileUse.of(lake.iceberg().metadata)
    assert (use.files, use.small, use.partitions, use.compacted_at) == (40, 40, 4, None)
    head = lake.iceberg().current_snapshot()
    assert head is not None
    assert not after_landing.is_due(lake.iceberg(), [head.snapshot_id])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda given: ExtractConfig(**given, table="/lake/t", table_format="delta"), "compactions after landings are"),
        (lambda given: ExtractConfig(**given, table="lake.{kind}"), "tables that records choose"),
        (lambda given: MirrorConfig(**given, table="lake.t", key=["id"]), "is not for a mirror"),
    ],
)
@pytest.mark.parametrize(
    "given", [{"maintain": "auto"}, {"table_properties": {"lakestream.maintain": "auto"}}], ids=["argument", "property"]
)
def test_tables_that_no_run_compacts_are_refused(
    make: Callable[[dict[str, Any]], object], reason: str, given: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{next(iter(given))}: .*{reason}"):
        make({"topic": "t", "consumer_group": "g", **given})


def test_a_wrong_value_of_the_property_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"lakestream\.maintain is 'yes', which is not one of auto, never"):
        ExtractConfig(topic="t", consumer_group="g", table="lake.t", table_properties={"lakestream.maintain": "yes"})
