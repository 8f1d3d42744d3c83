"""What a batch's events come to, for each key."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_lakestream.cdc.merge.newest import newest
from airflow_lakestream.cdc.rows import RowStrategy
from tests.support.mirroring import KINDS, Event, rows_of

KEYS = st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1])


@given(st.lists(st.tuples(KEYS, st.sampled_from("cud")), max_size=30), st.booleans())
@example([(-(2**63), "c"), (2**63 - 1, "d")], False)
def test_the_last_event_of_a_key_decides_whatever_the_key_is_made_of(
    told: list[tuple[int, str]], soft_delete: bool
) -> None:
    events = [
        Event(op, key, None if op == "d" else (f"n{at}", "big"), at, at, offset=at) for at, (key, op) in enumerate(told)
    ]
    rows = rows_of(events, KINDS["text"])
    twice = rows.append_column("again", rows["id"])
    texts = rows.append_column("text", rows["id"].cast(pa.string()))
    last = {event.key: event for event in events}
    # Of a deleted row that stays, the values that it had last.
    held = {event.key: event.values[0] for event in events if event.values}
    for one, key in ((rows, ("id",)), (twice, ("id", "again")), (texts, ("text",))):
        found = newest(one, key, strategy=RowStrategy.of(soft_delete=soft_delete)).rows
        assert found["id"].to_pylist() == [event.key for event in events if event is last[event.key]]
        for row in found.to_pylist():
            event = last[row["id"]]
            assert (row["_op"], row["_kafka_offset"]) == (event.op, event.offset)
            assert row["name"] == (held.get(event.key) if soft_delete or event.op != "d" else None)
