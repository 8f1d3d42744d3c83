"""PostgreSQL and MySQL (MariaDB too) as the databases of mirrors: tables, keys and values for a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_lakestream.audit.source_database import (
    ARGUMENT,
    EXTRA,
    TIMEOUT_S,
    ComparedValue,
    DatabaseAddress,
    Row,
    SourceColumn,
    SourceDatabase,
    mysql_value,
    postgres_value,
)
from airflow_lakestream.exceptions import InvalidArgument, MissingExtra


class PostgresDatabase(SourceDatabase):
    """A PostgreSQL. Raises MissingExtra, DatabaseFailed, and InvalidArgument for a standby."""

    def __init__(self, address: DatabaseAddress, source: str) -> None:
        try:
            import psycopg
            from psycopg.conninfo import make_conninfo
        except ModuleNotFoundError as e:
            raise MissingExtra(EXTRA, e.name) from e
        self._address, self._failure = address, psycopg.Error
        database = address.database or source.partition(".")[0]
        with self._failing():
            options = make_conninfo(
                host=address.host,
                port=address.port,
                user=address.user or None,
                password=address.password or None,
                dbname=database,
                connect_timeout=TIMEOUT_S,
                application_name="lakestream audit",
                **address.options,
            )
            self._sql = psycopg.connect(options, autocommit=True)
        # Rows that the login may not see must fail, instead of being left out.
        for setting in ("timezone TO 'UTC'", "datestyle TO 'ISO'", "extra_float_digits TO 1", "row_security TO off"):
            self.fetch(f"SET SESSION {setting}")
        self.fetch("SET SESSION default_transaction_read_only TO on")
        if self.fetch("SELECT pg_is_in_recovery()")[0][0]:
            problem = f"{address.where} is a standby, which may lag behind the log that Debezium reads."
            raise InvalidArgument(ARGUMENT, problem, "Name the primary.")

    def fetch(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query. Raises DatabaseFailed."""
        with self._failing():
            cursor = self._sql.execute(query.encode(), parameters)
            return list(cursor.fetchall()) if cursor.description else []

    def clock(self) -> int:
        """Return the server's time in milliseconds. Raises DatabaseFailed."""
        return int(self.fetch("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")[0][0])

    def close(self) -> None:
        """Close the connection."""
        self._sql.close()

    def _locate(self, source: str) -> tuple[str, list[SourceColumn], list[set[str]]]:
        database = self.fetch("SELECT current_database()")[0][0]
        _, names_database, inner_name = source.partition(f"{database}.")
        schema, _, table = (inner_name if names_database else source).partition(".")
        tables = self.fetch(_TABLE_OF_POSTGRES, [schema, table])
        if not tables:
            return "", [], []
        oid, relkind = tables[0]
        columns = [
            SourceColumn(
                name=name,
                kind=kind,
                full_type=full_type,
                element=element,
                modifier=modifier,
                is_builtin=is_builtin,
                is_generated=is_generated,
                category=category,
            )
            for name, kind, full_type, element, modifier, is_builtin, is_generated, category in self.fetch(
                _COLUMNS_OF_POSTGRES, [oid]
            )
        ]
        uniques = [set(names) for (names,) in self.fetch(_UNIQUE_OF_POSTGRES, [oid])]
        # The log has the rows of inheriting tables under their own names, so they do not count here.
        only = "ONLY " if relkind == "r" else ""
        return f"{only}{self.quoted(schema)}.{self.quoted(table)}", columns, uniques

    def _value(self, column: SourceColumn, kind: pa.DataType) -> ComparedValue | None:
        return postgres_value(column, kind)

    def _key_text(self, column: SourceColumn) -> str:
        return f"format('%%s', {self.quoted(column.name)})"

    def _key_value(self, column: SourceColumn) -> str:
        return f"%s::{column.full_type.replace('%', '%%')}"

    def _later(self, key: Sequence[SourceColumn]) -> tuple[str, list[int]]:
        names = ", ".join(self.quoted(column.name) for column in key)
        parameters = ", ".join(self._key_value(column) for column in key)
        return f"({names}) > ({parameters})", list(range(len(key)))

    def _is_sorted(self, column: SourceColumn) -> bool:
        # Operators of an extension may be outside of the search path; then other operators would compare.
        return column.is_builtin or column.category == "e"


_TABLE_OF_POSTGRES = """
SELECT c.oid::bigint, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""
_COLUMNS_OF_POSTGRES = """
SELECT a.attname::text, t.typname::text, format_type(t.oid, m.modifier), e.typname::text, m.modifier,
    t.typnamespace = 'pg_catalog'::regnamespace, a.attgenerated <> '', t.typtype::text
FROM pg_attribute a
JOIN pg_type o ON o.oid = a.atttypid
JOIN pg_type t ON t.oid = CASE WHEN o.typtype = 'd' THEN o.typbasetype ELSE o.oid END
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
CROSS JOIN LATERAL (SELECT CASE WHEN o.typtype = 'd' THEN o.typtypmod ELSE a.atttypmod END AS modifier) m
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE_OF_POSTGRES = """
SELECT (SELECT array_agg(a.attname::text) FROM pg_attribute a
    WHERE a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]))
FROM pg_index i
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
"""


class MySqlDatabase(SourceDatabase):
    """A MariaDB or MySQL. Raises MissingExtra and DatabaseFailed."""

    _quote = "`"

    def __init__(self, address: DatabaseAddress, source: str) -> None:
        try:
            import pymysql
        except ModuleNotFoundError as e:
            raise MissingExtra(EXTRA, e.name) from e
        self._address, self._failure = address, pymysql.MySQLError
        with self._failing():
            self._sql = pymysql.connect(
                host=address.host,
                port=address.port or 3306,
                user=address.user or None,
                password=address.password,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=TIMEOUT_S,
                **dict(address.options),
            )
        self.fetch("SET SESSION time_zone = '+00:00', sql_mode = ''")
        self.fetch("SET SESSION TRANSACTION READ ONLY")

    def fetch(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query. Raises DatabaseFailed."""
        with self._failing(), self._sql.cursor() as cursor:
            cursor.execute(query, tuple(parameters))
            return list(cursor.fetchall())

    def clock(self) -> int:
        """Return the server's time in milliseconds. Raises DatabaseFailed."""
        return int(self.fetch("SELECT floor(unix_timestamp(now(6)) * 1000)")[0][0])

    def close(self) -> None:
        """Close the connection."""
        self._sql.close()

    def _locate(self, source: str) -> tuple[str, list[SourceColumn], list[set[str]]]:
        database, _, table = source.partition(".")
        columns = [
            SourceColumn(
                name=name, kind=kind, full_type=full, is_nullable=nullable == "YES", is_generated=bool(generated)
            )
            for name, kind, full, nullable, generated in self.fetch(_COLUMNS_OF_MYSQL, [database, table])
        ]
        uniques: dict[str, set[str]] = {}
        for index, column, prefix in self.fetch(_UNIQUE_OF_MYSQL, [database, table]):
            # An index of a column's prefix does not order whole values. The empty name is in no key, so the index does
            # not count.
            uniques.setdefault(index, set()).add(column if prefix is None else "")
        return f"{self.quoted(database)}.{self.quoted(table)}", columns, list(uniques.values())

    def _value(self, column: SourceColumn, kind: pa.DataType) -> ComparedValue | None:
        is_long = column.kind == "bit" and column.full_type != "bit(1)"
        return None if is_long else mysql_value(column, kind)

    def _key_text(self, column: SourceColumn) -> str:
        return self.quoted(column.name)

    def _key_value(self, column: SourceColumn) -> str:
        return "%s"

    def _later(self, key: Sequence[SourceColumn]) -> tuple[str, list[int]]:
        # A comparison of rows would read the whole index.
        *before, last = [self.quoted(column.name) for column in key]
        condition, parameters = f"{last} > %s", [len(before)]
        for index in reversed(range(len(before))):
            name = before[index]
            condition = f"{name} >= %s AND ({name} > %s OR ({condition}))"
            parameters = [index, index, *parameters]
        return condition, parameters

    def _is_sorted(self, column: SourceColumn) -> bool:
        # For example, enums are ordered by number, and compared by text.
        return column.kind not in ("enum", "set", "bit", "float", "double", "time")


_COLUMNS_OF_MYSQL = """
SELECT column_name, data_type, column_type, is_nullable, nullif(generation_expression, '')
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_UNIQUE_OF_MYSQL = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0
"""
