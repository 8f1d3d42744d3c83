"""What a statement may be, and that everything else is refused before the first record, with the reason."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform import SqlTransform
from airflow_lakestream.transform.messages import ROW
from tests.unit.transform.support import batch, planned, rows_here

FROM = "FROM {{ input }}"


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT count(*) AS n FROM {{ input }}", "count_star is not allowed here: it makes one value of several"),
        ("SELECT max(value) AS m FROM {{ input }}", "max is not allowed here: it makes one value of several"),
        ("SELECT json_group_array(value) AS m FROM {{ input }}", "json_group_array is not allowed"),
        ("SELECT weighted_avg(1, 2) AS m FROM {{ input }}", "weighted_avg is not allowed"),
        ("SELECT key FROM {{ input }} GROUP BY key", "GROUP BY is not allowed"),
        ("SELECT key FROM {{ input }} GROUP BY ALL", "GROUP BY is not allowed"),
        ("SELECT key FROM {{ input }} HAVING true", "is not allowed"),
        ("SELECT key, row_number() OVER () AS n FROM {{ input }}", "a window function is not allowed"),
        ("SELECT key FROM {{ input }} QUALIFY row_number() OVER () = 1", "is not allowed"),
        ("SELECT DISTINCT key FROM {{ input }}", "DISTINCT is not allowed"),
        ("SELECT DISTINCT ON (key) key FROM {{ input }}", "DISTINCT is not allowed"),
        ("SELECT key FROM {{ input }} LIMIT 5", "LIMIT is not allowed"),
        ("SELECT key FROM {{ input }} LIMIT 10%", "LIMIT is not allowed"),
        ("SELECT key FROM {{ input }} OFFSET 5", "LIMIT is not allowed"),
        ("SELECT key FROM {{ input }} ORDER BY key", "ORDER BY is not allowed here: .* use sort_order"),
        ("SELECT unnest([1, 2]) AS n FROM {{ input }}", "unnest is not allowed"),
        ("SELECT generate_subscripts([1], 1) AS n FROM {{ input }}", "generate_subscripts is not allowed"),
        ("SELECT regexp_split_to_table(value, ',') AS n FROM {{ input }}", "regexp_split_to_table is not allowed"),
        ("SELECT a.key FROM {{ input }} a JOIN {{ input }} b ON a.key = b.key", "a join is not allowed"),
        ("SELECT a.key FROM {{ input }} a, unnest([1, 2]) b(n)", "a join is not allowed"),
        ("SELECT key FROM {{ input }} UNION ALL SELECT key FROM {{ input }}", "UNION, INTERSECT or EXCEPT"),
        ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT 2) SELECT n FROM r, {{ input }}", "is not allowed"),
        ("SELECT (SELECT 1) AS n FROM {{ input }}", "a subquery in an expression"),
        ("SELECT key FROM {{ input }} WHERE key IN (SELECT 'a')", "a subquery in an expression"),
        ("SELECT key FROM {{ input }} WHERE EXISTS (FROM {{ input }})", "a subquery in an expression"),
        ("SELECT key FROM {{ input }} TABLESAMPLE 10%", "a sample is not allowed"),
        ("SELECT key FROM {{ input }} USING SAMPLE 10", "a sample is not allowed"),
        ("PIVOT {{ input }} ON key USING count(*)", "only a SELECT"),
        ("SELECT key FROM {{ input }} WHERE value = 'a\0b'", "it has a zero byte"),
        ("SELECT 1 AS n", "does not read from {{ input }}"),
        ("SELECT '{{ input }}' AS n", "is not allowed"),
        ("SELECT '{{ input }}' AS n FROM {{ input }}", "{{ input }} inside a string"),
        ("SELECT key AS k FROM {{ input }}; SELECT key AS k FROM {{ input }}", "2 statements"),
        ("SELECT upper(key) FROM {{ input }}", "an expression has no name"),
        ("SELECT key, value AS KEY FROM {{ input }}", "several columns are called 'key'"),
        ("SELECT nothing FROM {{ input }}", "can't bind it: .*nothing"),
        ("SELECT no_such(key) AS k FROM {{ input }}", "no_such is not allowed here: DuckDB has no such function"),
        ("SELECT FROM FROM {{ input }}", "DuckDB does not understand it"),
        ("SELECT #1 AS k FROM {{ input }}", "a column by its number"),
        ("SELECT $1 AS k FROM {{ input }}", "a parameter is not allowed"),
        ("SELECT value AS _kafka_offset FROM {{ input }}", "'_kafka_offset' is not allowed"),
        ("SELECT * RENAME (value AS _kafka_offset) FROM {{ input }}", "RENAME with a name"),
        ("SELECT x FROM {{ input }} x", "x as a value"),
        ("SELECT {{ input }} AS x FROM {{ input }}", "as a value"),
        ("SELECT _lakestream_row FROM {{ input }}", "such names are taken"),
        ("SELECT COLUMNS('k.*') FROM {{ input }}", "COLUMNS with a pattern"),
    ],
)
def test_a_statement_that_is_not_one_row_for_one_record_is_refused(sql: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^sql: .*{reason}") as error:
        planned(sql)
    assert error.value.argument == "sql"


@pytest.mark.parametrize(
    "expression",
    [
        "random()",
        "uuid()",
        "gen_random_uuid()",
        "now()",
        "current_timestamp",
        "current_date",
        "today()",
        "localtimestamp",
        "current_localtimestamp()",
        "age(event_timestamp)",
        "ago(INTERVAL 1 DAY)",
        "nextval('s')",
        "current_setting('TimeZone')",
        "getvariable('x')",
        "current_user",
        "txid_current()",
    ],
)
def test_what_changes_between_tries_is_refused(expression: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is not allowed here: (its result changes|DuckDB has no such)"):
        planned(f"SELECT {expression} AS v FROM {{{{ input }}}}")


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT value AS v {f}", ["a", "b", "c"]),
        ("{f} SELECT value AS v", ["a", "b", "c"]),
        ("SELECT x.value AS v {f} x WHERE x.value > 'a'", ["b", "c"]),
        ("SELECT {{{{ input }}}}.value AS v {f}", ["a", "b", "c"]),
        ("SELECT upper(value) AS u, u || '!' AS v {f} WHERE u <> 'B'", ["A!", "C!"]),
        (
            "WITH p AS (SELECT *, upper(value) AS u {f}), q AS (SELECT u || '1' AS v FROM p WHERE u > 'A') FROM q",
            ["B1", "C1"],
        ),
        ("WITH p AS MATERIALIZED (SELECT value AS v {f}) SELECT v FROM p", ["a", "b", "c"]),
        ("SELECT v FROM (SELECT value AS v, key {f} WHERE value < 'c') WHERE v <> 'a'", ["b"]),
        ("SELECT list_transform([value], lambda x: x || '?')[1] AS v {f}", ["a?", "b?", "c?"]),
        ("SELECT list_sum([1, 2]) AS v {f}", [3, 3, 3]),
        ("SELECT value AS v {f} WHERE false", []),
        ("SELECT CASE value WHEN 'a' THEN 1 ELSE coalesce(NULL, 2) END AS v {f}", [1, 2, 2]),
        ("SELECT value AS v {f} WHERE value IN ('a', 'b') AND value BETWEEN 'b' AND 'c' -- {{{{ input }}}}", ["b"]),
        ("SELECT 1 AS v {f}", [1, 1, 1]),
        ("SELECT value AS v {f};", ["a", "b", "c"]),
    ],
)
def test_what_keeps_one_row_for_one_record_runs(sql: str, rows: list[object]) -> None:
    found = rows_here(sql.format(f=FROM), batch([b"a", b"b", b"c"], keys=[None] * 3, headers=[None] * 3))
    assert found["v"].to_pylist() == rows
    kept = found[ROW].to_pylist()
    assert len(kept) == len(rows)
    assert kept == sorted({0, 1, 2} & {*kept})


def test_a_star_has_the_columns_of_the_record_and_nothing_hidden() -> None:
    transform = SqlTransform("SELECT * FROM {{ input }}")
    assert transform.parts == {RecordPart.KEY, RecordPart.HEADERS}
    result = transform.apply(batch([b"a"], keys=[b"k"], headers=[[("h", b"1")]]))
    assert result.rows.column_names == ["key", "value", "event_timestamp", "headers"]
    inner = planned("SELECT * EXCLUDE (headers) FROM (SELECT *, _kafka_offset FROM {{ input }}) x")
    assert [column.field.name for column in inner.columns] == ["key", "value", "event_timestamp", "_kafka_offset"]


def test_columns_star_reaches_nothing_hidden() -> None:
    schema = pa.schema([("a", pa.int64()), ("_kafka_offset", pa.int64())])
    engine = planned("SELECT COLUMNS(*)::VARCHAR FROM {{ input }}", schema)
    assert engine.input.names == ["a"]
    rows = engine.run(pa.table({"a": [1, 2], ROW: [0, 1]}))
    assert rows.to_pylist() == [{"a": "1", ROW: 0}, {"a": "2", ROW: 1}]


def test_columns_that_are_not_read_are_not_asked_for() -> None:
    assert not SqlTransform("SELECT value AS v FROM {{ input }}").parts
    assert SqlTransform("SELECT len(headers) AS n FROM {{ input }}").parts == {RecordPart.HEADERS}


def test_records_read_without_keys_are_refused() -> None:
    transform = SqlTransform("SELECT key AS k FROM {{ input }}")
    assert transform.parts == {RecordPart.KEY}
    with pytest.raises(InvalidArgument, match="reads keys"):
        transform.apply(batch([b"a"]))
