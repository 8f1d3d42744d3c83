"""The columns of a result are known before the first record, and hold the same types for every batch."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import pickle
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import pyarrow as pa
import pytest

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform import SqlTransform
from tests.unit.transform.support import HEADERS, batch, planned, rows_here

NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
NAIVE = dt.datetime(2026, 7, 1, 12)
D = decimal.Decimal
ID = "0d0b5b63-8b6b-4a0a-9a0a-0d0b5b638b6b"

# An expression, its Arrow type, and what it makes of the record `5`.
TYPES = [
    ("value = '5'", pa.bool_(), True),
    ("value::TINYINT", pa.int32(), 5),
    ("value::SMALLINT", pa.int32(), 5),
    ("value::INTEGER", pa.int32(), 5),
    ("value::BIGINT", pa.int64(), 5),
    ("value::UTINYINT", pa.int32(), 5),
    ("value::USMALLINT", pa.int32(), 5),
    ("4000000000::UINTEGER", pa.int64(), 4_000_000_000),
    ("18446744073709551615::UBIGINT", pa.decimal128(20, 0), D(18446744073709551615)),
    ("value::HUGEINT", pa.decimal128(38, 0), D(5)),
    ("value::UHUGEINT", pa.decimal128(38, 0), D(5)),
    ("value::DECIMAL(9, 2)", pa.decimal128(9, 2), D("5.00")),
    ("value::DECIMAL(38, 10)", pa.decimal128(38, 10), D("5.0000000000")),
    ("value::FLOAT", pa.float32(), 5.0),
    ("value::DOUBLE", pa.float64(), 5.0),
    ("value", pa.string(), "5"),
    ("value::JSON", pa.string(), "5"),
    ("'b'::ENUM('a', 'b')", pa.string(), "b"),
    ("encode(value)", pa.binary(), b"5"),
    ("DATE '2026-07-01'", pa.date32(), NAIVE.date()),
    ("TIME '12:00:00.000001'", pa.time64("us"), dt.time(12, 0, 0, 1)),
    ("TIMESTAMP '2026-07-01 12:00:00'", pa.timestamp("us"), NAIVE),
    ("'2026-07-01 12:00:00'::TIMESTAMP_S", pa.timestamp("us"), NAIVE),
    ("'2026-07-01 12:00:00'::TIMESTAMP_MS", pa.timestamp("us"), NAIVE),
    ("TIMESTAMPTZ '2026-07-01 14:00:00+02:00'", pa.timestamp("us", "UTC"), NOON),
    ("TIMESTAMP '2026-07-01 12:00:00'::TIMESTAMPTZ", pa.timestamp("us", "UTC"), NOON),
    ("TIMESTAMPTZ '2026-07-01 14:00:00 Europe/Berlin'", pa.timestamp("us", "UTC"), NOON),
    (f"'{ID}'::UUID", pa.uuid(), uuid.UUID(ID)),
    ("[value::TINYINT, NULL]", pa.list_(pa.field("element", pa.int32())), [5, None]),
    ("[1, 2]::TINYINT[2]", pa.list_(pa.field("element", pa.int32())), [1, 2]),
    (
        "{'a': 1::UBIGINT, 'b c': value}",
        pa.struct([("a", pa.decimal128(20, 0)), ("b c", pa.string())]),
        {"a": D(1), "b c": "5"},
    ),
    ("MAP {value: [1::SMALLINT]}", pa.map_(pa.string(), pa.list_(pa.field("element", pa.int32()))), [("5", [1])]),
]


def test_each_type_has_a_place() -> None:
    columns = ", ".join(f"{expression} AS v{n}" for n, (expression, *_) in enumerate(TYPES))
    transform = SqlTransform(f"SELECT {columns} FROM {{{{ input }}}}")
    assert transform.schema == pa.schema([(f"v{n}", kind) for n, (_, kind, _) in enumerate(TYPES)])
    for values in ([b"5", b"5"], []):
        rows = transform.apply(batch(values)).rows
        assert rows.schema == transform.schema
        for made, (expression, _, value) in zip(rows.columns, TYPES, strict=True):
            assert made.to_pylist() == [value] * len(values), expression


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("NULL", "CAST"),
        ("INTERVAL 1 DAY", "epoch"),
        ("'101'::BIT", "VARCHAR"),
        ("'2026-07-01'::TIMESTAMP_NS", "microseconds"),
        ("'12:00:00+02'::TIMETZ", "TIME"),
        ("union_value(a := 1)", "VARCHAR"),
        (f"['{ID}'::UUID]", "VARCHAR"),
        ("{'a': [INTERVAL 1 DAY]}", "epoch"),
    ],
)
def test_a_type_without_a_place_is_refused_with_a_cast(expression: str, remedy: str) -> None:
    with pytest.raises(InvalidArgument, match=f"column 'odd.*: a table has no place for .*{remedy}"):
        planned(f"SELECT {expression} AS odd FROM {{{{ input }}}}")


def test_a_value_without_a_place_is_a_bad_record() -> None:
    values = [
        ("value::HUGEINT * 100000000000000000000000000000000000000", b"1"),
        ("value::UHUGEINT", b"340282366920938463463374607431768211455"),
        ("{'a': value::HUGEINT}", b"-170141183460469231731687303715884105728"),
        ("value::DECIMAL(38, 0) * 10", b"99999999999999999999999999999999999999"),
        ("value::UBIGINT", b"18446744073709551616"),
        ("value::DATE", b"infinity"),
        ("value::TIMESTAMP", b"-infinity"),
        ("value::TIMESTAMPTZ", b"infinity"),
        ("value::TIMESTAMP_MS", b"infinity"),
    ]
    # Each in a column of its own, for the record of its place alone.
    columns = [f"CASE key WHEN 'v{n}' THEN {expression} END AS v{n}" for n, (expression, _) in enumerate(values)]
    transform = SqlTransform(f"SELECT {', '.join(columns)} FROM {{{{ input }}}}")
    keys = [f"v{n}".encode() for n in range(len(values))]
    result = transform.apply(batch([*(value for _, value in values), None], keys=[*keys, keys[0]]))
    assert result.kept.tolist() == [len(values)]
    assert [bad.index for bad in result.bad] == [*range(len(values))]
    for n, bad in enumerate(result.bad):
        assert bad.reason.startswith(f"column v{n}: ")


def test_the_columns_of_a_raw_record_which_is_bad_if_no_column_can_hold_its_timestamp() -> None:
    raw = RawBatch(
        "orders",
        7,
        range(5, 9),
        [1_000, -1, 2**62, -(2**63)],
        pa.array([b"v", None, b"a", b"b"]),
        pa.array([b"k", None, None, None]),
        pa.array([[("h", b"\xff"), ("n", None)], None, None, None], HEADERS),
    )
    names = "key, value, event_timestamp, headers, _kafka_topic, _kafka_partition, _kafka_offset, _kafka_timestamp"
    result = SqlTransform(f"SELECT {names}, _kafka_key, _kafka_headers FROM {{{{ input }}}}").apply(raw)
    first, second = result.rows.to_pylist()
    at = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    headers = [{"key": "h", "value": b"\xff"}, {"key": "n", "value": None}]
    assert list(first.values()) == ["k", "v", at, headers, "orders", 7, 5, at, b"k", headers]
    assert list(second.values()) == [None, None, None, None, "orders", 7, 6, None, None, None]
    assert [bad.reason for bad in result.bad] == [
        f"the record's timestamp {2**62} ms is out of range",
        f"the record's timestamp {-(2**63)} ms is out of range",
    ]


DECODED = pa.schema(
    [
        pa.field("id", pa.uuid()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("price", pa.decimal128(12, 2)),
        ("who", pa.struct([("name", pa.string())])),
        ("_kafka_offset", pa.int64()),
    ]
)


def test_decoded_columns_keep_their_types_and_raw_records_are_refused() -> None:
    row = {
        "id": uuid.UUID(ID).bytes,
        "at": NOON,
        "tags": ["a"],
        "price": D("1.50"),
        "who": {"name": "n"},
        "_kafka_offset": 9,
    }
    rows = pa.table({f.name: pa.array([row[f.name]], f.type) for f in DECODED})
    transform = SqlTransform(
        "SELECT * EXCLUDE (tags), who.name AS name, len(tags)::INT AS n FROM {{ input }}", input_schema=DECODED
    )
    assert [str(f.type) for f in transform.schema][:3] == [str(DECODED.field(n).type) for n in ("id", "at", "price")]
    (made,) = transform.apply(rows).rows.to_pylist()
    assert (made["id"], made["price"], made["name"], made["n"]) == (uuid.UUID(ID), D("1.50"), "n", 1)

    with pytest.raises(InvalidArgument, match="raw records"):
        transform.apply(batch([b"x"]))


@pytest.fixture(scope="module")
def numbers() -> SqlTransform:
    return SqlTransform("SELECT value::INT AS n FROM {{ input }}")


def test_it_travels_to_other_processes(numbers: SqlTransform) -> None:
    again = pickle.loads(pickle.dumps(numbers))
    assert again.schema == numbers.schema
    assert again.apply(batch([b"1"])).rows.to_pylist() == [{"n": 1}]


def _in_child(connection: object, transform: SqlTransform) -> None:
    connection.send(transform.apply(batch([b"1", b"2"])).rows.to_pylist())  # type: ignore[attr-defined]


def test_a_forked_process_gets_a_database_of_its_own(numbers: SqlTransform) -> None:
    numbers.apply(batch([b"1"]))
    ours, theirs = get_context("fork").Pipe()
    child = get_context("fork").Process(target=_in_child, args=(theirs, numbers))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == [{"n": 1}, {"n": 2}]
    child.join()


def test_threads_do_not_see_each_other() -> None:
    transform = SqlTransform("SELECT value AS v, _kafka_offset FROM {{ input }} WHERE value::INT % 3 <> 0")
    barrier = threading.Barrier(3)

    def work(first: int) -> bool:
        barrier.wait()
        for turn in range(5):
            numbers = range(first + turn, first + turn + 500)
            result = transform.apply(batch([str(n).encode() for n in numbers]))
            if result.rows["v"].to_pylist() != [str(n) for n in numbers if n % 3]:
                return False
        return True

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, [0, 100_000, 200_000]))


def test_values_of_floats_are_kept() -> None:
    values = rows_here("SELECT value::DOUBLE AS v FROM {{ input }}", batch([b"NaN", b"inf", b"-0.0"]))["v"].to_pylist()
    assert math.isnan(values[0])
    assert [str(v) for v in values[1:]] == ["inf", "-0.0"]


def test_a_uuid_inside_another_value_is_read_and_becomes_text() -> None:
    kinds = {"l": pa.list_(pa.uuid()), "s": pa.struct([("a", pa.uuid())]), "m": pa.map_(pa.string(), pa.uuid())}
    records = pa.schema([("id", pa.int64()), *kinds.items()])
    beside = SqlTransform("SELECT id FROM {{ input }}", input_schema=records)
    for count in (2, 0):
        nulls = [pa.nulls(count, kind) for kind in kinds.values()]
        given = pa.Table.from_arrays([pa.array(range(count), pa.int64()), *nulls], schema=records)
        assert beside.apply(given).rows["id"].to_pylist() == list(range(count))
    for name in kinds:
        with pytest.raises(InvalidArgument, match=r"Cast it to VARCHAR"):
            planned(f"SELECT {name} FROM {{{{ input }}}}", records)
