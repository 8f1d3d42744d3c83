"""The checks of a landing, run by DuckDB over its files, before the rows show on main.

Memory is bounded: DuckDB reads the files a row group at a time, and what a statement or a key needs beyond
`MEMORY_LIMIT` goes to a temporary folder. Statements reach the landing's rows, and nothing else.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from airflow_lakestream.checks.files import LandingFiles
from airflow_lakestream.core.checks import RELATION, Checks, Finding, Written
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.coordinates import COORDINATES
from airflow_lakestream.tables.no_rows import no_rows
from airflow_lakestream.transform.engine import told
from airflow_lakestream.transform.json_macros import MACROS
from airflow_lakestream.transform.sandbox import open_database, parse, unparse

log = logging.getLogger(__name__)

MEMORY_LIMIT = "256MB"
THREADS = 2
# Rows, and characters of a value, that an error tells.
FEW, LONGEST = 5, 80
TIMESTAMP = "_kafka_timestamp"


class Audit:
    """`core.checks.Auditor`. Raises InvalidArgument for what is no SELECT."""

    def __init__(self, checks: Checks) -> None:
        self.checks = checks
        with closing(open_database(MEMORY_LIMIT, 1)) as database:
            self._statements = [(_label(sql), _select(database, sql)) for sql in checks.statements]

    def check_columns(self, columns: pa.Schema) -> None:
        """Raise InvalidArgument where the checks don't fit the columns."""
        if len({name.lower() for name in columns.names}) < len(columns.names):
            problem = "columns of the table differ in upper and lower case only, which SQL does not tell apart."
            raise InvalidArgument("checks", problem, "Leave checks out, or rename columns.")
        named = {"not_null": self.checks.not_null, "unique": self.checks.unique}
        if self.checks.freshness is not None:
            named["freshness"] = (TIMESTAMP,)
        for kind, names in named.items():
            for name in names:
                if name not in columns.names:
                    there = f"The columns are: {', '.join(columns.names)}."
                    raise InvalidArgument(f"checks.{kind}", f"there is no column {name!r}.", there)
        with closing(open_database(MEMORY_LIMIT, 1)) as database:
            database.register(RELATION, no_rows(columns))
            for label, statement in self._statements:
                try:
                    database.sql(statement).columns  # noqa: B018  # DuckDB binds the statement when its columns are asked for
                except duckdb.Error as error:
                    problem = f"DuckDB can't bind {label!r}: {told(error)}."
                    there = f"The columns of {RELATION} are: {', '.join(columns.names)}."
                    raise InvalidArgument("checks.sql", problem, there) from None

    def findings(self, written: Written) -> Sequence[Finding]:
        """Return the checks that failed. Raises InvalidArgument, and what reading the files raises."""
        started = time.monotonic()
        found = list(self._of_count(written))
        if written.files:
            self.check_columns(written.columns)
            with _opened(written) as database:
                found += _Look(database, written).findings(self.checks, self._statements)
        log.info("Checked %s rows in %.2f s: %s failed", written.rows, time.monotonic() - started, len(found))
        return found

    def _of_count(self, written: Written) -> Iterator[Finding]:
        if (bounds := self.checks.row_count) is None:
            return
        if bounds.asks_history and written.usual is None:
            log.info("The number of rows is not compared: there is no landing of the last week.")
        if (problem := bounds.problem(written.rows, written.usual)) is not None:
            yield Finding("row_count", problem)


class _Look:
    """One look at a landing's rows."""

    def __init__(self, database: duckdb.DuckDBPyConnection, written: Written) -> None:
        self._database = database
        there = set(written.columns.names)
        self._place = [name for name in COORDINATES if name in there]
        ((count,),) = self._rows(f"SELECT count(*) FROM {RELATION}")
        # It opens each file, too: none that is gone may get on main, whatever is asked.
        if count != written.rows:
            raise AssertionError(f"{written.rows} rows are to be committed, and their files have {count}")

    def findings(self, checks: Checks, statements: Sequence[tuple[str, str]]) -> Iterator[Finding]:
        """Yield the checks that failed, and those of which nobody knows whether the rows would have passed."""
        for label, look in self._looks(checks, statements):
            try:
                yield from look
            except duckdb.Error as error:
                # A value that can't be cast, or too little memory.
                yield Finding(label, f"it failed: {told(error)}")

    def _looks(self, checks: Checks, statements: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Iterator[Finding]]]:
        for name in checks.not_null:
            label = f"not_null: {name}"
            yield label, self._of_rows(label, f"{_quoted(name)} IS NULL", "NULL", [name])
        if checks.unique:
            keys = ", ".join(map(_quoted, checks.unique))
            known = " AND ".join(f"{_quoted(name)} IS NOT NULL" for name in checks.unique)
            twice = f"SELECT {keys} FROM {RELATION} WHERE {known} GROUP BY ALL HAVING count(*) > 1"
            label = f"unique: {', '.join(checks.unique)}"
            yield label, self._of_rows(label, f"({keys}) IN ({twice})", "equal values", checks.unique)
        if checks.freshness is not None:
            yield "freshness", self._of_age(checks.freshness)
        for text, statement in statements:
            yield f"sql: {text}", self._of_statement(f"sql: {text}", statement)

    def _of_rows(self, label: str, condition: str, what: str, names: Sequence[str]) -> Iterator[Finding]:
        ((count,),) = self._rows(f"SELECT count(*) FROM {RELATION} WHERE {condition}")
        if count:
            shown = list(dict.fromkeys((*self._place, *names)))
            order = ", ".join(map(_quoted, dict.fromkeys((*names, *self._place))))
            query = f"SELECT {', '.join(map(_quoted, shown))} FROM {RELATION} WHERE {condition} ORDER BY {order}"
            yield Finding(label, f"{what} in {count} of the rows", self._told(query, shown))

    def _of_age(self, most: float) -> Iterator[Finding]:
        ((newest,),) = self._rows(f"SELECT epoch_ms(max({TIMESTAMP})) FROM {RELATION}")
        age = None if newest is None else time.time() - newest / 1000
        if age is None:
            yield Finding("freshness", "no record has a time")
        elif age > most:
            at = datetime.fromtimestamp(newest / 1000, UTC).isoformat(timespec="seconds")
            shown = list(dict.fromkeys((*self._place, TIMESTAMP)))
            query = f"SELECT {', '.join(shown)} FROM {RELATION} ORDER BY {TIMESTAMP} DESC NULLS LAST LIMIT 1"
            problem = f"the newest record is of {at}, {age:.0f} s old, more than {most:g} s"
            yield Finding("freshness", problem, self._told(query, shown))

    def _of_statement(self, label: str, statement: str) -> Iterator[Finding]:
        if rows := self._told(statement, self._database.sql(statement).columns):
            yield Finding(label, "it returned rows", rows)

    def _told(self, query: str, names: Sequence[str]) -> list[str]:
        # As texts: Python's values of some types need packages that are not there.
        few = self._rows(f"SELECT left(COLUMNS(*)::VARCHAR, {LONGEST}) FROM ({query}) LIMIT {FEW + 1}")
        return [*(_row(names, values) for values in few[:FEW]), *(["..."] if len(few) > FEW else [])]

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._database.execute(query).fetchall()


@contextmanager
def _opened(written: Written) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database whose only relation is the landing's rows. Raises what reading a file has raised."""
    files = LandingFiles(written)
    with tempfile.TemporaryDirectory(prefix="lakestream-checks-") as folder:
        config: dict[str, Any] = {
            "memory_limit": MEMORY_LIMIT,
            "threads": THREADS,
            "temp_directory": folder,
            "preserve_insertion_order": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
        }
        with closing(duckdb.connect(":memory:", config=config)) as database:
            database.register_filesystem(files)
            try:
                for statement in (*MACROS, *_locked(files.names, _rows_of(database, written, files.names))):
                    database.execute(statement)
                yield database
            finally:
                database.unregister_filesystem(files.protocol)
                if files.failed is not None:
                    # Whatever DuckDB made of it: a check that could not be run.
                    raise files.failed


def _rows_of(database: duckdb.DuckDBPyConnection, written: Written, names: Sequence[str]) -> str:
    """Return a statement with the rows of all files, the columns of their partitions included."""
    files: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for path, name in zip(written.files, names, strict=True):
        files.setdefault(tuple(written.values.get(path, {}).items()), []).append(name)
    known = database.from_arrow(no_rows(written.columns))
    types = dict(zip(known.columns, known.types, strict=True))
    parts = []
    for values, some in files.items():
        more = [f"CAST({_text(value)} AS {types[name]}) AS {_quoted(name)}" for name, value in values]
        # Files of one landing may lack columns that came up after them.
        parts.append(f"SELECT {', '.join(['*', *more])} FROM read_parquet({some!r}, union_by_name = true)")
    return " UNION ALL BY NAME ".join(parts)


def _locked(names: Sequence[str], rows: str) -> Iterator[str]:
    yield "SET enable_progress_bar = false"
    yield "SET GLOBAL python_enable_replacements = false"
    yield "SET GLOBAL TimeZone = 'UTC'"
    yield f"SET GLOBAL allowed_paths = {list(names)!r}"
    yield f"CREATE VIEW {RELATION} AS {rows}"
    yield "SET GLOBAL enable_external_access = false"
    yield "SET GLOBAL lock_configuration = true"


def _select(database: duckdb.DuckDBPyConnection, sql: str) -> str:
    parsed = parse(database, sql.strip().rstrip(";"))
    if parsed["error"]:
        message = str(parsed["error_message"])
        is_other = "Only SELECT" in message
        reason = "only a SELECT is allowed here" if is_other else f"DuckDB does not understand it: {message}"
        raise InvalidArgument("checks.sql", f"{_label(sql)!r}: {reason}.")
    if len(parsed["statements"]) != 1:
        raise InvalidArgument("checks.sql", f"{_label(sql)!r}: several statements.", "Write a list of them.")
    return unparse(database, parsed["statements"][0]["node"])


def _label(sql: str) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def _row(names: Sequence[str], values: Sequence[Any]) -> str:
    shown = dict(zip(names, values, strict=True))
    place = [shown.pop(name) for name in COORDINATES] if set(COORDINATES) <= set(shown) else []
    rest = ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in shown.items())
    return f"{place[0]}[{place[1]}] offset {place[2]}: {rest}" if place else rest
