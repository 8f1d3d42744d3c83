"""Tables of a MariaDB or MySQL, as the source of a mirror."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from airflow_lakestream.audit.source_database import (
    EXTRA,
    TIMEOUT_S,
    DatabaseAddress,
    DatabaseFailed,
    Row,
    SourceDatabase,
)
from airflow_lakestream.audit.source_types import ComparedValue, SourceColumn, mysql_value
from airflow_lakestream.exceptions import MissingExtra


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

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except self._failure as e:
            raise DatabaseFailed(self._address.where, e) from e

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
            # Of a column indexed by its beginning the index has no order: no key has such a name.
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
        *before, last = [self.quoted(one.name) for one in key]
        later, places = f"{last} > %s", [len(before)]
        for at in range(len(before) - 1, -1, -1):
            name = before[at]
            later, places = f"{name} >= %s AND ({name} > %s OR ({later}))", [at, at, *places]
        return later, places

    def _is_sorted(self, column: SourceColumn) -> bool:
        # The numbers of enums order them, and their texts compare.
        return column.kind not in ("enum", "set", "bit", "float", "double", "time")


_COLUMNS_OF_MYSQL = """
SELECT column_name, data_type, column_type, is_nullable, nullif(generation_expression, '')
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_UNIQUE_OF_MYSQL = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0
"""
