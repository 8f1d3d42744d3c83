"""Tables of a source database, read by ranges of keys: a chunk is a statement of its own, so nothing stays locked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyarrow import types as arrow

from airflow_lakestream.audit.source_types import ComparedValue, SourceColumn, to_arrow
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient

ARGUMENT = "against_database"
EXTRA = "database"
# Rows of a chunk: the first has few, since rows may be wide.
_FIRST, _MOST = 500, 20_000
_CHUNK_BYTES = 8 * 2**20
_KEYS_AT_ONCE = 500
TIMEOUT_S = 15

Row = Sequence[Any]


class DatabaseFailed(LakestreamError, Transient):
    """The source database refuses a connection or a statement."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__(f"{where}: {type(error).__name__}: {str(error).strip()}")


class DatabaseKind(StrEnum):
    """Kinds of source databases; the value is the type of the connection."""

    POSTGRES = "postgres"
    MYSQL = "mysql"


@dataclass(frozen=True, kw_only=True)
class DatabaseAddress:
    """Address of a source database, and the login.

    :param kind: the kind of server.
    :param database: its name; empty for the one of the mirror's table.
    :param options: options of the driver, such as those of TLS.
    :param where: name of the connection, for errors.
    """

    kind: DatabaseKind
    host: str
    port: int | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    where: str = "the database connection"


@dataclass(frozen=True)
class SourceTable:
    """Table of a source database, as a mirror has it.

    :param name: the table, quoted, in the form of FROM.
    :param key: the columns of the key, in the mirror's order.
    :param values: the compared columns by their names in the mirror, in the mirror's types.
    :param not_compared: reasons by column.
    """

    name: str
    key: Sequence[SourceColumn]
    columns: pa.Schema
    values: Mapping[str, tuple[SourceColumn, ComparedValue]]
    not_compared: Mapping[str, str]


class SourceDatabase(ABC):
    """A source database: reads the rows of a table by their keys, and has the clock of its events."""

    _quote = '"'
    _address: DatabaseAddress

    @abstractmethod
    def fetch(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query. Raises DatabaseFailed."""

    @abstractmethod
    def clock(self) -> int:
        """Return the server's time in milliseconds. Raises DatabaseFailed."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def _locate(self, source: str) -> tuple[str, list[SourceColumn], list[set[str]]]:
        """Return a table as FROM has it, the columns, and the columns of each unique index.

        Without columns, the table does not exist.
        """

    @abstractmethod
    def _value(self, column: SourceColumn, kind: pa.DataType) -> ComparedValue | None:
        """Return the value of a column, or None if it is not compared."""

    @abstractmethod
    def _key_text(self, column: SourceColumn) -> str:
        """Return a column of the key as SQL returns it for `_key_value`."""

    @abstractmethod
    def _key_value(self, column: SourceColumn) -> str:
        """Return the placeholder of a value of a column of the key."""

    @abstractmethod
    def _later(self, key: Sequence[SourceColumn]) -> tuple[str, list[int]]:
        """Return the condition for keys after another, and the columns of the other key for its placeholders."""

    @abstractmethod
    def _is_sorted(self, column: SourceColumn) -> bool:
        """Return whether the order and the comparison of a column's values agree."""

    def open_table(
        self, source: str, key: Sequence[str], columns: pa.Schema, renamed: Mapping[str, str]
    ) -> SourceTable:
        """Return the table of a mirror.

        Raises InvalidArgument if the table is missing, or if its keys can't be read in order, and DatabaseFailed.

        :param source: the table's name, by the mirror.
        :param key: the columns of the mirror's key.
        :param columns: the mirror's columns.
        :param renamed: the mirror's names of columns, by the names in the database.
        """
        name, found, uniques = self._locate(source)
        if not found:
            problem = f"{self._address.where} has no table {source}, of which the mirror is, or may not read it."
            raise InvalidArgument(ARGUMENT, problem, "Name the database whose log Debezium reads.")
        own = {renamed.get(one.name, one.name): one for one in found}
        if lacking := [one for one in key if one not in own]:
            remedy = "Give rename_columns as the landing has it."
            raise InvalidArgument(ARGUMENT, f"{source} has no column {', '.join(lacking)} of the key.", remedy)
        of_key = [own[one] for one in key]
        if not any(unique <= {one.name for one in of_key} for unique in uniques):
            problem = f"{source} has no primary key or unique index on {', '.join(one.name for one in of_key)}"
            raise InvalidArgument(ARGUMENT, f"{problem}, so that its rows can't be read in ranges.")
        values: dict[str, tuple[SourceColumn, ComparedValue]] = {}
        not_compared = {one: "not in the mirror" for one in own if one not in columns.names}
        for one in columns:
            column = own.get(one.name)
            if column is None:
                not_compared[one.name] = "not in the database"
            elif column.is_generated:
                not_compared[one.name] = "generated"
            elif (value := self._value(column, one.type)) is None:
                not_compared[one.name] = f"{column.full_type} as {one.type}"
            else:
                values[one.name] = column, value
        for column, at in zip(of_key, key, strict=True):
            if at in not_compared or not self._is_sorted(column):
                raise InvalidArgument(ARGUMENT, f"{source} has a key of {column.full_type}, which can't be compared.")
        schema = pa.schema([columns.field(one).with_nullable(True) for one in values])
        return SourceTable(name, of_key, schema, values, not_compared)

    def chunks(self, table: SourceTable) -> Iterator[pa.Table]:
        """Yield all rows in the order of their keys, in chunks. Raises DatabaseFailed."""
        order = ", ".join(self.quoted(one.name) for one in table.key)
        keys = ", ".join(self._key_text(one) for one in table.key)
        later, places = self._later(table.key)
        last: Row | None = None
        most = _FIRST
        while True:
            where = "" if last is None else f"WHERE {later} "
            query = f"SELECT {keys}, {self._selected(table)} FROM {table.name} {where}ORDER BY {order} LIMIT {most}"
            rows = self.fetch(query, [] if last is None else [last[at] for at in places])
            if rows:
                found = _to_table(table, [row[len(table.key) :] for row in rows])
                yield found
                last = rows[-1][: len(table.key)]
                least = max(1, found.nbytes // len(rows))
                is_whole, most = len(rows) == most, min(_MOST, max(1, _CHUNK_BYTES // least))
                if is_whole:
                    continue
            return

    def rows_of(self, table: SourceTable, keys: Sequence[Row]) -> pa.Table:
        """Return the rows of some keys. Raises DatabaseFailed.

        :param keys: the values of the key's columns.
        """
        names = ", ".join(self.quoted(one.name) for one in table.key)
        one_key = f"({', '.join(self._key_value(one) for one in table.key)})"
        found = [table.columns.empty_table()]
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            wanted = ", ".join([one_key] * len(some))
            query = f"SELECT {self._selected(table)} FROM {table.name} WHERE ({names}) IN ({wanted})"
            found.append(_to_table(table, self.fetch(query, [value for key in some for value in key])))
        return pa.concat_tables(found)

    def quoted(self, name: str) -> str:
        """Return a name in quotes, for a query with parameters."""
        inner = name.replace(self._quote, self._quote * 2).replace("%", "%%")
        return f"{self._quote}{inner}{self._quote}"

    def _selected(self, table: SourceTable) -> str:
        # Not `format`: a name may have braces.
        return ", ".join(value.sql.replace("{c}", self.quoted(one.name)) for one, value in table.values.values())


def _to_table(table: SourceTable, rows: Sequence[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(table.values)
    try:
        arrays = [
            to_arrow(values, value, table.columns.field(name).type)
            for values, (name, (_, value)) in zip(columns, table.values.items(), strict=True)
        ]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
        raise ValuesUnfit(table.name, e) from e
    return pa.Table.from_arrays(arrays, schema=table.columns)


class ValuesUnfit(LakestreamError, Transient):
    """A value of the source's table that the mirror's column can't hold."""

    def __init__(self, table: str, error: Exception) -> None:
        super().__init__(f"{table} has a value that the mirror's column can't hold: {error}")


def key_values(rows: pa.Table, key: Sequence[str]) -> list[Row]:
    """Return the keys of rows as values for a driver."""
    columns = [_bare(rows[name]) for name in key]
    return list(zip(*columns, strict=True))


def _bare(column: pa.ChunkedArray) -> list[Any]:
    if isinstance(column.type, pa.BaseExtensionType) or not arrow.is_timestamp(column.type):
        return list(column.to_pylist())
    return list(column.cast(pa.timestamp("us", column.type.tz)).to_pylist())
