"""What the tests of landings into Delta tables share: an empty table's place, and a topic of two partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.services.kafka import Kafka
from tests.support.broker import TopicOf
from tests.support.delta_lake import DeltaLake
from tests.support.lake import events


@pytest.fixture
def lake(tmp_path: Path, kafka: Kafka) -> DeltaLake:
    """Give an empty lake beside the session's broker."""
    return DeltaLake(tmp_path, kafka.client_config())


@pytest.fixture
def filled(request: pytest.FixtureRequest, topic_of: TopicOf) -> str:
    """Give a topic with as many records in each partition as the test's module says: EACH."""
    return topic_of(*(events(partition, 0, request.module.EACH) for partition in (0, 1)))
