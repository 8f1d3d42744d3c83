"""Which time a run is about: the first place that says it, and errors that say what to do where none does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pendulum
import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.arguments import resolve_interval

NOON = pendulum.datetime(2026, 11, 20, 12, tz="UTC")
ONE = NOON.add(hours=1)
GIVEN = {"interval_start": "2026-11-20T05:00:00Z", "interval_end": "2026-11-20T06:00:00Z"}
IN_CONF = {"interval_start": "2026-11-20T07:00:00Z", "interval_end": "2026-11-20T08:00:00Z"}
IN_PARAMS = {"interval_start": "2026-11-20T09:00:00Z", "interval_end": "2026-11-20T10:00:00Z"}
NOTHING = {"interval_start": None, "interval_end": "None"}


def context(conf: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"dag_run": SimpleNamespace(conf=conf), **more}


def test_the_first_place_that_says_it_counts() -> None:
    interval = {"data_interval_start": NOON, "data_interval_end": ONE}
    everything = context(IN_CONF, params=IN_PARAMS, **interval)
    assert resolve_interval(everything, {**GIVEN, "topic": "t"}) == GIVEN
    assert resolve_interval(everything, NOTHING) == IN_CONF
    assert resolve_interval(context({"topic": "t"}, params=IN_PARAMS, **interval), NOTHING) == IN_PARAMS
    assert resolve_interval(context(None, params={"interval_start": None}, **interval), {}) == {
        "interval_start": NOON,
        "interval_end": ONE,
    }


def test_half_an_interval_is_refused_and_not_completed_from_elsewhere() -> None:
    with pytest.raises(InvalidArgument, match=r"^interval_end: is missing, while the conf give interval_start"):
        resolve_interval(context({"interval_start": "2026-11-20T07:00:00Z"}, params=IN_PARAMS), NOTHING)


def test_a_run_without_a_logical_date_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidArgument, match=r"no data interval.*logical date.*conf"):
        resolve_interval(context(), NOTHING)


def test_an_interval_without_a_width_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidArgument, match=r"plain cron.*CronDataIntervalTimetable"):
        resolve_interval(context(data_interval_start=NOON, data_interval_end=NOON), NOTHING)
