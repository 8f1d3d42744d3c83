"""Looks at a connector: its tasks by Connect, its offsets by Kafka, its commits by the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_lakestream.connect.client import ConnectClient, ConnectUnknown, NoSuchConnector
from airflow_lakestream.connect.connector import ConnectorSpec
from airflow_lakestream.connect.judging import Seen
from airflow_lakestream.connect.status import ConnectorStatus, State
from airflow_lakestream.kafka.errors import KafkaUnavailable
from airflow_lakestream.kafka.watch import KafkaWatch


class Observer:
    """Looks, and decides nothing.

    :param kafka: None for a source, or where no Kafka connection is given: then no lag is known.
    :param head: see `Publisher.head`.
    """

    def __init__(
        self, spec: ConnectorSpec, client: ConnectClient, kafka: KafkaWatch | None, head: Callable[[], str] | None
    ) -> None:
        self._spec = spec
        self._client = client
        self._kafka = kafka
        self._head = head

    def see(self) -> Seen:
        """Look. What gives no answer makes the look an unknown one, and is no error. Raises what is refused."""
        try:
            status = self._status()
            if status is None:
                return Seen(is_gone=True)
            if self._kafka is None or not self._spec.topics:
                return Seen(status)
            return self._with_offsets(status, self._kafka)
        except (ConnectUnknown, KafkaUnavailable) as e:
            return Seen(problem=str(e))

    def _status(self) -> ConnectorStatus | None:
        try:
            return self._client.status(self._spec.name)
        except NoSuchConnector:
            # One that is just made has no status yet.
            there = self._client.config(self._spec.name) is not None
            return ConnectorStatus(State.UNASSIGNED) if there else None

    def _with_offsets(self, status: ConnectorStatus, kafka: KafkaWatch) -> Seen:
        group = kafka.group(self._spec.group)
        lag, committed = 0, dict[int, int]()
        for topic in self._spec.topics:
            at = group.offsets.get(topic, {})
            committed |= at
            lag += self._lag(kafka, topic, at)
        coordinating = self._spec.coordinator_group
        coordinators = kafka.group(coordinating).members if coordinating else 0
        return Seen(
            status,
            committed=committed,
            lag=lag,
            commits=self._head() if self._head else "",
            coordinators=coordinators,
        )

    @staticmethod
    def _lag(kafka: KafkaWatch, topic: str, at: Mapping[int, int]) -> int:
        state = kafka.topic(topic)
        behind = {p: max(at.get(p, 0), marks.low) for p, marks in state.marks.items()}
        behind = {p: offset for p, offset in behind.items() if offset < state.marks[p].end}
        # The ends of transactions are no records: who has read all before them is not behind.
        readable = {p for p, first in kafka.firsts(state, behind).items() if first is not None} if behind else set()
        return sum(state.marks[p].end - offset for p, offset in behind.items() if p in readable)
