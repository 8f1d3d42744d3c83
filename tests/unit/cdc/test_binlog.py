"""Change events of MySQL's and MariaDB's connectors: they stand where the binary log has them."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.cdc.events.decoder import EventPayload, event_columns
from airflow_lakestream.cdc.events.provenance import is_serial
from airflow_lakestream.cdc.events.whole_snapshot import _COLUMNS, ConnectorTable, SnapshotSearch
from airflow_lakestream.cdc.merge.newest import newest
from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.core.policies import OnError, Tombstones
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import InvalidArgument
from tests.unit.decode.support import batch

TABLE = event_columns(pa.schema([("id", pa.int32()), ("name", pa.string())]))
Place = tuple[int, int, int]


def event(op: str, row: dict[str, Any], place: Place, snapshot: str | None = None) -> bytes:
    file, byte, number = place
    source = {
        **{"connector": "mariadb", "name": "shop", "ts_ms": 5, "snapshot": snapshot, "db": "shop", "sequence": None},
        **{"table": "orders", "server_id": 1, "gtid": None, "file": f"binlog.{file:06}", "pos": byte, "row": number},
    }
    before, after = (row, None) if op == "d" else (None, row)
    return json.dumps({"before": before, "after": after, "source": source, "op": op, "ts_ms": 9}).encode()


def decoded(values: list[bytes]) -> pa.Table:
    decoder = RowDecoderFactory(
        EventPayload(envelope="debezium"), ("partition", "offset"), None, OnError.FAIL, Tombstones.SKIP
    )(TABLE, batch(values))
    assert decoder is not None
    return decoder.decode(batch(values)).rows


def test_a_place_is_the_file_then_the_byte_then_the_row() -> None:
    row = {"id": 1, "name": "x"}
    rows = decoded(
        [
            event("r", row, (7, 400, 0), "last"),
            event("c", row, (7, 500, 0)),
            event("u", row, (7, 500, 1)),
            # A new file begins at its first byte.
            event("u", row, (8, 4, 0)),
            event("u", row, (1_000_000, 4, 0)),
        ]
    )
    assert rows["_cdc_commit"].to_pylist() == [
        7 * 2**32 + 400,
        *[7 * 2**32 + 500] * 2,
        8 * 2**32 + 4,
        10**6 * 2**32 + 4,
    ]
    assert rows["_cdc_position"].to_pylist() == [0, 1, 2, 1, 1]
    # What was not read by the snapshot is gone with its end.
    assert rows["_op"].to_pylist() == ["r: last", "c", "u", "u", "u"]
    assert is_serial(rows)
    assert rows["_cdc_table"].to_pylist() == ["shop.orders"] * 5


@pytest.mark.parametrize("seed", range(5))
def test_events_that_come_twice_and_out_of_order_make_the_row_of_the_last_place(seed: int) -> None:
    chance = random.Random(seed)
    places = sorted({(chance.randrange(1, 4), chance.randrange(4, 90), chance.randrange(3)) for _ in range(60)})
    state: dict[int, str] = {}
    events = []
    for place in places:
        key = chance.randrange(6)
        op = "d" if key in state and chance.random() < 0.3 else "u" if key in state else "c"
        row = {"id": key, "name": str(place)}
        if op == "d":
            del state[key]
        else:
            state[key] = row["name"]
        events.append(event(op, row, place))
    sent = events + events[chance.randrange(len(events)) :]
    chance.shuffle(sent)
    rows = decoded(sent)
    found = newest(rows, ("id",)).rows
    assert {row["id"]: row["name"] for row in found.to_pylist() if row["_op"] != "d"} == state


def test_a_snapshot_has_seen_what_is_older_in_the_log() -> None:
    # Debezium stops at one place of the log, reads the table at a later one, and goes on at the first.
    rows = decoded(
        [
            event("r", {"id": 1, "name": "new"}, (7, 900, 0), "last"),
            event("u", {"id": 1, "name": "old"}, (7, 500, 0)),
            event("c", {"id": 2, "name": "gone by then"}, (7, 600, 0)),
        ]
    )
    found = newest(rows, ("id",))
    assert [(row["id"], row["name"]) for row in found.rows.to_pylist()] == [(1, "new")]
    assert found.snapshots == ()


def test_a_snapshot_of_the_whole_table_is_found_by_its_place_and_its_table_named_with_the_database() -> None:
    values = [
        event("u", {"id": 1, "name": "x"}, (7, 100, 0)),
        event("r", {"id": 1, "name": "x"}, (7, 900, 0), "first"),
        event("r", {"id": 2, "name": "y"}, (7, 900, 0), "last"),
        event("u", {"id": 2, "name": "z"}, (7, 950, 0)),
    ]
    records, payload = batch(values), PayloadFormats(format="json", envelope="debezium")
    search = SnapshotSearch(payload, reader=None, at={})  # type: ignore[arg-type]  # nothing is read here
    search._take(records, payload.decoder(_COLUMNS).decode(records))
    assert search.origin == ConnectorTable("shop", r"shop\.orders")
    [found] = search.found.values()
    assert (found.rows, found.is_whole) == (2, True)
    assert (found.starts, found.ends) == ({7: 1003}, {7: 1007})


def test_an_event_that_does_not_say_where_it_is_stops_the_mirror() -> None:
    row = {"id": 1, "name": "x"}
    # As MariaDB 11.4 sends it: the place of the event's end is left out, and Debezium reckons from zero.
    values = [event("r", row, (1, 1316, 0), "last"), event("u", row, (1, -63, 0))]
    with pytest.raises(MirrorStopped, match=r"offset 100\d: .*binlog_legacy_event_pos=ON .*\[order-unknown\]"):
        decoded(values)


def test_events_of_mongodb_are_refused_by_name() -> None:
    document = {
        "before": None,
        "after": '{"_id": 1}',
        "updateDescription": None,
        "source": {"connector": "mongodb", "ts_ms": 1, "collection": "orders", "ord": 1},
        "op": "c",
        "ts_ms": 1,
    }
    values = [json.dumps(document).encode()]
    with pytest.raises(InvalidArgument, match="MongoDB's: their documents are text"):
        RowDecoderFactory(EventPayload(envelope="debezium"), (), None, OnError.FAIL, Tombstones.SKIP)(
            None, batch(values)
        )
