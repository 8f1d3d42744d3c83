"""CSV: each record is the row that a reader of single characters finds, or is rejected by both."""

from __future__ import annotations

import csv
import io
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.decode.csv import CsvDecoder
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.exceptions import InvalidArgument
from tests.unit.decode import csv_oracle
from tests.unit.decode.binary_support import normal
from tests.unit.decode.oracle import Rejected
from tests.unit.decode.support import batch, shown

KINDS = [
    pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.float32(), pa.bool_(), pa.decimal128(9, 2), pa.binary(),
    pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.time64("us"), pa.uuid(), pa.list_(pa.int64()),
    pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.float64()),
]  # fmt: skip
WORDS = [
    "", "5", "-0", "007", " 5", "1e3", "5.0", "0.1", "1e400", "9007199254740993", "NaN", "true", "True", "null", "aGk=",
    "2026-11-20T05:05:00Z", "2026-11-20 05:05:00", "2026-11-20", "05:05", "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "[1, 2]", '{"a": 1}', "{", "é😀", "\0", "\ufeff", "a,b", "a;b", 'a"b', "a\nb", "a\r\nb", "\\", "N/A", "12345678.90",
]  # fmt: skip
TEXTS = st.sampled_from(WORDS) | st.text(max_size=8) | st.integers().map(str) | st.floats().map(repr)


@st.composite
def lines(draw: st.DrawFn, columns: int, delimiter: str = ",") -> bytes | None:
    """Draw a record: written as it should be, or nearly."""
    if draw(st.integers(0, 30)) == 0:
        return None
    fields = []
    for text in draw(st.lists(TEXTS, min_size=columns, max_size=columns + (draw(st.integers(0, 9)) == 0))):
        quote = draw(st.booleans()) if not set(text) & set('"\r\n' + delimiter) else draw(st.integers(0, 20)) > 0
        fields.append('"' + text.replace('"', '""') + '"' if quote else text)
    data = bytearray((delimiter.join(fields) + draw(st.sampled_from(["", "", "\n", "\r\n"]))).encode("utf-8", "ignore"))
    if data and draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 1))] = draw(st.sampled_from([b'"', b"\n", b"\r", b",", b"\0", b"\xff", b""]))
    return bytes(data)


@st.composite
def cases(draw: st.DrawFn) -> tuple[pa.Schema, list[bytes | None]]:
    """Draw columns and records."""
    kinds = draw(st.lists(st.tuples(st.sampled_from(KINDS), st.booleans()), min_size=1, max_size=4))
    schema = pa.schema([pa.field(f"c{at}", kind, nullable=nullable) for at, (kind, nullable) in enumerate(kinds)])
    return schema, draw(st.lists(lines(len(schema)), max_size=8))


def check(schema: pa.Schema, values: list[bytes | None], delimiter: str = ",") -> None:
    """Raise AssertionError unless each value is the oracle's row, or rejected by both with its column or place."""
    decoded = CsvDecoder(schema, delimiter=delimiter).decode(batch(values))
    decoded.rows.validate(full=True)
    rows, bad = iter(decoded.rows.to_pylist()), {row.index: row.reason for row in decoded.bad}
    for index, value in enumerate(values):
        try:
            expected = csv_oracle.row(schema, value, delimiter)
        except Rejected:
            assert bad.get(index), f"a row, and the oracle rejects it: {value!r}"
            continue
        assert index not in bad, f"{bad[index]}, but the oracle has {expected}: {value!r}"
        found = next(rows)
        assert shown(normal(found)) == shown(normal(expected)), f"{found}, but the oracle has {expected}: {value!r}"
    assert next(rows, None) is None


@given(cases())
def test_each_record_is_the_row_that_the_oracle_reads_or_rejected(case: tuple[pa.Schema, list[bytes | None]]) -> None:
    check(*case)


@pytest.mark.parametrize("delimiter", [";", "|", "\t", "^", "\\"])
@given(data=st.data())
def test_other_delimiters_are_no_less_exact(delimiter: str, data: st.DataObject) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    check(schema, data.draw(st.lists(lines(2, delimiter), max_size=8)), delimiter)


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=3, max_size=3), max_size=6), st.booleans())
def test_what_pythons_writer_writes_is_read_as_it_was(rows: list[list[str]], quotes_all: bool) -> None:
    written = []
    for row in rows:
        line = io.StringIO()
        csv.writer(line, quoting=csv.QUOTE_ALL if quotes_all else csv.QUOTE_MINIMAL).writerow(row)
        written.append(line.getvalue().encode())
    schema = pa.schema([(name, pa.string()) for name in "abc"])
    decoded = CsvDecoder(schema).decode(batch(written))
    assert not decoded.bad
    found = [list(row.values()) for row in decoded.rows.to_pylist()]
    # Python writes an empty text without quotes unless it is told to.
    assert found == (rows if quotes_all else [[text or None for text in row] for row in rows])


TWO = pa.schema([("a", pa.string()), pa.field("n", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"x", "the number of its fields is 1, and that of the columns 2"),
        (b"x,1,2", "the number of its fields is 3, and that of the columns 2"),
        (b"," * 1_000_000, "the number of its fields is 1000001, and that of the columns 2"),
        (b'"",' * 1_000_000 + b'""', "the number of its fields is 1000001, and that of the columns 2"),
        (b'"x,1', "a quote that is not closed, at character 0"),
        (b'x,"1', "a quote that is not closed, at character 2"),
        (b'x"y,1', "a quote inside a field that does not begin with one, at character 1"),
        (b'"x"y,1', "text behind a closing quote, at character 3"),
        (b"x\ny,1", "a line break outside quotes, at character 1: a record is one row"),
        (b"x,1\nz,2", "a line break outside quotes, at character 3: a record is one row"),
        (b"x,1\r", "a line break outside quotes, at character 3: a record is one row"),
        (b"\xff,1", "invalid UTF-8"),
        (b"x,", "n: is null or missing, and the column is required"),
        (b'x,""', "n: '' is not a value of the type int64"),
        (b"x,null", "n: 'null' is not a value of the type int64"),
        (b"x,007", "n: '007' is not a value of the type int64"),
        (b"x,1.5", "n: 1.5 is not an integer"),
        (b"x,9223372036854775808", "n: 9223372036854775808 is out of range for int64"),
        (None, "n: the value is null (a tombstone), and the column is required"),
    ],
)
def test_a_bad_record_says_where_and_why_and_leaves_its_neighbours_alone(value: bytes | None, why: str) -> None:
    decoded = CsvDecoder(TWO).decode(batch([b"a,1", value, b'"b\n",2']))
    assert decoded.rows.to_pylist() == [{"a": "a", "n": 1}, {"a": "b\n", "n": 2}]
    assert [(row.index, row.reason) for row in decoded.bad] == [(1, why)]


def test_records_can_not_make_up_rows_between_them() -> None:
    # Joined by line ends, the first two would be the rows of offsets that they are not.
    decoded = CsvDecoder(TWO).decode(batch([b'x,1\ny,"', b'2",3', b"z,4"]))
    assert decoded.rows.to_pylist() == [{"a": "z", "n": 4}]
    assert [row.index for row in decoded.bad] == [0, 1]


def test_null_is_no_text_and_quotes_without_text_are_the_empty_text() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    rows = CsvDecoder(schema).decode(batch([b',""', b"NULL,NA", b'"null",\\N', None])).rows.to_pylist()
    assert [tuple(row.values()) for row in rows] == [(None, ""), ("NULL", "NA"), ("null", "\\N"), (None, None)]


def test_a_field_of_many_megabytes_is_read_and_an_unclosed_one_is_rejected() -> None:
    text = "é\n,;" * 4_000_000
    decoded = CsvDecoder(TWO).decode(batch([f'"{text}",1'.encode(), f'"{text}'.encode(), b'"' * 8_000_001]))
    assert decoded.rows["a"].to_pylist() == [text]
    assert len(decoded.bad) == 2


def test_the_order_of_the_fields_is_that_of_the_given_columns_and_other_columns_are_null() -> None:
    table = pa.schema([("new", pa.int64()), ("b", pa.string()), ("a", pa.int64()), ("_key", pa.string())])
    payload = pickle.loads(pickle.dumps(PayloadFormats("csv", given_columns=("a", "b"), key_format="string")))
    decoder = pickle.loads(pickle.dumps(payload.decoder(table)))
    records = pa.array([b"k"], pa.binary())
    given = batch([b"1,x"])
    rows = decoder.decode(type(given)(given.topic, 7, given.offsets, given.timestamps, given.values, records)).rows
    assert rows.to_pylist() == [{"new": None, "b": "x", "a": 1, "_key": "k"}]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"unknown_fields": "evolve"}, "'evolve' goes with"),
        ({"unknown_fields": "rescue"}, "'rescue' goes with"),
        ({"envelope": "debezium"}, "'debezium' goes with"),
        ({"csv_delimiter": ";;"}, "csv_delimiter: ';;' is not one character"),
        ({"csv_delimiter": '"'}, "csv_delimiter: '\"' is not one character"),
        ({"csv_delimiter": "\n"}, "is not one character"),
        ({"csv_delimiter": ""}, "is not one character"),
        ({"format": "json", "csv_delimiter": ";"}, 'csv_delimiter: goes with format="csv"; the format is'),
        ({"key_format": "csv"}, "'csv' is not one of"),
    ],
)
def test_what_csv_can_not_do_is_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        PayloadFormats(**{"format": "csv", **settings})


def test_the_delimiter_decides_on_the_rows_so_that_a_fan_out_knows_it() -> None:
    assert PayloadFormats("csv", csv_delimiter=";", key_format="raw").further_settings == (
        "key_format=raw",
        "csv_delimiter=;",
    )
    assert PayloadFormats("csv").further_settings == ()


def test_the_delimiter_of_the_user_is_the_decoders() -> None:
    rows = PayloadFormats("csv", csv_delimiter="\t").decoder(TWO).decode(batch([b"a,b\t1"])).rows
    assert rows.to_pylist() == [{"a": "a,b", "n": 1}]


def test_nothing_but_a_schema_says_the_columns() -> None:
    with pytest.raises(InvalidArgument, match=r"the columns of the value of orders are unknown.*Give the columns"):
        PayloadFormats("csv").columns(batch([b"a,1"]))
    with pytest.raises(InvalidArgument, match="it has a column b, and the table has none"):
        PayloadFormats("csv", given_columns=("a", "b")).decoder(pa.schema([("a", pa.string())]))
