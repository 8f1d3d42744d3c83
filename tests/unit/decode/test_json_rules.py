"""The rules of JSON into typed columns, one line for each; both paths must follow them."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.exceptions import BadRecord, InvalidArgument, UnknownValue
from tests.unit.decode.support import batch, column, decoded, one_by_one, shown

ZONED, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")
PRICE = pa.decimal128(5, 2)
POINT = pa.struct([pa.field("x", pa.int64(), nullable=False), ("y", pa.float64())])
UUID_TEXT = "123e4567-e89b-12d3-a456-426614174000"

GOOD: list[tuple[pa.DataType, str, Any]] = [
    (pa.int32(), "7", 7),
    (pa.int32(), "1.0", 1),
    (pa.int32(), "1e3", 1000),
    (pa.int32(), "-0", 0),
    (pa.int8(), "-128", -128),
    (pa.int64(), "9223372036854775807", 2**63 - 1),
    (pa.float64(), "1", 1.0),
    (pa.float64(), "0.1", 0.1),
    (pa.float64(), "9007199254740992", 2.0**53),
    (pa.float64(), "1e300", 1e300),
    (pa.float32(), "0.5", 0.5),
    (pa.bool_(), "true", True),
    (pa.string(), '"7"', "7"),
    (pa.string(), "7", "7"),
    (pa.string(), "1.50", "1.50"),
    (pa.string(), "12345678901234567890.10", "12345678901234567890.10"),
    (pa.string(), "false", "false"),
    (pa.string(), "null", None),
    (pa.string(), '{ "k" : [1.0, "é", null] }', '{"k":[1.0,"é",null]}'),
    (pa.large_string(), '"\\ud83d\\ude00"', "😀"),
    (ZONED, '"2026-11-20T05:06:07.123Z"', datetime(2026, 11, 20, 5, 6, 7, 123000, UTC)),
    (ZONED, '"2026-11-20T05:06:07+02:00"', datetime(2026, 11, 20, 3, 6, 7, tzinfo=UTC)),
    (ZONED, '"2026-11-20T05:06:07.1234560000Z"', datetime(2026, 11, 20, 5, 6, 7, 123456, UTC)),
    (NAIVE, '"2026-11-20 05:06:07"', datetime(2026, 11, 20, 5, 6, 7)),
    (NAIVE, '"2026-11-20"', datetime(2026, 11, 20)),
    (pa.date32(), '"2024-02-29"', date(2024, 2, 29)),
    (pa.time64("us"), '"23:59:59.999999"', time(23, 59, 59, 999999)),
    (PRICE, "1.5", Decimal("1.50")),
    (PRICE, '"1.500"', Decimal("1.50")),
    (PRICE, "12e1", Decimal("120.00")),
    (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
    (pa.binary(), '"YWJj"', b"abc"),
    (pa.binary(3), '"YWJj"', b"abc"),
    (pa.uuid(), f'"{UUID_TEXT}"', UUID(UUID_TEXT)),
    (pa.list_(pa.uuid()), f'["{UUID_TEXT}"]', [UUID(UUID_TEXT)]),
    (POINT, '{"x":1}', {"x": 1, "y": None}),
    (POINT, "null", None),
    (pa.list_(POINT), '[{"x":1,"y":2.5},null]', [{"x": 1, "y": 2.5}, None]),
    (pa.large_list(ZONED), '["2026-11-20T05Z"]', [datetime(2026, 11, 20, 5, tzinfo=UTC)]),
    (pa.map_(pa.string(), pa.int64()), '{"b":1,"a":null}', [("b", 1), ("a", None)]),
]

BAD: list[tuple[pa.DataType, str, str]] = [
    (pa.int32(), "1.5", "v: 1.5 is not an integer"),
    (pa.int32(), "2147483648", "v: 2147483648 is out of range for int32"),
    (pa.int64(), "12345678901234567890", "out of range for int64"),
    (pa.int64(), "1e999999999", "out of range"),
    (pa.int64(), "1e-999999999", "is not an integer"),
    (pa.int64(), "9" * 5000, "out of range"),
    (pa.int32(), '"7"', "is the string '7', not a number"),
    (pa.int32(), "true", "is the boolean true, not a number"),
    (pa.bool_(), "1", "is the number 1, not a boolean"),
    (pa.bool_(), '"true"', "not a boolean"),
    (pa.float64(), "9007199254740993", "can't be held exactly by double"),
    (pa.float32(), "16777217", "can't be held exactly by float"),
    (pa.float32(), "1e39", "out of range for float"),
    (pa.float64(), "1e309", "out of range for double"),
    (pa.float64(), "NaN", "NaN is not JSON"),
    (pa.float64(), "-Infinity", "-Infinity is not JSON"),
    (pa.float64(), "Inf", "not valid JSON"),
    (ZONED, '"2026-11-20T05:06:07"', "has no zone"),
    (ZONED, '"2026-11-20"', "has no zone"),
    (NAIVE, '"2026-11-20T05:06:07Z"', "has a zone"),
    (ZONED, '"2026-11-20T05:06:07.1234567Z"', "finer than microseconds"),
    (ZONED, '"2026-11-20T24:00:00Z"', "no 24:00"),
    (ZONED, '"2026-11-20T23:59:60Z"', "no leap seconds"),
    (ZONED, '"0001-01-01T00:00:00+01:00"', "years 1 to 9999"),
    (ZONED, '"0000-06-01T00:00:00Z"', "years 1 to 9999"),
    (ZONED, '"9999-12-31T23:59:59-01:00"', "years 1 to 9999"),
    (ZONED, '"2026-11-20T05:06:07+24:00"', "impossible offset"),
    (ZONED, "1763614800", "is the number 1763614800, not a string"),
    (ZONED, '"٢٠٢٦-11-20T05:06:07Z"', "not an ISO 8601 date-time"),
    (pa.date32(), '"2026-02-30"', "not a day of the calendar"),
    (pa.date32(), '"0000-01-01"', "years 1 to 9999"),
    (pa.date32(), '"2026-11-20T00:00:00Z"', "is not a date"),
    (pa.time64("us"), '"24:00:00"', "no 24:00"),
    (pa.time64("us"), '"05"', "is not a time"),
    (PRICE, "1.234", "1.234 has more than 2 fraction digits"),
    (PRICE, "1000", "out of range"),
    (PRICE, "1e3", "out of range"),
    (PRICE, '"NaN"', "is not a decimal number"),
    (PRICE, '"1_0"', "is not a decimal number"),
    (pa.binary(), '"YWJ"', "is not base64"),
    (pa.binary(), '"YWJ_"', "is not base64"),
    (pa.binary(), '"YWJ="', "is not canonical base64"),
    (pa.binary(4), '"YWJj"', "holds 3 bytes, the column 4"),
    (pa.uuid(), '"' + UUID_TEXT.replace("-", "") + '"', "is not a UUID"),
    (POINT, '{"y":1}', "v.x: is null or missing, and the column is required"),
    (POINT, '{"x":null}', "v.x: is null or missing"),
    (POINT, "[1]", "v: is an array, not an object"),
    (pa.list_(POINT), '[{"x":1},{"x":"1"}]', "v[1].x: is the string '1', not a number"),
    (pa.list_(pa.field("element", pa.int64(), nullable=False)), "[1,null]", "v[1]: is null"),
    (pa.list_(pa.int64()), "1", "not an array"),
    (pa.map_(pa.string(), pa.int64()), '{"k":"x"}', "v['k']: is the string 'x', not a number"),
    (pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)), '{"k":null}', "v['k']: is null"),
    (pa.map_(pa.string(), pa.int64()), "[]", "not an object"),
    (pa.string(), '"\\ud800"', "lone surrogate"),
    (pa.string(), '{"\\udc00":1}', "lone surrogate"),
]

PATHS = pytest.mark.parametrize("make", [JsonDecoder, one_by_one], ids=["bulk", "one by one"])


@PATHS
@pytest.mark.parametrize(("kind", "text", "want"), GOOD, ids=[f"{kind} {text[:40]}" for kind, text, _ in GOOD])
def test_what_fits(make: Any, kind: pa.DataType, text: str, want: Any) -> None:
    table = decoded(make(column(kind)), batch([f'{{"v":{text}}}'.encode()]))
    # As text, which unlike == tells -0.0 from 0.0 and 1.50 from 1.5.
    assert shown(table.column("v").to_pylist()[0]) == shown(want)


@PATHS
@pytest.mark.parametrize(("kind", "text", "reason"), BAD, ids=[f"{kind} {text[:40]}" for kind, text, _ in BAD])
def test_what_does_not(make: Any, kind: pa.DataType, text: str, reason: str) -> None:
    with pytest.raises(BadRecord) as caught:
        decoded(make(column(kind)), batch([b'{"v":null}', f'{{"v":{text}}}'.encode()]))
    assert caught.value.offset == 1003
    assert reason in caught.value.reason


@PATHS
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b"null", "the document is null"),
        (b" null ", "the document is null"),
        (b"[1]", "the document is an array"),
        (b'"x"', "the document is the string 'x'"),
        (b"17", "the document is the number 17"),
        (b"{}{}", "more than one document"),
        (b"{}\n{}", "more than one document"),
        (b"{} null", "more than one document"),
        (b'{"v":1', "truncated"),
        (b'{"v":"abc', "truncated"),
        (b"{", "truncated"),
        (b'{"v":}', "near '}'"),
        (b'{"v":1,}', "not valid JSON"),
        (b'{"v":01}', "not valid JSON"),
        (b'{"v":1}//', "more than one document"),
        (b'{"z":"\n"}', "not valid JSON"),
        (b"{'v':1}", "not valid JSON"),
        (b'{"z":NaN}', "NaN is not JSON"),
        (b'{"z":[Infinity ]}', "Infinity is not JSON"),
        (b'{"z":"\xff"}', "invalid UTF-8 at byte 6"),
        (b'{"\xff":1}', "invalid UTF-8"),
        (b'{"z":"\xed\xa0\x80"}', "invalid UTF-8"),
        (b'{"z":"\\ud800"}', "lone surrogate"),
        (b'{"\\udfff":1}', "lone surrogate"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"{\x00}", "not valid JSON"),
        (b"\x0b{}", "not valid JSON"),
        (b"{}\x0c", "more than one document"),
        (b"{}\xc2\xa0", "more than one document"),
        (b"{}\x00junk}", "more than one document"),
        ('{"v":1}'.encode("utf-16"), "invalid UTF-8"),
        (b'{"z":' + b"[" * 250 + b"]" * 250 + b"}", "nested deeper than 200"),
        (b'{"z":' + b'{"z":' * 100_000 + b"1" + b"}" * 100_001, "nested deeper than 200"),
        (b"[" * 100_000, "nested deeper than 200"),
    ],
    ids=lambda x: repr(x[:30]) if isinstance(x, bytes) else "",
)
def test_what_is_no_document(make: Any, value: bytes, reason: str) -> None:
    decoder = make(column(pa.int64()))
    for values in ([value, b"{}"], [b"{}", value], [b"{}"] * 700 + [value] + [b"{}{}"]):
        records = batch(values)
        with pytest.raises(BadRecord, match=r"^orders\[7\] offset") as caught:
            decoded(decoder, records)
        assert caught.value.offset == records.offsets[values.index(value)]
        assert reason in caught.value.reason


@PATHS
def test_nesting_up_to_the_limit_is_fine(make: Any) -> None:
    value = b'{"z":' + b"[" * 199 + b"]" * 199 + b',"v":1, "y":"' + b"[" * 500 + b'"}'
    assert decoded(make(column(pa.int64())), batch([value] * 3)).column("v").to_pylist() == [1, 1, 1]


@PATHS
def test_of_duplicate_keys_the_last_counts_and_names_match_exactly(make: Any) -> None:
    values = [b'{"v":1,"v":2}', b'{"V":3}', b'{"\\u0076":4}', b'{"v":"x","v":5}']
    table = decoded(make(column(pa.int64())), batch(values))
    assert table.column("v").to_pylist() == [2, None, 4, 5]


@PATHS
def test_a_null_value_is_a_row_of_nulls(make: Any) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.struct([pa.field("c", pa.int64(), nullable=False)]))])
    assert decoded(make(schema), batch([None, b'{"a":1}'])).to_pylist() == [{"a": None, "b": None}, {"a": 1, "b": None}]


@PATHS
def test_a_null_value_is_bad_where_a_column_is_required(make: Any) -> None:
    with pytest.raises(BadRecord, match=r"v: the value is null \(a tombstone\)") as caught:
        decoded(make(column(pa.field("v", pa.int64(), nullable=False))), batch([b'{"v":1}', None, b"{}"]))
    assert caught.value.offset == 1003


@PATHS
def test_unknown_fields_fail_when_told_to(make: Any) -> None:
    schema = pa.schema([("p", POINT), ("s", pa.string())])
    assert decoded(make(schema), batch([b'{"p":{"x":1,"q":1},"z":0}'])).num_rows == 1
    decoder = make(schema, "fail")
    assert decoded(decoder, batch([b'{"p":{"x":1},"s":{"any":"thing"}}'])).num_rows == 1
    for value, path in ((b'{"z":null}', "z"), (b'{"p":{"x":1,"q":1}}', "p.q")):
        with pytest.raises(BadRecord, match=f"{path}: the schema has no such field"):
            decoded(decoder, batch([value]))


@pytest.mark.parametrize("kind", [pa.int64(), pa.bool_(), pa.uuid(), pa.binary(), PRICE, ZONED, pa.list_(pa.int8())])
def test_a_reason_is_short_and_dumps_nothing(kind: pa.DataType) -> None:
    megabyte = "secret!" * 200_000
    for value in (f'{{"v":"{megabyte}"}}', f'{{"v":"{megabyte}', f'{{"v":{{"{megabyte}":[]}}}}'):
        with pytest.raises(BadRecord) as caught:
            decoded(JsonDecoder(column(kind)), batch([value.encode()]))
        assert caught.value.reason.count("secret") <= 12
        assert len(str(caught.value)) < 300


def test_a_reason_is_short_for_long_names_too() -> None:
    name = "n" * 100_000
    with pytest.raises(BadRecord) as caught:
        decoded(JsonDecoder(column(pa.int64()), "fail"), batch([f'{{"{name}":1}}'.encode()]))
    assert len(caught.value.reason) < 300
    with pytest.raises(BadRecord) as caught:
        decoded(JsonDecoder(column(pa.map_(pa.string(), pa.int64()))), batch([f'{{"v":{{"{name}":"x"}}}}'.encode()]))
    assert len(caught.value.reason) < 300


@PATHS
@pytest.mark.parametrize(
    ("values", "bad"),
    [
        ([b'{"v":', b"{}}", b"{}{}"], 0),
        ([b'{"v":1', b"}", b"{}{}"], 0),
        ([b"{}", b'{"s":"', b'{"}', b"{}{}"], 1),
        ([b"{}{}", b""], 0),
        ([b"{}\n{}", b" ", b"{}"], 0),
        ([b"{}null{}", b"{", b"}"], 0),
        ([b'{"z":[{}', b"{}]}", b"{}\n{}"], 0),
        ([b"{}", b"{}\0", b"{}"], 1),
        ([b"{}", b"{}\0{}{", b"{}}"], 1),
    ],
)
def test_lines_and_rows_that_add_up_by_accident(make: Any, values: list[bytes | None], bad: int) -> None:
    with pytest.raises(BadRecord) as caught:
        decoded(make(column(pa.struct([("x", pa.int64())]))), batch(values))
    assert caught.value.offset == 1000 + 3 * bad


@pytest.mark.parametrize("odd", [b'{"v":1.0}', b'{"v":1,"v":1}', b'{"v":1}\n', None, b'{"v":1,"z":{"z":0}}'])
def test_odd_records_anywhere_in_a_large_batch_keep_every_row_in_its_place(odd: bytes | None) -> None:
    values: list[bytes | None] = [f'{{"v":{i}}}'.encode() for i in range(20_000)]
    want: list[int | None] = list(range(20_000))
    for index in (0, 511, 512, 16_383, 16_384, 19_999):
        values[index], want[index] = odd, None if odd is None else 1
    assert decoded(JsonDecoder(column(pa.int64())), batch(values)).column("v").to_pylist() == want


def test_the_first_of_several_bad_records_is_named() -> None:
    values: list[bytes | None] = [b'{"v":1}'] * 20_000
    values[9_001], values[9_000], values[15_000] = b"", b'{"v":"x"}', b"null"
    with pytest.raises(BadRecord) as caught:
        decoded(JsonDecoder(column(pa.int64())), batch(values))
    assert caught.value.offset == 1000 + 3 * 9_000


@pytest.mark.parametrize(
    "values",
    [
        [b'{"v":1}', None, b"{}"],
        [b'{"v":1,"z":[1,{"v":"Info, NaN"}]}'] * 3,
        [b'{\n  "v": 1\n}\n', b'{"v":2}'],
        [b'{"v":1,"z":"\\ud83d\\ude00 }\\n{"}', b'{"v":2,"z":"}null"}'],
    ],
)
def test_the_bulk_path_takes_what_is_common(values: list[bytes | None]) -> None:
    """Else everything is still right, and twenty times slower."""
    decoder = JsonDecoder(column(pa.int64()))
    assert decoder._bulk is not None
    assert decoder._bulk.parse(pa.array(values, pa.binary())).num_rows == len(values)


def test_an_empty_batch_is_an_empty_table() -> None:
    assert decoded(JsonDecoder(column(POINT)), batch([])).schema == column(POINT)


def test_a_decoder_can_be_pickled() -> None:
    decoder = pickle.loads(pickle.dumps(JsonDecoder(column(pa.field("v", POINT, nullable=False)), "fail")))
    assert decoded(decoder, batch([b'{"v":{"x":1}}'])).to_pylist() == [{"v": {"x": 1, "y": None}}]
    with pytest.raises(BadRecord):
        decoded(decoder, batch([b'{"v":{"x":1},"z":1}']))


def test_what_no_decoder_can_be_made_for() -> None:
    with pytest.raises(InvalidArgument, match=r"a\.b\[\] has the type uint8, which JSON can't fill"):
        JsonDecoder(pa.schema([("a", pa.struct([("b", pa.list_(pa.uint8()))]))]))
    with pytest.raises(InvalidArgument, match=r"timestamp\[ns\]"):
        JsonDecoder(column(pa.timestamp("ns")))
    with pytest.raises(InvalidArgument, match="v is listed twice"):
        JsonDecoder(pa.schema([("v", pa.int8()), ("v", pa.int8())]))
    with pytest.raises(InvalidArgument, match="no columns"):
        JsonDecoder(pa.schema([]))
    with pytest.raises(UnknownValue, match="'ignore', 'rescue', 'evolve', 'fail'"):
        JsonDecoder(column(pa.int8()), "drop")
