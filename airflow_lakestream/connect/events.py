"""The events of Iceberg's sink in the control topic: encoding, and source offsets."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

from confluent_kafka import Message

from airflow_lakestream.decode.avro.schema import Node, parse
from airflow_lakestream.decode.avro.values import Malformed, value_of
from airflow_lakestream.decode.values.outcome import SchemaRefused

# Iceberg's AvroEncoderUtil: these two bytes, the schema with two bytes of length, then plain Avro.
_MAGIC = b"\xc2\x01"


class EventType(IntEnum):
    """The kinds of events."""

    START_COMMIT = 0
    DATA_WRITTEN = 1
    DATA_COMPLETE = 2
    COMMIT_TO_TABLE = 3
    COMMIT_COMPLETE = 4


class NotAnEvent(ValueError):
    """Error of a record that is not an event of the sink."""


@dataclass(frozen=True)
class ControlEvent:
    """An event of a sink, with its position in the control topic.

    `group` is the consumer group of the sink. `ends` are empty except for DATA_COMPLETE: by source topic and partition,
    the end of the records that a task has written into files, which earlier events have reported.
    """

    partition: int
    offset: int
    kind: int
    group: str
    ends: Mapping[tuple[str, int], int]


def parse_event(partition: int, offset: int, value: bytes) -> ControlEvent:
    """Read a record of the control topic. Raises NotAnEvent."""
    if value[:2] != _MAGIC or len(value) < 4:
        raise NotAnEvent
    (length,) = struct.unpack(">H", value[2:4])
    try:
        event = value_of(_schema(value[4 : 4 + length]), value[4 + length :])
        kind = int(event["type"])
        ends = _ends(event["payload"]) if kind == EventType.DATA_COMPLETE else {}
        return ControlEvent(partition, offset, kind, str(event["group_id"]), ends)
    except (Malformed, SchemaRefused, KeyError, TypeError, ValueError, AttributeError) as e:
        raise NotAnEvent from e


def events_of(records: Iterable[Message]) -> list[ControlEvent]:
    """Read the records of a control topic.

    Other records are left out: they are another program's, or of a later version, and prove nothing.
    """
    events = []
    for record in records:
        try:
            events.append(parse_event(int(record.partition() or 0), int(record.offset() or 0), record.value() or b""))
        except NotAnEvent:
            continue
    return events


def ends_below(events: Iterable[ControlEvent], group: str, topic: str, until: Mapping[int, int]) -> dict[int, int]:
    """Return, by partition, the end of a topic's records in files reported below `until`.

    :param group: the consumer group of the sink; events of other sinks are ignored.
    :param topic: the source topic.
    :param until: by partition of the control topic, the offset below which events count; no event of a partition that
        is left out counts.

    The highest end of any task counts: a commit takes all events that it has read, also events of an earlier round.
    """
    ends: dict[int, int] = {}
    for event in events:
        if event.group != group or event.offset >= until.get(event.partition, 0):
            continue
        for (source, p), end in event.ends.items():
            if source == topic:
                ends[p] = max(ends.get(p, 0), end)
    return ends


def _ends(payload: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    assignments = payload["assignments"] or ()
    return {
        (str(one["topic"]), int(one["partition"])): int(one["offset"])
        for one in assignments
        if one["offset"] is not None
    }


@lru_cache(maxsize=256)
def _schema(text: bytes) -> Node:
    # Java writes names without their namespace within a namespace, but refers to them with it: all are removed.
    return parse(json.dumps(_without_namespaces(json.loads(text))))


def _without_namespaces(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_namespaces(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_namespaces(value) for key, value in schema.items() if key != "namespace"}
