"""Offsets read by Iceberg's sink, for the check of a publication's branch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from airflow_lakestream.connect.events import ControlEvent, ends_below
from airflow_lakestream.connect.iceberg_sink import IcebergConnector
from airflow_lakestream.core.publishing.branch import BranchSnapshot

_COMMIT = "kafka.connect.commit-id"


class ConnectPositions:
    """Positions of a sink's snapshots, by the events in the control topic.

    A snapshot's summary has the coordinator's offsets in the control topic; the events below these have the offsets of
    the tasks. The group's committed offsets prove nothing: they come before the table's commit.

    :param events: reads the control topic.
    :param committed: reads the offsets that the coordinator of a stopped sink has committed: all below is in the
        table. None while it works: a commit may come at any moment.
    """

    def __init__(
        self,
        sink: IcebergConnector,
        events: Callable[[], Sequence[ControlEvent]],
        committed: Callable[[], Mapping[int, int]] | None,
    ) -> None:
        self._sink = sink
        self._read = events
        self._committed = committed
        self._events: Sequence[ControlEvent] | None = None
        self._newest: dict[int, int] = {}

    # No record is left out on purpose, so records lacking in the branch are found in Kafka.
    line = None

    def is_own(self, summary: Mapping[str, str]) -> bool:
        """Return whether this sink has made a snapshot, by the snapshot's summary."""
        return _COMMIT in summary and self._key in summary

    def is_of_line(self, summary: Mapping[str, str]) -> bool:
        """Return the same as `is_own`: single tasks are not noted."""
        return self.is_own(summary)

    def at(self, snapshot: BranchSnapshot) -> Mapping[int, int] | None:
        """Return the offsets of a snapshot; None if gone from the control topic."""
        try:
            until = {int(p): int(o) for p, o in json.loads(snapshot.summary[self._key]).items()}
        except (KeyError, ValueError, TypeError, AttributeError):
            return None
        self._newest = {p: max(until.get(p, 0), self._newest.get(p, 0)) for p in {*until, *self._newest}}
        return self._ends(until) or None

    def beyond(self) -> Mapping[int, int] | None:
        """Return the offsets up to the coordinator's last commit, with or without rows."""
        if self._committed is None:
            return None
        # The coordinator commits its own offsets after the table's commit: it may have been stopped in between.
        until = self._committed()
        until = {p: max(until.get(p, 0), self._newest.get(p, 0)) for p in {*until, *self._newest}}
        return self._ends(until) or None

    def _ends(self, until: Mapping[int, int]) -> dict[int, int]:
        if self._events is None or any(until[p] > self._read_until(p) for p in until):
            self._events = self._read()
        return ends_below(self._events, self._sink.group, self._sink.topic, until)

    def _read_until(self, partition: int) -> int:
        return max((one.offset + 1 for one in self._events or () if one.partition == partition), default=0)

    @property
    def _key(self) -> str:
        return f"kafka.connect.offsets.{self._sink.control_topic}.{self._sink.group}"
