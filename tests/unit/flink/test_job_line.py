"""What is noted of a landing's jobs: which of them the branch's rows are by, and what they had read in time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_lakestream.core.publishing.branch import EngineJobLine
from airflow_lakestream.flink import statements
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.flink.landing_job import JobLine, LandingJobSeries
from tests.support.replacing import ranges
from tests.unit.flink.test_checkpoints import split
from tests.unit.flink.test_config import GIVEN


@pytest.fixture
def jobs(tmp_path: Path) -> LandingJobSeries:
    given = {**GIVEN, "topic": "orders", "checkpoint_location": str(tmp_path / "state")}
    return LandingJobSeries(FlinkConfig(**given))


def checkpoint(jobs: LandingJobSeries, job: str, number: int, **offsets: int) -> str:
    """Write a complete checkpoint, and return its place."""
    place = f"{jobs.checkpoints.location}/{job}/chk-{number}"
    folder = Path(place.removeprefix("file://"))
    folder.mkdir(parents=True)
    (folder / "_metadata").write_bytes(b"".join(split("orders", int(p[1:]), at) for p, at in offsets.items()))
    return place


def line_of(jobs: LandingJobSeries) -> tuple[EngineJobLine, tuple[str, ...]]:
    known = jobs.newest_line()
    assert known is not None
    return known.line("orders", jobs.newest_job_format().begins), known.jobs


def test_a_job_without_a_state_begins_a_line_and_others_go_on_with_it(jobs: LandingJobSeries) -> None:
    assert jobs.newest_line() is None
    jobs.begin_line({0: 5}, since=7)
    assert line_of(jobs)[0] == EngineJobLine(7, {0: 5})
    first = jobs._write_note("").job
    assert line_of(jobs) == (EngineJobLine(7, {0: 5}), (first,))
    state = checkpoint(jobs, first, 3, p0=40, p1=9)
    jobs.note_passed(first, 3, {0: 12, 1: 9})
    assert line_of(jobs)[0].passed == ranges((0, 12, 40))
    second = jobs._write_note(state).job
    assert line_of(jobs) == (EngineJobLine(7, {0: 5}, ranges((0, 12, 40))), (first, second))
    # What a checkpoint says of a job that is not the newest any more counts for nothing.
    checkpoint(jobs, first, 4, p0=60)
    jobs.note_passed(first, 4, {0: 12})
    assert line_of(jobs)[0].passed == ranges((0, 12, 40))
    jobs.begin_line({0: 40}, since=20)
    third = jobs._write_note("").job
    assert line_of(jobs) == (EngineJobLine(20, {0: 40}), (third,))


def test_what_is_read_once_more_was_not_read_in_time(jobs: LandingJobSeries) -> None:
    jobs.begin_line({}, since=0)
    job = jobs._write_note("").job
    old = checkpoint(jobs, job, 1, p0=10)
    for number, end in ((2, 20), (3, 30)):
        checkpoint(jobs, job, number, p0=end)
        # Retention has taken some before the second look, and nobody saw whether they were read by then.
        jobs.note_passed(job, number, {0: 0 if number == 2 else 24})
    assert line_of(jobs)[0].passed == ranges((0, 0, 20), (0, 24, 30))
    jobs._write_note(old)
    assert line_of(jobs)[0].passed == ranges((0, 0, 10))


def test_a_job_that_was_noted_before_lines_were_is_a_line_of_its_own(jobs: LandingJobSeries) -> None:
    note = {"job": "a" * 32, "program": "p", "reads": json.dumps(["json", {}, {"0": 3}])}
    jobs._folder.write("flink-job.json", note)
    assert line_of(jobs) == (EngineJobLine(0, {0: 3}), ("a" * 32,))
    assert JobLine.parse("", "b").jobs == ("b",)


@pytest.mark.parametrize(
    ("steps", "strange"),
    [
        ("Calc(select=[id], where=[(id > 1)])\n+- TableSourceScan(table=[[c, d, source]], fields=[id])", []),
        (
            "Union(all=[true], union=[id])\n:- Calc(select=[id])\n:  +- TableSourceScan(t)\n+- Reused(id=[1])",
            [],
        ),
        ("Calc(select=[id])\n+- Correlate(invocation=[$UNNEST_ROWS$1($1)])\n   +- TableSourceScan(t)", ["Correlate"]),
        (
            "GroupAggregate(groupBy=[id])\n+- Exchange(hash[id])\n   +- TableSourceScan(t)",
            ["GroupAggregate", "Exchange"],
        ),
    ],
    ids=["projection", "union", "unnest", "aggregate"],
)
def test_what_does_more_than_take_record_by_record_is_seen_in_the_plan(steps: str, strange: list[str]) -> None:
    plan = f"== Abstract Syntax Tree ==\nLogicalProject(id=[$0])\n\n== Optimized Execution Plan ==\n{steps}\n"
    assert statements.find_steps_beyond_rows(plan) == strange
