"""Columns that come up: from whatever record of a batch, in each format of the values."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import avro.io
import avro.schema
import pyarrow as pa
import pytest

from airflow_lakestream.cdc.events.decoder import EventPayload, event_columns
from airflow_lakestream.cdc.events.names import ColumnNames
from airflow_lakestream.cdc.events.taken import CommitEvents
from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.core.policies import OnError, Tombstones
from airflow_lakestream.decode.avro.schema import fingerprint
from airflow_lakestream.decode.rows import RowDecoderFactory
from tests.support.mirroring import IDENTITY, KINDS, Event, HandDeltaMirror, HandMirror, landing_of, rows_of
from tests.unit.decode.support import batch

# By column Connect's type, and Avro's.
TYPES = {"int32": "int", "int64": "long", "float": "float", "double": "double", "string": "string"}
Columns = dict[str, str]
ID: Columns = {"id": "int64"}
TABLE = event_columns(pa.schema([("id", pa.int64())]))


Row = dict[str, Any] | None


def document(op: str, row: Row) -> dict[str, Any]:
    before, after = (row, None) if op == "d" else (None, row)
    source = {"connector": "postgresql", "sequence": '["1","1"]', "lsn": 1, "ts_ms": 1, "schema": "public"}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}


def bare(op: str, row: Row, columns: Columns) -> bytes:
    return json.dumps(document(op, row), separators=(",", ":")).encode()


def connect(op: str, row: Row, columns: Columns) -> bytes:
    fields = [{"field": name, "type": kind, "optional": True} for name, kind in columns.items()]
    image = {"type": "struct", "optional": True, "fields": fields}
    members = [{**image, "field": "before"}, {**image, "field": "after"}, {"type": "string", "field": "op"}]
    schema = {"type": "struct", "fields": members, "optional": False}
    return json.dumps({"schema": schema, "payload": document(op, row)}, separators=(",", ":")).encode()


def avro_schema(columns: Columns) -> str:
    fields = [{"name": name, "type": ["null", TYPES[kind]], "default": None} for name, kind in columns.items()]
    image = {"type": "record", "name": "Value", "fields": fields}
    source = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": "long"}]}
    members = [
        {"name": "before", "type": ["null", image]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
    ]
    return json.dumps({"type": "record", "name": "Envelope", "fields": members})


def single_object(op: str, row: Row, columns: Columns) -> bytes:
    text, written = avro_schema(columns), io.BytesIO()
    image = None if row is None else dict.fromkeys(columns) | row
    event = document(op, image)
    datum = {name: event[name] for name in ("before", "after", "op")} | {"source": {"lsn": 1}}
    avro.io.DatumWriter(avro.schema.parse(text)).write(datum, avro.io.BinaryEncoder(written))
    return b"\xc3\x01" + fingerprint(text).to_bytes(8, "little") + written.getvalue()


Write = Callable[[str, Row, Columns], bytes]
FORMATS = pytest.mark.parametrize("write", [bare, connect, single_object])


def decoders_of(write: Write, *known: Columns) -> RowDecoderFactory:
    settings: dict[str, Any] = {"names": ColumnNames("lake.t")}
    if write is single_object:
        settings |= {"format": "avro", "writer_schemas": tuple(map(avro_schema, known))}
    payload = pickle.loads(pickle.dumps(EventPayload(envelope="debezium", **settings)))
    return RowDecoderFactory(payload, ("partition", "offset"), None, OnError.SKIP, Tombstones.SKIP)


def decoder_of(write: Write, schema: pa.Schema | None, values: Sequence[bytes | None], *known: Columns) -> Any:
    return decoders_of(write, *known)(schema, batch(values))


def decoded(write: Write, schema: pa.Schema | None, values: Sequence[bytes | None], *known: Columns) -> pa.Table:
    return decoder_of(write, schema, values, *known).decode(batch(values)).rows


@FORMATS
def test_values_of_an_added_column_are_kept_however_many_records_stand_behind_them(write: Write) -> None:
    more = ID | {"w": "string", "n": "int32"}
    values: list[bytes | None] = [write("c", {"id": 1}, ID), write("u", {"id": 1, "w": "seen", "n": 5}, more)]
    values += [write("d", {"id": number, "w": None, "n": None}, more) for number in range(1500)]
    values += [None] * 1500
    rows = decoded(write, TABLE, values, ID, more)
    assert rows["w"].to_pylist()[:3] == [None, "seen", None]
    assert rows["n"].to_pylist()[:3] == [None, 5, None]


@FORMATS
def test_a_column_that_came_and_went_comes_up(write: Write) -> None:
    more, other = ID | {"gone": "string"}, ID | {"stays": "string"}
    values = [
        write("c", {"id": 1, "gone": "a"}, more),
        write("c", {"id": 2}, ID),
        write("c", {"id": 3, "stays": "b"}, other),
    ]
    rows = decoded(write, TABLE, values, ID, more, other)
    assert (rows["gone"].to_pylist(), rows["stays"].to_pylist()) == (["a", None, None], [None, None, "b"])
    # As of the first batch of a new mirror.
    assert set(decoded(write, None, values, ID, more, other).column_names) >= {"id", "gone", "stays"}


@FORMATS
def test_what_only_the_image_before_has_comes_up(write: Write) -> None:
    more = ID | {"old": "string"}
    rows = decoded(write, TABLE, [write("d", {"id": 1, "old": "kept"}, more), write("c", {"id": 2}, ID)], ID, more)
    assert rows["old"].to_pylist() == ["kept", None]


@FORMATS
def test_first_records_without_a_row_tell_no_columns_and_truncations_among_them_wait(write: Write) -> None:
    cut, row, own = write("t", None, ID), write("c", {"id": 1}, ID), b'{"ts_ms":1700000000000}'
    decoders = decoders_of(write, ID)
    for values in ([cut], [None, cut, own], [cut, cut]):
        assert (decoders(None, batch(values)), decoders.keeps_for_later(batch(values))) == (None, True)
    for values in ([None], [own, None]):
        assert (decoders(None, batch(values)), decoders.keeps_for_later(batch(values))) == (None, False)
    for values in ([row], [None, cut, row], [row, cut]):
        assert decoders(None, batch(values)) is not None
    # The row's columns come from it, and the truncation is an event as any other.
    assert decoded(write, TABLE, [cut, row], ID)["_op"].to_pylist() == ["t", "c"]


@FORMATS
def test_records_without_an_event_say_nothing_of_columns(write: Write) -> None:
    more = ID | {"w": "string"}
    values = [write("c", {"id": 1, "w": "x"}, more), b'{"x": 1}', b"{", b"", b"\x00\x00\x00\x00\x01", None]
    assert decoded(write, TABLE, values, ID, more)["w"].to_pylist() == ["x"]


@pytest.mark.parametrize("write", [connect, single_object])
@pytest.mark.parametrize(("narrow", "wide", "value"), [("int32", "int64", 2**40), ("float", "double", 0.1)])
def test_a_type_that_became_wider_holds_the_values_of_all_records(
    write: Write, narrow: str, wide: str, value: Any
) -> None:
    first, second = ID | {"n": narrow}, ID | {"n": wide}
    values = [
        write("c", {"id": 1, "n": 1}, first),
        write("c", {"id": 2, "n": value}, second),
        write("c", {"id": 3, "n": 1}, first),
    ]
    for schema in (
        TABLE,
        event_columns(pa.schema([("id", pa.int64()), ("n", pa.int32() if narrow == "int32" else pa.float32())])),
    ):
        assert decoded(write, schema, values, first, second)["n"].to_pylist() == [1, value, 1]


@pytest.mark.parametrize("write", [connect, single_object])
def test_types_that_no_one_type_holds_stop_the_mirror(write: Write) -> None:
    first, second = ID | {"n": "int32"}, ID | {"n": "string"}
    values = [write("c", {"id": 1, "n": 1}, first), write("c", {"id": 2, "n": "x"}, second)]
    with pytest.raises(
        MirrorStopped, match=r"column n is int32 \(partition 7, offset 1000\) and string \(partition 7,"
    ):
        decoded(write, TABLE, values, first, second)
    decoder = decoder_of(write, TABLE, values, first, second)
    decoder.decode(batch(values[:1]))
    with pytest.raises(MirrorStopped) as stopped:
        decoder.decode(batch(values[1:], 2000))
    assert stopped.value.reason is StopReason.TYPE_CHANGED


@FORMATS
def test_columns_named_as_parts_of_an_event_are_columns(write: Write) -> None:
    names = ("op", "before", "after", "source", "schema", "payload", "ts_ms", "transaction", "_before", "_ts_ms")
    columns = ID | dict.fromkeys(names, "string")
    row = {"id": 1} | {name: "d" if name == "op" else f"t {name}" for name in names}
    values = [write("c", row, columns), write("u", {**row, "op": "t"}, columns)]
    for schema in (None, TABLE):
        rows = decoded(write, schema, values, columns)
        assert rows["_op"].to_pylist() == ["c", "u"]
        assert rows["op"].to_pylist() == ["d", "t"]
        assert [rows[name][0].as_py() for name in names[1:]] == [row[name] for name in names[1:]]


def part(offset: int, **columns: pa.Array) -> pa.Table:
    (length,) = {len(column) for column in columns.values()}
    places = {"_kafka_partition": pa.repeat(pa.scalar(0, pa.int32()), length)}
    return pa.table({**columns, **places, "_kafka_offset": pa.array(range(offset, offset + length), pa.int64())})


def test_rows_with_other_columns_and_types_are_joined() -> None:
    taken = CommitEvents(
        [
            part(0, a=pa.array([1, 2], pa.int32())),
            part(2, a=pa.array([2**40], pa.int64()), b=pa.array(["x"])),
            part(3, b=pa.nulls(1, pa.int64()), c=pa.array([{"x": 1}])),
            part(4, c=pa.array([{"y": "1"}])),
        ]
    )
    rows = taken.joined(lambda file: file, pa.schema([]), "lake.t")
    assert rows["a"].to_pylist() == [1, 2, 2**40, None, None]
    assert rows["b"].to_pylist() == [None, None, "x", None, None]
    assert rows["c"].to_pylist()[3:] == [{"x": 1, "y": None}, {"x": None, "y": "1"}]


def test_rows_of_types_that_no_one_type_holds_stop_the_mirror() -> None:
    taken = CommitEvents([part(5, a=pa.array([None, 2], pa.int32())), part(9, a=pa.array(["x"]))])
    problem = r"^lake.t: the column a is int32 \(partition 0, offset 6\) and string \(partition 0, offset 9\)"
    with pytest.raises(MirrorStopped, match=problem):
        taken.joined(lambda file: file, pa.schema([]), "lake.t")


@pytest.mark.parametrize("mirror", [HandMirror, HandDeltaMirror])
def test_a_new_mirror_has_the_columns_that_only_later_events_bring(mirror: type[HandMirror], tmp_path: Path) -> None:
    events = [Event("c", 1, ("a", "x"), 1, 1, 0, 0), Event("c", 2, ("b", "y"), 1, 2, 0, 1)]
    made = mirror(tmp_path)
    sink = made.sink()
    sink.load("run")
    sink.write(rows_of(events[:1], KINDS["text"]), IDENTITY)
    second = rows_of(events[1:], KINDS["text"]).append_column("w", pa.array([7], pa.int32()))
    sink.write(second, IDENTITY)
    sink.commit(landing_of(events))
    assert {row["id"]: row.get("w") for row in made.found()} == {1: None, 2: 7}


@pytest.mark.parametrize("mirror", [HandMirror, HandDeltaMirror])
def test_files_of_executors_with_other_columns_are_joined(mirror: type[HandMirror], tmp_path: Path) -> None:
    events = [Event("c", number, (f"n{number}", "x"), 1, number, 0, number) for number in range(5)]
    made = mirror(tmp_path)
    sink = made.sink()
    sink.load("run")
    rows = [rows_of([one], KINDS["text"]) for one in events]
    sink.write(rows[0], IDENTITY)
    # One executor has a column that becomes wider, the other one has another column, and the narrow type.
    first, second = (made.executor(sink.outline()) for _ in range(2))
    for one in (first, second):
        one.load("run")
    first.write(rows[1].append_column("w", pa.array([1], pa.int32())), IDENTITY)
    first.write(rows[2].append_column("w", pa.array([2**40], pa.int64())), IDENTITY)
    second.write(rows[3].append_column("other", pa.array(["o"])), IDENTITY)
    second.write(rows[4].append_column("w", pa.array([4], pa.int32())), IDENTITY)
    for one in (first, second):
        sink.take_over(one.hand_over())
    sink.commit(landing_of(events))
    found = {row["id"]: (row.get("w"), row.get("other")) for row in made.found()}
    assert found == {0: (None, None), 1: (1, None), 2: (2**40, None), 3: (None, "o"), 4: (4, None)}
