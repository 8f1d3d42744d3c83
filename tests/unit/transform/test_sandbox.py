"""No way out of the statement: each one tried through the checks, and then past them, on the database itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform import SqlTransform
from airflow_lakestream.transform.sandbox import open_database
from tests.unit.transform.support import planned


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.csv"
    path.write_text("password\nhunter2\n")
    return path


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    return open_database("64MB", 1).cursor()


WAYS = [
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_blob('{secret}')",
    "SELECT * FROM read_json('{secret}')",
    "SELECT * FROM read_parquet('{secret}')",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM parquet_metadata('{secret}')",
    "SELECT * FROM read_csv('https://localhost/x.csv')",
    "SELECT * FROM sqlite_scan('{secret}', 't')",
    "SELECT * FROM python_variable",
    "COPY (SELECT 1) TO '{secret}.out'",
    "COPY (SELECT 1) TO '{secret}.out' (FORMAT parquet)",
    "EXPORT DATABASE '{folder}/out'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{folder}/other.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{secret}'",
    "INSTALL httpfs FROM community",
    "SET enable_external_access = true",
    "SET GLOBAL memory_limit = '10GB'",
    "SET threads = 8",
    "SET TimeZone = 'Europe/Berlin'",
    "SET python_enable_replacements = true",
    "RESET lock_configuration",
    "SET lock_configuration = false",
    "PRAGMA temp_directory = '{folder}'",
    "CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "CALL pragma_database_size('x')",
]


@pytest.mark.parametrize("way", WAYS)
def test_no_way_out_of_the_database_itself(way: str, database: duckdb.DuckDBPyConnection, secret: Path) -> None:
    python_variable = [1]  # noqa: F841
    before = sorted(secret.parent.iterdir())
    with pytest.raises(duckdb.Error):
        database.execute(way.format(secret=secret, folder=secret.parent)).fetchall()
    assert sorted(secret.parent.iterdir()) == before


# The process refuses by the plan, which is tried with all of them.
@pytest.mark.long
@pytest.mark.parametrize("way", ["SELECT * FROM read_csv('{secret}')", "SET lock_configuration = false"])
def test_no_way_out_of_a_process(way: str, secret: Path) -> None:
    assert way in WAYS
    with pytest.raises(InvalidArgument, match=r"^sql: "):
        SqlTransform(way.format(secret=secret, folder=secret.parent))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "form",
    [
        "{way}",
        "SELECT value AS v FROM {{{{ input }}}}; {way}",
        "WITH x AS ({way}) SELECT value AS v FROM {{{{ input }}}}",
        "SELECT v FROM ({way}) WHERE {{{{ input }}}} IS NULL",
        "SELECT value AS v FROM {{{{ input }}}} WHERE EXISTS ({way})",
    ],
)
def test_no_way_out_of_a_statement(way: str, form: str, secret: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^sql: "):
        planned(form.format(way=way.format(secret=secret, folder=secret.parent)))


@pytest.mark.parametrize(
    "expression",
    [
        "getenv('HOME')",
        "current_setting('home_directory')",
        "write_log('x')",
        "sleep_ms(1000)",
        "query('SELECT 1')",
        "query_table('x')",
        "json_execute_serialized_sql('x')",
        "duckdb_settings()",
        "pragma_version()",
        "system.main.read_text('x')",
        "setseed(0.5)",
    ],
)
def test_no_way_out_of_an_expression(expression: str) -> None:
    with pytest.raises(InvalidArgument, match="is not allowed here"):
        planned(f"SELECT {expression} AS v FROM {{{{ input }}}}")


def test_no_extension_is_there_that_has_to_be_fetched(database: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.Error):
        database.execute("SELECT ST_Point(1, 2)").fetchall()


def test_two_databases_share_nothing() -> None:
    first, second = open_database("64MB", 1), open_database("64MB", 1)
    first.execute("CREATE TABLE t AS SELECT 1 AS a")
    with pytest.raises(duckdb.CatalogException):
        second.execute("SELECT * FROM t")


def test_limits_are_kept(database: duckdb.DuckDBPyConnection) -> None:
    rows = database.execute("SELECT current_setting('threads'), current_setting('memory_limit')").fetchall()
    assert rows == [(1, "61.0 MiB")]
    with pytest.raises(duckdb.OutOfMemoryException):
        database.execute("SELECT string_agg(repeat('x', 100000)) FROM range(2000)").fetchall()


@pytest.mark.parametrize("limit", ["lots", "-1MB", "0MB", "80%"])
def test_a_memory_limit_that_is_none_is_refused(limit: str) -> None:
    with pytest.raises(InvalidArgument, match="memory_limit"):
        open_database(limit, 1)


def test_the_zone_of_the_machine_changes_nothing() -> None:
    # In a process with the variable: that of a SqlTransform is given none.
    code = """if True:
        from tests.unit.transform.support import batch, rows_here
        midnight = "CAST(TIMESTAMP '2026-07-01 00:00:00' AS TIMESTAMPTZ)::VARCHAR"
        sql = f"SELECT {midnight} || strftime(event_timestamp, '%H:%M') AS v FROM {{{{ input }}}}"
        print(rows_here(sql, batch([b""], timestamps=[0]))["v"].to_pylist())
    """
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for zone in ("Asia/Tokyo", "America/New_York")
    ]
    assert runs == ["['2026-07-01 00:00:00+0000:00']"] * 2
