"""Times as text: as Python has them, and beyond."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.tables.coordinates import iso
from airflow_lakestream.watching.freshness import FreshnessResult


@given(st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)))
def test_a_time_of_pythons_is_written_as_python_does(at: datetime) -> None:
    at_ms = round((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    assert iso(at_ms) == at.isoformat(timespec="milliseconds" if at.microsecond else "seconds")
    assert iso(at_ms, shortly=False) == at.isoformat(timespec="milliseconds")


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (253_402_300_800_000, "10000-01-01T00:00:00+00:00"),
        (-62_135_596_800_001, "0000-12-31T23:59:59.999+00:00"),
        (9_224_318_015_999_000, "294276-12-31T23:59:59+00:00"),
    ],
)
def test_an_event_of_any_year_has_a_text(at_ms: int, text: str) -> None:
    assert iso(at_ms) == text
    assert FreshnessResult(True, "lake.t", (), through_ms=at_ms).to_dict()["through"] == text
