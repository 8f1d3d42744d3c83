"""Numbers read side by side are what Python reads one by one, or are left to others."""

from __future__ import annotations

import random
import re
import uuid
from decimal import Context

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.json.bulk import small_numbers
from airflow_lakestream.decode.json.columns import doubles, integers
from airflow_lakestream.decode.lanes.spans import TextBuffer
from tests.unit.decode.support import batch
from tests.unit.decode.test_json_differential import NUMBERS

JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
KINDS = [np.int32, np.int64]

numerals = st.one_of(
    st.integers(-(10**19), 10**19).map(str),
    st.integers(-999, 999).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-(10**9), 10**9, places=3).map(str),
    st.sampled_from(NUMBERS),
    st.text("0123456789.-+eE /:;xnul", max_size=20),
    st.text(max_size=9),
)


def texts_of(written: list[str]) -> TextBuffer:
    return TextBuffer(pa.array(["junk", *written, "8.5"]).slice(1, len(written)))


@given(st.lists(numerals, min_size=1, max_size=30))
def test_what_is_taken_is_right(written: list[str]) -> None:
    texts = texts_of(written)
    for kind in KINDS:
        values, good = integers(texts, texts.starts, texts.stops, kind)
        for text in (text for text, is_good in zip(written, good, strict=True) if is_good):
            assert JSON_NUMBER.fullmatch(text)
        taken = [text for text, is_good in zip(written, good, strict=True) if is_good]
        assert values[good].tolist() == list(map(int, taken))
    values, good = doubles(texts, texts.starts, texts.stops)
    taken = [text for text, is_good in zip(written, good, strict=True) if is_good]
    assert all(map(JSON_NUMBER.fullmatch, taken))
    # As text, since -0.0 equals 0.0.
    assert list(map(repr, values[good].tolist())) == [repr(float(text)) for text in taken]


@pytest.mark.parametrize("kind", KINDS)
def test_integers_of_18_digits_are_taken(kind: type[np.signedinteger]) -> None:
    r, limits = random.Random(2), np.iinfo(kind)
    numbers = [r.choice([-1, 1]) * r.randrange(10**digits) for digits in range(19) for _ in range(20)]
    texts = texts_of(list(map(str, numbers)))
    values, good = integers(texts, texts.starts, texts.stops, kind)
    assert good.tolist() == [limits.min <= number <= limits.max for number in numbers]
    assert values[good].tolist() == [number for number in numbers if limits.min <= number <= limits.max]


def test_doubles_of_15_digits_are_taken() -> None:
    r = random.Random(3)
    written = [f"{r.choice(['', '-'])}{r.randrange(10**whole)}" for whole in range(1, 16) for _ in range(9)]
    written += [
        f"{r.choice(['', '-'])}{r.randrange(10**whole)}.{r.randrange(10**part):0{part}}"
        for whole in range(1, 15)
        for part in range(1, 16 - whole)
        for _ in range(9)
    ]
    for some in (written, [text for text in written if len(text) <= 8]):
        texts = texts_of(some)
        values, good = doubles(texts, texts.starts, texts.stops)
        assert good.all()
        assert list(map(repr, values.tolist())) == [repr(float(text)) for text in some]


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.struct([("v", pa.float32())]))], ids=str)
def test_a_number_that_would_become_0_is_found_wherever_it_stands(kind: pa.DataType) -> None:
    small, r = small_numbers([kind]), random.Random(4)
    assert small is not None
    assert small_numbers([pa.int64(), pa.list_(pa.string())]) is None
    others = [b'{"id":"%b","day":"2026-11-20","v":0.0,"w":-1.5e-05,"x":"e-100"}\n' % _uuid(r) for _ in range(3_000)]
    assert not small.may_be_in(pa.py_buffer(b"".join(others)))
    tiny = [b"1e-400", b"-2E-0324", b"123456789012345678901234567890e-999", b"0." + b"0" * 330 + b"1", b"0.5e-00000400"]
    for number in tiny:
        for place in (0, 1_500, 2_999):
            documents = [*others[:place], b'{"v":%b}\n' % number, *others[place:]]
            assert small.may_be_in(pa.py_buffer(b"".join(documents)))
    for before in range(2**16 - 20, 2**16 + 5):
        assert small.may_be_in(pa.py_buffer(b" " * before + b"1e-400}"))


def _uuid(r: random.Random) -> bytes:
    return str(uuid.UUID(int=r.getrandbits(128))).encode()


EXACT = Context(prec=5_000, Emax=999_999, Emin=-999_999)
DIGITS = st.text("0123456789", max_size=45)
WRITTEN = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.just("0") | st.builds("{}{}".format, st.sampled_from("123456789"), DIGITS),
    st.just("") | st.builds(".{}{}".format, st.sampled_from("0123456789"), DIGITS),
    st.just("")
    | st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 1200)),
)


@pytest.mark.parametrize(
    ("precision", "scale"), [(38, 0), (38, 38), (38, 37), (38, 18), (20, 3), (18, 9), (10, 2), (5, 5), (1, 0)]
)
@given(st.lists(WRITTEN, min_size=1, max_size=20))
@example(["1e-39", "1e-42", "15411057842815960236692250113642073365", "403305.76824795125794", "12e+1", "1e250"])
def test_a_decimal_is_the_number_that_is_written_or_a_bad_record(precision: int, scale: int, texts: list[str]) -> None:
    columns = pa.schema([("v", pa.decimal128(precision, scale))])
    # Beside numbers that fit, so that Arrow's reader is asked first.
    decoded = PayloadFormats().decoder(columns).decode(batch([b'{"v": %b}' % text.encode() for text in ("0", *texts)]))
    bad = {row.index for row in decoded.bad}
    read = iter(decoded.rows["v"].to_pylist())
    for index, text in enumerate(("0", *texts)):
        exact = EXACT.create_decimal(text)
        if index not in bad:
            assert next(read) == exact
        else:
            units = exact.scaleb(scale, EXACT)
            assert units != units.to_integral_value(context=EXACT) or abs(units) >= 10**precision
