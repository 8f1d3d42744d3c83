"""Attributes of librdkafka's messages, read by as few calls from Python as possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import OFFSET_INVALID, Consumer, Message, TopicPartition

# From this many messages per partition on, asking for all positions is faster than asking each message.
_WORTH_ASKING = 32


class ConsumerPositions:
    """Positions of a consumer, to find the partition of the last messages."""

    def __init__(self, consumer: Consumer, topic: str, partitions: Iterable[int]) -> None:
        self._consumer = consumer
        self._asked = [TopicPartition(topic, p) for p in partitions]
        self._known = {tp.partition: OFFSET_INVALID for tp in self._asked}

    def the_one_moved(self, count: int) -> int | None:
        """Return the only partition of the last `count` messages; None if unknown or several.

        A position moves with each message that consume() returns, and otherwise only over what it skips:
        `rd_kafka_q_serve_rkmessages` in librdkafka's rdkafka_queue.c. Mostly a thousand messages are of one fetch.
        """
        if count < _WORTH_ASKING * len(self._asked):
            # Partitions that move now are noticed at the next look.
            return None
        now = {tp.partition: tp.offset for tp in self._consumer.position(self._asked)}
        moved = [partition for partition, offset in now.items() if offset != self._known[partition]]
        self._known = now
        return moved[0] if len(moved) == 1 else None


def runs(messages: Sequence[Any], positions: ConsumerPositions) -> Iterator[tuple[int, int, int]]:
    """Yield runs of messages of a partition, as (partition, first index, index behind the last)."""
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
    """Return the messages' times in milliseconds; -1 for an error or a record without a time."""
    return np.fromiter(map(itemgetter(1), map(Message.timestamp, messages)), np.int64, len(messages))
