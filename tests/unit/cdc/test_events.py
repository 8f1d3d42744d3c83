"""Change events decoded for a mirror: where they stand in the source, and columns that come up."""

from __future__ import annotations

import json
import pickle
import re
import uuid
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.cdc.events.decoder import EventPayload, event_columns
from airflow_lakestream.cdc.keys.identity import places
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import OnError, Tombstones
from airflow_lakestream.decode.connect.unavailable import left_out, may_be_left_out
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from tests.unit.decode.support import batch

TABLE = event_columns(pa.schema([("id", pa.int32()), ("name", pa.string())]))


def event(op: str, row: dict[str, Any] | None, commit: int | None, lsn: int | None, millis: int = 7) -> bytes:
    sequence = None if lsn is None else json.dumps([None if commit is None else str(commit), str(lsn)])
    source = {"connector": "postgresql", "sequence": sequence, "lsn": lsn, "ts_ms": millis, "txId": 3}
    before = {"id": 1, "name": None} if op == "d" else None
    document = {"before": before, "after": row, "source": source, "op": op, "ts_ms": 1, "transaction": None}
    return json.dumps(document, separators=(",", ":")).encode()


def decoded(schema: pa.Schema | None, values: list[bytes | None]) -> pa.Table:
    payload = pickle.loads(pickle.dumps(EventPayload(envelope="debezium")))
    decoder = RowDecoderFactory(payload, ("partition", "offset"), None, OnError.FAIL, Tombstones.SKIP)(
        schema, batch(values)
    )
    assert decoder is not None
    return decoder.decode(batch(values)).rows


def test_the_commit_before_it_says_where_an_event_stands_then_its_place_in_the_log() -> None:
    row = {"id": 1, "name": "x"}
    values = [
        event("r", row, None, 500),
        event("u", row, None, 510),
        # Begun before the one above it had ended, and committed behind it.
        event("u", row, 520, 505),
        event("u", row, 520, 515),
        # Read by an incremental snapshot: what is streamed behind the same commit is newer.
        event("r", row, 520, 530),
        event("u", row, None, None, millis=9),
    ]
    rows = decoded(TABLE, values)
    assert rows["_cdc_commit"].to_pylist() == [500, 510, 520, 520, 520, 9000]
    assert rows["_cdc_position"].to_pylist() == [0, 510, 505, 515, 0, 0]


@pytest.mark.parametrize("beside", [{}, {"__op": "c", "__deleted": "false"}])
@pytest.mark.parametrize("table", [TABLE, None], ids=["there", "new"])
def test_of_flattened_events_the_transform_is_named_and_no_way_to_a_wrong_mirror(
    beside: dict[str, str], table: pa.Schema | None
) -> None:
    flat = json.dumps({"id": 1, "name": "x", **beside}).encode()
    with pytest.raises((BadRecord, InvalidArgument), match="ExtractNewRecordState flattened") as caught:
        decoded(table, [flat])
    assert "on_error" not in str(caught.value)


def test_the_error_of_a_bad_event_advises_nothing_that_makes_the_mirror_wrong() -> None:
    with pytest.raises(BadRecord, match=r"offset 1003: .*a row of the mirror would be wrong") as caught:
        decoded(TABLE, [event("c", {"id": 1, "name": "x"}, 1, 1), b"{"])
    assert not re.search("on_error|ExtractNewRecordState", str(caught.value))


def test_columns_come_up_and_become_wider() -> None:
    values = [
        event("c", {"id": 1, "name": "x"}, 1, 1),
        event("c", {"id": 2**40, "name": "y", "extra": 5}, 1, 2),
        event("u", {"id": 3, "name": "y", "extra": None}, 1, 3),
        event("d", None, 1, 4),
        None,
    ]
    rows = decoded(event_columns(pa.schema([("id", pa.int64()), ("name", pa.string())])), values)
    assert rows["extra"].to_pylist() == [None, 5, None, None]
    # Nothing has a value, and nothing says its type: it is none yet.
    assert "extra" not in decoded(TABLE, [event("c", {"id": 1, "name": "x", "extra": None}, 1, 1)]).column_names
    assert decoded(None, values).column_names[:3] == ["id", "name", "extra"]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("envelope", "connect"),
        ("mode", "interval"),
        ("sql", "select 1"),
        ("unknown_fields", "fail"),
        ("replace", True),
    ],
)
def test_what_a_mirror_leaves_no_choice_of_is_refused_by_name(argument: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument}: "):
        MirrorConfig(topic="t", table="lake.t", consumer_group="g", **{argument: value})


def test_keys_of_records_are_read_only_where_nobody_names_the_key() -> None:
    named = MirrorConfig(topic="t", table="lake.t", consumer_group="g", key=["id"])
    assert (named.metadata_columns, named.mirror.key) == (("partition", "offset"), ("id",))
    unnamed = MirrorConfig(topic="t", table="lake.t", consumer_group="g")
    assert (unnamed.metadata_columns, unnamed.mirror.key) == (("partition", "offset", "key"), None)


def test_an_array_of_uuids_is_left_out_as_a_column_of_their_own_type_has_it() -> None:
    texts = ["b68a35a7-17ad-35b3-af2a-ae46edb4545a", "b68a35a7-17ad-35b3-af2a-ae46edb4545b"]
    kind = pa.list_(pa.uuid())
    column = pa.array([[uuid.UUID(text).bytes] for text in texts], pa.list_(pa.binary(16))).cast(kind)
    assert may_be_left_out(kind)
    assert left_out(column).tolist() == [True, False]


def test_keys_of_uuids_are_found() -> None:
    keys = pa.table({"id": pa.array([b"a" * 16, b"b" * 16], pa.binary(16)).cast(pa.uuid())})
    assert places(keys, keys.slice(1), ["id"]).tolist() == [-1, 0]
