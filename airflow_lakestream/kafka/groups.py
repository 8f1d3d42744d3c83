"""Consumer groups of another program: read, and set while nobody is in the group."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.kafka.requests import REQUEST_TIMEOUT, Requests


class GroupInUse(LakestreamError, Transient):
    """A group's offsets can't be set while somebody is in it."""

    def __init__(self, group: str, where: str) -> None:
        super().__init__(
            f"{where}: the offsets of group {group!r} can't be set: somebody is still in it. A retry looks again."
        )


class Groups(Requests):
    """A connection's groups. All methods raise KafkaRefused, KafkaUnavailable and KafkaMisconfigured."""

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the offsets that a group has committed of a topic, by partition."""
        request = ConsumerGroupTopicPartitions(group)

        def ask() -> Future[Any]:
            asked = self._client().list_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT)
            future: Future[Any] = asked[group]
            return future

        doing = f"reading the committed offsets of group {group!r}"
        found = self._ask(doing, ask).topic_partitions
        if failed := [tp.error for tp in found if tp.error is not None]:
            # Taken for "none", an error would make the other program begin at the log's start.
            raise self._unavailable(doing, failed[0].str())
        return {tp.partition: tp.offset for tp in found if tp.topic == topic and tp.offset >= 0}

    def members(self, group: str) -> int:
        """Return how many are in a group."""

        def ask() -> Future[Any]:
            asked = self._client().describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT)
            found: Future[Any] = asked[group]
            return found

        return len(self._ask(f"describing group {group!r}", ask).members)

    def set_committed(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the offsets of a group that nobody is in. Raises GroupInUse."""
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, p, o) for p, o in sorted(offsets.items())])

        def ask() -> Future[Any]:
            asked = self._client().alter_consumer_group_offsets([wanted], request_timeout=REQUEST_TIMEOUT)
            future: Future[Any] = asked[group]
            return future

        answer = self._ask(f"setting the offsets of group {group!r}", ask)
        if any(tp.error for tp in answer.topic_partitions):
            raise GroupInUse(group, self._where)
