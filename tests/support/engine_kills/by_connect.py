"""Iceberg's sink on Connect whose processes are killed: the worker, the task's, the triggerer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_lakestream.connect.client import ConnectUnknown, NoSuchConnector
from airflow_lakestream.connect.publishing import ControlEvent, EventType
from airflow_lakestream.kafka.errors import TopicMissing
from tests.support.connecting import Sinks
from tests.support.engine_kills.killed_stream import Blow, KilledStream
from tests.support.engine_kills.stream_task import StreamTask

OPERATOR = "airflow_lakestream.operators.kafka_connect.KafkaConnectOperator"
# Between two looks into the control topic, which is read from its beginning.
_LOOK = 0.05


class ConnectUnderKills(KilledStream):
    """A stream of KafkaConnectOperator."""

    def __init__(self, sinks: Sinks, topic: str, counts: dict[int, int], task: StreamTask) -> None:
        super().__init__(sinks.lake, topic, counts, task)
        self._sinks = sinks

    @property
    def blows(self) -> Mapping[str, Blow]:
        return {
            "worker": lambda _: self._kill_worker(),
            "task": self.kill_task,
            "triggerer": self.kill_triggerer,
            "worker, between its data and the commit": lambda _: self._kill_before_commit(),
            "task, in a publication": lambda chance: self.kill_in_publication(chance, self.task.kill),
        }

    def mend(self) -> None:
        if not self._sinks.worker_lives:
            self._sinks.start_the_worker_again()

    def ask_to_stop(self) -> None:
        try:
            self._sinks.client.stop(self._sinks.name)
        except (ConnectUnknown, NoSuchConnector):
            # It comes up, or a task that is under way makes the connector.
            return

    def _kill_worker(self) -> bool:
        self._sinks.kill_the_worker()
        return True

    def _kill_before_commit(self) -> bool:
        """Kill the worker, coordinator and all, once its tasks have told of their files."""
        events: list[ControlEvent] = []

        def waits_for_commit() -> bool:
            nonlocal events
            try:
                events = self._sinks.events(self.topic)
            except TopicMissing:
                # Made with the connector, by a task that has not come so far.
                return False
            kinds = [one.kind for one in events]
            commits = [at for at, kind in enumerate(kinds) if kind == EventType.COMMIT_TO_TABLE]
            return EventType.DATA_COMPLETE in kinds[commits[-1] + 1 if commits else 0 :]

        self.task.until(waits_for_commit, "the sink's data", every=_LOOK)
        self._sinks.kill_the_worker()
        return _commits(self._sinks.events(self.topic)) == _commits(events)


def _commits(events: Sequence[ControlEvent]) -> int:
    return sum(one.kind == EventType.COMMIT_TO_TABLE for one in events)
