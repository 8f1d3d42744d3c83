"""What the tests of publications begin with."""

from __future__ import annotations

import pytest

from tests.support.publishing import BegunWorld, World


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> BegunWorld:
    """Give an engine's branch, begun, which each test has again as it was."""
    return BegunWorld(tmp_path_factory.mktemp("begun"))


@pytest.fixture
def world(begun: BegunWorld) -> World:
    """Give an engine's branch, begun, and records of two partitions that it has not read."""
    return begun.again(20, 3)
