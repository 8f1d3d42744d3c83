"""A few of the same sequences with topics of the real broker; `make faults-broker` plays many."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from dev.services.kafka import Kafka
from tests.support.fault_broker import BrokerKafka
from tests.support.fault_play import Playground, playground

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def ground(kafka: Kafka) -> Iterator[Playground]:
    with playground(BrokerKafka(kafka)) as made:
        yield made


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_the_table_equals_the_real_log_once_each(ground: Playground, seed: int) -> None:
    ground.play(Random(seed))
