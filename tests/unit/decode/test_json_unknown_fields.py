"""Fields without a column: rescued into one text that says what the document said, or made into columns."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.names import RESCUED
from airflow_lakestream.core.policies import KeyFormat, ValueEnvelope, ValueFormat
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.json.column_names import MOST_COLUMNS
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.json.growing import GrowingJsonDecoder, grow
from airflow_lakestream.exceptions import InvalidArgument
from tests.unit.decode.support import batch, decoded

INNER = pa.struct([("x", pa.string())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        (RESCUED, pa.string()),
        ("text", pa.string()),
        ("s", pa.struct([("a", pa.string()), ("t", INNER)])),
        ("l", pa.list_(INNER)),
        ("m", pa.map_(pa.string(), INNER)),
    ]
)


class Written(str):
    """A number as it is written."""


def load(text: str | bytes) -> Any:
    return json.loads(text, parse_int=Written, parse_float=Written)


def known(value: Any, kind: pa.DataType | pa.Schema) -> Any:
    """Return what a row shows of a document, as JSON: members that are null are the same as those not there."""
    if value is None:
        return None
    if isinstance(kind, pa.Schema) or pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return {n: known(v, kind.field(n).type) for n, v in value.items() if n in names and v is not None}
    if pa.types.is_list(kind):
        return [known(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return {k: known(v, kind.item_type) for k, v in (value.items() if isinstance(value, dict) else value)}
    return value


def merged(left: Any, right: Any) -> Any:
    """Put what was rescued back where it was."""
    if right is None:
        return left
    if isinstance(left, dict):
        return {**left, **{k: merged(left.get(k), v) for k, v in right.items()}}
    if isinstance(left, list):
        return [merged(a, b) for a, b in zip(left, right, strict=True)]
    return right


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(["1", "-0", "1.50", "1e400", "123456789012345678901234567890", "0.1000"]).map(Written),
    st.text(max_size=4),
)
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def members(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with some of these fields, and others."""
    others = st.dictionaries(st.sampled_from(["id2", "X", "é", "q\"'\\", RESCUED]), ANY, max_size=2)
    return st.tuples(st.fixed_dictionaries({}, optional=fields), others).map(lambda pair: {**pair[1], **pair[0]})


INNERS = st.none() | members(x=st.none() | st.text(max_size=3))
DOCUMENTS = members(
    id=st.none() | st.integers(0, 9).map(lambda n: Written(n)),
    text=st.text(max_size=3),
    s=st.none() | members(a=st.text(max_size=3), t=INNERS),
    l=st.none() | st.lists(INNERS, max_size=3),
    m=st.none() | st.dictionaries(st.text(max_size=2), INNERS, max_size=2),
)


def dump(value: Any) -> str:
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} : {dump(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    return json.dumps(value)


def rows_of(values: list[bytes | None], schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decoded(JsonDecoder(schema, "rescue"), batch(values)).to_pylist()
    return rows


@given(st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_columns_and_rescued_text_together_are_the_document(documents: list[dict[str, Any]]) -> None:
    values: list[bytes | None] = [dump(document).encode() for document in documents]
    payload = pa.schema([field for field in SCHEMA if field.name != RESCUED])

    for document, row in zip(documents, rows_of(values), strict=True):
        rest = None if row[RESCUED] is None else load(row[RESCUED])
        shown = {**row, "id": None if row["id"] is None else Written(row["id"])}
        back = merged(known(shown, payload), rest)
        assert back == merged(known(document, payload), _unknown(document, payload))
        assert rest == _unknown(document, payload)


def _unknown(value: Any, kind: Any) -> Any:
    """Return what has no column: written anew, from the rule in the documentation."""
    if isinstance(kind, pa.Schema) or pa.types.is_struct(kind):
        if value is None:
            return None
        names = {field.name: field.type for field in kind}
        rest = {n: v if n not in names else _unknown(v, names[n]) for n, v in value.items()}
        return {n: v for n, v in rest.items() if n not in names or v is not None} or None
    if pa.types.is_list(kind) and value is not None:
        items = [_unknown(item, kind.value_type) for item in value]
        return items if any(item is not None for item in items) else None
    if pa.types.is_map(kind) and value is not None:
        return {k: r for k, v in value.items() if (r := _unknown(v, kind.item_type)) is not None} or None
    return None


def test_the_path_of_many_documents_rescues_what_the_one_by_one_path_does() -> None:
    scalars = ["1.50", "-0", "null", "true", '"text é"', "12345678901234567890", '""']
    rng = random.Random(7)
    layouts = [
        '{{"id":{i},"z":{0},"s":{{"a":"q","b":{1}}},"text":"t"}}',
        '{{"id":{i},"s":{{"n":{{"o":{0},"p":{{}}}}}},"u":{{"v":{1}}}}}',
        '{{ "id" : {i} , "text":"t" }}',
    ]
    texts = [rng.choice(layouts).format(rng.choice(scalars), rng.choice(scalars), i=i).encode() for i in range(3000)]
    decoder = JsonDecoder(SCHEMA, "rescue")
    assert decoder._layouts is not None
    tables, taken = decoder._layouts.parse(pa.array(texts, pa.binary()))
    assert sum(map(len, taken)) == len(texts)
    assert sum(len(table) for table in tables) == len(texts)

    for text, row in zip(texts, rows_of(list(texts)), strict=True):
        expected = _unknown(load(text), pa.schema([f for f in SCHEMA if f.name != RESCUED]))
        assert (None if row[RESCUED] is None else load(row[RESCUED])) == expected


def test_a_bad_value_among_what_is_rescued_is_a_bad_record() -> None:
    good = [b'{"id":%d,"z":%d}' % (n, n) for n in range(500)]
    outcome = JsonDecoder(SCHEMA, "rescue").decode(batch([*good, b'{"id":1,"z":01}', b'{"id":1,"z":tru}']))

    assert [row.index for row in outcome.bad] == [500, 501]
    assert outcome.rows[RESCUED].to_pylist() == [f'{{"z":{n}}}' for n in range(500)]


def test_a_field_of_the_name_of_the_column_is_one_more_that_has_none() -> None:
    assert rows_of([b'{"_rescued":"mine"}'])[0][RESCUED] == '{"_rescued":"mine"}'
    first = batch([b'{"id":1,"_rescued":2}'])
    assert PayloadFormats(unknown_fields="rescue").columns(first) == pa.schema(
        [("id", pa.int64()), (RESCUED, pa.string())]
    )


def test_without_the_column_there_is_no_rescue() -> None:
    with pytest.raises(InvalidArgument, match="no column _rescued"):
        JsonDecoder(pa.schema([("id", pa.int64())]), "rescue")


@pytest.mark.parametrize(
    "payload",
    [
        {"format": ValueFormat.RAW},
        {"format": ValueFormat.JSON, "envelope": ValueEnvelope.DEBEZIUM},
        {"format": ValueFormat.JSON, "key_format": KeyFormat.STRING},
    ],
)
def test_what_evolve_does_not_go_with_is_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"unknown_fields: 'evolve' goes with"):
        PayloadFormats(unknown_fields="evolve", **payload)


ID = pa.schema([("id", pa.int64())])


def grown(values: list[bytes | None], schema: pa.Schema = ID) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    outcome = GrowingJsonDecoder(schema).decode(batch(values))
    return outcome.rows.to_pylist(), [(row.index, row.reason) for row in outcome.bad]


def test_fields_without_a_column_become_columns_of_inferred_types() -> None:
    decoder = GrowingJsonDecoder(SCHEMA)
    table = decoded(
        decoder,
        batch(
            [
                b'{"id":1}',
                b'{"n":1,"f":1.5,"b":true,"t":"2026-11-22T00:00:00Z","w":"x","none":null}',
                b'{"s":{"c":1},"l":[{"y":2},null],"m":{"k":{"z":3}}}',
            ]
        ),
    )

    assert table.schema.names == [*SCHEMA.names, "n", "f", "b", "t", "w"]
    assert [table.schema.field(n).type for n in ("n", "f", "b", "w")] == [
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.string(),
    ]
    assert table.schema.field("t").type == pa.timestamp("us", "UTC")
    assert table["s"].to_pylist()[2] == {"a": None, "t": None, "c": 1}
    assert table["l"].to_pylist()[2] == [{"x": None, "y": 2}, None]
    assert table["m"].to_pylist()[2] == [("k", {"x": None, "z": 3})]
    assert decoder.schema == table.schema


def test_what_does_not_fit_the_type_that_came_first_is_bad() -> None:
    decoder = GrowingJsonDecoder(ID)
    decoder.decode(batch([b'{"x":1}']))

    outcome = decoder.decode(batch([b'{"x":2}', b'{"x":"no"}', b'{"x":1.5}']))

    assert outcome.rows["x"].to_pylist() == [2]
    assert [(row.index, row.reason) for row in outcome.bad] == [
        (1, "x: is the string 'no', not a number"),
        (2, "x: 1.5 is not an integer"),
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"ID":1}', "ID: no column can be added for it: 'id' is there, and some engines take the two for one"),
        (b'{"_kafka_x":1}', "_kafka_x: no column can be added for it: names that begin with _kafka_ are kept"),
        (b'{"n":{"a":1,"A":2}}', "n.A: no column can be added for it: 'a' is there, and some engines take"),
        (b'{"s":{"x":1,"B":2}}', "s.B: no column can be added for it: 'b' is there"),
        (b'{"l":[{"y":1},{"Q":2}]}', "l.element.Q: no column can be added for it: 'q' is there"),
        (b'{"s.b":1}', "s.b: no column can be added for it: its name is the path of another column"),
        (
            b'{"d":' + b'{"e":' * 20 + b"1" + b"}" * 21,
            "d: no column can be added for it: nothing in it can be a column: ",
        ),
        (b'{"":1}', ": no column can be added for it: it has no name"),
        (b'{"a\\u0000b":1}', "a\0b: no column can be added for it: its name has a control character"),
        (b'{"_KAFKA_offset":1}', "_KAFKA_offset: no column can be added for it: names that begin with _kafka_"),
        (b'{"' + b"n" * 256 + b'":1}', "n" * 160 + "...: no column can be added for it: its name has more than 255"),
    ],
)
def test_a_field_that_can_be_no_column_is_a_bad_record_that_says_why(value: bytes, reason: str) -> None:
    nested = pa.struct([("b", pa.int64())])
    schema = pa.schema([*ID, ("s", nested), ("l", pa.list_(pa.struct([("q", pa.int64())])))])
    rows, bad = grown([b'{"id":1}', value], schema)

    assert [row["id"] for row in rows] == [1]
    assert bad[0][0] == 1
    assert bad[0][1].startswith(reason)


def test_keys_that_are_data_don_t_make_columns_without_end() -> None:
    values: list[bytes | None] = [b'{"id":%d,"user%d":1}' % (n, n) for n in range(MOST_COLUMNS + 50)]
    decoder = GrowingJsonDecoder(ID)

    outcome = decoder.decode(batch(values))

    assert len(decoder.schema) == MOST_COLUMNS
    assert len(outcome.bad) == 51
    assert 'unknown_fields="rescue" needs only one' in outcome.bad[0].reason


def test_threads_grow_one_schema() -> None:
    decoder, start = GrowingJsonDecoder(ID), threading.Barrier(4)

    def run(n: int) -> pa.Table:
        start.wait()
        return decoded(decoder, batch([b'{"id":%d,"x%d":%d,"same":%d}' % (n, n, n, n)] * 50))

    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(run, range(4)))

    assert sorted(decoder.schema.names) == sorted(["id", "same", "x0", "x1", "x2", "x3"])
    for n, table in enumerate(tables):
        assert table.select(["id", "same", f"x{n}"]).to_pylist() == [{"id": n, "same": n, f"x{n}": n}] * 50


@given(st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_every_document_lands_with_all_it_says_or_is_bad(documents: list[dict[str, Any]]) -> None:
    values: list[bytes | None] = [dump(document).encode() for document in documents]
    decoder = GrowingJsonDecoder(SCHEMA)
    outcome = decoder.decode(batch(values))

    assert len(outcome.rows) + len(outcome.bad) == len(values)
    bad = {row.index for row in outcome.bad}
    # What is left of the good ones, seen from the schema that it has grown to, is nothing.
    leftovers = [_unknown(d, decoder.schema) for n, d in enumerate(documents) if n not in bad]
    assert all(_says_nothing(rest) for rest in leftovers)
    assert grow(decoder.schema, []).schema == decoder.schema


def _says_nothing(rest: Any) -> bool:
    if isinstance(rest, dict):
        return bool(rest) and all(map(_says_nothing, rest.values()))
    return rest is None or (isinstance(rest, list) and bool(rest) and all(map(_says_nothing, rest)))


def test_a_struct_that_is_null_has_no_place_for_its_required_field() -> None:
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    decoder = JsonDecoder(pa.schema([("s", inner), (RESCUED, pa.string())]), "rescue")
    for values in ([b'{"s":{"a":1}}', b'{"s":null}'], [b'{"s":null}', b'{"s":{"a":1}, "x": 2}', b"{}"]):
        found = decoded(decoder, batch(values))
        assert [row["s"] for row in found.to_pylist()] == [json.loads(value).get("s") for value in values]
