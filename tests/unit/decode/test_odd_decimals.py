"""Decimals of any scale, as Connect and Debezium write NUMBER: exact numbers, or their text, never bytes."""

from __future__ import annotations

import base64
import json
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as t
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.decode.avro.schema import arrow_schema
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.values.outcome import DecoderResult
from tests.support.avro_records import written
from tests.support.registry import FakeRegistry
from tests.unit.decode.support import batch

EXACT = Context(prec=1000, Emax=999_999, Emin=-999_999)
SCALES = [-200, -127, -38, -37, -2, -1, 0, 2, 37, 38, 39, 40, 64, 84, 127, 1000]
UNSCALED = [0, 1, -1, 9, 12_300, -(10**20), 10**37, 10**40, -(2**200)]
CONNECT = "org.apache.kafka.connect.data.Decimal"


def unscaled_bytes(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def exact(number: int, scale: int) -> Decimal:
    return EXACT.scaleb(Decimal(number), -scale)


def by_avro(given: Any, numbers: list[int], kind: pa.DataType | None, **more: Any) -> tuple[pa.DataType, DecoderResult]:
    """Decode numbers that Avro has; return the column's type, inferred if none is given, and the rows."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": given, **more}
    schema = {"type": "record", "name": "R", "fields": [{"name": "v", "type": decimal}]}
    plain = {"type": "record", "name": "R", "fields": [{"name": "v", "type": "bytes"}]}
    columns = arrow_schema(json.dumps(schema)) if kind is None else pa.schema([("v", kind)])
    decoder = AvroDecoder(columns, registry=FakeRegistry({1: ("AVRO", json.dumps(schema))}))
    values: list[bytes | None] = [written(plain, 1, {"v": unscaled_bytes(number)}) for number in numbers]
    return columns.field("v").type, decoder.decode(batch(values))


def by_connect(
    scale: int, numbers: list[int], kind: pa.DataType | None, **more: Any
) -> tuple[pa.DataType, DecoderResult]:
    """Decode numbers that Connect's JSON has, likewise."""
    texts = [f'"{base64.b64encode(unscaled_bytes(number)).decode()}"' for number in numbers]
    return of_connect(scale, texts, kind, **more)


def by_digits(
    scale: int, numbers: list[int], kind: pa.DataType | None, **more: Any
) -> tuple[pa.DataType, DecoderResult]:
    """Decode numbers that Connect's JSON has with decimal.format=NUMERIC, likewise."""
    return of_connect(scale, [str(exact(number, scale)) for number in numbers], kind, **more)


def of_connect(
    scale: int, texts: list[str], kind: pa.DataType | None, **more: Any
) -> tuple[pa.DataType, DecoderResult]:
    parameters = {"scale": str(scale), **more.get("parameters", {})}
    field = {"field": "v", "type": "bytes", "name": CONNECT, "optional": False, "parameters": parameters}
    schema = json.dumps({"type": "struct", "fields": [field]})
    wrapped = [f'{{"schema": {schema}, "payload": {{"v": {text}}}}}'.encode() for text in texts]
    records: RawBatch = batch([*wrapped])
    payload = PayloadFormats(envelope="connect")
    columns = payload.columns(records) if kind is None else pa.schema([("v", kind)])
    return columns.field("v").type, payload.decoder(columns).decode(records)


WAYS = pytest.mark.parametrize("decode", [by_avro, by_connect, by_digits], ids=["avro", "connect", "numeric"])


def assert_exact(numbers: list[int], scale: int, kind: pa.DataType, decoded: DecoderResult) -> None:
    """Assert that each value is the number, and that those are bad which the column can't hold."""
    found = iter(decoded.rows["v"].to_pylist())
    bad = {row.index for row in decoded.bad}
    for index, number in enumerate(numbers):
        value = exact(number, scale)
        if index in bad:
            assert t.is_decimal(kind)
            units = EXACT.scaleb(value, kind.scale)
            # An unscaled number of more digits than a decimal has counts as too long, whatever it ends in.
            is_long = 0 <= scale <= 38 <= len(str(abs(number)))
            assert is_long or units != units.to_integral_value(context=EXACT) or abs(units) >= 10**kind.precision
        else:
            assert Decimal(next(found)) == value


@WAYS
@pytest.mark.parametrize("scale", SCALES)
def test_each_scale_has_a_column_that_holds_its_numbers(decode: Any, scale: int) -> None:
    kind, decoded = decode(scale, UNSCALED, None, **({"connect.name": CONNECT} if decode is by_avro else {}))
    assert kind == (pa.decimal128(38, max(scale, 0)) if -38 < scale <= 38 else pa.string())
    assert_exact(UNSCALED, scale, kind, decoded)
    assert len(decoded.rows) == (len(UNSCALED) if kind == pa.string() else len(decoded.rows))
    assert decoded.rows.num_rows >= 4


@WAYS
@pytest.mark.parametrize("kind", [pa.decimal128(38, 0), pa.decimal128(38, 30), pa.decimal128(20, 3), pa.string()])
@given(st.sampled_from(SCALES), st.lists(st.sampled_from(UNSCALED) | st.integers(-(10**45), 10**45), min_size=1))
def test_a_given_column_gets_exact_numbers_or_none(
    decode: Any, kind: pa.DataType, scale: int, numbers: list[int]
) -> None:
    kind, decoded = decode(scale, numbers, kind)
    assert len(decoded.rows) + len(decoded.bad) == len(numbers)
    assert_exact(numbers, scale, kind, decoded)
    if t.is_string(kind):
        assert not decoded.bad
        assert not any("E" in text for text in decoded.rows["v"].to_pylist())


def test_a_number_in_zeros_and_its_declared_digits() -> None:
    kind, decoded = by_avro(-2, [9], None, precision=5)
    assert (kind, decoded.rows["v"].to_pylist()) == (pa.decimal128(7, 0), [Decimal(900)])
    kind, decoded = by_avro(10, [9], None, precision=4)
    assert (kind, decoded.rows["v"].to_pylist()) == (pa.decimal128(10, 10), [Decimal("9e-10")])
    kind, decoded = by_avro(2, [9], None, precision=50)
    assert (kind, decoded.rows["v"].to_pylist()) == (pa.string(), ["0.09"])
    # Bytes stay bytes in a column that is there.
    assert by_avro(-2, [9], pa.binary())[1].rows["v"].to_pylist() == [b"\x09"]


@pytest.mark.parametrize("more", [{"scale": "x"}, {"precision": 0}, {"scale": 10**9}, {"precision": True}])
def test_what_says_no_precision_or_no_scale_is_bytes(more: dict[str, Any]) -> None:
    kind, decoded = by_avro(2, [9], None, **more)
    assert (kind, decoded.rows["v"].to_pylist()) == (pa.binary(), [b"\x09"])


def test_both_forms_of_decimals_in_one_batch_and_what_is_neither() -> None:
    texts = ['"BNI="', "12.34", '"MTIzNA=="', "-1e-2", '"abc"', "true", "[1]", "1e99999999999", "1.005"]
    for kind, digits in ((pa.decimal128(10, 2), str), (pa.string(), str)):
        _, decoded = of_connect(2, texts, kind)
        values = [digits(value) for value in decoded.rows["v"].to_pylist()]
        assert values[:2] == ["12.34", "12.34"]
        assert "-0.01" in values
        bad = [row.index for row in decoded.bad]
        assert bad == ([4, 5, 6, 7] if kind == pa.string() else [4, 5, 6, 7, 8])
        assert all(row.reason.startswith("v") for row in decoded.bad)
