"""The reasons for which a mirror stops are what the documentation lists."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_lakestream.cdc.stops import StopReason


def test_each_reason_is_in_the_documentation_and_no_other() -> None:
    text = Path(__file__).parents[3].joinpath("docs", "cdc-stops.md").read_text()
    listed = re.findall(r"^\| `([a-z-]+)` \|", text.partition("## When a mirror stops")[2].partition("\n## ")[0], re.M)
    assert sorted(listed) == sorted(StopReason)
