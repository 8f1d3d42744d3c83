"""The services of a test run: one stack for all workers of pytest-xdist, and stacks of tests that harm a service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dev.stack import Stack

_SHARED = pytest.StashKey[Stack]()


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


@pytest.fixture(scope="module")
def own_stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Give a stack of this file alone, for tests that kill or change its services: they are marked `own_parts`."""
    assert request.node.get_closest_marker("own_parts"), f"{request.node.nodeid} has to be marked with own_parts"
    with Stack.owned("tests-own") as owned:
        yield owned
