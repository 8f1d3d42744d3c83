"""Events of the sink's control topic: read as Iceberg writes them, and what they say of source offsets."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import avro.io
import avro.schema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.connect.configuration import complete_config
from airflow_lakestream.connect.publishing import (
    ConnectPositions,
    ControlEvent,
    EventType,
    NotAnEvent,
    ends_below,
    parse_event,
)
from airflow_lakestream.core.publishing.branch import BranchSnapshot
from airflow_lakestream.decode.avro.schema import parse
from airflow_lakestream.decode.avro.values import Malformed, value_of

PARTITION = {
    "type": "record",
    "name": "TopicPartitionOffset",
    "fields": [
        {"name": "topic", "type": "string"},
        {"name": "partition", "type": "int"},
        {"name": "offset", "type": ["null", "long"]},
        {"name": "timestamp", "type": ["null", "long"]},
    ],
}
SCHEMA = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": {"type": "fixed", "name": "uuid_fixed", "size": 16}},
        {"name": "type", "type": "int"},
        {"name": "group_id", "type": "string"},
        {
            "name": "payload",
            "type": {
                "type": "record",
                "name": "DataComplete",
                "namespace": "org.apache.iceberg.connect",
                "fields": [
                    {"name": "commit_id", "type": "uuid_fixed"},
                    {"name": "assignments", "type": ["null", {"type": "array", "items": PARTITION}]},
                ],
            },
        },
    ],
}
GROUP = "connect-c"


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    avro.io.DatumWriter(avro.schema.parse(json.dumps(schema))).write(value, avro.io.BinaryEncoder(out))
    return out.getvalue()


def event(ends: dict[int, int | None], kind: int = EventType.DATA_COMPLETE) -> bytes:
    assignments = [{"topic": "orders", "partition": p, "offset": o, "timestamp": None} for p, o in ends.items()]
    payload = {"commit_id": b"1" * 16, "assignments": assignments}
    written = {"id": b"0" * 16, "type": kind, "group_id": GROUP, "payload": payload}
    plain = json.loads(json.dumps(SCHEMA).replace(', "namespace": "org.apache.iceberg.connect"', ""))
    # With the namespace, within which the fixed type is named as if it were there: as Java writes it.
    text = json.dumps(SCHEMA).encode()
    return b"\xc2\x01" + struct.pack(">H", len(text)) + text + encoded(plain, written)


def test_an_event_tells_how_far_tasks_had_read() -> None:
    found = parse_event(0, 7, event({0: 12, 1: None}))
    assert found == ControlEvent(0, 7, EventType.DATA_COMPLETE, GROUP, {("orders", 0): 12})


@pytest.mark.parametrize("value", [b"", b"\xc2\x01", b"{}", b"\xc2\x01\x00\x02{}", event({0: 1})[:-1]])
def test_what_is_no_event_is_none(value: bytes) -> None:
    with pytest.raises(NotAnEvent):
        parse_event(0, 0, value)


def test_ends_are_the_highest_below_the_control_offset() -> None:
    events = [
        ControlEvent(0, n, EventType.DATA_COMPLETE, group, {("orders", p): end, ("other", p): 99})
        for n, (group, p, end) in enumerate(
            [(GROUP, 0, 10), (GROUP, 1, 5), ("else", 0, 50), (GROUP, 0, 20), (GROUP, 0, 30)]
        )
    ]
    assert ends_below(events, GROUP, "orders", {0: 4}) == {0: 20, 1: 5}
    assert ends_below(events, GROUP, "orders", {0: 0}) == {}


def test_what_a_snapshot_proves_is_what_its_summary_points_at() -> None:
    sink = complete_config(
        "c", {"topics": "orders", "iceberg.tables": "a.b", "iceberg.catalog.type": "rest"}, "lake", 60
    )
    key = f"kafka.connect.offsets.{sink.control_topic}.{GROUP}"
    events = [ControlEvent(0, n, EventType.DATA_COMPLETE, GROUP, {("orders", 0): 10 * (n + 1)}) for n in range(5)]
    positions = ConnectPositions(sink, lambda: events, None)
    summary = {"kafka.connect.commit-id": "x", key: '{"0": 3}'}
    assert positions.is_own(summary)
    assert not positions.is_own({"kafka.connect.commit-id": "x"})
    assert positions.at(BranchSnapshot(1, 1, summary)) == {0: 30}
    # Its control topic has been emptied, or it was another one.
    assert ConnectPositions(sink, list, None).at(BranchSnapshot(1, 1, summary)) is None
    assert positions.at(BranchSnapshot(1, 1, {key: "nonsense"})) is None
    # While it works, a commit may come at any moment; stopped, its coordinator's offsets tell, and never less than at.
    assert positions.beyond() is None
    stopped = ConnectPositions(sink, lambda: events, lambda: {0: 2})
    assert stopped.beyond() == {0: 20}
    stopped.at(BranchSnapshot(1, 1, summary))
    assert stopped.beyond() == {0: 30}


KIND = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": ["null", "string", "double"]},
        {"name": "b", "type": {"type": "map", "values": "bytes"}},
        {"name": "c", "type": {"type": "array", "items": "long"}},
        {"name": "d", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
        {"name": "e", "type": "boolean"},
    ],
}


@given(
    st.fixed_dictionaries(
        {
            "a": st.none() | st.text() | st.floats(allow_nan=False),
            "b": st.dictionaries(st.text(), st.binary()),
            "c": st.lists(st.integers(-(2**63), 2**63 - 1)),
            "d": st.sampled_from(["X", "Y"]),
            "e": st.booleans(),
        }
    ),
    st.data(),
)
def test_values_are_what_the_official_writer_wrote_and_cut_ones_are_refused(value: dict[str, Any], data: Any) -> None:
    written = encoded(KIND, value)
    node = parse(json.dumps(KIND))
    assert value_of(node, written) == value
    with pytest.raises(Malformed):
        value_of(node, written[: data.draw(st.integers(0, len(written) - 1))])
