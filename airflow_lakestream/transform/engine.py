"""A statement, checked and bound, in a DuckDB of this process: one cursor for each thread."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform.rewrite import BAD, ROW, NotTraceable, Rewriter
from airflow_lakestream.transform.sandbox import open_database, parse, scalar_functions, unparse
from airflow_lakestream.transform.statement import INPUT, METADATA, Checker, Node, names_read, refuse, with_input
from airflow_lakestream.transform.types import OutputColumn, output_column

# What is left of a statement that makes one row of one record; anything else was not seen through by the checks.
_ROW_WISE = frozenset({"PROJECTION", "FILTER", "ARROW_SCAN", "PYTHON_ARROW_SCAN", "EMPTY_RESULT"})
_MESSAGE = 300


class Engine:
    """Runs one statement. Raises InvalidArgument for one that is not allowed, or does not fit the columns."""

    def __init__(self, sql: str, columns: pa.Schema, memory_limit: str, threads: int) -> None:
        self._database = open_database(memory_limit, threads)
        self._local = threading.local()
        node = self._checked(with_input(sql), columns)
        read: set[str] = set()
        names_read(node, read)
        everything = "*" in read
        self.input = pa.schema(
            field
            for field in columns
            if field.name.lower() in read or (everything and not field.name.lower().startswith(METADATA))
        )
        hidden = [name for name in self.input.names if name.lower().startswith(METADATA)]
        rewriter = Rewriter(self._database, self.input.names, hidden)
        self._empty = self.input.append(pa.field(ROW, pa.int64())).empty_table()
        inner = unparse(self._database, rewriter.carrying(node))
        self.columns = self._bound(inner)
        self._sql = _query([*(f"{c.expression} AS {_quoted(c.field.name)}" for c in self.columns), ROW], inner)
        self._check_plan()
        self._tracing = self._traced(rewriter, node)

    def run(self, table: pa.Table) -> pa.Table:
        """Return the rows, and the number of its record behind each. Raises duckdb.Error."""
        return self._execute(self._sql, table)

    def trace(self, table: pa.Table) -> dict[int, str] | None:
        """Return the numbers of the records for which the statement fails, with the place where it does.

        None where the statement has a form that does not tell.
        """
        if self._tracing is None:
            return None
        found = self._execute(self._tracing, table)
        return dict(zip(found[ROW].to_pylist(), found[BAD].to_pylist(), strict=True))

    def close(self) -> None:
        """Let go of the memory."""
        self._database.close()

    def _execute(self, sql: str, table: pa.Table) -> pa.Table:
        cursor = self._cursor()
        cursor.register(INPUT, table)
        try:
            return cursor.sql(sql).to_arrow_table()
        finally:
            cursor.unregister(INPUT)

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        cursor: duckdb.DuckDBPyConnection | None = getattr(self._local, "cursor", None)
        if cursor is None:
            cursor = self._local.cursor = self._database.cursor()
        return cursor

    def _checked(self, sql: str, columns: pa.Schema) -> Node:
        names = frozenset(name.lower() for name in columns.names)
        return Checker(scalar_functions(), names).statement(parse(self._database, sql))

    def _bound(self, inner: str) -> list[OutputColumn]:
        cursor = self._cursor()
        cursor.register(INPUT, self._empty)
        try:
            relation = cursor.sql(inner)
            described = list(zip(relation.columns, relation.types, strict=True))[:-1]
        except duckdb.Error as error:
            raise InvalidArgument(
                "sql", f"DuckDB can't bind it: {told(error)}.", f"The columns are: {', '.join(self.input.names)}."
            ) from None
        finally:
            cursor.unregister(INPUT)
        if twice := [name for name, n in Counter(name.lower() for name, _ in described).items() if n > 1]:
            raise InvalidArgument("sql", f"several columns are called {twice[0]!r}.", "Give each a name of its own.")
        return [output_column(name, kind) for name, kind in described]

    def _check_plan(self) -> None:
        """Refuse what is still more than rows and conditions when DuckDB has planned it: a second look at the checks.

        Running it on nothing folds constants, so that what can never work fails here.
        """
        try:
            self.run(self._empty)
            cursor = self._cursor()
            cursor.register(INPUT, self._empty)
            ((_, text),) = cursor.execute(f"EXPLAIN (FORMAT JSON) {self._sql}").fetchall()
        except duckdb.Error as error:
            raise InvalidArgument("sql", f"it fails without any record: {told(error)}.") from None
        for operator in _operators(json.loads(text)):
            if operator not in _ROW_WISE:
                raise refuse(operator, "a statement turns each record of {{ input }} into one row, or none, by itself")

    def _traced(self, rewriter: Rewriter, node: Node) -> str | None:
        with contextlib.suppress(NotTraceable, duckdb.Error):
            inner = unparse(self._database, rewriter.tracing(node))
            bad = BAD
            for column in reversed([column for column in self.columns if column.fails]):
                name = f"column {column.field.name}".replace("'", "''")
                bad = f"CASE WHEN {BAD} IS NOT NULL THEN {BAD} WHEN {column.fails} THEN '{name}' ELSE {bad} END"
            sql = _query([ROW, f"{bad} AS {BAD}"], inner)
            sql = f"{_query([ROW, BAD], sql)} WHERE {BAD} IS NOT NULL"
            self._execute(sql, self._empty)
            return sql
        return None


def told(error: duckdb.Error) -> str:
    """Return what DuckDB says, of bounded length, without the excerpt of a statement that users did not write."""
    text = str(error).partition("\n\nLINE ")[0].replace(INPUT, "{{ input }}").strip().rstrip(".")
    text = " ".join(text.split())
    return text[:_MESSAGE] + ("..." if len(text) > _MESSAGE else "")


def _query(items: list[str], inner: str) -> str:
    return f"SELECT {', '.join(items)} FROM ({inner})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _operators(plan: Any) -> set[str]:
    if isinstance(plan, list):
        return {name for child in plan for name in _operators(child)}
    return {plan["name"].strip()} | _operators(plan["children"])
