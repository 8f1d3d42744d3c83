"""Events after a mirror's ledger: whose rows changed meanwhile, and whether all earlier changes are in the topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_lakestream.audit.keyed import KeyedTable
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.audit.source_comparison import RowDigests
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.plan import PartitionWatermarks, Plan, TopicState
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ports import RecordChunk
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.run.source_audit import LaterEvents, LaterKeys
from tests.support.source_tables import HandEvents

IDENTITY = TopicIdentity("t", "id", "cluster")
COLUMNS = pa.schema(
    [("id", pa.int64()), ("v", pa.string()), ("_cdc_commit", pa.int64()), ("_cdc_position", pa.int64())]
)
Record = tuple[bytes | None, str]


class HandTopic:
    """A topic of one partition, as the source and the reader of events see it; `low` is its first offset."""

    def __init__(self, records: Sequence[Record], low: int = 0) -> None:
        self.records, self.low = records, low

    def look(self) -> TopicState:
        return TopicState(IDENTITY, {0: PartitionWatermarks(self.low, len(self.records), None)})

    def read(self, plan: Plan, _: threading.Event) -> Iterator[RecordChunk]:
        for one in plan.ranges:
            # Each record is a chunk, so that some chunks have no event.
            for at in range(one.from_offset, one.until_offset):
                value, key = self.records[at]
                values = (pa.array([part], pa.binary()) for part in (value, key.encode()))
                batch = RawBatch("t", 0, range(at, at + 1), [0], *values)
                yield RecordChunk(OffsetRange("t", 0, at, at + 1), batch, 1)


def later(topic: HandTopic, landed: RangeSet, wanted: Sequence[int]) -> tuple[list[int], LaterKeys]:
    """Return the wanted ids with an event, and the answer."""
    digests = RowDigests(("id",), pa.schema([("id", pa.int64())]))
    config = MirrorConfig(topic="t", table="lake.t", consumer_group="g", key=["id"])
    audit = Audit(table="lake.t", consumer_group="g", full=True, kafka={"bootstrap.servers": "nowhere:1"})
    head: Any = None
    table = KeyedTable(columns=COLUMNS, key=("id",), head=head, files=[], entries=None)
    events = LaterEvents(audit, config, table, IDENTITY, digests, patience=0)
    vars(events).update(_source=topic, _reader=topic)
    hashes = {int(one): n for n, one in zip(wanted, digests.of_keys(pa.table({"id": pa.array(wanted)})), strict=True)}
    found = events.read(landed, np.sort(np.array([*hashes], np.uint64)), int(time.time() * 1000))
    return sorted(hashes[one] for one in found.keys), found


@pytest.fixture
def hand() -> HandEvents:
    """Give a table of a database."""
    return HandEvents("shop.public.t", ("id",))


def records(hand: HandEvents) -> list[Record]:
    """Return a change and a deletion with its tombstone, a heartbeat, and an event of the future."""
    changed, deleted = hand.event("u", {"id": 1, "v": "a"}), hand.event("d", {"id": 2, "v": None})
    heartbeat = (b'{"ts_ms": 5}', "{}")
    return [changed, deleted, (None, deleted[1]), heartbeat, hand.event("c", {"id": 9, "v": "z"}, after_s=3600)]


def test_the_keys_of_later_events_and_the_proof_that_there_are_no_others(hand: HandEvents) -> None:
    topic = HandTopic(records(hand))
    found, answer = later(topic, RangeSet(), [1, 2, 3])
    assert (found, answer.reason) == ([1, 2], None)
    assert later(topic, RangeSet.of("t", 0, 0, 1), [1, 2, 3])[0] == [2]
    # Without an event of a later change, a change may be on the way.
    found, answer = later(HandTopic(topic.records[:4]), RangeSet(), [1, 2, 3])
    assert (found, "no event of a later change" in str(answer.reason)) == ([1, 2], True)
    # A row that a snapshot reads is no such event, and a truncation changes all rows.
    read = hand.event("r", {"id": 9, "v": "z"}, after_s=3600)
    assert later(HandTopic([*topic.records[:4], read]), RangeSet(), [1, 2, 3])[1].reason is not None
    cut = hand.event("t", {"id": 0})
    assert later(HandTopic([cut]), RangeSet(), [1, 2, 3])[0] == [1, 2, 3]


def test_events_that_can_not_be_known_are_the_reason(hand: HandEvents) -> None:
    bad = (b'{"op": "c", "before": null, "after": {"id": "x"}, "source": {"ts_ms": 1}}', "{}")
    answer = later(HandTopic([*records(hand)[:1], bad]), RangeSet(), [1, 3])[1]
    assert "partition 0, offset 1: after.id" in str(answer.reason)
    gone = HandTopic(records(hand), low=3)
    assert "no longer the events of t[0] [1,3)" in str(later(gone, RangeSet.of("t", 0, 0, 1), [3])[1].reason)
    # Events from before the mirror's first one are none of its.
    assert later(gone, RangeSet.of("t", 0, 3, 4), [3])[1].reason is None
