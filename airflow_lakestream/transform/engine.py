"""A checked and bound statement in this process's DuckDB, for a single thread."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import no_rows
from airflow_lakestream.transform.messages import HIDDEN, ROW
from airflow_lakestream.transform.rewrite import BAD, SUSPECT, NotTraceable, StatementRewriter
from airflow_lakestream.transform.sandbox import open_database, parse, scalar_functions, unparse
from airflow_lakestream.transform.statement import (
    INPUT,
    METADATA,
    Node,
    StatementChecker,
    names_read,
    quoted,
    refuse,
    with_input,
)

# By DuckDB's type id: the Arrow type, and the DuckDB type to cast to first, or "" if no cast is needed. Small integers
# become Iceberg's integers. A record fails if a value is too large for a decimal of 38 digits.
_PLAIN: dict[str, tuple[pa.DataType, str]] = {
    "boolean": (pa.bool_(), ""),
    "tinyint": (pa.int32(), "INTEGER"),
    "smallint": (pa.int32(), "INTEGER"),
    "integer": (pa.int32(), ""),
    "bigint": (pa.int64(), ""),
    "utinyint": (pa.int32(), "INTEGER"),
    "usmallint": (pa.int32(), "INTEGER"),
    "uinteger": (pa.int64(), "BIGINT"),
    "ubigint": (pa.decimal128(20, 0), "DECIMAL(20, 0)"),
    "hugeint": (pa.decimal128(38, 0), "DECIMAL(38, 0)"),
    "uhugeint": (pa.decimal128(38, 0), "DECIMAL(38, 0)"),
    "float": (pa.float32(), ""),
    "double": (pa.float64(), ""),
    "varchar": (pa.string(), "VARCHAR"),
    "enum": (pa.string(), "VARCHAR"),
    "blob": (pa.binary(), ""),
    "date": (pa.date32(), ""),
    "time": (pa.time64("us"), ""),
    "timestamp": (pa.timestamp("us"), ""),
    "timestamp_s": (pa.timestamp("us"), "TIMESTAMP"),
    "timestamp_ms": (pa.timestamp("us"), "TIMESTAMP"),
    "timestamp with time zone": (pa.timestamp("us", "UTC"), ""),
}
_REMEDY = {
    "null": "Give it a type, such as CAST(NULL AS VARCHAR).",
    '"null"': "Give it a type, such as CAST(NULL AS VARCHAR).",
    "timestamp_ns": "Cast it to TIMESTAMP: microseconds.",
    "time_ns": "Cast it to TIME: microseconds.",
    "time with time zone": "Cast it to TIME, or VARCHAR.",
    "interval": "Make it a number, such as epoch(x), or cast it to VARCHAR.",
    "uuid": "Cast it to VARCHAR: a UUID inside another value has no place.",
}
_UUID = pa.uuid()
# DuckDB's infinities are the largest integers: other readers would see far-away dates.
_MAY_BE_INFINITE = frozenset({"date", "timestamp", "timestamp_s", "timestamp_ms", "timestamp with time zone"})


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """Output column of a statement.

    :param expression: SQL for the column's value.
    :param fails: SQL condition for a value that the column can't represent; "" if the column represents all values.
    """

    field: pa.Field
    expression: str
    fails: str = ""


def output_column(name: str, kind: Any) -> OutputColumn:
    """Return the column for a DuckDB type. Raises InvalidArgument for a type that tables do not have."""
    quoted = '"' + name.replace('"', '""') + '"'
    if kind.id == "uuid":
        return OutputColumn(pa.field(name, _UUID), f"unhex(replace(CAST({quoted} AS VARCHAR), '-', ''))")
    arrow, target = _converted(name, kind)
    if kind.id in _MAY_BE_INFINITE:
        error_call = f"error('column {name.replace(chr(39), chr(39) * 2)}: it is infinite')"
        finite = f"CASE WHEN coalesce(isfinite({quoted}), true) THEN {quoted} ELSE {error_call} END"
        fails = f"NOT coalesce(isfinite({quoted}), true)"
        if target != str(kind):
            fails += f" OR {_fails(quoted, target)}"
        return OutputColumn(pa.field(name, arrow), f"CAST({finite} AS {target})", fails)
    if target == str(kind):
        return OutputColumn(pa.field(name, arrow), quoted)
    return OutputColumn(pa.field(name, arrow), f"CAST({quoted} AS {target})", _fails(quoted, target))


def _fails(quoted: str, target: str) -> str:
    """Return the SQL condition for a column's value that can't be cast: a struct is NULL only after a failure."""
    return f"TRY({{'e': CAST({quoted} AS {target})}}) IS NULL"


def _converted(path: str, kind: Any) -> tuple[pa.DataType, str]:
    """Return the Arrow type for a DuckDB type, and the DuckDB type to convert to first.

    Raises InvalidArgument for a type that tables do not have.

    :param path: path of the column, for the error.
    """
    if kind.id in _PLAIN:
        arrow, target = _PLAIN[kind.id]
        return arrow, target or str(kind)
    children = dict(kind.children) if kind.id in ("list", "array", "struct", "map", "decimal") else {}
    if kind.id == "decimal":
        return pa.decimal128(children["precision"], children["scale"]), str(kind)
    if kind.id in ("list", "array"):
        element, target = _converted(f"{path}.element", children["child"])
        return pa.list_(pa.field("element", element)), f"{target}[]"
    if kind.id == "map":
        key, key_target = _converted(f"{path}.key", children["key"])
        value, value_target = _converted(f"{path}.value", children["value"])
        return pa.map_(key, value), f"MAP({key_target}, {value_target})"
    if kind.id == "struct":
        fields = {name: _converted(f"{path}.{name}", child) for name, child in children.items()}
        inside = ", ".join('"' + name.replace('"', '""') + f'" {target}' for name, (_, target) in fields.items())
        return pa.struct([pa.field(name, arrow) for name, (arrow, _) in fields.items()]), f"STRUCT({inside})"
    remedy = _REMEDY.get(kind.id, "Cast it to another type, such as VARCHAR.")
    raise InvalidArgument("sql", f"column {path!r}: a table has no place for DuckDB's {kind}.", remedy)


# Names of prepared statements: planning a statement takes longer than a run on thousands of records.
_RUN, _TRACE, _SIFT = f"{HIDDEN}run", f"{HIDDEN}trace", f"{HIDDEN}sift"

# The operators of DuckDB's plans that make at most one row of one record. Another operator is refused, though the
# checks of the statement have missed it.
_ROW_WISE = frozenset({"PROJECTION", "FILTER", "ARROW_SCAN", "PYTHON_ARROW_SCAN", "EMPTY_RESULT"})
# The most characters of DuckDB's message in an error.
_LONGEST_MESSAGE = 300


class _InputTable:
    """Input table of the prepared statements; each run reads the current records."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


@dataclass(frozen=True)
class StatementPlan:
    """A checked statement, for another process to use without a second check.

    Tracing finds the failing records and the failing column or WHERE of each. Sifting separates good records from
    suspects, which may fail. The form of some statements allows neither.

    :param input: names of the columns that the statement reads.
    :param run: SQL of the statement, with the number of each row's record.
    :param trace: SQL for tracing, or None.
    :param sift: SQL for sifting, or None.
    :param sifts_exactly: all suspects fail, so they need no second run.
    """

    input: list[str]
    run: str
    trace: str | None
    sift: str | None
    sifts_exactly: bool


class StatementEngine:
    """Runner of a statement. Raises InvalidArgument for a forbidden statement or a misfit with the columns.

    :param plan: the plan of an engine with the same arguments; by default, the statement is checked and planned here.
    """

    def __init__(
        self, sql: str, columns: pa.Schema, memory_limit: str, threads: int, plan: StatementPlan | None = None
    ) -> None:
        self._database = open_database(memory_limit, threads)
        # Whether the last batch had a bad record: then the next batch probably has one, too.
        self.is_troubled = False
        if plan is not None:
            self._set_input(columns, plan.input)
        # Also for another engine, in another process.
        self.plan = plan or self._make_plan(sql, columns)

    def _make_plan(self, sql: str, columns: pa.Schema) -> StatementPlan:
        """Check the statement, set its input and output columns, and return the plan."""
        node = self._checked(with_input(sql), columns)
        read: set[str] = set()
        names_read(node, read)
        if "*" in read:
            read |= {name.lower() for name in columns.names if not name.lower().startswith(METADATA)}
        self._set_input(columns, [name for name in columns.names if name.lower() in read])
        hidden = [name for name in self.input.names if name.lower().startswith(METADATA)]
        texts = [field.name for field in self.input if pa.types.is_string(field.type)]
        rewriter = StatementRewriter(self._database, self.input.names, texts, hidden)
        inner = unparse(self._database, rewriter.with_row_numbers(node))
        self.columns = self._bound(inner, columns)
        run = _query([*(f"{c.expression} AS {quoted(c.field.name)}" for c in self.columns), ROW], inner)
        self._check_plan(run)
        trace = self._traced(rewriter, node)
        sift = self._sifted(rewriter, node) if trace is not None else None
        return StatementPlan(self.input.names, run, trace, sift, rewriter.sift_is_exact)

    def _set_input(self, columns: pa.Schema, names: list[str]) -> None:
        self.input = pa.schema([columns.field(name) for name in names])
        self._empty = no_rows(self.input.append(pa.field(ROW, pa.int64())))
        self._records = _InputTable(self._empty)
        self._database.register(INPUT, self._records)
        # The names of the prepared statements.
        self._prepared: set[str] = set()

    def run(self, table: pa.Table) -> pa.Table:
        """Return the statement's rows, with the records' numbers as the last column. Raises duckdb.Error."""
        return self._execute(_RUN, self.plan.run, table)

    def trace(self, table: pa.Table) -> dict[int, str] | None:
        """Return the numbers of the failing records, each with the failing part of the statement: a column or WHERE.

        None if the statement's form does not allow tracing. Raises duckdb.Error.
        """
        if self.plan.trace is None:
            return None
        failing = self._execute(_TRACE, self.plan.trace, table)
        return dict(zip(failing[ROW].to_pylist(), failing[BAD].to_pylist(), strict=True))

    def sift(self, table: pa.Table) -> tuple[pa.Table, dict[int, str]] | None:
        """Return the rows of good records, and the numbers of suspect records, each with the reason.

        None if the statement's form does not allow sifting. Raises duckdb.Error for a failure that sifting misses.
        """
        if self.plan.sift is None:
            return None
        rows = self._execute(_SIFT, self.plan.sift, table)
        suspects = rows.filter(rows[SUSPECT].is_valid())
        good = rows.filter(rows[SUSPECT].is_null()).drop_columns([SUSPECT])
        return good, dict(zip(suspects[ROW].to_pylist(), suspects[SUSPECT].to_pylist(), strict=True))

    def _execute(self, name: str, sql: str, table: pa.Table) -> pa.Table:
        """Run a statement over a table of records; the statement is prepared under the name at its first run."""
        self._records.table = table
        try:
            if name not in self._prepared:
                self._database.execute(f"PREPARE {name} AS {sql}")
                self._prepared.add(name)
            return self._database.sql(f"EXECUTE {name}").to_arrow_table()
        finally:
            self._records.table = self._empty

    def _checked(self, sql: str, columns: pa.Schema) -> Node:
        names = frozenset(name.lower() for name in columns.names)
        return StatementChecker(scalar_functions(), names).statement(parse(self._database, sql))

    def _bound(self, inner: str, columns: pa.Schema) -> list[OutputColumn]:
        """Return the output columns as DuckDB binds the statement, without the last column, the record's number."""
        try:
            relation = self._database.sql(inner)
            described = list(zip(relation.columns, relation.types, strict=True))[:-1]
        except duckdb.Error as error:
            raise InvalidArgument(
                "sql", f"DuckDB can't bind it: {error_text(error)}.", f"The columns are: {', '.join(columns.names)}."
            ) from None
        if duplicates := [name for name, n in Counter(name.lower() for name, _ in described).items() if n > 1]:
            problem = f"several columns are called {duplicates[0]!r}."
            raise InvalidArgument("sql", problem, "Give each a name of its own.")
        return [output_column(name, kind) for name, kind in described]

    def _check_plan(self, sql: str) -> None:
        """Refuse a plan of DuckDB with operators beyond rows and conditions: a second check of the statement.

        A run without records evaluates constants, so that a constant part that fails is refused here.
        """
        try:
            self._execute(_RUN, sql, self._empty)
            ((_, text),) = self._database.execute(f"EXPLAIN (FORMAT JSON) {sql}").fetchall()
        except duckdb.Error as error:
            raise InvalidArgument("sql", f"it fails without any record: {error_text(error)}.") from None
        for operator in _operators(json.loads(text)):
            if operator not in _ROW_WISE:
                raise refuse(operator, "a statement turns each record of {{ input }} into one row, or none, by itself")

    def _traced(self, rewriter: StatementRewriter, node: Node) -> str | None:
        """Return the SQL for tracing, or None: failures of the statement, then values that a column can't represent."""
        with contextlib.suppress(NotTraceable, duckdb.Error):
            inner = unparse(self._database, rewriter.tracing(node))
            bad = BAD
            for column in reversed([column for column in self.columns if column.fails]):
                bad = (
                    f"CASE WHEN {BAD} IS NOT NULL THEN {BAD} WHEN {column.fails} THEN '{_place(column)}' ELSE {bad} END"
                )
            sql = _query([ROW, f"{bad} AS {BAD}"], inner)
            sql = f"{_query([ROW, BAD], sql)} WHERE {BAD} IS NOT NULL"
            self._execute(_TRACE, sql, self._empty)
            return sql
        return None

    def _sifted(self, rewriter: StatementRewriter, node: Node) -> str | None:
        """Return the SQL for sifting, or None. A suspect's columns are NULL, since the conversion could fail."""
        with contextlib.suppress(NotTraceable, duckdb.Error):
            inner = unparse(self._database, rewriter.sifting(node))
            cases = [
                f"WHEN {c.fails} THEN '{_place(c)}: its type has no place for it'" for c in self.columns if c.fails
            ]
            suspect = f"CASE WHEN {SUSPECT} IS NOT NULL THEN {SUSPECT} {' '.join(cases)} END" if cases else SUSPECT
            names = [quoted(c.field.name) for c in self.columns]
            middle = _query([*names, ROW, f"{suspect} AS {SUSPECT}"], inner)
            guarded = [
                name if c.expression == name else f"CASE WHEN {SUSPECT} IS NULL THEN {c.expression} END AS {name}"
                for c, name in zip(self.columns, names, strict=True)
            ]
            sql = _query([*guarded, ROW, SUSPECT], middle)
            self._execute(_SIFT, sql, self._empty)
            return sql
        return None


def _place(column: OutputColumn) -> str:
    return f"column {column.field.name}".replace("'", "''")


def error_text(error: duckdb.Error) -> str:
    """Return DuckDB's message, shortened, without its excerpt of the rewritten statement."""
    text = str(error).partition("\n\nLINE ")[0].replace(INPUT, "{{ input }}")
    # DuckDB knows only the columns that the statement names: its suggestions are left out.
    text = " ".join(text.partition("\nCandidate bindings")[0].split()).rstrip(".!")
    return text[:_LONGEST_MESSAGE] + ("..." if len(text) > _LONGEST_MESSAGE else "")


def _query(items: list[str], inner: str) -> str:
    return f"SELECT {', '.join(items)} FROM ({inner})"


def _operators(plan: Any) -> set[str]:
    """Return the names of all operators in a plan from EXPLAIN."""
    if isinstance(plan, list):
        return {name for child in plan for name in _operators(child)}
    return {plan["name"].strip()} | _operators(plan["children"])
