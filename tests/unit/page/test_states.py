"""What the page calls a stream, by its newest run, its newest landing, and what the sensors saw."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_lakestream.ui.page.landings import TaskLanding
from airflow_lakestream.ui.page.newest import TaskTry
from airflow_lakestream.ui.page.states import StateFacts, state_of
from airflow_lakestream.ui.page.supervision import SupervisionResult

AT = datetime(2026, 11, 1, tzinfo=UTC)


def ended(state: str | None, run_id: str = "new") -> TaskTry:
    return TaskTry(run_id, state, AT)


def landed(run_id: str = "new", lag: int | None = 0, minutes: int = 0) -> TaskLanding:
    return TaskLanding(AT + timedelta(minutes=minutes), run_id, -1, rows=3, lag=lag)


def looked(**looks: tuple[bool, dict[str, Any] | None]) -> SupervisionResult:
    return SupervisionResult(
        "s", "r", AT, {what: {"well": well, "value": value} for what, (well, value) in looks.items()}
    )


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        ("new", StateFacts(False, False, None, None, None)),
        ("paused", StateFacts(True, False, ended("success"), landed(), None)),
        ("landing", StateFacts(False, False, ended("success"), landed(), None)),
        ("landing", StateFacts(True, True, ended("deferred"), None, None)),
        ("landing", StateFacts(False, True, ended("running"), landed(lag=7), None)),
        # What came during the run is for the next one: nothing says that it is overdue.
        ("landing", StateFacts(False, False, ended("success"), landed(lag=7), None)),
        ("could not look", StateFacts(False, False, ended("success"), landed(), looked(lag=(False, None)))),
        (
            "could not look",
            StateFacts(
                False, False, ended("success"), landed(), looked(freshness=(False, {"could_not_look": "no answer"}))
            ),
        ),
        ("idle", StateFacts(False, False, ended("success"), landed("old"), None)),
        ("idle", StateFacts(False, False, ended("queued"), landed("old", lag=7), None)),
        ("failing", StateFacts(True, False, ended("failed"), landed("old"), None)),
        ("failing", StateFacts(False, False, ended("success"), landed(), looked(lag=(False, {"lag": 9, "lost": 4})))),
        ("stalled", StateFacts(False, False, ended("success"), landed("old"), looked(freshness=(False, {})))),
        ("behind", StateFacts(False, False, ended("success"), landed(), looked(lag=(False, {"lag": 9, "lost": 0})))),
        ("behind", StateFacts(False, False, ended("success"), landed(), looked(retention=(False, {"time_left": 60})))),
        ("landing", StateFacts(False, False, ended("success"), landed(), looked(lag=(True, {"lag": 9})))),
        # All of it was landed after somebody looked; what a later landing left may be what was overdue.
        ("landing", StateFacts(False, False, ended("success"), landed(minutes=1), looked(lag=(False, {"lag": 9})))),
        ("landing", StateFacts(False, False, ended("success"), landed(minutes=1), looked(freshness=(False, {})))),
        ("landing", StateFacts(False, False, ended("success"), landed(minutes=1), looked(retention=(False, {})))),
        (
            "behind",
            StateFacts(False, False, ended("success"), landed(lag=7, minutes=1), looked(lag=(False, {"lag": 9}))),
        ),
        (
            "behind",
            StateFacts(False, True, ended("running"), landed(lag=None, minutes=1), looked(lag=(False, {"lag": 9}))),
        ),
        ("failing", StateFacts(False, False, ended("success"), landed(minutes=1), looked(lag=(False, {"lost": 4})))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_state(state: str, seen: StateFacts) -> None:
    assert state_of(seen)[0] == state


def test_the_worst_reason_comes_first() -> None:
    seen = StateFacts(True, False, ended("failed"), None, looked(freshness=(False, {}), lag=(False, {"lag": 1})))
    assert [one.cause for one in state_of(seen)[1]] == [
        "failed run",
        "stopped consumer",
        "slow consumer",
        "stopped consumer",
    ]


def test_what_could_not_be_seen_is_said_once_and_taken_for_nothing_else() -> None:
    unseen = {"could_not_look": "unusable: no answer"}
    seen = StateFacts(False, False, ended("success"), landed(), looked(lag=(False, unseen), retention=(False, unseen)))
    state, why = state_of(seen)
    assert (state, [(one.text, one.cause) for one in why]) == (
        "could not look",
        [("unusable: no answer", "could not look")],
    )


def test_a_line_about_the_tables_content_is_not_about_its_age() -> None:
    reasons = [
        {"cause": "stopped consumer", "text": "nothing was landed for 2 h"},
        {"cause": "silent columns", "text": "no record of the last run had a value for note"},
    ]
    seen = StateFacts(False, False, ended("success"), landed(), looked(freshness=(False, {"reasons": reasons})))
    state, why = state_of(seen)
    assert state == "stalled"
    assert [one.text for one in why] == [
        "Not fresh: nothing was landed for 2 h.",
        "No record of the last run had a value for note.",
    ]


def test_a_broken_file_is_worse_than_the_run_that_failed_for_it() -> None:
    seen = StateFacts(False, False, ended("failed"), landed(), None, broken="a.yaml:1:2: sources: is missing.")
    state, why = state_of(seen)
    assert state == "broken"
    assert "a.yaml:1:2: sources: is missing." in why[0].text
    assert why[1].cause == "failed run"
