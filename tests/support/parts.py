"""The services of a test run: one stack for all workers of pytest-xdist, and stacks of tests that harm a service."""

from __future__ import annotations

from collections.abc import Container, Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest

from dev.stack import Stack
from dev.suites.table import NIGHTLY, QUICK, SUITES

# A test that asks for one of these parts is `long`, if its folder is one of those that `make test` runs.
_PARTS = frozenset({"spark", "connect", "postgres", "mariadb", "s3", "flink", "sensing"})
_SHARED = pytest.StashKey[Stack]()


def suite_of(test: str, marks: Container[str] = ()) -> str:
    """Return the name of the suite that a test belongs to, by its id and its marks; an empty text if it has none."""
    found = next((suite.name for suite in SUITES if test.startswith(suite.folders)), "")
    return "long" if found in QUICK and "long" in marks else found


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that take or leave long and nightly tests."""
    parser.addoption("--long", choices=["with", "without", "only"], default="with", help="take, or leave, long tests")
    parser.addoption("--nightly", choices=["with", "without"], default="with", help="take, or leave, nightly tests")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test that `make test` leaves to `make test-all` on account of the parts that it needs."""
    if suite_of(item.nodeid) in QUICK and _PARTS & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.long)


def is_nightly(test: str) -> bool:
    """Whether a test is left to `make test-all` by a row of the table, by its id."""
    return any(fnmatchcase(test, glob) for glob, _ in NIGHTLY)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long tests, or all others of the folders that have them, and nightly ones to another run."""
    unwanted = {"with": (), "without": ("long",), "only": QUICK}[config.getoption("long")]
    all_day = config.getoption("nightly") == "with"
    kept, left = [], []
    for item in items:
        wanted = suite_of(item.nodeid, item.keywords) not in unwanted and (all_day or not is_nightly(item.nodeid))
        (kept if wanted else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Name the run's stack to a worker; services start when the first worker asks for them."""
    stash = node.config.stash
    if _SHARED not in stash:
        stash[_SHARED] = Stack.owned("tests")
    node.workerinput["stack"] = stash[_SHARED].name


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the services of the run."""
    if (stack := config.stash.get(_SHARED, None)) is not None:
        stack.down()


@pytest.fixture(scope="session")
def stack(pytestconfig: pytest.Config) -> Iterator[Stack]:
    """Give the stack of this test run; it is gone afterwards, also when the run is killed."""
    name = getattr(pytestconfig, "workerinput", {}).get("stack")
    if name is not None:
        yield Stack.joined(name)
        return
    with Stack.owned("tests") as owned:
        yield owned


@pytest.fixture(scope="session")
def worker_stack() -> Iterator[Stack]:
    """Give a stack of this worker alone, for services that a test expects to be empty."""
    with Stack.owned("tests-worker") as owned:
        yield owned


@pytest.fixture(scope="module")
def own_stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Give a stack of this file alone, for tests that kill or change its services: they are marked `own_parts`."""
    assert request.node.get_closest_marker("own_parts"), f"{request.node.nodeid} has to be marked with own_parts"
    with Stack.owned("tests-own") as owned:
        yield owned
