"""Debezium's events, flattened by `ExtractNewRecordState`, on the real broker: current rows and histories."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.exceptions import BadRecord
from tests.support.broker import Producing
from tests.support.lake_reading import one_partition
from tests.support.mirror_lake import MirrorLake

pytestmark = pytest.mark.integration

name = one_partition
RANDOM = random.Random(7)
Change = tuple[int, str | None, int]


def event(change: Change) -> str:
    """Return a flattened event: key, text or None for a deletion, and the position in the log, at its second."""
    key, text, place = change
    row = {"id": key, "text": text, "__deleted": "false" if text else "true", "__op": "u" if text else "d"}
    return json.dumps(row | {"__source_lsn": place, "__source_ts_ms": place * 1000})


def changes(count: int, start: int = 1) -> list[Change]:
    """Return changes of five keys in the order of the log; some of rows that are not there."""
    return [(RANDOM.randrange(5), None if RANDOM.random() < 0.2 else f"v{n}", n) for n in range(start, start + count)]


def assert_same(lake: MirrorLake, sent: list[Change], *, history: bool) -> None:
    """Assert that the table has the rows, or the versions, of all changes."""
    open_: dict[int, list[Any]] = {}
    expected = []
    for key, text, place in sent:
        if key in open_:
            open_.pop(key)[3] = place
        if text is not None:
            open_[key] = [key, text, place, None]
            expected.append(open_[key])

    def seconds(time: Any) -> int | None:
        return None if time is None else int(time.timestamp())

    rows = lake.scan().to_pylist()
    if history:
        found = [[row["id"], row["text"], *(seconds(row[one]) for one in ("_valid_from", "_valid_to"))] for row in rows]
        assert sorted(found, key=lambda one: one[2]) == expected
    else:
        assert sorted((row["id"], row["text"]) for row in rows) == sorted((one[0], one[1]) for one in open_.values())


@pytest.mark.parametrize("history", [False, True])
def test_flattened_events_are_followed_through_copies_and_tombstones_and_stop_at_a_whole_event(
    mirror_lake: MirrorLake, name: str, produce: Producing, history: bool
) -> None:
    config = {"envelope": "flattened", "history": history}
    sent = changes(40)
    produce(name, 0, [event(one) for one in sent])
    mirror_lake.land(name, **config)
    assert_same(mirror_lake, sent, history=history)
    # A connector that begins again sends the last events once more; behind a deletion comes a tombstone.
    again, more = sent[-15:], [*changes(30, 41), (1, None, 71)]
    produce(name, 0, [event(one) for one in (*again, *more)])
    produce(name, 0, [None], keys=['{"id": 1}'])
    mirror_lake.land(name, **config)
    assert_same(mirror_lake, sent + more, history=history)
    mirror_lake.assert_whole()
    offset = produce(name, 0, [json.dumps({"id": 1, "text": "--"})])[0]
    with pytest.raises((BadRecord, MirrorStopped), match=rf"offset {offset}: it has no __source_lsn, unlike others"):
        mirror_lake.land(name, **config)
    whole = {"before": None, "after": {"id": 1, "text": "a"}, "source": {"lsn": 90}, "op": "u"}
    produce(name, 0, [json.dumps(whole)], keys=['{"id": 1}'])
    with pytest.raises(MirrorStopped, match=rf"\[0\] offset {offset + 1}: it is a whole event"):
        mirror_lake.land(name, **config)
