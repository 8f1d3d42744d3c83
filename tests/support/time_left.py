"""Skips, by name, tests that would begin after the end of a run's time: `LAKESTREAM_UNTIL`, in epoch seconds.

`.ci/run` sets it. Skipped tests count as "out of time" in the list of suites, and a suite of which no test ran is red.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

OUT_OF_TIME = "out of time"
_UNTIL = float(os.environ.get("LAKESTREAM_UNTIL") or "inf")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test before its first fixture starts a service."""
    if time.time() >= _UNTIL:
        item.add_marker(pytest.mark.skip(reason=OUT_OF_TIME))


def outcome_of(report: pytest.TestReport) -> str:
    """Return the outcome of a test for the record: `out of time` apart from other skipped tests."""
    place: Any = report.longrepr
    skipped = report.skipped and isinstance(place, tuple)
    return OUT_OF_TIME if skipped and place[2].endswith(OUT_OF_TIME) else report.outcome
