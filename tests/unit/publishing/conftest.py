"""What the tests of publications begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.publishing import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Give an engine's branch, begun, and records of two partitions that it has not read."""
    made = World(tmp_path)
    made.begin()
    made.records(0, 20)
    made.records(1, 3)
    return made
