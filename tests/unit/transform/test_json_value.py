"""`json_value` means what SQL's standard says, also where DuckDB's own does not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform import FailedRecord, SqlTransform
from tests.unit.transform.support import batch, column, planned

# The two ways in which a value is found: all paths of a column at once, and on its own.
WAYS = pytest.mark.parametrize("document", ["value", "concat(value, '')"], ids=["at once", "on its own"])


SCALAR_TEXTS: dict[str, str | None] = {
    '"u1"': "u1",
    '""': "",
    r'"say \"hi\"\n\t\\ \/"': 'say "hi"\n\t\\ /',
    r'"\u00e9\u20ac\ud83d\ude00"': "é€😀",
    '"é€😀"': "é€😀",
    r'"a\u0000b"': "a\x00b",
    '"{"': "{",
    '"[1]"': "[1]",
    '"null"': "null",
    '"1.5e3"': "1.5e3",
    "7": "7",
    "-7": "-7",
    "1.5": "1.5",
    "18446744073709551616": "18446744073709551616",
    "123456789012345678901234567890": "123456789012345678901234567890",
    "0.12345678901234567890": "0.12345678901234567890",
    "12345678.123456789012": "12345678.123456789012",
    "0.30000000000000004": "0.30000000000000004",
    "0.10000000000000000001": "0.10000000000000000001",
    "1e-400": "1e-400",
    "true": "true",
    "false": "false",
    "null": None,
    "{}": None,
    '{"b": 1}': None,
    "[]": None,
    "[1, 2]": None,
}


@WAYS
def test_a_scalar_is_its_text_and_all_else_is_null(document: str) -> None:
    texts = [f'{{"x": [7], "a": {text}}}'.encode() for text in SCALAR_TEXTS]
    assert column(f"json_value({document}, '$.a')", *texts) == list(SCALAR_TEXTS.values())


PATHS = {
    "$.a.b": "nested",
    "$.a.list[0]": "first",
    "$.a.list[1].c": "deep",
    "$.a.list[2]": None,
    "$.a.list[#-1].c": "deep",
    '$."unit price"': "9",
    "$.missing": None,
    "$.a.b.c": None,
    "$.A": None,
    "$": None,
}


@WAYS
def test_a_path_leads_to_one_value(document: str) -> None:
    text = b'{"a": {"b": "nested", "list": ["first", {"c": "deep"}]}, "unit price": 9}'
    columns = ", ".join(f"json_value({document}, '{path}') AS v{n}" for n, path in enumerate(PATHS))
    [row] = SqlTransform(f"SELECT {columns} FROM {{{{ input }}}}").apply(batch([text])).rows.to_pylist()
    assert dict(zip(PATHS, row.values(), strict=True)) == PATHS


def test_a_document_may_be_one_scalar() -> None:
    assert column("json_value(value, '$')", b'"x"', b"5", b"null") == ["x", "5", None]


@WAYS
def test_no_document_is_no_value_and_what_is_no_json_fails(document: str) -> None:
    broken, empty = column(f"json_value({document}, '$.a')", b'{"a": ', b"")
    assert isinstance(broken, FailedRecord)
    assert "column v: " in broken.reason
    assert "Malformed JSON" in broken.reason
    assert isinstance(empty, FailedRecord)
    assert column("json_value(value, '$.a')", None) == [None]


def test_a_number_whose_text_is_not_certain_is_not_guessed() -> None:
    (found,) = column("json_value(value, '$.a')", b'{"a": 0.10000000000000000001, "b": 0.1}')
    assert isinstance(found, FailedRecord)
    assert "several numbers" in found.reason


def test_a_guard_keeps_a_statement_from_failing() -> None:
    guarded = "CASE WHEN json_valid(value) THEN json_value(value, '$.a') ELSE 'none' END"
    assert column(guarded, b'{"a": 1}', b"nope") == ["1", "none"]


@pytest.mark.parametrize("path", ["a", "$.*", "$.a[*]", "$..a", "lax $.a", "/a", ""])
def test_a_path_to_several_values_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgument, match="json_value takes a document and a path"):
        planned(f"SELECT json_value(value, '{path}') AS v FROM {{{{ input }}}}")


def test_a_path_that_is_no_literal_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="json_value takes a document and a path"):
        SqlTransform("SELECT json_value(value, key) AS v FROM {{ input }}")


TRANSFORM = SqlTransform(
    "SELECT json_value(value, '$.k') AS v, json_value(concat(value, ''), '$.k') AS w FROM {{ input }}"
)
SCALARS = st.one_of(
    st.text(), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)
)


@settings(max_examples=settings.default.max_examples // 4)
@given(st.lists(SCALARS, max_size=20))
def test_python_reads_the_same_scalars(scalars: list[object]) -> None:
    for ascii_only in (False, True):
        texts = [
            json.dumps({"k": scalar}, ensure_ascii=ascii_only).encode(errors="surrogatepass") for scalar in scalars
        ]
        result = TRANSFORM.apply(batch(texts))
        bad = {failed.index for failed in result.bad}
        for index, row in zip(result.kept.tolist(), result.rows.to_pylist(), strict=True):
            scalar = scalars[index]
            assert row["v"] == row["w"]
            if isinstance(scalar, float):
                assert float(row["v"]) == scalar
            elif scalar is None or isinstance(scalar, str):
                assert row["v"] == scalar
            else:
                assert row["v"] == json.dumps(scalar)
        for index in bad:
            assert any("\ud800" <= c <= "\udfff" for c in str(scalars[index]))
