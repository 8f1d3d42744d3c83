"""Reading of a source table in ranges of its key, and the comparison of rows, without a server."""

from __future__ import annotations

import itertools
import random
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.audit.key_comparison import opened
from airflow_lakestream.audit.source_comparison import RowDigests, SourceComparison, differing_rows
from airflow_lakestream.audit.source_database import (
    ComparedValue,
    DatabaseAddress,
    DatabaseKind,
    SourceColumn,
    SourceDatabase,
    SourceTable,
)
from airflow_lakestream.audit.source_engines import MySqlDatabase, PostgresDatabase
from airflow_lakestream.exceptions import MissingExtra

ADDRESS = DatabaseAddress(kind=DatabaseKind.MYSQL, host="h", user="u", password="secret", where="connection 'c'")


class InSqlite(MySqlDatabase):
    """The statements for MySQL, run by SQLite."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sqlite, self._address = sql, ADDRESS

    def fetch(self, query: str, parameters: Sequence[Any] = ()) -> list[Sequence[Any]]:
        text = query.replace("%s", "?").replace("%%", "%")
        # SQLite lists rows for IN as VALUES.
        before, is_lookup, after = text.partition(") IN (")
        text = f"{before}) IN (VALUES {after}" if is_lookup else text
        return self._sqlite.execute(text, parameters).fetchall()


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 500, 1_003])
def test_all_rows_are_read_once_in_ranges_of_keys(width: int, count: int) -> None:
    chance = random.Random(width)
    names = [f"k%{at}`" for at in range(width)]
    side = 2 + int(count ** (1 / width))
    keys = chance.sample(list(itertools.product(range(side), repeat=width)), count)
    sql = sqlite3.connect(":memory:")
    quoted = ", ".join("`" + name.replace("`", "``") + "`" for name in names)
    sql.execute(f"create table t ({quoted}, v)")
    sql.executemany(f"insert into t values ({', '.join('?' * width)}, 'x')", keys)
    columns = [SourceColumn(name=name, kind="int", full_type="int") for name in names]
    schema = pa.schema([(name, pa.int64()) for name in names])
    values = {name: (column, ComparedValue("{c}")) for name, column in zip(names, columns, strict=True)}
    table = SourceTable("t", columns, schema, values, {})
    database: SourceDatabase = InSqlite(sql)

    chunks = [
        list(zip(*(column.to_pylist() for column in rows.columns), strict=True)) for rows in database.chunks(table)
    ]
    assert [key for rows in chunks for key in rows] == sorted(keys)
    assert [len(rows) for rows in chunks][:1] == ([min(count, 500)] if count else [])
    wanted = [*keys[:700], (-1,) * width]
    found = database.rows_of(table, wanted)
    assert sorted(zip(*(column.to_pylist() for column in found.columns), strict=True)) == sorted(keys[:700])


def test_suspects_are_the_keys_whose_rows_differ(tmp_path: Any) -> None:
    chance = random.Random(5)
    columns = pa.schema([("id", pa.uuid()), ("n", pa.decimal128(9, 2)), ("v", pa.string())])
    digests = RowDigests(("id", "n"), columns)

    def row(number: int) -> tuple[bytes, str, str | None]:
        return number.to_bytes(16, "big"), "1.50", chance.choice(["a", "b", None, ""])

    def table(rows: Sequence[tuple[bytes, str, str | None]]) -> pa.Table:
        ids, numbers, values = zip(*rows, strict=True) if rows else ((), (), ())
        stored = pa.ExtensionArray.from_storage(pa.uuid(), pa.array(ids, pa.binary(16)))
        made = [stored, pa.array(numbers, pa.string()).cast(pa.decimal128(9, 2)), pa.array(values, pa.string())]
        return pa.Table.from_arrays(made, schema=columns)

    base = {number: row(number) for number in range(300) if number % 11}
    held = {
        number: row(number) if number % 5 == 0 else base.get(number, row(number)) for number in range(300) if number % 7
    }
    places = {"_kafka_partition": pa.int32(), "_kafka_offset": pa.int64()}
    mirror = table(list(held.values()))
    for name, kind in places.items():
        mirror = mirror.append_column(name, pa.array([*held], kind))
    with opened(tmp_path) as database:
        comparison = SourceComparison(database, digests)
        comparison.load("held", [mirror.slice(0, 100), mirror.slice(100), mirror.slice(7, 1)])
        comparison.load("base", [table(list(base.values()))])
        suspects = comparison.suspects()
    expected = {n for n in range(300) if held.get(n) != base.get(n)}
    ids = [int.from_bytes(one.bytes, "big") for one in suspects.keys["id"].to_pylist()]
    assert (set(ids), suspects.left_out) == (expected, 0)
    assert [(one.offset, one.times) for one in suspects.doubled] == [([*held][7], 2)]
    found = differing_rows(digests, suspects.keys, mirror, table(list(base.values())))
    assert {(one.fault.value, one.offset) for one in found.faults.values()} == {
        ("missing" if n not in held else "extra" if n not in base else "different", n if n in held else -1)
        for n in expected
    }
    assert {one.columns for one in found.faults.values()} == {(), ("v",)}


@pytest.mark.parametrize(("kind", "module"), [(PostgresDatabase, "psycopg"), (MySqlDatabase, "pymysql")])
def test_a_missing_driver_is_named_with_its_extra(kind: Any, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"{module} is not installed: .*\[database\]"):
        kind(ADDRESS, "shop.t")


def test_an_address_shows_no_password() -> None:
    assert "secret" not in repr(ADDRESS)
