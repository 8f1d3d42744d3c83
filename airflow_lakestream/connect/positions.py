"""How far Iceberg's sink has read: what a publication checks its branch against."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from airflow_lakestream.connect.events import Event, ends_below
from airflow_lakestream.connect.iceberg_sink import IcebergSink
from airflow_lakestream.core.publishing.branch import BranchSnapshot

_COMMIT = "kafka.connect.commit-id"


class ConnectPositions:
    """The sink's own account, by the events in its control topic.

    A snapshot's summary says how far the coordinator had read the control topic; the events below that say which
    offsets the tasks had reached. The group's committed offsets are no proof: they come before the table's commit.

    :param events: reads the control topic.
    :param committed: reads the offsets that the coordinator of a stopped sink has committed: all below is in the
        table. None while it works: a commit may come at any moment.
    """

    def __init__(
        self,
        sink: IcebergSink,
        events: Callable[[], Sequence[Event]],
        committed: Callable[[], Mapping[int, int]] | None,
    ) -> None:
        self._sink = sink
        self._read = events
        self._committed = committed
        self._events: Sequence[Event] | None = None
        self._newest: dict[int, int] = {}

    # Nothing is left out on purpose, so what the branch lacks is seen in Kafka.
    line = None

    def is_own(self, summary: Mapping[str, str]) -> bool:
        """Tell by its summary whether this sink has made a snapshot."""
        return _COMMIT in summary and self._key in summary

    def is_of_line(self, summary: Mapping[str, str]) -> bool:
        """Tell the same: nothing is noted of single tasks."""
        return self.is_own(summary)

    def at(self, snapshot: BranchSnapshot) -> Mapping[int, int] | None:
        """Return how far the sink had read for a snapshot; None if its control topic says so no more."""
        try:
            until = {int(p): int(o) for p, o in json.loads(snapshot.summary[self._key]).items()}
        except (KeyError, ValueError, TypeError, AttributeError):
            return None
        self._newest = {p: max(until.get(p, 0), self._newest.get(p, 0)) for p in {*until, *self._newest}}
        return self._ends(until) or None

    def beyond(self) -> Mapping[int, int] | None:
        """Return how far it has read by what its coordinator has committed, with rows or without."""
        if self._committed is None:
            return None
        # The coordinator commits its own offsets after those of the table: it may have been stopped in between.
        until = self._committed()
        until = {p: max(until.get(p, 0), self._newest.get(p, 0)) for p in {*until, *self._newest}}
        return self._ends(until) or None

    def _ends(self, until: Mapping[int, int]) -> dict[int, int]:
        if self._events is None or any(until[p] > self._seen(p) for p in until):
            self._events = self._read()
        return ends_below(self._events, self._sink.group, self._sink.topic, until)

    def _seen(self, partition: int) -> int:
        return max((one.offset + 1 for one in self._events or () if one.partition == partition), default=0)

    @property
    def _key(self) -> str:
        return f"kafka.connect.offsets.{self._sink.control_topic}.{self._sink.group}"
