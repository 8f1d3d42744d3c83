"""How a time is written in an argument: what it means to the millisecond, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.config import arguments
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.job import ExtractConfig
from airflow_lakestream.watching.freshness import FreshnessConditions

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=ZONES)


@given(at=TIMES, write=st.sampled_from([lambda at: at, pendulum.instance, datetime.isoformat, str]))
def test_a_time_is_taken_to_the_millisecond(at: datetime, write: Callable[[datetime], Any]) -> None:
    expected = (at - EPOCH) // timedelta(milliseconds=1)
    assert arguments.milliseconds("a", write(at)) == expected
    for number in (expected, str(expected), f" {expected} "):
        assert arguments.milliseconds("a", number) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1969-12-31T23:59:59.999Z", -1),
        ("-1", -1),
        (0, 0),
        ("1970-01-01", 0),
        (date(1970, 1, 2), 86_400_000),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        # Its float of seconds, times 1000, is a little less.
        ("2026-11-20T00:00:00.001Z", 1_795_132_800_001),
        ("20261120T000000Z", 1_795_132_800_000),
    ],
)
def test_edges(value: object, expected: int) -> None:
    assert arguments.milliseconds("a", value) == expected


NO_TIMES = (
    *(True, False, "True", "now", "12:00", "today", "noon", "P1D", "2026-01-01/2026-01-02", "2025-13-01"),
    *(1.5, float("nan"), float("inf"), "1e12", b"2026-11-20", [0], {}, datetime(2026, 11, 20)),
    # Before the year 1, after 9999; also where it is another year in UTC, and where no int64 holds it.
    *(-62_135_596_800_001, 253_402_300_800_000, 2**63, -(2**63) - 1, "9" * 25, "9" * 5000, "10000-01-01"),
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=2))),
)


@pytest.mark.parametrize("value", NO_TIMES, ids=lambda value: repr(value)[:40])
def test_what_is_no_time_is_refused_in_every_argument_that_takes_one(value: object) -> None:
    known = {"topic": "t", "table": "lake.t", "consumer_group": "g"}
    for argument, make in (
        ("start_timestamp", lambda: ExtractConfig(**known, start_offset="timestamp", start_timestamp=value)),
        ("interval_start", lambda: ExtractConfig(**known, mode="interval", interval_start=value, interval_end=2**40)),
        ("interval_end", lambda: ExtractConfig(**known, mode="interval", interval_start=0, interval_end=value)),
        ("complete_through", lambda: FreshnessConditions(table="lake.t", complete_through=value)),
    ):
        with pytest.raises(InvalidArgument, match=f"^{argument}: ") as caught:
            make()
        assert caught.value.argument == argument
