"""The path for many documents of few layouts: what it takes is right, and it takes what is common."""

from __future__ import annotations

import json
import random
import re
import string
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.json.shapes import layout_of
from airflow_lakestream.exceptions import BadRecord
from tests.unit.decode.support import batch, decoded
from tests.unit.decode.test_json_differential import NUMBERS, SCALARS, TEXTS, check_path, check_shapes, expected

SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("name", pa.string()),
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.int8()),
        ("share", pa.float64()),
        ("ratio", pa.float32()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(5, 2)),
        ("day", pa.date32()),
        ("clock", pa.time64("us")),
        ("raw", pa.binary()),
        ("key", pa.uuid()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.int32()), pa.field("y", pa.string(), nullable=False)])),
    ]
)
SAMPLES: dict[str, Any] = {
    "at": lambda r: f'"2026-11-{r.randint(1, 30):02}T05:06:{r.randint(0, 59):02}.{r.randint(0, 999):03}Z"',
    "local": lambda r: '"2026-11-20T05:06:07"',
    "name": lambda r: json.dumps("".join(r.choices(string.ascii_letters + " ,:{}é😀", k=r.randint(0, 9)))),
    "id": lambda r: str(r.randint(-(10 ** r.randint(1, 18)), 10 ** r.randint(1, 18))),
    "small": lambda r: str(r.randint(0, 127)),
    "share": lambda r: str(r.choice([r.uniform(0, 100), round(r.uniform(0, 100), 1), r.randint(0, 9), -r.random()])),
    "ratio": lambda r: str(round(r.uniform(0, 100), 3)),
    "flag": lambda r: r.choice(["true", "false"]),
    "price": lambda r: r.choice([f"{r.uniform(0, 999):.2f}", f'"{r.uniform(0, 999):.2f}"']),
    "day": lambda r: f'"2026-11-{r.randint(1, 30):02}"',
    "clock": lambda r: f'"05:{r.randint(0, 59):02}"',
    "raw": lambda r: '"YWJj"',
    "key": lambda r: '"123e4567-e89b-12d3-a456-426614174000"',
    "tags": lambda r: r.choice(["null", "[]", '["a"]']),
    "place": lambda r: r.choice([f'{{"x":{r.randint(0, 99)},"y":"a"}}', '{"y":"b"}', "null"]),
    "other": lambda r: r.choice(["1.50", '"z"', "null", "true", '{"z":{},"y":0}']),
}
LITERALS = [
    *NUMBERS,
    *map(json.dumps, TEXTS),
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "NaN",
    "01",
    "1.",
    ".1",
    "nul",
    "--1",
]
LITERALS += [
    "+1",
    "1.2.3",
    "0x1F",
    "1 ",
    " 1",
    "\t1",
    "1e",
    "True",
    "inf",
    "-",
    "",
    '"a" "b"',
    '"a',
    "\u0661",
    "/",
    "1/2",
    '"1' + "0" * 310 + '"',
]
SPOILERS = [
    b"",
    b'"',
    b"\\",
    b",",
    b":",
    b"{",
    b"}",
    b"[",
    b"\n",
    b"\0",
    b"\x1f",
    b"\xff",
    b"0",
    b"-",
    b" ",
    b"null",
    b'""',
]
SPOILERS += [b'"id":1,', b',"id":2', b'\\"', b"\\u0041", b"\xed\xa0\x80", b"\x7f", b"}{", b".", b"e1"]


def payloads(r: random.Random, count: int) -> list[bytes | None]:
    """Return documents, most of them of one or two layouts; some with odd scalars, some spoilt."""
    layouts = []
    for _ in range(r.choice([1, 1, 2])):
        names = r.sample(sorted(SAMPLES), r.randint(1, 6))
        if r.random() < 0.8 and "id" not in names:
            names.append("id")
        names += r.choices(names, k=r.random() < 0.05)
        layouts.append((names, r.choice([",", ", "]), r.choice([":", ": "])))
    values: list[bytes | None] = []
    odd = r.choice([0, 0.02, 0.2])
    for _ in range(count):
        names, comma, colon = r.choice(layouts)
        members = [
            f'"{name}"{colon}{r.choice(LITERALS) if r.random() < odd else SAMPLES[name](r)}'
            for name in (r.sample(names, len(names)) if r.random() < odd else names)
        ]
        value = ("{" + comma.join(members) + "}").encode()
        if r.random() < odd:
            at = r.randint(0, len(value))
            value = value[:at] + r.choice(SPOILERS) + value[at + r.randint(0, 3) :]
        if re.search(rb"[eE][+-]?[0-9]{4}", value):
            continue  # the oracle's exact fractions take forever
        values.append(None if r.random() < odd / 10 else value)
    return values


def attack(seed: int, count: int, unknown_fields: str) -> tuple[int, int]:
    """Check a random batch on all paths; return how many rows were good, and how many of these the path took."""
    values = payloads(random.Random(seed), count)
    want = expected(SCHEMA, values, unknown_fields)
    decoder = JsonDecoder(SCHEMA, unknown_fields)
    taken = check_shapes(decoder, values, want)
    check_path(decoder, values, want)
    good = [(value, row) for value, row in zip(values, want, strict=True) if row is not None]
    check_path(decoder, [value for value, _ in good], [row for _, row in good])
    return len(good), taken


@pytest.mark.parametrize("kind", SCALARS, ids=str)
def test_every_literal_into_every_type(kind: pa.DataType) -> None:
    """Each literal behind one that gives the layout, so that it is looked at even where its own document is invalid."""
    schema = pa.schema([("v", kind)])
    decoder = JsonDecoder(schema)
    for literal in LITERALS:
        for first in ('"v":%s', '"v":null,"z":%s') if kind == pa.int64() else ('"v":%s',):
            for sample in ("1", "null", '""'):
                values: list[bytes | None] = [f"{{{first % text}}}".encode() for text in (sample, literal)]
                check_shapes(decoder, values, expected(schema, values, "ignore"))


@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from(["ignore", "fail"]))
def test_random_batches_of_few_layouts(seed: int, count: int, unknown_fields: str) -> None:
    attack(seed, count, unknown_fields)


def test_a_fixed_lot_of_them_is_largely_taken() -> None:
    """Else the other tests here prove nothing."""
    results = [attack(seed, 40, "ignore") for seed in range(30)]
    good, taken = map(sum, zip(*results, strict=True))
    assert taken > 0.3 * good > 150


CLICK = b'{"at":"2026-11-20T05:06:07.%03dZ","name":"a%d","id":%d,"share":%d.5}'


def clicks(count: int) -> list[bytes | None]:
    return [CLICK % (i % 1000, i, i, i) for i in range(count)]


def taken_of(values: list[bytes | None], unknown_fields: str = "ignore") -> int:
    return check_shapes(JsonDecoder(SCHEMA, unknown_fields), values, expected(SCHEMA, values, unknown_fields))


@pytest.mark.parametrize(
    "odd",
    [
        b'{"at":"2026-11-20T05:06:07Z","name":null,"id":1,"share":1.5}',
        b'{"id":1}',
        b'{"id":1,"name":"a"}',
        b'{"id": 1, "name": "a"}',
        b'{"id":1,"place":{"x":1,"y":"b"}}',
        b'{"id":1,"place":null,"tags":null}',
        b'{"id":1,"other":{"z":1,"y":"b"}}',
        b'{"at":"2026-11-20T05:06:07Z","name":"b","id":1,"share":null}',
    ],
)
def test_what_is_common_is_taken_whole(odd: bytes) -> None:
    values = clicks(200)
    values[::3] = [odd] * len(values[::3])
    assert taken_of(values) == 200


@pytest.mark.parametrize(
    "bad",
    [
        None, b"", b"{", b'{"id":1}}', b'{"at":"2026-11-20T05:06:07Z","name":"b","id":1.0,"share":1.5}',
        b'{"at":"2026-11-20T05:06:07Z","name":"b","id":123456789012345678901,"share":1.5}',
        b'{"at":"2026-11-20T05:06:07Z","name":"b","id":null,"share":1.5}',
        b'{"at":"2026-11-20T05:06:07Z","name":"b","id":1,"share":1e400}',
        b'{"at":"2026-11-20T05:06:07Z","name":"b","id":1,"share":9007199254740993}',
        b'{"at":"yesterday, at six o clock","name":"b","id":1,"share":1.5}',
        b'{"at":"2026-11-20T05:06:07Z","name":"b\\n","id":1,"share":1.5}',
        b'{"at":"2026-11-20T05:06:07Z","name":"b\xff","id":1,"share":1.5}',
        b'{"at":"2026-11-20T05:06:07Z","name":"b","id":1,"share":1.5,"id":2}',
    ],
)  # fmt: skip
def test_one_bad_record_in_a_hundred_leaves_the_others_to_this_path(bad: bytes | None) -> None:
    values = clicks(1000)
    values[50::100] = [bad] * 10
    assert taken_of(values) == 990


@pytest.mark.parametrize(
    "hostile",
    [
        b'{"id":1,"other":true,"name":"a"}}', b'{"id":1,"other":true,"name":"a"} 1', b'{"id":1,"other":true,"name":"a"',
        b'{"id":1,"other":true,"name":"a",}', b'{"id":1,"other":true, "name"1:"a"}',
        b'{"id":1,"other":true,"name":"a\1"}',
        b'{"id":1,"other":true,"name":"a\n"}', b'{"id":1,"other":nul,"name":"a"}', b'{"id":1,"other":,"name":"a"}',
        b'{"id":1,"other":true,"name":"a"b"}', b'{"id":1,"other":true,"name" "a"}',
        b'{"id":1,"id":1,"name":"a"}', b'{"id":,"other":true,"name":"a"}', b'{"id":1"other":true,"name":"a"}',
        b'"id":1,"other":true,"name":"a"}', b'{"id":1,"other":true,"name":"\\"}', b'{"id":1,"other":true,"name":"a"};',
        b'{"id":1,"other":true,"name":"a"    ', b'{"id":1,"other":true,"name":"a";"',
        b'{"id":1;"other":true,"name":"a"}',
        b'{"id":1,"other":true,"name":"a"]', b'{"id":1,"id":true,"name":"a"}', b'{"id":0x1,"other":true,"name":"a"}',
    ],
)  # fmt: skip
def test_nearly_of_the_layout_is_not_of_it(hostile: bytes) -> None:
    good: list[bytes | None] = [b'{"id":%d,"other":true,"name":"a"}' % i for i in range(9)]
    for values in ([*good, hostile], [*good, hostile, *good], [good[0], hostile, hostile, *good]):
        assert taken_of(values) == len(values) - values.count(hostile)


def test_rows_of_several_layouts_and_paths_stay_in_order() -> None:
    values: list[bytes | None] = []
    for i in range(30_000):
        values.append(
            [b'{"id":%d}', b'{"name":"a","id":%d}', b'{"id":%d,"tags":["t"]}', b'{"id":%d.0}'][i * 7 % 11 % 4] % i
        )
    table = decoded(JsonDecoder(SCHEMA), batch(values))
    assert table.column("id").to_pylist() == list(range(30_000))
    assert table.column("tags").to_pylist() == [["t"] if i * 7 % 11 % 4 == 2 else None for i in range(30_000)]


def test_what_is_cut_off_does_not_go_on_in_the_next_record() -> None:
    """The bytes behind it are all there, in the next one."""
    whole, first = b'{"id":1,"name":"abc","other":true}', b'{"id":1,"name":"'
    for at in range(1, len(whole)):
        values: list[bytes | None] = [whole, whole[:at], whole[at:], whole, first, whole[len(first) :], whole]
        taken_of(values)
        taken_of([whole, *values[1:3] * 40, whole])


def test_a_null_is_none_whatever_lies_under_it() -> None:
    text = b'{"id":1}{"id":2}{"id":3}'
    array = pa.array([b'{"id":1}', b'{"id":2}', b'{"id":3}'], pa.binary())
    hidden = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(bytes([0b101])), *array.buffers()[1:]])
    assert hidden.buffers()[2].to_pybytes()[: len(text)] == text
    decoder = JsonDecoder(SCHEMA)
    assert decoder._layouts is not None
    _, rows = decoder._layouts.parse(hidden)
    assert [int(row) for part in rows for row in part] == [0, 2]


LONG = "a" * 70


@pytest.mark.parametrize("spoilt", ['"', "\\", "\n", "\x1f", '\\"', '","', "é", "😀"])
def test_texts_of_any_length_are_looked_through(spoilt: str) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("c", pa.string()), ("n", pa.int64())])
    r, values = random.Random(1), []
    for i in range(300):
        a, b, c = (LONG * r.randint(0, 3) + "b" * r.randint(0, 20) for _ in "abc")
        if i % 100 == 50:
            at = r.randint(0, len(b))
            b = b[:at] + spoilt + b[at:]
        values.append(f'{{"a":"{a}","n":{i},"b":"{b}","c":"{c}"}}'.encode())
    taken = check_shapes(JsonDecoder(schema), values, expected(schema, values, "ignore"))
    assert taken == (300 if spoilt in "é😀" else 297)


def test_a_decoder_forgets_layouts_that_come_no_more() -> None:
    decoder = JsonDecoder(SCHEMA)
    for seed in range(40):
        r = random.Random(seed)
        names = [*r.sample(["at", "name", "share", "flag", "small"], 3), "id"]
        values: list[bytes | None] = [
            ("{" + ",".join(f'"{name}":{SAMPLES[name](r)}' for name in names) + "}").encode() for _ in range(50)
        ]
        check_path(decoder, values, expected(SCHEMA, values, "ignore"))


def test_the_first_bad_record_is_named_whatever_path_finds_it() -> None:
    values = clicks(30_000)
    values[20_000], values[17_000], values[25_000] = b"{", b'{"id":true}', b'{"id":1.5}'
    with pytest.raises(BadRecord) as caught:
        decoded(JsonDecoder(SCHEMA), batch(values))
    assert caught.value.offset == 1000 + 3 * 17_000


@pytest.mark.parametrize(
    "value",
    [b"", b"{}", b"[1]", b"{", b'{"a":[]}', b'{"a":1,"a":2}', b'{"a":{},"a":2}', b'{"a":"\\n"}', b'{"a":NaN}', b"1"],
)
def test_what_has_no_layout(value: bytes) -> None:
    assert layout_of(value) is None


def test_a_layout() -> None:
    layout = layout_of(b'{"a": 1 , "b":{"c":"x","d":{}},"e":"" ,"f":true}\n')
    assert layout is not None
    assert layout.literals == (b'{"a": ', b' , "b":{"c":"', b'","d":{}},"e":"', b'" ,"f":', b"}\n")
    assert [slot.path for slot in layout.slots] == [("a",), ("b", "c"), ("e",), ("f",)]
    assert [slot.is_text for slot in layout.slots] == [False, True, True, False]
    assert layout.objects == {(), ("b",), ("b", "d")}
