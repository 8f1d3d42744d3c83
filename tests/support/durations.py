"""Measures tests and fixtures for `artifacts/durations.json`; the files that took longest last time run first.

`python -m dev durations` shows the record. `--order=SEED` runs the files in a random order instead.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from dev.durations import RECORD, Durations, RunRecord
from dev.locks import file_lock
from tests.support.parts import suite_of
from tests.support.time_left import OUT_OF_TIME, outcome_of

# Starts of fixtures that take less, in seconds, are not kept.
_SHORTEST_START = 0.05


class DurationRecorder:
    """Keeps the durations of one process of pytest; the controller of pytest-xdist writes those of its workers, too."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.began = time.time()
        self.tests: dict[str, dict[str, float]] = defaultdict(dict)
        self.fixtures: dict[str, list[float]] = defaultdict(list)
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.failed: dict[str, None] = {}
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

    def pytest_report_header(self) -> str | None:
        """Print the seed of a random order."""
        order = self.config.getoption("order")
        return order and f"files in a random order: --order={order}"

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put new files and those that took longest first, so that no worker is left alone with one in the end.

        Suites take turns: where a run's time ends early, each of them has played its share.
        """
        files = list(dict.fromkeys(_file_of(item) for item in items))
        if (order := self.config.getoption("order")) is not None:
            random.Random(order).shuffle(files := sorted(files))
            places = {file: float(place) for place, file in enumerate(files)}
        else:
            places = places_in_turns(files, self.seconds)
        items.sort(key=lambda item: places[_file_of(item)])

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
        """Keep a phase of a test, and how the test ended."""
        outcome = outcome_of(report)
        if outcome != OUT_OF_TIME:
            self.tests[report.nodeid][report.when or ""] = round(report.duration, 3)
        if report.failed:
            self.failed[report.nodeid] = None
        if report.when == "call" or report.outcome != "passed":
            # A long test is one of its folder's suite as well.
            for suite in {suite_of(report.nodeid), suite_of(report.nodeid, report.keywords)}:
                self.outcomes[suite][outcome] += 1

    def pytest_sessionfinish(self) -> None:
        """Hand the fixtures to the controller, or write the record."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["fixtures"] = dict(self.fixtures)
        elif self.tests:
            name = os.environ.get("LAKESTREAM_RUN") or " ".join(map(str, self.config.args))
            RECORD.parent.mkdir(exist_ok=True)
            with file_lock(RECORD.with_suffix(".lock")):
                known = Durations.read()
                suites = {suite: dict(counts) for suite, counts in self.outcomes.items()}
                run = RunRecord(self.began, round(time.time() - self.began, 1), suites, [*self.failed])
                known.add(name, run, self.tests, self.fixtures)
                known.write()


def places_in_turns(files: Iterable[str], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return a place for each file: of each suite new and long ones first, and suites in turns."""
    suites: dict[str, list[str]] = defaultdict(list)
    for file in files:
        suites[suite_of(file)].append(file)
    places = {}
    for of_suite in suites.values():
        of_suite.sort(key=lambda file: -seconds.get(file, math.inf))
        places |= {file: place / len(of_suite) for place, file in enumerate(of_suite)}
    return places


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of a random order."""
    parser.addoption("--order", metavar="SEED", help="run the files in a random order, the same for the same seed")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure."""
    config.pluginmanager.register(DurationRecorder(config), "lakestream-durations")
