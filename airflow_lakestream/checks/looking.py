"""Checks of a landing's rows, by DuckDB over the landing's files, in a separate process.

Memory is bounded: DuckDB reads the files a row group at a time, and writes data beyond its memory limit to a temporary
folder. Statements reach the landing's rows, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
from fsspec import AbstractFileSystem

from airflow_lakestream.core.checks import RELATION, Finding
from airflow_lakestream.core.printable import printable
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.stores.folders import RangedFile
from airflow_lakestream.tables.row_buffer import no_rows
from airflow_lakestream.transform.engine import error_text
from airflow_lakestream.transform.sandbox import MACROS, open_database, parse, unparse
from airflow_lakestream.transform.statement import literal, quoted

_SCHEME = "landing"
# The most bytes that the task sends at once.
_MOST_BYTES = 1 << 20

# Returns bytes of a file, by the file's number, the position of the first byte, and the number of bytes.
ReadPart = Callable[[int, int, int], bytes]


class LandingFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of a landing as a file system for DuckDB; a file's name has its number.

    :param sizes: the size of each file in bytes.
    """

    protocol = _SCHEME
    cachable = False

    def __init__(self, sizes: Sequence[int], read_part: ReadPart) -> None:
        super().__init__()
        self._sizes, self._read_part = sizes, read_part
        self.names = [f"{_SCHEME}://{number}.parquet" for number in range(len(sizes))]

    def open(self, path: str, *_: Any, **__: Any) -> Any:
        """Open a file for reading; other arguments of fsspec are not used."""
        number = self._number(path)
        return _LandingFile(number, self._sizes[number], self._read_part)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return a file's size, in fsspec's form."""
        return {"name": path, "size": self._sizes[self._number(path)], "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        """Return the path itself: patterns are not supported."""
        return [path]

    def modified(self, path: str) -> datetime:
        """Return the same time always, since data files never change."""
        return datetime(2000, 1, 1, tzinfo=UTC)

    def _number(self, name: str) -> int:
        return int(self._strip_protocol(name).partition(".")[0])


class _LandingFile(RangedFile):
    def __init__(self, number: int, size: int, read_part: ReadPart) -> None:
        super().__init__(size)
        self._number, self._read_part = number, read_part

    def read(self, size: int = -1) -> bytes:
        to_end = max(0, self._size - self._at)
        left = to_end if size < 0 else min(size, to_end)
        parts = []
        while left:
            parts.append(self._read_part(self._number, self._at, min(left, _MOST_BYTES)))
            self._at += len(parts[-1])
            left -= len(parts[-1])
        return b"".join(parts)


# The most rows in an error, and characters of a value.
FEW, LONGEST = 5, 80
TIMESTAMP = "_kafka_timestamp"
# The same as in `tables.coordinates`, whose import would take a sixth of the time in which the process starts.
COORDINATES = ("_kafka_topic", "_kafka_partition", "_kafka_offset")


@dataclass(frozen=True)
class CheckFiles:
    """Files of a landing, for checks.

    :param sizes: the size of each file in bytes.
    :param values: for each file, the values, as text, of the partition's columns that the file lacks.
    :param folder: a temporary folder for rows that do not fit into memory.
    :param part: the number of the first row and the count of rows to check; None for all rows.
    """

    sizes: Sequence[int]
    values: Sequence[dict[str, str | None]]
    folder: str
    part: Sequence[int] | None = None


@dataclass(frozen=True)
class LandingCheck:
    """A check of a landing's rows.

    :param kind: "sql", "not_null", "unique" or "freshness".
    :param label: the name of the check in errors.
    :param columns: for "not_null" a single column, for "unique" the columns of a key.
    :param statement: for "sql": a SELECT whose rows are wrong.
    :param most: for "freshness": the most seconds since the newest record.
    """

    kind: str
    label: str
    columns: Sequence[str] = field(default_factory=list)
    statement: str = ""
    most: float = 0.0


def selected(sql: str, memory_limit: str) -> str:
    """Return a SELECT in DuckDB's normal form. Raises InvalidArgument for another statement, or for several."""
    with closing(open_database(memory_limit, 1)) as database:
        parsed = parse(database, sql.strip().rstrip(";"))
        if parsed["error"]:
            message = str(parsed["error_message"])
            first_line = message.partition("\n")[0]
            reason = f"DuckDB does not understand it: {first_line}"
            if "Only SELECT" in message:
                reason = "only a SELECT is allowed here"
            raise InvalidArgument("checks.sql", f"{label_of(sql)!r}: {reason}.")
        if len(parsed["statements"]) != 1:
            raise InvalidArgument("checks.sql", f"{label_of(sql)!r}: several statements.", "Write a list of them.")
        return unparse(database, parsed["statements"][0]["node"])


def bind(label: str, statement: str, columns: pa.Schema, memory_limit: str) -> None:
    """Raise InvalidArgument if a statement, named by `label`, does not fit the columns."""
    with closing(open_database(memory_limit, 1)) as database:
        database.register(RELATION, no_rows(columns))
        try:
            database.sql(statement).columns  # noqa: B018  # DuckDB binds the statement when its columns are asked for
        except duckdb.Error as error:
            problem = f"DuckDB can't bind {label!r}: {error_text(error)}."
            remedy = f"The columns of {RELATION} are: {', '.join(columns.names)}."
            raise InvalidArgument("checks.sql", problem, remedy) from None


def label_of(sql: str) -> str:
    """Return a statement's label for errors: its text in one line, of LONGEST characters at most."""
    text = " ".join(sql.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


class CheckRunner:
    """Checks of a landing's rows in an open database."""

    def __init__(self, database: duckdb.DuckDBPyConnection, columns: pa.Schema) -> None:
        self._database = database
        self._place = [name for name in COORDINATES if name in set(columns.names)]

    def count(self) -> int:
        """Return the number of rows. Opens each file, since a missing file must not be committed to main."""
        ((count,),) = self._rows(f"SELECT count(*) FROM {RELATION}")
        return int(count)

    def places(self) -> list[str]:
        """Return topic, partition and offset of the first rows, or [] for a table without such columns."""
        return self._shown_rows(f"SELECT {', '.join(self._place)} FROM {RELATION}", self._place) if self._place else []

    def findings(self, check: LandingCheck) -> Iterator[Finding]:
        """Yield the findings of a check; a failure of the check itself is a finding, except a lack of memory."""
        try:
            yield from self._of(check)
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            # Such as a value that can't be cast.
            yield Finding(check.label, f"it failed: {error_text(error)}")

    def _of(self, check: LandingCheck) -> Iterator[Finding]:
        # A statement of the kind "sql" fails if it returns rows.
        if check.kind == "freshness":
            yield from self._of_age(check.most)
        elif check.kind == "sql":
            if rows := self._shown_rows(check.statement, self._database.sql(check.statement).columns):
                yield Finding(check.label, "it returned rows", rows)
        elif check.kind == "not_null":
            yield from self._of_rows(check, f"{quoted(check.columns[0])} IS NULL", "NULL")
        else:
            keys = ", ".join(map(quoted, check.columns))
            not_null = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in check.columns)
            duplicates = f"SELECT {keys} FROM {RELATION} WHERE {not_null} GROUP BY ALL HAVING count(*) > 1"
            yield from self._of_rows(check, f"({keys}) IN ({duplicates})", "equal values")

    def _of_rows(self, check: LandingCheck, condition: str, description: str) -> Iterator[Finding]:
        """Yield a finding if rows fulfil a condition in SQL; `description` is the condition in words."""
        ((count,),) = self._rows(f"SELECT count(*) FROM {RELATION} WHERE {condition}")
        if count:
            names = check.columns
            shown = list(dict.fromkeys((*self._place, *names)))
            order = ", ".join(map(quoted, dict.fromkeys((*names, *self._place))))
            query = f"SELECT {', '.join(map(quoted, shown))} FROM {RELATION} WHERE {condition} ORDER BY {order}"
            yield Finding(check.label, f"{description} in {count} of the rows", self._shown_rows(query, shown))

    def _of_age(self, most: float) -> Iterator[Finding]:
        """Yield the finding of `freshness` if the newest record is older than `most` seconds."""
        ((newest,),) = self._rows(f"SELECT epoch_ms(max({TIMESTAMP})) FROM {RELATION}")
        age = None if newest is None else time.time() - newest / 1000
        if age is None:
            yield Finding("freshness", "no record has a time")
        elif age > most:
            newest_time = datetime.fromtimestamp(newest / 1000, UTC).isoformat(timespec="seconds")
            shown = list(dict.fromkeys((*self._place, TIMESTAMP)))
            query = f"SELECT {', '.join(shown)} FROM {RELATION} ORDER BY {TIMESTAMP} DESC NULLS LAST LIMIT 1"
            problem = f"the newest record is of {newest_time}, {age:.0f} s old, more than {most:g} s"
            yield Finding("freshness", problem, self._shown_rows(query, shown))

    def _shown_rows(self, query: str, names: Sequence[str]) -> list[str]:
        """Return the first FEW rows of a query as texts, and "..." if there are more."""
        # DuckDB makes the texts: Python's values of some types need packages that are not installed.
        few = self._rows(f"SELECT left(COLUMNS(*)::VARCHAR, {LONGEST}) FROM ({query}) LIMIT {FEW + 1}")
        return [*(_row(names, values) for values in few[:FEW]), *(["..."] if len(few) > FEW else [])]

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._database.execute(query).fetchall()


@contextmanager
def opened(
    files: CheckFiles, columns: pa.Schema, read_part: ReadPart, memory_limit: str, threads: int
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database with the landing's rows as the only relation, closed to other files and changes of settings."""
    system = LandingFiles(files.sizes, read_part)
    config: dict[str, Any] = {
        "memory_limit": memory_limit,
        "threads": threads,
        "temp_directory": files.folder,
        "preserve_insertion_order": str(files.part is not None).lower(),
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
    }
    with closing(duckdb.connect(":memory:", config=config)) as database:
        database.register_filesystem(system)
        try:
            for statement in (*MACROS, *_locked(files, system.names, _rows_of(database, files, system.names, columns))):
                database.execute(statement)
            yield database
        finally:
            database.unregister_filesystem(system.protocol)


def _rows_of(database: duckdb.DuckDBPyConnection, files: CheckFiles, names: Sequence[str], columns: pa.Schema) -> str:
    """Return a statement for the rows of all files, including the partitions' columns that the files lack."""
    files_by_values: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for values, name in zip(files.values, names, strict=True):
        files_by_values.setdefault(tuple(values.items()), []).append(name)
    relation = database.from_arrow(no_rows(columns))
    types = dict(zip(relation.columns, relation.types, strict=True))
    parts = []
    for of_partition, partition_files in files_by_values.items():
        constants = [
            f"CAST({'NULL' if value is None else literal(value)} AS {types[name]}) AS {quoted(name)}"
            for name, value in of_partition
        ]
        # Earlier files of a landing may lack columns that were added later.
        reader = f"read_parquet({partition_files!r}, union_by_name = true)"
        parts.append(f"SELECT {', '.join(['*', *constants])} FROM {reader}")
    return " UNION ALL BY NAME ".join(parts)


def _locked(files: CheckFiles, names: Sequence[str], rows: str) -> Iterator[str]:
    """Yield statements to make the relation, and then close the database to other files and changes of settings."""
    yield "SET enable_progress_bar = false"
    yield "SET GLOBAL python_enable_replacements = false"
    yield "SET GLOBAL TimeZone = 'UTC'"
    yield f"SET GLOBAL allowed_paths = {list(names)!r}"
    if files.part is None:
        yield f"CREATE VIEW {RELATION} AS {rows}"
    else:
        # A table, not a view: with a view, a check would also read the rows outside of the part.
        start, count = files.part
        yield f"CREATE TABLE {RELATION} AS SELECT * FROM ({rows}) LIMIT {count} OFFSET {start}"
    yield "SET GLOBAL enable_external_access = false"
    yield "SET GLOBAL lock_configuration = true"


def _row(names: Sequence[str], values: Sequence[Any]) -> str:
    """Return a row for an error, such as "orders[0] offset 5: amount=NULL"."""
    shown = dict(zip(names, ("NULL" if value is None else printable(str(value)) for value in values), strict=True))
    place = [shown.pop(name) for name in COORDINATES] if set(COORDINATES) <= set(shown) else []
    rest = ", ".join(f"{printable(name)}={value}" for name, value in shown.items())
    where = f"{place[0]}[{place[1]}] offset {place[2]}" if place else ""
    return ": ".join(filter(None, (where, rest)))
