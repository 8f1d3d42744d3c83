"""A topic of one partition that lands bit by bit: each landing a snapshot, the records known by their offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.broker import Producing, Topics
from tests.support.lake import Lake, assert_landed_once, events


@dataclass
class Landings:
    """Call it to land so many snapshots more, `each` records in one; it returns how many are landed by then.

    `config` are arguments of each landing, which those of a call replace.
    """

    lake: Lake
    topic: str
    produce: Producing
    each: int = 4
    config: dict[str, Any] = field(default_factory=dict)
    landed: int = 0

    def __call__(self, landings: int, **config: Any) -> int:
        for _ in range(landings):
            self.produce(self.topic, 0, events(0, self.landed, self.each))
            self.landed += self.each
            self.lake.land(self.topic, **(self.config | config))
        return self.landed

    def assert_once(self) -> None:
        """Assert that all of them are in the table, once each, and that the next run finds nothing to do."""
        assert_landed_once(self.lake, self.topic, {0: self.landed})
        assert self.lake.land(self.topic, **self.config).counts.read == 0


@pytest.fixture
def landings(lake: Lake, topic: Topics, produce: Producing) -> Landings:
    """Give a new topic's landings in the test's lake."""
    return Landings(lake, topic(1), produce)
