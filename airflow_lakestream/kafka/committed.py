"""Committed offsets of a consumer group in a topic: read as a beginning, refused, and written."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.requests import REQUEST_TIMEOUT, KafkaRequests

log = logging.getLogger(__name__)

MIRROR_TIMEOUT = 5.0
# The metadata of a refused offset, followed by the log's end. Setting the offset again overwrites it.
_REFUSED = "refused by airflow-lakestream: beyond the log's end at "


class GroupOffsets(KafkaRequests):
    """Committed offsets of a group and a topic.

    :param notes_refusals: writes a refusal into the group; False for a look that changes nothing.
    """

    def __init__(
        self, connection: Mapping[str, Any], topic: str, consumer_group: str, where: str, *, notes_refusals: bool = True
    ) -> None:
        super().__init__(connection, where)
        self._topic = topic
        self._group = consumer_group
        self._notes_refusals = notes_refusals

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        """Write the group's committed offsets, for lag tools; a failure is only logged, as a warning."""
        if problem := self._write(TopicPartition(self._topic, p, offset) for p, offset in offsets.items()):
            log.warning(
                "The committed offsets of group %r on %s were not written (%s). Nothing is lost: progress is kept in "
                "the table. Lag tools that read the group show an older state.",
                self._group,
                self._topic,
                problem,
            )

    def _committed(self, partitions: Iterable[int]) -> dict[int, TopicPartition]:
        """Return the group's committed offsets by partition, without uncommitted partitions.

        Raises KafkaUnavailable if the answer lacks a partition, and the errors of `_ask`.
        """
        request = ConsumerGroupTopicPartitions(self._group, [TopicPartition(self._topic, p) for p in partitions])

        def ask() -> Future[Any]:
            futures = self._client().list_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT)
            future: Future[Any] = futures[self._group]
            return future

        doing = f"reading the committed offsets of group {self._group!r}"
        answer = self._ask(doing, ask)
        if failed := [tp.error for tp in answer.topic_partitions if tp.error is not None]:
            # Errors come per partition; taken for "none", an error would make the group begin at the log's start.
            raise self._unavailable(doing, failed[0].str())
        return {tp.partition: tp for tp in answer.topic_partitions if tp.offset >= 0}

    def _refuse_beyond(self, committed: Mapping[int, TopicPartition], ends: Mapping[int, int]) -> None:
        """Refuse to begin at committed offsets beyond the log's end. Raises InvalidArgument.

        The records up to such an offset would be skipped. The log may grow past the offset, which does not make the
        offset right. So the first refusal is noted in the group, and later runs refuse by the note, until the offset is
        set again.

        :param ends: by partition, the end of the log, open transactions included; of partitions that may be beyond it.
        """
        known = {p: end for p, tp in committed.items() if (end := _noted_end(tp)) is not None}
        new = {p: end for p, end in ends.items() if p not in known and committed[p].offset > end}
        if not (refused := known | new):
            return
        where = ", ".join(
            f"{self._topic}[{p}] {committed[p].offset} (its log ended at {end})" for p, end in sorted(refused.items())
        )
        notes = (TopicPartition(self._topic, p, committed[p].offset, f"{_REFUSED}{end}") for p, end in new.items())
        problem = self._write(notes) if self._notes_refusals else None
        raise InvalidArgument(
            "start_offset",
            f'"committed" was asked for, but group {self._group!r} has committed offsets that were not in the log yet '
            f"when a run first saw them: {where}. They are of another topic or cluster, or the log was cut short "
            "since. The records up to these offsets would never be landed, so nothing was landed.",
            "Correct consumer_group or kafka_conn_id, set the group's offsets (kafka-consumer-groups.sh "
            '--reset-offsets; they stay refused until they are set again), or begin with "earliest" or "timestamp".'
            + (
                f" The refusal could not be noted in the group ({problem}): do not run again before its offsets are "
                "right, since a log that has grown past them would be taken for theirs."
                if problem
                else ""
            ),
        )

    def _write(self, offsets: Iterable[TopicPartition]) -> str | None:
        """Write offsets of the group; return the reason of a failure, or None. Raises no error of Kafka."""
        if not (targets := list(offsets)):
            return None
        request = ConsumerGroupTopicPartitions(self._group, targets)
        try:
            futures = self._client().alter_consumer_group_offsets([request], request_timeout=MIRROR_TIMEOUT)
            for partition in futures[self._group].result(MIRROR_TIMEOUT + 1).topic_partitions:
                if partition.error is not None:
                    raise KafkaException(partition.error)
        except (KafkaException, TimeoutError) as e:
            return str(e) or type(e).__name__
        return None


def _noted_end(tp: TopicPartition) -> int | None:
    """Return the log's end noted at the refusal of an offset; None for an offset never refused."""
    end = str(tp.metadata or "").removeprefix(_REFUSED)
    return int(end) if end != tp.metadata and end.isdigit() else None
