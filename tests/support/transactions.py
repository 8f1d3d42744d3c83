"""Transactions of a producer on the real broker."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable

from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from dev.services.kafka import Kafka
from tests.support.broker import poll_until


class Transaction:
    """One producer's transactions. A transaction puts a marker of one offset into each partition that it wrote to."""

    def __init__(self, kafka: Kafka, admin: AdminClient) -> None:
        identity = f"test-{uuid.uuid4().hex}"
        # By default the broker ends one after a minute; on a busy machine a test needs it open for longer.
        settings = {"transactional.id": identity, "transaction.timeout.ms": 600_000, "log_level": 2}
        self._producer = Producer({**kafka.client_config(), **settings})
        self._producer.init_transactions(30)
        self._admin = admin

    def begin(
        self,
        topic: str,
        partition: int,
        values: Iterable[bytes | str | None],
        timestamps: Iterable[int] | None = None,
    ) -> None:
        """Write the values in a transaction that stays open; timestamps are now, where none are given."""
        self._where = TopicPartition(topic, partition)
        # Used before, it knows the topic as it was then, without partitions that were added since.
        self._producer.list_topics(topic, timeout=30)
        self._producer.begin_transaction()
        for value, at_ms in zip(values, timestamps or itertools.repeat(0), strict=False):
            self._producer.produce(topic, value, partition=partition, timestamp=at_ms)
        assert self._producer.flush(30) == 0
        self._end = self._end_of_log(IsolationLevel.READ_UNCOMMITTED)

    def commit(self) -> None:
        self._producer.commit_transaction(30)
        self._await_marker()

    def abort(self) -> None:
        self._producer.abort_transaction(30)
        self._await_marker()

    def _await_marker(self) -> None:
        """The coordinator answers before the marker is in the partition."""
        poll_until(lambda: self._end_of_log(IsolationLevel.READ_COMMITTED) > self._end, "the transaction's marker")

    def _end_of_log(self, isolation: IsolationLevel) -> int:
        found = self._admin.list_offsets({self._where: OffsetSpec.latest()}, isolation_level=isolation)
        return int(found[self._where].result(30).offset)
