"""Tables by key of plain records: keys, order, columns and bad records, by the bytes of the records alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.events.sequence import check_type, place_numbers
from airflow_lakestream.cdc.events.upserts import DeletionCondition
from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from tests.support import keyed
from tests.support.avro_records import written
from tests.support.given_records import FORMATS, GivenLake, Record
from tests.support.keyed import Follower
from tests.support.mirroring import HandDeltaMirror, HandMirror

UPSERT = {"envelope": None, "key": ["id"]}
ROW = json.dumps({"type": "record", "name": "R", "fields": [
    {"name": "id", "type": ["null", "long"], "default": None}, {"name": "name", "type": "string"}]})  # fmt: skip
WIDE = json.dumps({"type": "record", "name": "R", "fields": [
    {"name": "id", "type": ["null", "long"], "default": None}, {"name": "name", "type": "string"},
    {"name": "more", "type": ["null", "double"], "default": None}]})  # fmt: skip
KEY = json.dumps({"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]})
SCHEMAS = {1: ("AVRO", ROW), 2: ("AVRO", KEY), 3: ("AVRO", '"long"'), 4: ("AVRO", WIDE)}


def avro(schema: str, value: Any, schema_id: int) -> bytes:
    return written(json.loads(schema), schema_id, value)


@pytest.fixture
def lake(tmp_path: Path) -> GivenLake:
    return GivenLake(tmp_path, kind=MirrorConfig)


def record(value: Any, key: bytes | None = None) -> Record:
    return Record(None if value is None else json.dumps(value).encode(), key)


def land(lake: GivenLake, *records: Record, **config: Any) -> LandingReport:
    return lake.land(records, **(UPSERT | config))


def rows(lake: GivenLake) -> list[dict[str, Any]]:
    """Return the rows by key, without the mirror's own columns."""
    found = [{n: v for n, v in row.items() if not n.startswith(("_kafka_", "_cdc_"))} for row in lake.rows()]
    return sorted(found, key=lambda row: str(row["id"]))


OBJECT, OTHER = b'{"id": 1, "tenant": "x"}', b' {"id":1}'


@pytest.mark.parametrize(
    ("keys", "config"),
    [
        ((OBJECT, OTHER), {}),
        ((b"1", b" 1 "), {}),
        ((b"1", OTHER), {"key_format": "json"}),
        ((b'"a"', b'{"id": "a"}'), {"schema": "id string"}),
        # Text that is JSON's as well.
        ((b"1", b"1"), {"schema": "id string"}),
        ((b"a", b"a"), {"schema": "id string", "key_format": "string"}),
        ((b'"2026-01-01"', b'{"id": "2026-01-01"}'), {"schema": "id date"}),
        ((b"\xff", b"\xff"), {"schema": "id binary", "key_format": "raw"}),
    ],
    ids=lambda one: str(one)[:60],
)
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_value_without_the_key_takes_it_from_the_kafka_key_and_a_tombstone_deletes_by_it(
    tmp_path: Path, table_format: str, keys: Sequence[bytes], config: dict[str, Any]
) -> None:
    lake = GivenLake(tmp_path, table_format, kind=MirrorConfig)
    first = record({"name": "a"}, keys[0])
    land(lake, first, **config)
    [row] = rows(lake)
    assert row["name"] == "a"
    assert row["id"] is not None
    found = land(lake, first, Record(None, keys[1]), **config)
    assert (found.counts.read, found.counts.written) == (1, 1)
    assert rows(lake) == []


def test_keys_of_several_columns_are_objects_and_values_win_over_kafka_keys(lake: GivenLake) -> None:
    config = {"key": ["id", "tenant"]}
    both = [record({"id": 1, "name": "a"}, OBJECT), record({"id": 2, "tenant": "y", "name": "b"}, OBJECT)]
    land(lake, *both, **config)
    assert [(one["id"], one["tenant"]) for one in rows(lake)] == [(1, "x"), (2, "y")]
    land(lake, *both, Record(None, OBJECT), **config)
    assert [(one["id"], one["tenant"]) for one in rows(lake)] == [(2, "y")]
    with pytest.raises(BadRecord, match=r"offset 3: the key: it is no object or record with the fields id, tenant"):
        land(lake, *both, Record(None, OBJECT), Record(None, b"7"), **config)
    with pytest.raises(InvalidArgument, match=r"key_format: 'string' is one value, and the key has .* id, tenant"):
        land(lake, *both, Record(None, OBJECT), Record(None, b"7"), **config, key_format="string")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record({"name": "b"}), r"id: null in value and key; the mirror's key needs a value"),
        (record({"id": None, "name": "b"}, b'{"name": "c"}'), r"id: null in value and key"),
        (record({"name": "b"}, b"null"), r"id: null in value and key"),
        (Record(None), r"id: null in value and key"),
        (Record(None, b"user-1"), r"the key: "),
        (Record(None, b'"user-1"'), r"the key: .*number"),
        (Record(None, b'{"id": 1.5}'), r"the key: id: "),
        (record({"id": 1, "name": UNAVAILABLE}), rf"name: {UNAVAILABLE} is Debezium's mark"),
        (record({"id": 1, "name": 5.5, "_cdc_x": 1}), r"_cdc_x: no column can be added"),
        (record({"id": 1, "_source": "x"}), r"_source: no column can be added"),
        (Record(b"no JSON"), r"offset 1: "),
    ],
    ids=lambda one: str(one)[:60],
)
def test_a_record_that_makes_no_row_is_bad_by_name_and_the_others_land(
    lake: GivenLake, bad: Record, reason: str
) -> None:
    first, last = record({"id": 1, "name": "a"}, b"1"), record({"id": 3, "name": "c"}, b"3")
    with pytest.raises(BadRecord, match=reason):
        land(lake, first, bad)
    land(lake, first, bad, last, on_error="reject")
    assert [one["id"] for one in rows(lake)] == [1, 3]
    assert list(lake.rejected()) == [1]


NESTED = {"key": ["user.id", "at.place.zone"]}


@pytest.mark.parametrize("table_format", FORMATS)
def test_nested_fields_of_value_and_kafka_key_are_columns_of_the_key(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format, kind=MirrorConfig)
    parts = {"user": {"id": 1, "name": "a"}, "at": {"place": {"zone": "x"}}}
    some = [record(parts), record(parts | {"user": {"id": 2}}), record({"at": parts["at"]}, b'{"user": {"id": 3}}')]
    # A value within the record wins over the Kafka key's, and what the value lacks comes from the Kafka key.
    some[2] = record({"at": {"place": {"zone": "y"}}}, json.dumps(parts | {"user": {"id": 3}}).encode())
    land(lake, *some, **NESTED)
    found = {(one["user_id"], one["at_place_zone"]): one["user"] for one in lake.rows()}
    assert found == {(1, "x"): {"id": 1, "name": "a"}, (2, "x"): {"id": 2, "name": None}, (3, "y"): None}
    land(lake, *some, Record(None, b'{"user": {"id": 1}, "at": {"place": {"zone": "x", "more": 1}}}'), **NESTED)
    assert sorted(one["user_id"] for one in lake.rows()) == [2, 3]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record({"user": {"id": None}}), r"user\.id: null in value and key; the mirror's key needs a value"),
        (record({"user": None}), r"user\.id: null in value and key"),
        (Record(None, b'{"id": 1}'), r"user\.id: null in value and key"),
        (Record(None, b'{"user": {"id": "a"}}'), r"the key: user\.id: "),
        (record({"user": {"id": 2}, "user_id": 3}), r"user_id: no column can be added"),
    ],
    ids=lambda one: str(one)[:60],
)
def test_a_record_without_a_nested_field_of_the_key_is_bad_by_its_path(
    lake: GivenLake, bad: Record, reason: str
) -> None:
    first = record({"user": {"id": 1}})
    land(lake, first, key="user.id")
    with pytest.raises(BadRecord, match=f"offset 1: {reason}"):
        land(lake, first, bad, key="user.id")
    assert land(lake, first, Record(None, b"1"), key="user.id").counts.written == 1
    assert lake.rows() == []


def test_a_nested_key_takes_new_names_and_refuses_a_column_of_another_type(tmp_path: Path, lake: GivenLake) -> None:
    config = {"key": "who.id", "rename_columns": {"user": "who", "who_id": "other"}}
    land(lake, record({"user": {"id": 1}, "who_id": 5}), **config)
    land(lake, record({"user": {"id": 1}, "who_id": 5}), Record(None, b'{"user": {"id": 1}}'), **config)
    assert lake.rows() == []
    (tmp_path / "other").mkdir()
    other = GivenLake(tmp_path / "other", kind=MirrorConfig)
    with pytest.raises(InvalidArgument, match=r"key: b\.id is int64 in the records, and the column b_id is string"):
        land(other, record({"b": {"id": 1}}), key="b.id", schema="b_id string, n bigint")
    land(other, record({"b": {"id": 1}}), key="b.id", schema="b_id bigint")
    assert [(one["b"], one["b_id"]) for one in other.rows()] == [({"id": 1}, 1)]


def test_a_batch_whose_records_all_lack_the_key_fails_by_its_name(lake: GivenLake) -> None:
    with pytest.raises(BadRecord, match=r"offset 0: ident: null in value and key"):
        land(lake, record({"id": 1}), key=["ident"])


def test_avro_keys_are_records_or_bare_and_a_new_schema_adds_its_columns(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, schemas=SCHEMAS, kind=MirrorConfig)
    first = [Record(avro(ROW, {"id": key, "name": "a"}, 1)) for key in (1, 2, 3)]
    land(lake, *first, format="avro")
    deletions = [Record(None, avro(KEY, {"id": 1}, 2)), Record(None, avro('"long"', 2, 3))]
    more = [Record(avro(WIDE, {"id": None, "name": "b", "more": 2.5}, 4), avro('"long"', 4, 3))]
    land(lake, *first, *deletions, *more, format="avro")
    assert rows(lake) == [{"id": 3, "name": "a", "more": None}, {"id": 4, "name": "b", "more": 2.5}]
    with pytest.raises(BadRecord, match=r"offset 6: the key: .*Confluent"):
        land(lake, *first, *deletions, *more, Record(None, b"17"), format="avro")
    land(lake, *first, *deletions, *more, Record(None, b"3"), format="avro", key_format="json")
    assert [one["id"] for one in rows(lake)] == [4]


def test_avro_has_nested_fields_of_the_key_in_values_and_keys(tmp_path: Path) -> None:
    inner = {"type": "record", "name": "U", "fields": [{"name": "id", "type": "long"}]}
    shape = json.dumps({"type": "record", "name": "R", "fields": [{"name": "user", "type": inner}]})
    lake = GivenLake(tmp_path, schemas={1: ("AVRO", shape)}, kind=MirrorConfig)
    some = [Record(avro(shape, {"user": {"id": number}}, 1)) for number in (1, 2)]
    land(lake, *some, format="avro", key="user.id")
    land(lake, *some, Record(None, avro(shape, {"user": {"id": 1}}, 1)), format="avro", key="user.id")
    assert [(one["user_id"], one["user"]) for one in lake.rows()] == [(2, {"id": 2})]


def schema_of(kind: str) -> str:
    fields = [{"name": "id", "type": "long"}, {"name": "v", "type": kind}]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


TYPED = {1: ("AVRO", schema_of("int")), 2: ("AVRO", schema_of("long")), 3: ("AVRO", schema_of("string"))}


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_type_that_a_schema_widens_is_widened_in_iceberg_and_stops_a_delta_table(
    tmp_path: Path, table_format: str
) -> None:
    lake = GivenLake(tmp_path, table_format, schemas={1: TYPED[1]}, kind=MirrorConfig)
    some = [Record(avro(TYPED[1][1], {"id": 1, "v": 1}, 1)), Record(avro(TYPED[2][1], {"id": 2, "v": 2**40}, 2))]
    land(lake, some[0], format="avro")
    # A new table gets the types of the registry's newest schema.
    lake = replace(lake, schemas={number: TYPED[number] for number in (1, 2)})
    if table_format == "iceberg":
        land(lake, *some, format="avro")
        assert [one["v"] for one in rows(lake)] == [1, 2**40]
        return
    with pytest.raises(MirrorStopped, match=r"a schema of the records has changed a type .*in a new table") as stopped:
        land(lake, *some, format="avro")
    assert "Debezium" not in str(stopped.value)


def test_schemas_without_a_common_type_stop_with_the_way_out_and_one_against_the_table_is_bad(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, schemas=TYPED, kind=MirrorConfig)
    some = [Record(avro(TYPED[1][1], {"id": 1, "v": 1}, 1)), Record(avro(TYPED[3][1], {"id": 2, "v": "x"}, 3))]
    with pytest.raises(
        MirrorStopped, match=r"the column v is int32 .* string .*schema=\"v string\".*type-changed"
    ) as one:
        land(lake, *some, format="avro")
    assert "Debezium" not in str(one.value)
    land(lake, some[0], format="avro")
    with pytest.raises(BadRecord, match="offset 1: v: "):
        land(lake, *some, format="avro")


def test_a_name_that_readers_keep_is_told_apart_and_a_reserved_one_in_a_schema_stops(tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match=r"_file: .*readers of Iceberg keep the name"):
        land(GivenLake(tmp_path, kind=MirrorConfig), record({"id": 1}), record({"id": 1, "_file": 1}))
    shape = json.dumps({"type": "record", "name": "R", "fields": [{"name": n, "type": "long"} for n in ("id", "_op")]})
    (tmp_path / "other").mkdir()
    lake = GivenLake(tmp_path / "other", schemas={1: ("AVRO", shape)}, kind=MirrorConfig)
    some = [Record(avro(shape, {"id": 1, "_op": 2}, 1))]
    with pytest.raises(MirrorStopped, match=r"the records has a field '_op'.*rename_columns.*reserved-name"):
        land(lake, *some, format="avro")
    land(lake, *some, format="avro", rename_columns={"_op": "operation"})
    assert rows(lake) == [{"id": 1, "operation": 2}]


PROTO = """syntax = "proto3"; message A { int64 id = 1; string name = 2; } message B { int64 id = 1; bool more = 3; }"""
HEAD = b"\x00\x00\x00\x00\x07"


def test_protobuf_takes_the_columns_of_each_message_that_the_records_name(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, schemas={7: ("PROTOBUF", PROTO)}, kind=MirrorConfig)
    first = [Record(HEAD + b"\x00\x08\x01\x12\x01a")]
    land(lake, *first, format="protobuf")
    more = [Record(HEAD + b"\x02\x02\x08\x02\x18\x01"), Record(HEAD + b"\x02\x00\x08\x03\x12\x01c"), Record(None, b"1")]
    land(lake, *first, *more, format="protobuf", key_format="json")
    assert rows(lake) == [{"id": 2, "name": None, "more": True}, {"id": 3, "name": "c", "more": None}]


def test_json_schema_takes_the_columns_of_the_schema_and_fields_that_it_does_not_name(tmp_path: Path) -> None:
    shape = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
    lake = GivenLake(tmp_path, schemas={7: ("JSON", json.dumps(shape))}, kind=MirrorConfig)
    some = [Record(HEAD + b'{"id": 1}'), Record(HEAD + b'{"id": 2, "other": 5}')]
    land(lake, *some, format="json_schema")
    land(lake, *some, Record(None, HEAD + b'{"id": 1}'), format="json_schema")
    assert rows(lake) == [{"id": 2, "name": None, "other": 5}]


def test_csv_has_the_columns_of_the_schema_in_their_order(lake: GivenLake) -> None:
    config = {"format": "csv", "schema": "name string, id bigint", "csv_delimiter": ";"}
    first = [Record(b"a;1"), Record(b"b;2"), Record(b"c;1")]
    land(lake, *first, **config)
    land(lake, *first, Record(None, b"2"), Record(b"d;", b'{"id": 5}'), **config)
    assert rows(lake) == [{"name": "c", "id": 1}, {"name": "d", "id": 5}]


@pytest.mark.parametrize("table_format", FORMATS)
def test_each_field_gets_a_column_and_one_that_fits_no_column_is_bad(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format, kind=MirrorConfig)
    some = [record({"id": 1, "a": {"b": 1}}), record({"id": 2, "new": "x", "a": {"b": 2, "c": "y"}})]
    land(lake, some[0])
    land(lake, *some)
    assert rows(lake) == [
        {"id": 1, "new": None, "a": {"b": 1, "c": None}},
        {"id": 2, "new": "x", "a": {"b": 2, "c": "y"}},
    ]
    with pytest.raises(BadRecord, match=r"offset 2: a.b: "):
        land(lake, *some, record({"id": 3, "a": {"b": "text"}}))
    with pytest.raises(BadRecord, match=r"offset 2: id: "):
        land(lake, *some, record({"id": 2**70}))


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_required_column_refuses_null_in_a_record_and_not_in_a_deletion(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format, kind=MirrorConfig)
    config = {"schema": "id bigint not null, name string not null"}
    some = [record({"id": 1, "name": "a"}), record({"id": 2, "name": "b"}), Record(None, b"1")]
    land(lake, *some, **config)
    assert rows(lake) == [{"id": 2, "name": "b"}]
    for given in (config, {}):
        with pytest.raises(BadRecord, match=r"offset 3: name: is null or missing, and the column is required"):
            land(lake, *some, record({"id": 3}), **given)


def test_new_names_are_those_of_key_and_sequence(lake: GivenLake) -> None:
    config = {"rename_columns": {"_op": "id", "n": "at"}, "sequence_by": "at"}
    land(lake, record({"_op": 1, "n": 2, "v": "a"}), record({"_op": 1, "n": 1, "v": "b"}), **config)
    assert rows(lake) == [{"id": 1, "at": 2, "v": "a"}]
    land(lake, *[record({"n": number, "v": "c"}, b'{"_op": 1}') for number in (0, 0, 3)], **config)
    assert rows(lake) == [{"id": 1, "at": 3, "v": "c"}]


@pytest.mark.parametrize(
    ("name", "older", "newer"),
    [
        ("at", "2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:00.000002Z"),
        ("at", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z"),
        ("version", -(2**63), 2**63 - 1),
        ("is_last", False, True),
        ("day", "2026-01-01", "2026-01-02"),
    ],
)
def test_the_greatest_of_a_sequence_is_the_row_and_equal_ones_are_in_order_of_offsets(
    tmp_path: Path, name: str, older: Any, newer: Any
) -> None:
    lake = GivenLake(tmp_path, kind=MirrorConfig)
    config: dict[str, Any] = {"sequence_by": [name]}
    if name == "day":
        config["schema"] = "day date"
    some = [record({"id": 1, name: at, "v": number}) for number, at in enumerate([newer, older, newer, older])]
    land(lake, *some[:2], **config)
    assert rows(lake)[0]["v"] == 0
    land(lake, *some, **config)
    assert rows(lake)[0]["v"] == 2


def test_two_columns_order_records_one_after_the_other(lake: GivenLake) -> None:
    some = [record({"id": 1, "a": a, "b": b, "v": f"{a}{b}"}) for a, b in ((1, 9), (2, 1), (2, 3), (2, 2), (1, 10))]
    land(lake, *some, sequence_by=["a", "b"])
    assert [one["v"] for one in rows(lake)] == ["23"]


def test_a_record_without_a_place_in_the_sequence_is_bad_by_name(lake: GivenLake) -> None:
    first = record({"id": 1, "at": 1})
    for bad, reason in (
        (record({"id": 1, "at": None}), "at: null, and sequence_by orders the records by it"),
        (record({"id": 1}), "at: null, and sequence_by"),
        (Record(None, b"1"), 'a tombstone has no at: tombstones="skip" leaves tombstones out'),
    ):
        with pytest.raises(BadRecord, match=reason):
            land(lake, first, bad, sequence_by="at")
    assert land(lake, first, Record(None, b"1"), sequence_by="at", tombstones="skip").counts.skipped == 1
    assert rows(lake) == [{"id": 1, "at": 1}]
    with pytest.raises(BadRecord, match="tombstone"):
        land(lake, first, Record(None, b"1"), Record(None, b"1"), sequence_by="at", tombstones="reject")


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_record_that_fulfils_a_condition_deletes_its_key_and_late_ones_lose_against_it(
    tmp_path: Path, table_format: str
) -> None:
    lake = GivenLake(tmp_path, table_format, kind=MirrorConfig)
    config = {"delete_when": "is_deleted -- or not", "sequence_by": "at", "tombstones": "skip", "key_format": "json"}
    some = [record({"id": n, "at": 5, "is_deleted": gone}) for n, gone in ((1, False), (2, None), (3, True), (4, None))]
    land(lake, *some, **config)
    assert [one["id"] for one in rows(lake)] == [1, 2, 4]
    # The third is from before the row, the last from before a deletion of a key without a row. The key may be Kafka's.
    some += [record({"at": 6, "is_deleted": True}, b"1"), record({"id": 4, "at": 4, "is_deleted": True})]
    some += [Record(None, b"2"), record({"id": 3, "at": 4})]
    assert land(lake, *some, **config).counts.skipped == 1
    assert [one["id"] for one in rows(lake)] == [2, 4]
    land(lake, *some, record({"id": 1, "at": 5}), record({"id": 3, "at": 7, "is_deleted": False}), **config)
    assert [one["id"] for one in rows(lake)] == [2, 3, 4]


def test_a_record_that_makes_the_condition_fail_is_bad_by_its_name_and_the_others_land(lake: GivenLake) -> None:
    some = [record({"id": n, "op": op}) for n, op in ((1, "0"), (2, "D"), (3, "1"))]
    with pytest.raises(BadRecord, match=r"offset 1: delete_when: Could not convert 'D' to INTEGER"):
        land(lake, *some, delete_when="op::INTEGER = 1")
    land(lake, *some, record({"id": 4, "op": "0", "new": 1}), delete_when="op::INTEGER = 1", on_error="reject")
    assert [one["id"] for one in rows(lake)] == [1, 4]
    assert list(lake.rejected()) == [1]


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("gone", r"'gone': .*\"gone\" not found.* The columns are: id, op\. .*schema=\"\.\.\.\""),
        ("op", "'op' is string, and a condition is true or false"),
        ("op = ", "DuckDB does not understand it"),
        ("op = 'D', true", "a table has no place for DuckDB's TUPLE"),
        ("now() > '2026-01-01'", "now is not allowed here: its result changes"),
        ("count(*) over () > 1", "a window function is not allowed here"),
        ("true) AS is_deleted, (true", "several columns"),
    ],
)
def test_a_condition_that_decides_about_no_single_record_is_refused(condition: str, problem: str) -> None:
    columns = pa.schema([("id", pa.int64()), ("op", pa.string())])
    with pytest.raises(InvalidArgument, match=f"delete_when: .*{problem}"):
        DeletionCondition(condition, columns)


@pytest.mark.parametrize("table_format", FORMATS)
def test_messages_sent_twice_write_no_row_again(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format, kind=MirrorConfig)
    some = [record({"id": n, "v": v}) for n, v in ((1, "a"), (2, "b"), (1, "c"))]
    land(lake, *some, insert_only=True)
    before = lake.rows()
    assert land(lake, *some, *some, Record(None, b"1"), insert_only=True).counts.skipped == 1
    # With the place of the first record in Kafka.
    assert lake.rows() == before
    assert rows(lake) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    with pytest.raises(InvalidArgument, match=r"insert_only: .* was made with True, so its rows are the first records"):
        land(lake, *some, *some, *some)


SQL = """SELECT (value->>'$.n')::BIGINT AS id, upper(value->>'$.v') AS v, _kafka_offset AS at FROM {{ input }}
WHERE value->>'$.v' <> 'out'"""


@pytest.mark.parametrize("table_format", FORMATS)
def test_sql_makes_the_rows_before_the_key_is_taken_and_tombstones_pass_it_by(
    tmp_path: Path, table_format: str
) -> None:
    lake = GivenLake(tmp_path, table_format, kind=MirrorConfig)
    config = {"sql": SQL, "delete_when": "v = 'GONE'", "sequence_by": "at", "tombstones": "skip"}
    some = [record({"n": n, "v": v}) for n, v in ((1, "a"), (2, "b"), (1, "out"), (3, "c"), (2, "gone"))]
    found = land(lake, *some, **config)
    assert (found.counts.written, found.counts.filtered) == (4, 1)
    assert rows(lake) == [{"id": 1, "v": "A", "at": 0}, {"id": 3, "v": "C", "at": 3}]
    # A filtered record is used up, and a record for which the statement fails is bad.
    assert land(lake, *some, record({"n": 3, "v": "out"}), **config).counts.filtered == 1
    some += [record({"n": 3, "v": "out"}), record({"n": "x", "v": "a"}), record({"n": 3, "v": "d"}), Record(None, b"1")]
    with pytest.raises(BadRecord, match=r"offset 6: column id: Could not convert 'x' to BIGINT"):
        land(lake, *some, **config)
    found = land(lake, *some, **config, on_error="reject")
    assert (found.counts.rejected, found.counts.skipped) == (1, 1)
    assert rows(lake) == [{"id": 1, "v": "A", "at": 0}, {"id": 3, "v": "D", "at": 7}]


def test_sql_over_decoded_columns_takes_a_missing_key_from_the_kafka_key(lake: GivenLake) -> None:
    sql = "SELECT id, user, n * 2 AS twice FROM {{ input }} WHERE n > 0"
    config = {"sql": sql, "sql_input": "decoded", "schema": "id bigint, user struct<zone: string>, n bigint"}
    config |= {"key": ["id", "user.zone"]}
    some = [
        record({"id": 1, "n": 4, "user": {"zone": "x"}}),
        record({"n": 5, "other": 1}, b'{"id": 2, "user": {"zone": "y"}}'),
    ]
    some += [record({"n": 0}), Record(None, b'{"id": 1, "user": {"zone": "x"}}')]
    found = land(lake, *some, **config)
    assert (found.counts.written, found.counts.filtered) == (3, 1)
    assert rows(lake) == [{"id": 2, "user": None, "user_zone": "y", "twice": 10}]


def test_avro_is_decoded_before_sql_and_a_new_statement_may_not_change_a_type(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, schemas=SCHEMAS, kind=MirrorConfig)
    config = {"format": "avro", "sql_input": "decoded", "schema": "id bigint, name string"}
    some = [Record(avro(ROW, {"id": key, "name": "a"}, 1)) for key in (1, 2)]
    land(lake, *some, **config, sql="SELECT id, name || '!' AS name FROM {{ input }}")
    some += [Record(None, avro(KEY, {"id": 1}, 2)), Record(avro(WIDE, {"id": 2, "name": "b", "more": 1.5}, 4))]
    land(lake, *some, **config, sql="SELECT id, name, 1 AS new FROM {{ input }}")
    assert rows(lake) == [{"id": 2, "name": "b", "new": 1}]
    with pytest.raises(InvalidArgument, match="sql: it makes int64 of the column name, which is string"):
        land(lake, *some, some[0], **config, sql="SELECT id, id AS name FROM {{ input }}")


def test_a_table_keeps_its_history_and_its_times(lake: GivenLake) -> None:
    config = {"history": True, "sequence_by": ["at", "n"], "schema": "at timestamptz, n bigint"}
    some = [record({"id": 1, "at": "2026-01-01T00:00:00Z", "n": n}) for n in (2, 1)]
    land(lake, *some, **config)
    # At the same time the second column decides, and the earlier version has no duration.
    assert [(one["n"], one["_is_current"]) for one in sorted(lake.rows(), key=lambda one: one["n"])] == [
        (1, False),
        (2, True),
    ]
    with pytest.raises(InvalidArgument, match=r"history: lake\.events was made with True"):
        land(lake, *some, some[0], **config | {"history": False})
    with pytest.raises(BadRecord, match="_valid_to: no column can be added"):
        land(lake, *some, record({"id": 2, "at": "2026-01-01T00:00:00Z", "n": 1, "_valid_to": 1}), **config)


FLAT = {"envelope": "flattened"}


def flat(key: int, text: str | None, op: str | None, lsn: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a row of ExtractNewRecordState; one of a snapshot need not have an operation."""
    row = {
        "id": key,
        "text": text,
        "__deleted": "true" if op == "d" else "false",
        "__op": op,
        "__source_lsn": lsn,
    } | more
    return {name: value for name, value in row.items() if not (name.startswith("__") and value is None)}


def with_schema(row: dict[str, Any]) -> bytes:
    """Return a row in JSON with Connect's schema."""
    kinds = {"id": "int32", "born": "int32", "__source_lsn": "int64"}
    fields = [{"field": name, "type": kinds.get(name, "string"), "optional": True} for name in row]
    for one in fields:
        one.update({"name": "io.debezium.time.Date", "version": 1} if one["field"] == "born" else {})
    return json.dumps({"schema": {"type": "struct", "fields": fields, "optional": False}, "payload": row}).encode()


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_flattened_events_are_in_the_order_of_the_log_and_delete_their_rows(
    tmp_path: Path, table_format: str, wrapped: bool
) -> None:
    lake = GivenLake(tmp_path, table_format, kind=MirrorConfig)
    key = with_schema({"id": 1}) if wrapped else b'{"id": 1}'

    def one(row: dict[str, Any]) -> Record:
        return Record(with_schema(row) if wrapped else json.dumps(row).encode(), key)

    some = [one(flat(n, "read", None, 5)) for n in (1, 2, 3)] + [one(flat(1, "a", "u", 9)), one(flat(2, "b", "u", 7))]
    land(lake, *some, **FLAT)
    # Sent again, or late; a deletion with the tombstone behind it; a new column.
    some += [one(flat(1, "old", "u", 8)), one(flat(2, None, "d", 10)), Record(None, key.replace(b"1}", b"2}"))]
    some += [one(flat(3, "c", "u", 11, born=20_000)), one(flat(2, "b", "u", 7))]
    found = land(lake, *some, **FLAT)
    assert (found.counts.written, found.counts.filtered) == (4, 1)
    born = date(2024, 10, 4) if wrapped else 20_000
    assert [(one["id"], one["text"], one["born"]) for one in rows(lake)] == [(1, "a", None), (3, "c", born)]
    # An event without a place has no order with the others.
    with pytest.raises(MirrorStopped, match=r"\[0\] offset 10: it has no __source_lsn, unlike others.*order-unknown"):
        land(lake, *some, one(flat(1, "x", "u")), **FLAT, on_error="reject")


def test_flattened_events_without_a_place_are_in_the_order_of_offsets_and_tombstones_delete(lake: GivenLake) -> None:
    some = [record(flat(1, "a", "c")), record(flat(2, "b", "c")), record(flat(1, None, "d"))]
    some += [Record(None, b'{"id": %d}' % key) for key in (1, 2)]
    land(lake, *some, record(flat(1, "c", "c")), **FLAT)
    assert [(one["id"], one["text"]) for one in rows(lake)] == [(1, "c")]
    with pytest.raises(InvalidArgument, match=r"envelope: lake\.events was made with 'flattened'"):
        land(lake, record({"id": 1}))


def test_flattened_events_of_a_binary_log_are_in_the_order_of_its_files(lake: GivenLake) -> None:
    def at(file: int, byte: int, row: int) -> dict[str, Any]:
        return {"__source_file": f"binlog.{file:06}", "__source_pos": byte, "__source_row": row}

    places = (("b", (2, 4, 0)), ("c", (2, 4, 1)), ("a", (1, 900, 0)))
    some = [flat(1, text, "u", **at(*place)) for text, place in places]
    land(lake, *map(record, some), **FLAT)
    assert rows(lake)[0]["text"] == "c"


def test_whole_events_and_tombstones_without_deletions_have_no_order_with_flattened_ones(lake: GivenLake) -> None:
    first = record({"id": 1, "__source_lsn": 5})
    land(lake, first, **FLAT)
    with pytest.raises(BadRecord, match=r"a tombstone has no __source_lsn: set delete.tombstone.handling.mode=rewrite"):
        land(lake, first, Record(None, b'{"id": 1}'), **FLAT)
    whole = {"before": None, "after": {"id": 1}, "source": {"lsn": 6}, "op": "u"}
    with pytest.raises(MirrorStopped, match=r"offset 1: it is a whole event of Debezium among flattened ones"):
        land(lake, first, record(whole, b'{"id": 1}'), **FLAT)


def test_fields_that_an_avro_schema_lacks_keep_their_values_and_null_replaces_them(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, schemas=SCHEMAS, kind=MirrorConfig)
    some = [Record(avro(WIDE, {"id": key, "name": "a", "more": 1.5}, 4)) for key in (1, 2)]
    land(lake, *some, format="avro", merge="given")
    some += [Record(avro(ROW, {"id": 1, "name": "b"}, 1)), Record(avro(WIDE, {"id": 2, "name": "b", "more": None}, 4))]
    land(lake, *some, format="avro", merge="given")
    assert rows(lake) == [{"id": 1, "name": "b", "more": 1.5}, {"id": 2, "name": "b", "more": None}]


def test_fields_that_a_protobuf_message_lacks_keep_their_values(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, schemas={7: ("PROTOBUF", PROTO)}, kind=MirrorConfig)
    some = [Record(HEAD + b"\x00\x08\x01\x12\x01a"), Record(HEAD + b"\x02\x02\x08\x01\x18\x01")]
    land(lake, *some, format="protobuf", key_format="json", merge="given")
    assert rows(lake) == [{"id": 1, "name": "a", "more": True}]


def test_fields_of_a_new_column_and_of_a_json_schema_are_absent_in_older_records(tmp_path: Path) -> None:
    shape = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
    lake = GivenLake(tmp_path, schemas={7: ("JSON", json.dumps(shape))}, kind=MirrorConfig)
    some = [Record(HEAD + b'{"id": 1, "name": "a"}'), Record(HEAD + b'{"id": 2, "name": "a"}')]
    land(lake, *some, format="json_schema", merge="given")
    some += [Record(HEAD + b'{"id": 1, "other": 5}'), Record(HEAD + b'{"id": 2, "name": null}')]
    land(lake, *some, format="json_schema", merge="given")
    assert rows(lake) == [{"id": 1, "name": "a", "other": 5}, {"id": 2, "name": None, "other": None}]


@pytest.mark.parametrize("value", [1, "2026"])
def test_a_time_that_is_no_timestamp_is_refused_by_name(lake: GivenLake, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"sequence_by: at is .*within goes by a timestamp.*schema=\"at timesta"):
        land(lake, record({"id": 1, "at": value}), sequence_by="at", insert_only=True, within="7 days")


def test_flattened_events_of_debezium_are_rows_with_a_condition(lake: GivenLake) -> None:
    config = {"delete_when": "__deleted = 'true'"}
    some = [record({"id": 1, "v": "read"}), record({"id": 2, "v": "a", "__op": "c", "__deleted": "false"})]
    some += [record({"id": 1, "v": None, "__op": "d", "__deleted": "true"}), Record(None, b'{"id": 1}')]
    land(lake, *some, **config)
    assert rows(lake) == [{"id": 2, "v": "a", "__op": "c", "__deleted": "false"}]


@pytest.mark.parametrize("value", [[1], {"a": 1}])
def test_a_sequence_of_a_type_without_an_order_is_refused_by_name(lake: GivenLake, value: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=r"sequence_by: at is .*, whose values have no order.*schema=\"at bigint\""
    ):
        land(lake, record({"id": 1, "at": value}), sequence_by="at")


def test_a_history_goes_by_numbers(lake: GivenLake) -> None:
    config = {"history": True, "sequence_by": ["at", "n"], "schema": "at timestamptz, n string"}
    with pytest.raises(InvalidArgument, match="sequence_by: n is string, and a history goes by numbers"):
        land(lake, record({"id": 1, "at": "2026-01-01T00:00:00Z", "n": "a"}), **config)


def test_columns_of_a_history_are_kept_and_have_to_be_there(lake: GivenLake) -> None:
    config = {"history": True, "sequence_by": "at", "schema": "at timestamptz", "history_columns": ["name"]}
    first = record({"id": 1, "at": "2026-01-01T00:00:00Z", "name": "a"})
    with pytest.raises(InvalidArgument, match=r"history_columns: .* would have no column nam; there are"):
        land(lake, first, **config | {"history_columns": ["nam"]})
    land(lake, first, **config)
    with pytest.raises(InvalidArgument, match=r"history_columns: lake\.events was made with name"):
        land(lake, first, first, **config | {"history_columns": None})


def test_the_history_of_flattened_events_has_the_times_of_the_database(lake: GivenLake) -> None:
    times = {"__source_ts_ms": 1_000}
    some = [record(flat(1, "a", "c", 5, **times)), record(flat(1, "b", "u", 7, __source_ts_ms=3_000))]
    # A copy, the last version's end with its tombstone, and an event without a time.
    some += [record(flat(1, "a", "c", 5, **times)), record(flat(1, None, "d", 9, __source_ts_ms=4_000))]
    land(lake, *some, Record(None, b'{"id": 1}'), **FLAT, history=True)
    seconds = [(one["text"], one["_valid_from"].timestamp(), one["_valid_to"].timestamp()) for one in lake.rows()]
    assert seconds == [("a", 1, 3), ("b", 3, 4)]
    with pytest.raises(BadRecord, match="no __source_ts_ms, the time from which a version is valid"):
        land(
            lake,
            *some,
            Record(None, b'{"id": 1}'),
            record(flat(1, "c", "u", 11)),
            **FLAT,
            history=True,
        )


def test_places_keep_the_order_of_each_type_that_is_taken() -> None:
    day, moment = date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
    some: list[tuple[list[Any], pa.DataType]] = [
        ([False, True], pa.bool_()),
        ([1, 2], pa.int8()),
        ([1, 2], pa.uint32()),
    ]
    some += [([day.replace(day=1), day], kind) for kind in (pa.date32(), pa.date64())]
    some += [([1, 2], pa.time32("s")), ([1, 2], pa.time64("us"))]
    moments = [moment.replace(year=1970), moment]
    some += [(moments, pa.timestamp(unit, zone)) for unit in ("us", "ns") for zone in (None, "UTC")]
    for values, kind in some:
        array = pa.array([1, 2], pa.int32()).cast(kind) if pa.types.is_time32(kind) else pa.array(values, kind)
        check_type(pa.field("at", kind))
        numbers, beyond = place_numbers(array)
        assert numbers[0].as_py() < numbers[1].as_py()
        assert not beyond.any()
    far = pa.array([2**62, -(2**62), 1, None], pa.timestamp("s"))
    numbers, beyond = place_numbers(far)
    assert beyond.tolist() == [True, True, False, False]
    assert numbers.to_pylist()[2:] == [10**6, None]
    with pytest.raises(InvalidArgument, match="at is uint64, and a history goes by numbers"):
        check_type(pa.field("at", pa.uint64()), is_number=True)


@pytest.mark.parametrize("kind", [HandMirror, HandDeltaMirror])
@pytest.mark.parametrize("by", [None, "at"])
@pytest.mark.parametrize("cut", [(2,), (1, 2)], ids=["in a batch", "with the table"])
@pytest.mark.parametrize("executors", [0, 2])
def test_two_partitions_without_an_order_stop_with_both_places_and_the_way_out(
    tmp_path: Path, kind: type[HandMirror], by: str | None, cut: Sequence[int], executors: int
) -> None:
    value = b'{"id": 7, "at": 5}'
    records = [keyed.Record(None, value), keyed.Record(None, value, partition=3)]
    schema = {"schema": "id bigint, at bigint"}
    follower = Follower(kind(tmp_path, executors=executors), UPSERT | schema | ({"sequence_by": by} if by else {}))
    # Executors write only into a table that is there.
    follower.land([keyed.Record(None, b'{"id": 8, "at": 5}')])
    for start, end in zip([0, *cut], cut[:-1], strict=False):
        follower.land(records[start:end])
    with pytest.raises(MirrorStopped) as stopped:
        follower.land(records[cut[-2] if len(cut) > 1 else 0 :])
    assert stopped.value.reason is StopReason.ORDER_UNKNOWN
    text = str(stopped.value)
    for part in (
        "shop.public.orders[0] offset 1",
        "shop.public.orders[3] offset 0",
        "id=7",
        "new table",
        "sequence_by",
    ):
        assert part in text
    assert "resnapshot" not in text


@pytest.mark.parametrize("kind", [HandMirror, HandDeltaMirror])
@pytest.mark.parametrize("soft_delete", [False, True])
def test_a_remembered_deletion_in_another_partition_stops_and_in_its_own_one_is_replaced(
    tmp_path: Path, kind: type[HandMirror], soft_delete: bool
) -> None:
    follower = Follower(kind(tmp_path, soft_delete=soft_delete), UPSERT | {"soft_delete": soft_delete})
    value = b'{"id": 7, "at": 5}'
    follower.land([keyed.Record(None, value), keyed.Record(b"7", None)])
    assert follower.rows() == []
    with pytest.raises(MirrorStopped, match=r"\[0\] offset 1 and .*\[3\] offset 0 .*order-unknown"):
        follower.land([keyed.Record(None, value, partition=3)])
    follower.land([keyed.Record(None, value)])
    assert follower.rows() == [{"id": 7, "at": 5}]


def test_a_tie_behind_a_newer_record_does_not_stop(tmp_path: Path) -> None:
    follower = Follower(HandMirror(tmp_path), UPSERT | {"sequence_by": "at"})
    values = [(0, 1), (1, 1), (1, 2)]
    follower.land([keyed.Record(None, b'{"id": 7, "at": %d}' % at, partition) for partition, at in values])
    assert follower.rows() == [{"id": 7, "at": 2}]


def test_a_table_keeps_its_source_and_its_order(tmp_path: Path) -> None:
    mirror = HandMirror(tmp_path)
    value = keyed.Record(None, b'{"id": 7, "at": 5}')
    Follower(mirror, UPSERT).land([value])
    for config, problem in (
        ({"envelope": "debezium"}, r"envelope: lake.orders is made of plain records, .* add events"),
        ({"sequence_by": "at"}, r"sequence_by: the rows of lake.orders are in order by offset"),
        ({"key": ["at"]}, r"key: lake.orders is mirrored by id, not by at"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            Follower(mirror, UPSERT | config).land([value])
    events = keyed.Source()
    other = HandMirror(tmp_path / "other")
    events.begin()
    Follower(other, {"key": ["id"]}).land(events.change(None, {"id": 1, "v": "a"}))
    with pytest.raises(InvalidArgument, match="is made of Debezium's events, and this run would add plain records"):
        Follower(other, UPSERT).land([value])
