"""Measures tests and fixtures for `artifacts/durations.json`; the files that took longest last time run first.

`python -m dev durations` shows the record.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from dev.durations import Durations, record
from dev.service import CHECKOUT

# Starts of fixtures that take less, in seconds, are not kept.
_SHORTEST_START = 0.05


class DurationRecorder:
    """Keeps the durations of one process of pytest; the controller of pytest-xdist writes those of its workers, too."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.began = time.monotonic()
        self.tests: dict[str, dict[str, float]] = defaultdict(dict)
        self.fixtures: dict[str, list[float]] = defaultdict(list)
        given = getattr(config, "workerinput", {})
        # Workers have to agree on the order: only the controller reads the record.
        self.seconds: dict[str, float] = given.get("seconds_of_files") or Durations.read().seconds_of_files()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the durations of the last run to a worker."""
        node.workerinput["seconds_of_files"] = dict(self.seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the fixtures that a worker has measured."""
        for name, seconds in getattr(node, "workeroutput", {}).get("fixtures", {}).items():
            self.fixtures[name] += seconds

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the files that took longest first, so that no worker is left alone with one of them in the end."""
        items.sort(key=lambda item: -self.seconds.get(item.path.relative_to(CHECKOUT).as_posix(), 0))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Measure a fixture's start, without the fixtures that its parameters name."""
        began = time.monotonic()
        try:
            return (yield)
        finally:
            if (seconds := time.monotonic() - began) >= _SHORTEST_START:
                self.fixtures[f"{fixturedef.argname} ({fixturedef.scope})"].append(round(seconds, 3))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a phase of a test."""
        self.tests[report.nodeid][report.when or ""] = round(report.duration, 3)

    def pytest_sessionfinish(self) -> None:
        """Hand the fixtures to the controller, or write the record."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["fixtures"] = dict(self.fixtures)
        elif self.tests:
            name = os.environ.get("LAKESTREAM_SUITE") or " ".join(map(str, self.config.args))
            record(name, self.tests, self.fixtures, time.monotonic() - self.began)


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure."""
    config.pluginmanager.register(DurationRecorder(config), "lakestream-durations")
