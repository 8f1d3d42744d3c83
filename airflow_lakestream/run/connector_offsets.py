"""Offsets of source connectors as Kafka Connect stores them, in its topic `offset.storage.topic`."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.records import RecordPart
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource, StartAt

_GROUP = "lakestream-connector-offsets"
_FILE_NUMBER = re.compile(r".*\.(\d{1,9})")


class ConnectorOffsets:
    """Stored offsets of all connectors, each record read once.

    :param kafka: librdkafka configuration.
    :param topic: the topic `offset.storage.topic` of Kafka Connect's workers.
    """

    def __init__(self, kafka: Mapping[str, Any], where: str, topic: str) -> None:
        self._source = KafkaSource(kafka, topic, _GROUP, StartAt(), where)
        parts = frozenset({RecordPart.KEY})
        self._reader = KafkaReader(kafka, _GROUP, poll_timeout=30, where=where, parts=parts)
        self._at: dict[int, int] = {}
        # By topic.prefix: the newest record's time, and the offset.
        self._newest: dict[str, tuple[int, Any]] = {}

    def position(self, connector: str, stop: threading.Event) -> int | None:
        """Return a position below which all events are in Kafka, or None if unknown.

        :param connector: the connector's `topic.prefix`.
        """
        state = self._source.look()
        starts = {p: max(marks.low, self._at.get(p, 0)) for p, marks in state.marks.items()}
        topic = state.identity.topic
        ranges = union(RangeSet.of(topic, p, starts[p], m.end) for p, m in state.marks.items() if starts[p] < m.end)
        with closing(self._reader.read(Plan(state, ranges), stop)) as chunks:
            for chunk in chunks:
                keys = [] if chunk.batch.keys is None else chunk.batch.keys.to_pylist()
                for key, value, time_ms in zip(
                    keys, chunk.batch.values.to_pylist(), chunk.batch.timestamps, strict=True
                ):
                    self._take(key, value, time_ms)
                self._at[chunk.covers.partition] = chunk.covers.until_offset
        return position_of(self._newest.get(connector, (0, None))[1])

    def _take(self, key: bytes | None, value: bytes | None, time_ms: int) -> None:
        try:
            _, partition = json.loads(key or b"null")
            server, offset = partition["server"], json.loads(value or b"null")
        except (ValueError, TypeError, KeyError):
            # The offset of another kind of connector.
            return
        # A connector that was made again may have another name, and so another key.
        if time_ms >= self._newest.get(server, (-1, None))[0]:
            self._newest[server] = time_ms, offset


def position_of(offset: Any) -> int | None:
    """Return the position of an offset: all events below were sent before. None for one without, as in a snapshot.

    PostgreSQL: the last commit. Binary logs: the begin of the transaction to go on with.
    """
    if not isinstance(offset, dict) or offset.get("snapshot"):
        return None
    if (commit := offset.get("lsn_commit")) is not None:
        return int(commit)
    match = _FILE_NUMBER.fullmatch(str(offset.get("file")))
    return None if match is None or offset.get("pos") is None else int(match[1]) * 2**32 + int(offset["pos"])
