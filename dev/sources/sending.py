"""How the sources send: a producer tuned for bulk, a topic that exists, and no lost record unnoticed."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs lack NewTopic

from dev.errors import SourceFailed


class Sender:
    """Sends records to one topic; `close()` tells whether all of them arrived."""

    def __init__(self, client_config: Mapping[str, str], topic: str, partitions: int) -> None:
        self.topic = topic
        ensure_topic(client_config, topic, partitions)
        self._failed: list[KafkaError] = []
        self._producer = Producer(
            {
                "compression.type": "lz4",
                **client_config,
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 500_000,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                # One call for each record that arrived would cost more than sending it.
                "delivery.report.only.error": True,
                "log_level": 3,
            }
        )

    def send(self, value: bytes | None, key: bytes | None = None) -> None:
        """Queue one record, waiting while the queue is full."""
        while True:
            try:
                self._producer.produce(self.topic, value, key, on_delivery=self._note_failure)
                return
            except BufferError:
                self.poll(0.05)

    def poll(self, seconds: float = 0) -> None:
        """Hear about failures."""
        self._producer.poll(seconds)
        if self._failed:
            raise SourceFailed(f"Kafka refused records for {self.topic}: {self._failed[0].str()}.")

    def close(self) -> None:
        """Wait until everything queued has arrived."""
        unsent = self._producer.flush(60)
        self.poll()
        if unsent:
            raise SourceFailed(f"{unsent} records for {self.topic} did not arrive within 60 s: is the broker up?")

    def _note_failure(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(error)


def ensure_topic(client_config: Mapping[str, str], topic: str, partitions: int) -> None:
    """Make the topic when it is not there; one that is there stays as it is."""
    admin = AdminClient({**client_config, "log_level": 3})
    try:
        admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1)])[topic].result(30)
    except KafkaException as problem:
        error = problem.args[0]
        if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise SourceFailed(f"Could not make the topic {topic}: {error.str()}.") from problem
