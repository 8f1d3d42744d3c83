"""Positions of rows, as tests of records of any shape compare them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.broker import Topics
from tests.support.lake import Position


@pytest.fixture
def one_partition(topic: Topics) -> str:
    """Give a new topic of one partition."""
    return topic(partitions=1)


def at(partition: int, offsets: Any) -> list[Position]:
    """Return the positions of some offsets of a partition."""
    return [(partition, offset) for offset in offsets]


def numbers(count: int, start: int = 0) -> list[str]:
    """Return values {"n": start}, {"n": start + 1}, ..."""
    return [f'{{"n": {n}}}' for n in range(start, start + count)]
