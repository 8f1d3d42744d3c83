"""What librdkafka's messages say of themselves, asked as seldom as can be: each question is a call from Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import OFFSET_INVALID, Consumer, Message, TopicPartition

# From so many messages for each partition on, asking for all positions is faster than asking each message.
_WORTH_ASKING = 32


class Positions:
    """Where a consumer is in each of its partitions, to know which of them its last messages are of."""

    def __init__(self, consumer: Consumer, topic: str, partitions: Iterable[int]) -> None:
        self._consumer = consumer
        self._asked = [TopicPartition(topic, p) for p in partitions]
        self._known = {tp.partition: OFFSET_INVALID for tp in self._asked}

    def the_one_moved(self, count: int) -> int | None:
        """Return the partition that all of the last `count` messages are of; None where they have to be asked.

        A position moves with each message that consume() gives out, and by nothing else but what it passes over:
        `rd_kafka_q_serve_rkmessages` in librdkafka's rdkafka_queue.c. Mostly a thousand messages are of one fetch.
        """
        if count < _WORTH_ASKING * len(self._asked):
            # Those that move now are found to have moved at the next look.
            return None
        now = {tp.partition: tp.offset for tp in self._consumer.position(self._asked)}
        moved = [partition for partition, offset in now.items() if offset != self._known[partition]]
        self._known = now
        return moved[0] if len(moved) == 1 else None


def runs(messages: Sequence[Any], positions: Positions) -> Iterator[tuple[int, int, int]]:
    """Yield the partitions of messages, each with where a run of such begins, and where it ends."""
    count = len(messages)
    if (only := positions.the_one_moved(count)) is not None:
        yield only, 0, count
        return
    numbers: list[Any] = list(map(Message.partition, messages))
    at = 0
    while at < count:
        number = numbers[at]
        until = next((i for i in range(at, count) if numbers[i] != number), count)
        yield number, at, until
        at = until


def timestamps(messages: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Return when they are from, in milliseconds; of an error, and of a record without a time, -1."""
    return np.fromiter(map(itemgetter(1), map(Message.timestamp, messages)), np.int64, len(messages))
