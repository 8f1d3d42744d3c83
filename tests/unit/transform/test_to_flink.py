"""Statements of the common subset as Flink's: what they become, what is refused and where, and what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform.to_flink.functions import FORMS, SAME, NotCommon, place_in
from airflow_lakestream.transform.to_flink.translate import translated
from airflow_lakestream.transform.transform import RAW_SCHEMA

POSITIONS = "`_kafka_topic`, `_kafka_partition`, `_kafka_offset`, `_kafka_timestamp`"
PAGE = Path(__file__).parents[3] / "docs" / "sql.md"
DECODED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])


def flink(sql: str, columns: pa.Schema = RAW_SCHEMA) -> str:
    return translated(sql, columns, raw=columns is RAW_SCHEMA)


def selected(expression: str) -> str:
    """Return Flink's form of one expression of a record."""
    made = flink(f"SELECT {expression} AS it FROM {{{{ input }}}}")
    return made.removeprefix("SELECT ").partition(f" AS `it`, {POSITIONS} FROM")[0]


@pytest.mark.parametrize(
    ("expression", "form"),
    [
        ("json_value(value, '$.a.b[0].\"unit price\"')", "JSON_VALUE(`value`, '$[''a''][''b''][0][''unit price'']')"),
        ("JSON_QUERY(value, '$.a')", "JSON_QUERY(`value`, '$[''a'']')"),
        ("key || 'x'", "(`key` || 'x')"),
        ("concat(key, 'x')", "(COALESCE(`key`, '') || COALESCE('x', ''))"),
        ("key = 'it''s'", "(`key` = 'it''s')"),
        ("key IN ('a', 'b')", "((`key` = 'a') OR (`key` = 'b'))"),
        ("key LIKE 'a%'", "(`key` LIKE 'a%')"),
        ("key IS NOT NULL AND NOT (key > 'b')", "((`key` IS NOT NULL) AND (NOT (`key` > 'b')))"),
        ("coalesce(key, 'none')", "COALESCE(`key`, 'none')"),
        ("nullif(key, '')", "CASE WHEN (`key` = '') THEN NULL ELSE `key` END"),
        ("substr(key, 2)", "SUBSTRING(`key`, 2, 999999999)"),
        (
            "split_part(key, '-', 2)",
            "CASE WHEN `key` IS NOT NULL THEN COALESCE(SPLIT_INDEX(`key`, '-', 2 - 1), '') END",
        ),
        ("key::BIGINT", "TRY_CAST(`key` AS BIGINT)"),
        ("TRY_CAST(key AS DECIMAL(10, 2))", "TRY_CAST(`key` AS DECIMAL(10, 2))"),
        ("year(event_timestamp)", "CAST(EXTRACT(YEAR FROM CAST(`event_timestamp` AS TIMESTAMP(6))) AS BIGINT)"),
        ("strftime(event_timestamp, '%Y-%m')", "DATE_FORMAT(CAST(`event_timestamp` AS TIMESTAMP(6)), 'yyyy-MM')"),
        ("event_timestamp AT TIME ZONE 'UTC'", "CAST(CAST(`event_timestamp` AS TIMESTAMP(6)) AS TIMESTAMP(6))"),
        ("CAST(event_timestamp AS DATE)", "CAST(`event_timestamp` AS DATE)"),
        ("_kafka_offset", "`_kafka_offset`"),
    ],
)
def test_an_expression_has_its_form(expression: str, form: str) -> None:
    assert selected(expression) == form


@pytest.mark.parametrize("expression", ["id % 0", "id // (id - 5)", "id / 0", "id::DOUBLE / id"])
def test_a_division_by_zero_is_left_to_duckdb_which_has_an_error_or_infinity_of_it(expression: str) -> None:
    made = flink(f"SELECT {expression} AS it FROM {{{{ input }}}}", DECODED)
    assert re.search(r" = 0\) IS NOT TRUE( AND|$)", made), made


def test_a_chain_carries_the_positions_and_a_star_is_written_out() -> None:
    made = flink(
        "WITH a AS (SELECT key AS k, _kafka_offset AS o FROM {{ input }} AS e WHERE e.key IS NOT NULL) "
        "SELECT * EXCLUDE (o) FROM (SELECT * FROM a) AS b WHERE k <> 'x'"
    )
    assert made.startswith(f"SELECT `k` AS `k`, {POSITIONS} FROM (SELECT `k` AS `k`, `o` AS `o`, {POSITIONS} FROM (")
    assert made.endswith(") AS `b` WHERE (`k` <> 'x')")


def test_a_decoded_column_needs_no_doubt_and_a_list_is_refused() -> None:
    made = flink("SELECT id, name FROM {{ input }} WHERE id > 3", DECODED)
    assert made.startswith(
        f"SELECT `id` AS `id`, `name` AS `name`, {POSITIONS} FROM source AS `_lakestream_input` WHERE"
    )
    with pytest.raises(NotCommon, match=r"line 1, column 8: the column tags of type VARCHAR\[\]"):
        flink("SELECT tags FROM {{ input }}", DECODED)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT 1 AS a,\n  printf('%d', 3) AS b FROM {{ input }}", "line 2, column 3: printf"),
        ("SELECT key AS a FROM {{ input }}\nWHERE key ILIKE 'x'", "line 2, column 11: ILIKE"),
        ("SELECT 'ü' AS a, bar(key, 'x') AS b FROM {{ input }}", "line 1, column 18: bar with 2 arguments"),
        ("WITH a AS (SELECT key FROM {{ input }}) SELECT reverse(key) AS r FROM a", "line 1, column 48: reverse"),
        ("SELECT event_timestamp + INTERVAL 1 DAY AS a FROM {{ input }}", "column 24: + for TIMESTAMP WITH TIME ZONE"),
        ("SELECT key::TINYINT AS a FROM {{ input }}", "column 11: the type TINYINT"),
        ("SELECT key::DOUBLE::VARCHAR AS a FROM {{ input }}", "column 11: a cast of DOUBLE to VARCHAR"),
        ("SELECT headers FROM {{ input }}", "column 8: the column headers"),
        ("SELECT event_timestamp AT TIME ZONE 'Europe/Berlin' AS a FROM {{ input }}", "column 8: timezone takes 'UTC'"),
        ("SELECT strftime(event_timestamp, '%j') AS a FROM {{ input }}", "column 8: strftime takes a format that is"),
        ("SELECT regexp_matches(key, '(?i)a') AS a FROM {{ input }}", "column 8: regexp_matches takes a pattern that"),
        ("SELECT key = event_timestamp AS a FROM {{ input }}", "VARCHAR next to TIMESTAMP WITH TIME ZONE"),
    ],
)
def test_what_is_not_common_is_named_with_its_place_and_who_takes_it(sql: str, said: str) -> None:
    with pytest.raises(NotCommon) as caught:
        flink(sql.replace("bar(", "lpad("))
    assert said.replace("bar", "lpad").removesuffix(" with 2 arguments") in str(caught.value)
    assert "extract, group and spark take it" in str(caught.value)


@pytest.mark.parametrize("sql", ["SELECT count(*) AS n FROM {{ input }}", "SELECT nothing FROM {{ input }}", "SELEC 1"])
def test_what_duckdb_refuses_is_refused_as_there(sql: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        flink(sql if "input" in sql else sql + " FROM {{ input }}")
    assert not isinstance(caught.value, NotCommon)


def test_a_place_is_counted_in_what_the_user_wrote() -> None:
    sql = "SELECT a\nFROM {{input}} WHERE é = b FROM {{ input }} x"
    replaced = re.sub(r"\{\{ ?input ?\}\}", "_lakestream_input", sql)
    for word in ("a\n", "WHERE", "b FROM", "x"):
        line, column = place_in(sql, len(replaced[: replaced.rindex(word)].encode()))
        assert sql.split("\n")[line - 1][column - 1 :].startswith(word.strip())


def test_the_page_names_each_function() -> None:
    named = set(re.findall(r"`([a-z_0-9]+)\(", PAGE.read_text().partition("## On Flink")[2]))
    assert named >= {*FORMS, *SAME} - {"datepart", "datetrunc"}
