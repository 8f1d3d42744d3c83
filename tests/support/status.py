"""What `lakestream status` says of a test's table, and of records that are old enough to be overdue."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_lakestream.cli.app import run
from tests.support.broker import Topics
from tests.support.lake import TABLE, Lake

DAY = 1_763_596_800_000
KEPT = {"retention_ms": -1}
# Older than this is all that took a commit; younger than that, all of this test.
AT_ONCE, LONG = "1ms", "1h"

StatusCommand = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def status_after(lake: Lake, capsys: pytest.CaptureFixture[str]) -> StatusCommand:
    """Give `status_after(max_age, *arguments)`: the exit code, and the JSON of each stream of the test's table."""

    def go(max_age: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        capsys.readouterr()
        # Of Delta no catalog is asked, so none has to be there.
        catalog = () if lake.name == TABLE else ("--iceberg-conn", "nowhere")
        code = run(["status", "--json", "--max-age", max_age, *catalog, *(arguments or ("--table", lake.name))])
        printed = capsys.readouterr()
        assert printed.out, printed.err
        return code, json.loads(printed.out)["streams"]

    return go


@pytest.fixture
def old_topic(topic: Topics) -> str:
    """Give a topic of two partitions that keeps old records."""
    return topic(2, **KEPT)


def old(count: int) -> list[int]:
    """Return the times of so many old records."""
    return [DAY + n for n in range(count)]


def causes(stream: dict[str, Any]) -> list[str]:
    """Return the causes that are given for a stream's state."""
    return [reason["cause"] for reason in stream["reasons"]]


def landings(stream: dict[str, Any]) -> list[int]:
    """Return the snapshots of a stream's landings, newest first."""
    return [int(one["snapshot_id"]) for one in stream["landings"]]


def engines(stream: dict[str, Any]) -> list[str | None]:
    """Return the engines of a stream's landings, newest first."""
    return [one["engine"] for one in stream["landings"]]
