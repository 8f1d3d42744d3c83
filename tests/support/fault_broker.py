"""The topics of the fault harness on a real broker: the same is done to them as to the truth, and offsets must agree.

Compaction of the log and damage are left to the model: no test can tell a broker which record to take, and what the
readers make of a damaged segment is a test of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.policies import StartOffset
from airflow_lakestream.core.ports import RecordReader, TopicSource
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from dev.services.kafka import Kafka
from tests.support.broker import Producing, Topics
from tests.support.fault_log import Entry, PartitionLog, TopicLog
from tests.support.fault_ports import RunReader
from tests.support.fault_run import Run
from tests.support.fault_topics import ModelKafka, Topic
from tests.support.faults import SmallChunks
from tests.support.transactions import Transaction


class BrokerKafka(ModelKafka):
    """Makes topics on a real broker."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.config = kafka.client_config()
        self.admin = AdminClient({**self.config, "log_level": 2})
        self.topics = Topics(self.admin)
        # Producers with a transaction to spare: to make one takes a while.
        self.idle: list[Transaction] = []

    def topic(self, name: str, index: int, partitions: int) -> Topic:
        # Timestamps of the sequences are years old, or far ahead: retention would take such records at once, and the
        # broker refuse them.
        made = self.topics(partitions, retention_ms=-1, message_timestamp_after_max_ms=2**63 - 1)
        source = KafkaSource(self.config, made, "g", StartAt(StartOffset.EARLIEST), "the broker")
        log = TopicLog(made, source.identity(), [PartitionLog() for _ in range(partitions)])
        return BrokerTopic(log, index, self)


class BrokerTopic(Topic):
    """A topic on a real broker; `log` is what has to be there."""

    can_compact = can_damage = False

    def __init__(self, log: TopicLog, index: int, broker: BrokerKafka) -> None:
        super().__init__(log, index)
        self._broker = broker
        self._produce = Producing(broker.config)
        self._open: Transaction | None = None

    def append(self, partition: int, entries: Sequence[Entry]) -> None:
        expected = list(range(self.end(partition), self.end(partition) + len(entries)))
        super().append(partition, entries)
        offsets = self._produce(
            self.log.name, partition, [e.value for e in entries], timestamps=[e.at_ms for e in entries]
        )
        assert offsets == expected, f"the broker has {offsets} where the model has {expected}"

    def begin_transaction(self, partition: int, entries: Sequence[Entry]) -> None:
        super().begin_transaction(partition, entries)
        idle = self._broker.idle
        self._open = idle.pop() if idle else Transaction(self._broker.kafka, self._broker.admin)
        self._open.begin(self.log.name, partition, [e.value for e in entries], [e.at_ms for e in entries])

    def end_transaction(self, commits: bool, at_ms: int) -> None:
        assert self._open is not None
        # The broker writes its own time into the marker.
        super().end_transaction(commits, int(time.time() * 1000))
        self._open.commit() if commits else self._open.abort()
        self._broker.idle.append(self._open)
        self._open = None

    def add_partition(self) -> None:
        super().add_partition()
        self._broker.topics.add_partitions(self.log.name, len(self.log.partitions))
        # The producer knows the topic as it was.
        self._produce = Producing(self._broker.config)

    def trim(self, partition: int, low: int) -> None:
        super().trim(partition, low)
        where = TopicPartition(self.log.name, partition, low)
        self._broker.admin.delete_records([where])[where].result(30)

    def client_config(self) -> Mapping[str, Any]:
        return self._broker.config

    def ports(self, job: LandingJob, run: Run, records: int) -> tuple[TopicSource, RecordReader]:
        return job.source, RunReader(SmallChunks(job.reader, records), run)

    def committed(self, group: str) -> Mapping[int, int]:
        where = [TopicPartition(self.log.name, p) for p in range(len(self.log.partitions))]
        request = ConsumerGroupTopicPartitions(group, where)
        found = self._broker.admin.list_consumer_group_offsets([request])[group].result(30).topic_partitions
        return {tp.partition: tp.offset for tp in found}
