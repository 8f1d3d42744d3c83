"""Bulk path, one-by-one path and an oracle must agree: on every row, or on the first record to reject."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lakestream.decode.json.bulk import NotInBulk
from airflow_lakestream.decode.json.decoder import JsonDecoder
from tests.unit.decode import oracle
from tests.unit.decode.support import batch, one_by_one, shown

SCALARS = [
    pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.large_string(),
    pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.time64("us"), pa.decimal128(5, 2),
    pa.decimal128(38, 10), pa.binary(), pa.large_binary(), pa.binary(3), pa.uuid(),
]  # fmt: skip

NUMBERS = [
    "0", "-0", "1", "-1", "127", "128", "-129", "1.0", "1.5", "-0.0", "1e3", "1E-2", "12e-1", "100e-2", "2147483648",
    "16777216", "16777217", "-16777217", "16777217.0", "9007199254740992", "9007199254740993",
    "9007199254740993.0", "-9007199254740993.00", "9.007199254740993e15", "1e23",
    "1.7976931348623157e308", "0." + "0" * 330 + "1", "0.0", "0e-999", "-0.0e-7",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "12345678901234567890",
    "0.1", "0.30000000000000004", "1e-400", "5e-324", "2e-324", "-2E-0324",
    "1e-45", "7e-46", "3.4028235e38", "3.4028235677973366e38", "1e39", "1e308",
    "1e309", "1" + "0" * 310, "999.99", "999.990", "999.999", "1000", "0.005", "8388608.5", "16777215.5",
    "1e27", "1e28", "1e29", "1e37", "1e38", "9" * 28, "9" * 38, "9" * 39, "1234", "99999",
    "0.00", "0e5", "170141183460469231731687303715884105728",
]  # fmt: skip

TEXTS = [
    "", "x", "true", "1", "1.5", "+1", ".5", "5.", "1e2", "-", "1_0", " 1", "007.50", "999.994", "NaN", "Infinity",
    "2026-11-20", "2026-02-30", "0000-01-01", "9999-12-31", "20261120", "2026-11-20T05", "2026-11-20T05Z",
    "2026-11-20T05:06", "2026-11-20T05:06Z", "2026-11-20T05:06:07", "2026-11-20T05:06:07Z", "2026-11-20 05:06:07.5Z",
    "2026-11-20T05:06:07.123456+02:00", "2026-11-20T05:06:07.123456-0230", "2026-11-20T05:06:07+02",
    "2026-11-20T05:06:07.1234567Z", "2026-11-20T05:06:07.1230000Z", "2026-11-20T05:06:07.1230000",
    "2026-11-20T24:00:00Z",
    "2026-11-20T23:59:60Z", "2026-11-20T05:06:07,5Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00",
    "0000-12-31T23:59:59Z", "2026-11-20T05:06:07+24:00", "2026-11-20T05:06:07+02:60", "2026-11-20t05:06:07z",
    "05:06", "05:06:07", "05:06:07.123456", "05:06:07.1234560", "05", "24:00", "23:59:60", "05:06:07Z", "05:06:07,5",
    "YWJj", "YWI=", "YWI", "YWJ=", "YW Jj", "YWJj\n", "_-__", "123e4567-e89b-12d3-a456-426614174000",
    "123E4567-E89B-12D3-A456-426614174000", "123e4567e89b12d3a456426614174000",
    "{123e4567-e89b-12d3-a456-426614174000}",
    "é", "😀", "\0", "\x7f", "}\n{", "}null", "a\\", '"', "NaN}",
]  # fmt: skip

NAMES = ["a", "b", "A", "", "é", "v}", "x y"]


def types(depth: int = 2) -> st.SearchStrategy[pa.DataType]:
    scalars = st.sampled_from(SCALARS)
    if not depth:
        return scalars
    inner = types(depth - 1)
    fields = st.builds(pa.field, st.just("element"), inner, st.booleans())
    return st.one_of(
        scalars,
        scalars,
        st.builds(pa.list_, fields),
        st.builds(pa.large_list, fields),
        schemas(depth - 1).map(lambda schema: pa.struct(list(schema))),
        st.builds(lambda field: pa.map_(pa.string(), field.with_name("value")), fields),
    )


def schemas(depth: int = 2) -> st.SearchStrategy[pa.Schema]:
    """Return schemas of up to four fields, most of them nullable."""
    nullable = st.sampled_from([True, True, True, False])
    names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
    return names.flatmap(
        lambda n: st.tuples(*(st.builds(pa.field, st.just(x), types(depth), nullable) for x in n))
    ).map(pa.schema)


def fits(kind: pa.DataType) -> st.SearchStrategy[str]:
    """Return JSON texts that mostly fit a type."""
    if pa.types.is_struct(kind):
        return objects(list(kind))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return st.lists(values(kind.value_type), max_size=3).map(lambda items: "[" + ", ".join(items) + "]")
    if pa.types.is_map(kind):
        members = st.lists(st.tuples(st.sampled_from(NAMES), values(kind.item_type)), max_size=3)
        return members.map(lambda m: "{" + ",".join(f"{json.dumps(k)}:{v}" for k, v in m) + "}")
    if pa.types.is_boolean(kind):
        return st.sampled_from(["true", "false"])
    if pa.types.is_integer(kind):
        return st.integers(-200, 200).map(str)
    if pa.types.is_floating(kind):
        return st.one_of(st.floats(allow_nan=False, allow_infinity=False).map(repr), st.integers(-999, 999).map(str))
    if pa.types.is_decimal(kind):
        return st.decimals(-999, 999, places=2).map(str)
    return st.sampled_from(_fitting_texts(kind)).flatmap(_quoted)


def _fitting_texts(kind: pa.DataType) -> list[str]:
    schema, found = pa.schema([("v", kind)]), []
    for text in TEXTS:
        try:
            oracle.row(schema, json.dumps({"v": text}).encode())
        except oracle.Rejected:
            continue
        found.append(text)
    return found


def _quoted(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from([json.dumps(text), json.dumps(text, ensure_ascii=False)])


def values(kind: pa.DataType) -> st.SearchStrategy[str]:
    fitting = fits(kind)
    odd = st.one_of(
        st.sampled_from(
            ["null", "true", "{}", "[]", '[1.50,{"k" : -0}]', "NaN", "-Infinity", '"\\ud800"', '"\\udc00"']
        ),
        st.sampled_from(NUMBERS),
        st.sampled_from(TEXTS).flatmap(_quoted),
        st.text(max_size=5).flatmap(_quoted),
    )
    return st.integers(0, 19).flatmap(lambda n: odd if n == 0 else st.just("null") if n == 1 else fitting)


@st.composite
def objects(draw: Any, fields: list[pa.Field]) -> str:
    """Return the text of an object for these fields: some missing, twice, unknown, or with spaces around."""
    members = []
    for field in fields:
        for _ in range(draw(st.sampled_from([1] * 20 + [0, 2]))):
            members.append(json.dumps(field.name) + draw(st.sampled_from([":", ": "])) + draw(values(field.type)))
    if draw(st.integers(0, 15)) == 0:
        members.append('"unknown":' + draw(values(draw(types(1)))))
    return "{" + draw(st.sampled_from([",", ", ", ",\n "])).join(members) + "}"


@st.composite
def cases(draw: Any) -> tuple[pa.Schema, list[bytes | None]]:
    schema = draw(schemas())
    documents = st.one_of(*[objects(list(schema)).map(str.encode)] * 12, st.none(), st.just(b"{}"))
    return schema, draw(st.lists(documents, min_size=1, max_size=6))


def expected(schema: pa.Schema, values: list[bytes | None], unknown_fields: str) -> list[str | None]:
    """Return each value's row as text, or None where it has to be rejected."""
    rows: list[str | None] = []
    for value in values:
        try:
            rows.append(shown(oracle.row(schema, value, fail_unknown=unknown_fields == "fail")))
        except oracle.Rejected:
            rows.append(None)
    return rows


def check(schema: pa.Schema, values: list[bytes | None], unknown_fields: str) -> None:
    """Check one batch on all paths, and each value alone."""
    want = expected(schema, values, unknown_fields)
    decoder, slow = JsonDecoder(schema, unknown_fields), one_by_one(schema, unknown_fields)
    for index, value in enumerate(values):
        check_path(slow, [value], want[index : index + 1])
        check_bulk(decoder, [value], want[index : index + 1])
        check_shapes(decoder, [value], want[index : index + 1])
    check_path(slow, values, want)
    for is_even in (True, False):
        decoder._is_even = is_even
        check_path(decoder, values, want)
    check_bulk(decoder, values, want)
    check_shapes(decoder, values, want)


def check_path(decoder: JsonDecoder, values: list[bytes | None], want: list[str | None]) -> None:
    result = decoder.decode(batch(values))
    assert [row.index for row in result.bad] == [index for index, row in enumerate(want) if row is None]
    assert all(0 < len(row.reason) < 500 for row in result.bad)
    result.rows.validate(full=True)
    assert result.rows.schema == decoder.schema
    assert [shown(row) for row in result.rows.to_pylist()] == [row for row in want if row is not None]


def check_bulk(decoder: JsonDecoder, values: list[bytes | None], want: list[str | None]) -> None:
    if decoder._bulk is None:
        return
    try:
        table = decoder._bulk.parse(pa.array(values, pa.binary()))
    except NotInBulk:
        return
    table.validate(full=True)
    assert [shown(row) for row in table.to_pylist()] == want


def check_shapes(decoder: JsonDecoder, values: list[bytes | None], want: list[str | None]) -> int:
    """Check what the path by layouts takes, and return how many rows that are."""
    assert decoder._layouts is not None
    # A part of a longer array, as a batch is when it was cut.
    array = pa.array([b'{"s":"', *values, b'"}'], pa.binary())[1:-1]
    tables, rows = decoder._layouts.parse(array)
    taken = [int(row) for part in rows for row in part]
    assert len(set(taken)) == len(taken)
    got = []
    for table in tables:
        table.validate(full=True)
        assert table.schema == decoder.schema
        got += [shown(row) for row in table.to_pylist()]
    assert got == [want[row] for row in taken]
    return len(taken)


@settings(max_examples=settings.default.max_examples // 2)
@given(cases(), st.sampled_from(["ignore", "fail"]))
def test_random_documents(case: tuple[pa.Schema, list[bytes | None]], unknown_fields: str) -> None:
    check(*case, unknown_fields)


FLAT = pa.schema([("s", pa.string()), ("n", pa.int64()), ("o", pa.struct([("l", pa.list_(pa.int64()))]))])
DOCUMENTS = [
    b'{"s":"x","n":1}',
    b'{"s": "}\\n{", "n": 2, "o": {"l": [1, 2]}}',
    b'{}',
    b'{"o":{}}',
    b'{"s":null,"o":null}',
    '{"s":"é😀","n":-5,"z":[{}, {"a":{}}]}'.encode(),
    b'{\n "s": "y",\n "o": {\n "l": []\n }\n}\n',
    b'{"s":"a\\\\","z":"\\ud83d\\ude00"}',
]  # fmt: skip
FRAGMENTS = [
    b"\n", b"\r", b" ", b"}\n{", b"}{", b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"\nnull",
    b"NaN", b"Inf",
    b"\0", b"\xff", b"\xef\xbb\xbf", b"{}", b"\n{}\n", b"{}\n", b'"s":', b"1", b"\\ud800", b"/**/", b"\xed\xa0\x80",
]  # fmt: skip


@st.composite
def mutilated(draw: Any) -> list[bytes | None]:
    """Return documents cut, glued and spoilt in ways that may cancel out in the sum of lines and rows."""
    values = draw(st.lists(st.sampled_from(DOCUMENTS), min_size=1, max_size=6))
    for _ in range(draw(st.integers(0, 4))):
        index = draw(st.integers(0, len(values) - 1))
        value = values[index]
        at = draw(st.integers(0, len(value)))
        action = draw(st.sampled_from(["insert", "cut", "drop", "split", "glue", "append"]))
        if action == "insert":
            values[index] = value[:at] + draw(st.sampled_from(FRAGMENTS)) + value[at:]
        elif action == "cut":
            values[index] = value[:at]
        elif action == "drop":
            values[index] = value[:at] + value[at + 1 :]
        elif action == "split":
            values[index : index + 1] = [value[:at], value[at:]]
        elif action == "glue" and index + 1 < len(values):
            values[index : index + 2] = [value + draw(st.sampled_from([b"", b"\n", b" "])) + values[index + 1]]
        else:
            values[index] = value + draw(st.sampled_from(FRAGMENTS))
    return values


@given(mutilated(), st.sampled_from(["ignore", "fail"]))
def test_mutilated_bytes_never_shift_a_row(values: list[bytes | None], unknown_fields: str) -> None:
    check(FLAT, values, unknown_fields)


@pytest.mark.parametrize("kind", SCALARS, ids=str)
def test_every_literal_into_every_type(kind: pa.DataType) -> None:
    """Each literal alone, so that none hides behind another's rejection."""
    schema = pa.schema([("v", kind)])
    decoder, slow = JsonDecoder(schema), one_by_one(schema)
    for literal in NUMBERS + [json.dumps(text) for text in TEXTS] + ["null", "true", "[]", "{}", "NaN"]:
        value: list[bytes | None] = [f'{{"v":{literal}}}'.encode()]
        want = expected(schema, value, "ignore")
        check_path(slow, value, want)
        check_bulk(decoder, value, want)
