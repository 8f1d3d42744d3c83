"""Each kind of check before rows show: rows that do not pass, and checks that can not be."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.checks.audit import CheckProcess, SqlAuditor
from airflow_lakestream.config.checks import parse_checks
from airflow_lakestream.core.checks import ChecksFailed, LandingChecks, RowCountCheck
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ports import RecordChunk
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.job import ExtractConfig
from tests.support.given_records import Record
from tests.unit.checks.checked import SCHEMA, CheckedLake, record

# Checks of one landing, and what is said of them.
FAILING: list[tuple[dict[str, Any], list[str]]] = [
    (
        {
            "not_null": ["id", "name"],
            "unique": "id",
            "row_count": {"min": 5},
            "freshness": "1h",
            "sql": [
                "SELECT 1 FROM landing WHERE false",
                "SELECT * FROM landing WHERE id = 2;",
                "SELECT name::INT AS n FROM landing",
                "SELECT JSON_VALUE('{\"a\": 1}', '$.a') AS a FROM landing",
                "SELECT l.id FROM landing l JOIN landing r USING (id)",
            ],
        },
        [
            "row_count: 4 rows, fewer than 5",
            "not_null: name: NULL in 1 of the rows\n    given[0] offset 2: name=NULL",
            "unique: id: equal values in 2 of the rows\n    given[0] offset 0: id=1\n    given[0] offset 3",
            "freshness: the newest record is of 2001-09-09T01:46:40+00:00",
            "    given[0] offset 1: id=2, name=b",
            "it failed: Conversion Error",
            "    a=1\n    a=1",
            "it returned rows",
        ],
    ),
    # One of each kind as a text; a landing may fail by the number of its rows alone.
    ({"not_null": "name", "row_count": {"max": "4"}}, ["given[0] offset 2: name=NULL"]),
    ({"row_count": {"max": "3"}}, ["row_count: 4 rows, more than 3"]),
]


def test_a_failed_check_shows_nothing_and_keeps_the_rows(lake: CheckedLake) -> None:
    old = 1_000_000_000_000
    records = [record(1, "a", old), record(2, "b", old), record(3, None, old), record(1, "c", old)]
    for checks, said in FAILING:
        with pytest.raises(ChecksFailed) as caught:
            lake.land(records, checks=checks)
        assert len(caught.value.findings) == len(said)
        for finding, text in zip(caught.value.findings, said, strict=True):
            assert text in str(finding)
            assert str(finding) in str(caught.value)
        (branch,) = lake.kept()
        assert caught.value.branch == branch.name
        assert branch.name in str(caught.value)
        assert (lake.ids(), lake.landed()) == ([], 0)
        assert lake.kept_ids() == [1, 1, 2, 3]


def test_what_passes_is_one_snapshot_of_main(lake: CheckedLake) -> None:
    checks = {
        "sql": ["SELECT * FROM landing WHERE name = 'bad'"],
        "not_null": ["id"],
        "unique": ["id", "name"],
        "row_count": {"min": 1, "max": 10, "min_of_week": 0.5, "max_of_week": 2},
        "freshness": 3600,
    }
    records = [record(1), record(2)]
    first = lake.land(records, checks=checks)
    records += [record(3), record(4)]
    second = lake.land(records, checks=checks)
    assert (lake.ids(), lake.landed()) == ([1, 2, 3, 4], 4)
    metadata = lake.iceberg().metadata
    assert list(metadata.refs) == ["main"]
    # The one before the first landing says where the group begins.
    assert [s.snapshot_id for s in metadata.snapshots][1:] == [*first.snapshot_ids, *second.snapshot_ids]
    assert lake.land(records, checks=checks).snapshot_ids == []


def test_the_last_week_tells_how_many_rows_are_usual(lake: CheckedLake) -> None:
    records = [record(number) for number in range(10)]
    lake.land(records, checks={"row_count": {"min_of_week": 5}})
    with pytest.raises(ChecksFailed, match=r"1 rows, fewer than 0\.5 times the last week's mean of 10"):
        lake.land([*records, record(10)], checks={"row_count": {"min_of_week": 0.5}})
    with pytest.raises(ChecksFailed, match="21 rows, more than 2 times the last week's mean of 10"):
        lake.land([*records, *map(record, range(10, 31))], checks={"row_count": {"max_of_week": 2}})


def test_a_landing_without_rows_is_asked_for_their_number_only(lake: CheckedLake) -> None:
    records = [Record(b"no json"), Record(b"no json either")]
    options: dict[str, Any] = {"schema": SCHEMA, "max_rejected": 1.0}
    with pytest.raises(ChecksFailed, match="there are no rows to look at"):
        lake.land(records, checks={"row_count": {"min": 1}}, **options)
    report = lake.land(records, checks={"not_null": ["id"], "freshness": 1}, **options)
    assert (report.counts.rejected, lake.landed(), len(lake.rejected())) == (2, 2, 2)


class Unread:
    """A reader that nobody may ask."""

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        raise AssertionError(f"{plan.ranges} was read")


WRONG = [
    ({"sql": "SELECT * FROM landing WHERE colour = 'red'"}, "checks.sql: DuckDB can't bind .*colour"),
    ({"sql": "SELEC 1"}, "checks.sql: 'SELEC 1': DuckDB does not understand it"),
    ({"not_null": ["Name"]}, "checks.not_null: there is no column 'Name'. The columns are: id, name, _kafka_topic"),
    ({"unique": ["id", "colour"]}, "checks.unique: there is no column 'colour'"),
]


@pytest.mark.parametrize(("checks", "said"), WRONG)
def test_what_can_never_work_is_said_before_anything_is_read(
    lake: CheckedLake, checks: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        land(replace(lake.job([record(1), record(2)], checks=checks, schema=SCHEMA), reader=Unread()))


NO_STATEMENT = [
    ("DROP TABLE landing", "checks.sql: 'DROP TABLE landing': only a SELECT"),
    ("SELECT 1; SELECT 2", "several statements"),
    ("SELECT * FROM landing WHERE name = 'a\0b'", "it has a zero byte"),
    ("SELECT * FROM read_csv('/etc/passwd')", "checks.sql: DuckDB can't bind .*disabled by configuration"),
    ("SELECT * FROM other", "checks.sql: DuckDB can't bind .*other"),
]


def test_a_statement_that_can_never_work_is_refused() -> None:
    columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with closing(CheckProcess()) as process:
        for sql, said in NO_STATEMENT:
            with pytest.raises(InvalidArgument, match=said):
                process.bind("it", process.select(sql), columns)


def test_the_columns_of_a_table_are_asked_before_anything_is_read(lake: CheckedLake) -> None:
    lake.land([record(1)])
    with pytest.raises(InvalidArgument, match="there is no column 'colour'"):
        land(replace(lake.job([record(1), record(2)], checks={"unique": ["colour"]}), reader=Unread()))


def test_columns_that_change_are_asked_again() -> None:
    first = pa.schema([("id", pa.int64()), ("name", pa.string())])
    auditor = SqlAuditor(LandingChecks(statements=("SELECT * FROM landing WHERE name = 'bad'",)))
    auditor.check_columns(first)
    with pytest.raises(InvalidArgument, match=r"DuckDB can't bind .*name"):
        auditor.check_columns(first.remove(1))
    auditor.check_columns(first)


def test_columns_that_the_records_tell_are_looked_up_once_they_are_known(lake: CheckedLake) -> None:
    with pytest.raises(InvalidArgument, match="there is no column 'colour'"):
        lake.land([record(1)], checks={"not_null": ["colour"]})
    assert (lake.ids(), lake.landed(), lake.kept()) == ([], 0, [])
    assert lake.parquet_files() == set()


NOT_TOLD: list[tuple[object, str]] = [
    ([], r"checks: \[\] is not a mapping"),
    ({"notnull": ["id"]}, "checks: 'notnull' is not one of 'sql', 'not_null'"),
    ({"not_null": {"id": 1}}, "checks.not_null: .* is not a list of texts"),
    ({"unique": ["id", "id"]}, "checks.unique: 'id' is there twice"),
    ({"sql": [" "]}, "checks.sql: a statement is empty"),
    ({"row_count": 5}, "checks.row_count: 5 has no bounds"),
    ({"row_count": {"least": 5}}, "checks.row_count: 'least' is not one of 'min', 'max'"),
    ({"row_count": {"min": 1.5}}, "checks.row_count.min: 1.5 is not a whole number"),
    ({"row_count": {"min": True}}, "checks.row_count.min: True is not"),
    ({"row_count": {"max_of_week": "nan"}}, "checks.row_count.max_of_week: 'nan' is not a number"),
    ({"row_count": {"min": 2, "max": 1}}, "checks.row_count: the least, 2, is more than the most, 1"),
    ({"freshness": "soon"}, "checks.freshness: 'soon' is not a number of seconds"),
]


@pytest.mark.parametrize(("value", "said"), NOT_TOLD)
def test_what_is_no_check_is_said(value: object, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_checks("checks", value)


def test_numbers_may_be_texts_as_templates_render_them() -> None:
    found = parse_checks("checks", {"row_count": {"min": "1", "max": "None", "min_of_week": "0.5"}, "sql": "SELECT 1"})
    assert found is not None
    assert (found.row_count, found.statements) == (RowCountCheck(1, None, 0.5, None), ("SELECT 1",))
    assert parse_checks("checks", {}) is parse_checks("checks", {"not_null": []}) is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"table": "lake.{header:kind}"}, "several tables"),
        ({"schema_evolution": "widen"}, "schema_evolution='widen' does not go with checks"),
        ({"metadata_columns": ["topic", "offset"]}, 'checks.freshness: needs "timestamp" in metadata_columns'),
    ],
)
def test_what_checks_do_not_go_with(more: dict[str, Any], said: str) -> None:
    options = {"topic": "t", "table": "lake.events", "consumer_group": "g", "checks": {"freshness": 60}, **more}
    with pytest.raises(InvalidArgument, match=said):
        ExtractConfig(**options)


def test_new_columns_come_with_the_commit_that_passes(lake: CheckedLake) -> None:
    lake.land([record(1)])
    more = [record(1), Record(b'{"id": 2, "name": "n", "colour": "red"}')]
    options: dict[str, Any] = {"schema_evolution": "add", "unknown_fields": "evolve"}
    with pytest.raises(ChecksFailed, match="colour=red"):
        lake.land(more, checks={"sql": "SELECT colour FROM landing WHERE colour = 'red'"}, **options)
    assert "colour" not in lake.iceberg().schema().column_names
    lake.land(more, checks={"not_null": ["colour"]}, **options)
    assert [row["colour"] for row in lake.rows()] == [None, "red"]


def test_a_statement_reads_each_type_as_the_table_has_it(lake: CheckedLake) -> None:
    value = b"""{"u": "123e4567-e89b-12d3-a456-426614174000", "d": "1.25", "t": "12:00:01", "b": "AAEC", "l": ["a"],
        "ts": "2026-01-01T00:00:00Z", "m": {"k": 1}, "s": {"x": 1, "y y": "z"}, "odd-name": "q"}"""
    schema = """u uuid, d decimal(12,4), t time, b binary, l array<string>, ts timestamp, m map<string,bigint>,
        s struct<x: bigint, `y y`: string>, `odd-name` string"""
    statement = """SELECT * FROM landing WHERE u = '123e4567-e89b-12d3-a456-426614174000'::UUID AND d = 1.25
        AND t = TIME '12:00:01' AND b = '\\x00\\x01\\x02'::BLOB AND l[1] = 'a' AND m['k'] = 1 AND s."y y" = 'z'
        AND ts = TIMESTAMPTZ '2026-01-01 00:00:00Z' AND "odd-name" = 'q'"""
    with pytest.raises(ChecksFailed) as caught:
        lake.land([value], schema=schema, on_error="fail", checks={"sql": statement, "unique": ["u", "l", "m", "s"]})
    (finding,) = caught.value.findings
    assert finding.problem == "it returned rows"
    assert "offset 0: u=123e4567-e89b-12d3-a456-426614174000, d=1.2500, t=12:00:01" in str(finding)


def test_columns_that_differ_in_case_only_are_refused() -> None:
    columns = pa.schema([("id", pa.int64()), ("ID", pa.int64())])
    with pytest.raises(InvalidArgument, match="upper and lower case"):
        SqlAuditor(LandingChecks(not_null=("ID",))).check_columns(columns)


def test_rows_of_partitions_and_several_files(lake: CheckedLake) -> None:
    records = [record(number, f"n{number % 3}") for number in range(9)]
    options: dict[str, Any] = {"partition_by": ["name"], "schema": SCHEMA}
    with pytest.raises(ChecksFailed, match="given\\[0\\] offset 7: id=7"):
        lake.land(records, checks={"sql": "SELECT * FROM landing WHERE id = 7"}, **options)
    lake.land(records, checks={"unique": ["id"]}, **options)
    assert len(lake.files()) == 3
    assert sorted(lake.ids()) == list(range(9))
