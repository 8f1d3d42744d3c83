"""Tables of a source database, read by ranges of keys: a chunk is a statement of its own, so nothing stays locked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.types as t
from pyarrow import types as arrow

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient
from airflow_lakestream.tables.row_buffer import no_rows


@dataclass(frozen=True, kw_only=True)
class SourceColumn:
    """Column of a table in a source database.

    :param kind: the name of the type, or for a domain the name of its base type.
    :param full_type: the type with its modifier, for casts in SQL and for messages.
    :param element: the name of the type of an array's items; None for other types.
    :param modifier: length or precision, as the database keeps it; -1 without.
    :param is_builtin: whether comparing values needs no extension.
    :param category: PostgreSQL's letter of the type's group: "e" of enums, "r" of ranges.
    """

    name: str
    kind: str
    full_type: str
    element: str | None = None
    modifier: int = -1
    is_builtin: bool = True
    is_generated: bool = False
    is_nullable: bool = True
    category: str = ""


@dataclass(frozen=True)
class ComparedValue:
    """SQL expression for a column's value, as the mirror has the value.

    :param sql: the expression, with `{c}` for the column.
    :param is_raw: whether Arrow can convert the driver's values; otherwise their text is converted.
    """

    sql: str
    is_raw: bool = False


# Returns whether a mirror's column of a type can be compared.
_Fits = Callable[[pa.DataType], bool]
# `format` returns the server's own text of a value, also for padded texts and addresses; for NULL an empty text.
_NUMBER = ComparedValue("{c}")
_TEXT = ComparedValue("case when {c} is not null then format('%%s', {c}) end")
_IN_RANGE = "case when {{c}} between '0001-01-01' and '9999-12-31 23:59:59.999999' then {} end"


def _is_text(kind: pa.DataType) -> bool:
    return bool(t.is_string(kind) or t.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(t.is_binary(kind) or t.is_large_binary(kind))


def _is_time(has_zone: bool) -> _Fits:
    """Return the condition for timestamps with or without a time zone."""
    return lambda kind: bool(t.is_timestamp(kind) and (kind.tz is not None) is has_zone)


def _is_uuid(kind: pa.DataType) -> bool:
    return bool(kind == pa.uuid() or (t.is_fixed_size_binary(kind) and kind.byte_width == 16))


# By type of PostgreSQL: the types of a mirror's column that can be compared, each with the value.
_POSTGRES: dict[str, list[tuple[_Fits, ComparedValue]]] = {
    **{name: [(t.is_integer, _NUMBER)] for name in ("int2", "int4", "int8", "oid")},
    "float4": [(t.is_float32, ComparedValue("{c}::text"))],
    "float8": [(t.is_float64, ComparedValue("{c}::text"))],
    # Debezium sends NULL for NaN and infinity, whose texts have an n.
    "numeric": [(t.is_decimal, ComparedValue("case when {c}::text !~* 'n' then {c}::text end"))],
    "bool": [(t.is_boolean, ComparedValue("{c}::text"))],
    "bytea": [(_is_bytes, ComparedValue("{c}", is_raw=True))],
    "date": [(t.is_date32, ComparedValue(_IN_RANGE.format("{c}::text")))],
    "timestamp": [(_is_time(False), ComparedValue(_IN_RANGE.format("{c}::text")))],
    "timestamptz": [(_is_time(True), ComparedValue(_IN_RANGE.format("({c} at time zone 'UTC')::text")))],
    "time": [
        (t.is_time64, ComparedValue("case when {c} < '24:00' then (extract(epoch from {c}) * 1000000)::bigint end"))
    ],
    "uuid": [(_is_uuid, ComparedValue("decode(replace({c}::text, '-', ''), 'hex')", is_raw=True)), (_is_text, _TEXT)],
}
_TEXTS = {"text", "varchar", "bpchar", "citext", "json", "jsonb", "xml", "ltree", "inet", "cidr", "macaddr", "macaddr8"}
_ITEMS: dict[str, _Fits] = {
    **dict.fromkeys(("int2", "int4", "int8"), t.is_integer),
    **dict.fromkeys(("text", "varchar"), _is_text),
    "bool": t.is_boolean,
}
# Debezium sends NULL in place of each inner array.
_ARRAY = ComparedValue(
    "case when array_ndims({c}) > 1 then array_fill(null::{element}, array[array_length({c}, 1)]) else {c} end",
    is_raw=True,
)


def postgres_value(column: SourceColumn, kind: pa.DataType) -> ComparedValue | None:
    """Return the value of a column of PostgreSQL for a mirror's column of type `kind`; None if not comparable."""
    if column.element is not None:
        fits = _ITEMS.get(column.element)
        is_list = t.is_list(kind) or t.is_large_list(kind)
        if fits is None or not is_list or not fits(kind.value_type):
            return None
        return ComparedValue(_ARRAY.sql.replace("{element}", column.element), is_raw=True)
    if column.kind == "bit" and column.modifier == 1 and t.is_boolean(kind):
        return ComparedValue("{c}::int")
    if (column.kind in _TEXTS or column.category in ("e", "r")) and _is_text(kind):
        return _TEXT
    return _first(_POSTGRES.get(column.kind, []), kind)


_PLAIN, _RAW = ComparedValue("{c}"), ComparedValue("{c}", is_raw=True)
_MYSQL: dict[str, list[tuple[_Fits, ComparedValue]]] = {
    # A number beyond 63 bits is negative in the mirror, as Debezium sends it.
    **{
        name: [(t.is_integer, ComparedValue("cast({c} as signed)"))]
        for name in ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
    },
    "decimal": [(t.is_decimal, _PLAIN)],
    # The text of a float has six digits.
    "float": [(t.is_float32, ComparedValue("cast({c} as double)"))],
    "double": [(t.is_float64, _PLAIN)],
    "bit": [(t.is_boolean, ComparedValue("{c} + 0"))],
    **{
        name: [(_is_text, _RAW)]
        for name in ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
    },
    **{name: [(_is_bytes, _RAW)] for name in ("varbinary", "tinyblob", "blob", "mediumblob", "longblob")},
    "time": [
        (
            t.is_time64,
            ComparedValue(
                "case when {c} between '00:00:00' and '23:59:59.999999' "
                "then floor(time_to_sec({c})) * 1000000 + microsecond({c}) end"
            ),
        )
    ],
}
_ZERO = "case when {{c}} = '0000-00-00' then {zero} else cast({{c}} as char) end"


def mysql_value(column: SourceColumn, kind: pa.DataType) -> ComparedValue | None:
    """Return the value of a column of MariaDB or MySQL for a mirror's column of type `kind`; None if not comparable."""
    is_date = column.kind == "date" and t.is_date32(kind)
    if is_date or (column.kind in ("datetime", "timestamp") and _is_time(column.kind == "timestamp")(kind)):
        # Debezium sends a zero date as NULL, or in a column without NULL as the first day of 1970.
        return ComparedValue(_ZERO.format(zero="null" if column.is_nullable else "'1970-01-01'"))
    return _first(_MYSQL.get(column.kind, []), kind)


def _first(values: Sequence[tuple[_Fits, ComparedValue]], kind: pa.DataType) -> ComparedValue | None:
    """Return the first value whose condition a type fulfils, or None."""
    return next((value for fits, value in values if fits(kind)), None)


def to_arrow(values: Sequence[Any], value: ComparedValue, kind: pa.DataType) -> pa.Array:
    """Return the values of a column in a mirror's type. Raises ArrowInvalid for a value that the type can't hold."""
    if value.is_raw:
        storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        array = pa.array(values, storage)
        return pa.ExtensionArray.from_storage(kind, array) if storage is not kind else array
    texts = pa.array([None if text is None else str(text) for text in values], pa.string())
    if t.is_time64(kind):
        return texts.cast(pa.int64()).cast(kind)
    if t.is_timestamp(kind) and kind.tz is not None:
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)


ARGUMENT = "against_database"
EXTRA = "database"
# Rows of the first chunk, which has few since rows may be wide; most rows of a chunk; and its bytes in Arrow.
_FIRST, _MOST = 500, 20_000
_CHUNK_BYTES = 8 * 2**20
# Keys in one statement.
_KEYS_AT_ONCE = 500
# Seconds for a connection.
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
    :param database: the database's name; empty for the database of the mirror's table.
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

    :param name: the table as in FROM, quoted.
    :param key: the columns of the key, in the mirror's order.
    :param values: the compared columns by their names in the mirror, in the mirror's types.
    :param not_compared: for each column that is not compared, the reason.
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
    # The base class of the driver's errors.
    _failure: type[Exception]

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Raise DatabaseFailed for an error of the driver."""
        try:
            yield
        except self._failure as e:
            raise DatabaseFailed(self._address.where, e) from e

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
        """Return a table as in FROM, its columns, and the names of the columns of each unique index.

        If the table does not exist, there are no columns.
        """

    @abstractmethod
    def _value(self, column: SourceColumn, kind: pa.DataType) -> ComparedValue | None:
        """Return the value of a column, or None if it is not compared."""

    @abstractmethod
    def _key_text(self, column: SourceColumn) -> str:
        """Return the SQL that selects a column of the key, in a form that is a parameter of `_key_value`."""

    @abstractmethod
    def _key_value(self, column: SourceColumn) -> str:
        """Return the SQL of a parameter for a column of the key."""

    @abstractmethod
    def _later(self, key: Sequence[SourceColumn]) -> tuple[str, list[int]]:
        """Return the SQL condition for keys after another key, and for each parameter the index of the key's column."""

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
        name, source_columns, uniques = self._locate(source)
        if not source_columns:
            problem = f"{self._address.where} has no table {source}, of which the mirror is, or may not read it."
            raise InvalidArgument(ARGUMENT, problem, "Name the database whose log Debezium reads.")
        by_mirror_name = {renamed.get(column.name, column.name): column for column in source_columns}
        if lacking := [column for column in key if column not in by_mirror_name]:
            remedy = "Give rename_columns as the landing has it."
            raise InvalidArgument(ARGUMENT, f"{source} has no column {', '.join(lacking)} of the key.", remedy)
        key_columns = [by_mirror_name[column] for column in key]
        key_names = [column.name for column in key_columns]
        if not any(unique.issubset(key_names) for unique in uniques):
            problem = f"{source} has no primary key or unique index on {', '.join(key_names)}"
            raise InvalidArgument(ARGUMENT, f"{problem}, so that its rows can't be read in ranges.")
        values: dict[str, tuple[SourceColumn, ComparedValue]] = {}
        not_compared = {column: "not in the mirror" for column in by_mirror_name if column not in columns.names}
        for field_ in columns:
            column = by_mirror_name.get(field_.name)
            if column is None:
                not_compared[field_.name] = "not in the database"
            elif column.is_generated:
                not_compared[field_.name] = "generated"
            elif (value := self._value(column, field_.type)) is None:
                not_compared[field_.name] = f"{column.full_type} as {field_.type}"
            else:
                values[field_.name] = column, value
        for column, mirror_name in zip(key_columns, key, strict=True):
            if mirror_name in not_compared or not self._is_sorted(column):
                raise InvalidArgument(ARGUMENT, f"{source} has a key of {column.full_type}, which can't be compared.")
        schema = pa.schema([columns.field(column).with_nullable(True) for column in values])
        return SourceTable(name, key_columns, schema, values, not_compared)

    def chunks(self, table: SourceTable) -> Iterator[pa.Table]:
        """Yield all rows in the order of their keys, in chunks. Raises DatabaseFailed."""
        order = ", ".join(self.quoted(column.name) for column in table.key)
        keys = ", ".join(self._key_text(column) for column in table.key)
        later, parameter_columns = self._later(table.key)
        last_key: Row | None = None
        limit = _FIRST
        while True:
            where = "" if last_key is None else f"WHERE {later} "
            query = f"SELECT {keys}, {self._selected(table)} FROM {table.name} {where}ORDER BY {order} LIMIT {limit}"
            rows = self.fetch(query, [] if last_key is None else [last_key[index] for index in parameter_columns])
            if rows:
                chunk = _to_table(table, [row[len(table.key) :] for row in rows])
                yield chunk
                last_key = rows[-1][: len(table.key)]
            if len(rows) < limit:
                return
            row_bytes = max(1, chunk.nbytes // len(rows))
            limit = min(_MOST, max(1, _CHUNK_BYTES // row_bytes))

    def rows_of(self, table: SourceTable, keys: Sequence[Row]) -> pa.Table:
        """Return the rows of some keys. Raises DatabaseFailed.

        :param keys: the values of the key's columns.
        """
        names = ", ".join(self.quoted(column.name) for column in table.key)
        placeholder = f"({', '.join(self._key_value(column) for column in table.key)})"
        parts = [no_rows(table.columns)]
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some_keys = keys[start : start + _KEYS_AT_ONCE]
            placeholders = ", ".join([placeholder] * len(some_keys))
            query = f"SELECT {self._selected(table)} FROM {table.name} WHERE ({names}) IN ({placeholders})"
            parts.append(_to_table(table, self.fetch(query, [value for key in some_keys for value in key])))
        return pa.concat_tables(parts)

    def quoted(self, name: str) -> str:
        """Return a name in quotes, for a query with parameters."""
        inner = name.replace(self._quote, self._quote * 2).replace("%", "%%")
        return f"{self._quote}{inner}{self._quote}"

    def _selected(self, table: SourceTable) -> str:
        """Return the compared values for a SELECT."""
        # `str.format` would fail for a name with braces.
        return ", ".join(value.sql.replace("{c}", self.quoted(column.name)) for column, value in table.values.values())


def _to_table(table: SourceTable, rows: Sequence[Row]) -> pa.Table:
    """Return the rows of a query in the mirror's types. Raises ValuesUnfit."""
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
    """Return the values of a column; times in microseconds, since Python's have no nanoseconds."""
    if isinstance(column.type, pa.BaseExtensionType) or not arrow.is_timestamp(column.type):
        return list(column.to_pylist())
    return list(column.cast(pa.timestamp("us", column.type.tz)).to_pylist())
