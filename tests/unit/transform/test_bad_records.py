"""Every record is a row, filtered, or bad with its reason; rows and records stay aligned, however many are bad."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lakestream.transform import SqlTransform
from airflow_lakestream.transform.engine import StatementEngine
from airflow_lakestream.transform.messages import spans
from airflow_lakestream.transform.worker import _EXPLAINED
from tests.unit.transform.support import batch

ROWS = """SELECT json_value(value, '$.n')::BIGINT AS n, json_value(value, '$.d')::DATE AS d, _kafka_offset
    FROM {{ input }} WHERE coalesce(json_value(value, '$.skip')::BOOLEAN, false) = false"""
# The same through several SELECTs.
NESTED = """WITH p AS (SELECT json_value(value, '$.n') AS n, json_value(value, '$.d')::DATE AS d,
        json_value(value, '$.skip') AS skip, _kafka_offset FROM {{ input }}),
    q AS (SELECT n::BIGINT AS n, * EXCLUDE (n) FROM p WHERE coalesce(skip::BOOLEAN, false) = false)
    SELECT n, d, _kafka_offset FROM q"""

# A record, and what it is: a number for a row, "filtered", or where the statement fails.
KINDS: list[tuple[bytes, object]] = [
    (b'{"n": 1, "d": "2026-01-01"}', 1),
    (b'{"n": 22}', 22),
    (b'{"skip": true, "n": 5}', "filtered"),
    (b'{"skip": true, "n": "five"}', "filtered"),
    (b'{"n": "five"}', "n"),
    (b'{"n": 3, "d": "yesterday"}', "d"),
    (b'{"n": 3, "skip": "perhaps"}', "skip"),
    (b"{", "document"),
    (b"\xff", "text"),
]


@pytest.fixture(scope="module", params=["traced", "nested"])
def transform(request: pytest.FixtureRequest) -> SqlTransform:
    return SqlTransform({"traced": ROWS, "nested": NESTED}[request.param])


@settings(max_examples=settings.default.max_examples // 5)
@given(kinds=st.lists(st.sampled_from(KINDS), max_size=60))
def test_each_record_is_a_row_filtered_or_bad(transform: SqlTransform, kinds: list[tuple[bytes, object]]) -> None:
    raw = batch([value for value, _ in kinds])
    result = transform.apply(raw)
    expected = dict(enumerate(what for _, what in kinds))
    rows = {int(i): row for i, row in zip(result.kept, result.rows.to_pylist(), strict=True)}
    assert {i: row["n"] for i, row in rows.items()} == {
        i: what for i, what in expected.items() if isinstance(what, int)
    }
    assert all(row["_kafka_offset"] == raw.offsets[i] for i, row in rows.items())
    assert result.filtered.tolist() == [i for i, what in expected.items() if what == "filtered"]
    failed = {bad.index: bad.reason for bad in result.bad}
    assert list(failed) == [i for i, w in expected.items() if isinstance(w, str) and w != "filtered"]


@pytest.mark.parametrize("sql", [ROWS, NESTED])
def test_the_reason_names_the_place_and_the_value(sql: str) -> None:
    reasons = [bad.reason for bad in SqlTransform(sql).apply(batch([value for value, _ in KINDS])).bad]
    number, date, skip, document, text = reasons
    assert number.startswith("column n: ")
    assert "'five'" in number
    assert date.startswith("column d: ")
    assert "yesterday" in date
    assert skip.startswith("WHERE: ")
    assert "perhaps" in skip
    assert "Malformed JSON" in document
    assert text == "value: it is not UTF-8 text (byte 0)"


def test_a_statement_can_reject_a_record_itself() -> None:
    sql = "SELECT CASE WHEN value = 'no' THEN error('not ' || value) ELSE value END AS v FROM {{ input }}"
    result = SqlTransform(sql).apply(batch([b"yes", b"no"]))
    assert result.rows["v"].to_pylist() == ["yes"]
    assert [(bad.index, bad.reason) for bad in result.bad] == [(1, "column v: Invalid Input Error: not no")]


def test_a_form_that_only_halving_sees_through() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    transform = SqlTransform("SELECT COLUMNS(*)::INTEGER FROM {{ input }}", input_schema=schema)
    assert StatementEngine(transform.sql, schema, "256MB", 1).plan.trace is None
    values = [str(i) for i in range(1000)]
    values[7] = values[500] = values[999] = "x"
    result = transform.apply(pa.table({"a": values, "b": ["1"] * 1000}))
    assert [bad.index for bad in result.bad] == [7, 500, 999]
    assert result.rows["a"].to_pylist() == [int(v) for v in values if v != "x"]


def test_many_bad_records_are_all_found_and_explained() -> None:
    draw = random.Random(5)
    values = [b'{"n": "x"}' if draw.random() < 0.05 else b'{"n": 5}' for _ in range(20_000)]
    result = SqlTransform(ROWS).apply(batch(values))
    assert [bad.index for bad in result.bad] == [i for i, value in enumerate(values) if b"x" in value]
    assert {bad.reason for bad in result.bad} == {"column n: Could not convert 'x' to BIGINT"}
    assert result.rows.num_rows == values.count(b'{"n": 5}')


def test_of_failures_that_only_running_finds_the_first_ones_are_explained() -> None:
    values = [b"1", b"2"] * 30
    result = SqlTransform("SELECT value::INT * 2000000000 AS r FROM {{ input }}").apply(batch(values))
    assert [bad.index for bad in result.bad] == list(range(1, 60, 2))
    assert all(bad.reason.startswith("column r: ") for bad in result.bad)
    assert "Overflow" in result.bad[_EXPLAINED - 1].reason
    assert {bad.reason for bad in result.bad[_EXPLAINED:]} == {
        "column r: the statement fails for this record, as for others of its batch"
    }


def test_what_stands_behind_a_guard_is_bad_only_where_the_guard_lets_it_through() -> None:
    guarded = """SELECT CASE WHEN value LIKE '{%' THEN json_value(value, '$.n')::INT ELSE -1 END AS n,
            coalesce(try_cast(value AS INT), json_value(value, '$.n')::INT) AS m,
            CASE WHEN value = '{"n": 0}' THEN error('no') WHEN value = '7' THEN 7 END AS e
        FROM {{ input }} WHERE json_valid(value) AND coalesce(json_value(value, '$.n')::INT, 0) < 9"""
    values = [b'{"n": 1}', b"{", b"7", b'{"n": "x"}', b'{"n": 10}', b'{"n": 0}', b"nothing"]
    result = SqlTransform(guarded).apply(batch(values))
    assert result.rows.to_pylist() == [{"n": 1, "m": 1, "e": None}, {"n": -1, "m": 7, "e": 7}]
    assert result.filtered.tolist() == [1, 4, 6]
    reasons = [(bad.index, bad.reason) for bad in result.bad]
    assert reasons == [(3, "WHERE: Could not convert 'x' to INTEGER"), (5, "column e: Invalid Input Error: no")]


def test_every_record_bad() -> None:
    result = SqlTransform("SELECT 'x'::INT AS n FROM {{ input }}").apply(batch([b"a"] * 300))
    assert len(result.bad) == 300
    assert result.rows.num_rows == 0


def test_conditions_are_told_apart_from_failures_by_their_place() -> None:
    sql = "SELECT value::INT AS n FROM {{ input }} WHERE value <> 'x'"
    result = SqlTransform(sql).apply(batch([b"1", b"x", b"y"]))
    assert (result.kept.tolist(), result.filtered.tolist(), [b.index for b in result.bad]) == ([0], [1], [2])


def test_an_empty_batch() -> None:
    result = SqlTransform(ROWS).apply(batch([]))
    assert result.rows.schema == SqlTransform(ROWS).schema
    assert len(result.kept) == len(result.filtered) == len(result.bad) == 0


def test_filtered_offsets_as_ranges() -> None:
    raw = batch([b"x", b"x", b"a", b"x", b"b"])
    result = SqlTransform("SELECT value AS v FROM {{ input }} WHERE value <> 'x'").apply(raw)
    assert spans(raw.offsets, result.filtered) == [(1000, 1004), (1009, 1010)]
    assert spans(raw.offsets, result.filtered[:0]) == []
