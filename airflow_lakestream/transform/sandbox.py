"""An in-memory DuckDB without access to files, network and settings, and the functions allowed in a statement.

A statement is templated, so everyone who may trigger a DAG can write parts of the statement. There are two walls: the
settings here, and the closed list of the forms that a statement may contain (`statement`).
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import duckdb

from airflow_lakestream.transform.bounds import size_of

# A number that DuckDB reads as a double may lose digits. If only one number of the document has this double, json_value
# returns this number's text. If several numbers differ only beyond a double's precision, it fails, by a cast: TRY
# refuses a call of `error`.
_NUMBERS = r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
# A cheap test, true for each document with a number that has too many digits, or may be too small, for a double.
_MAY_LOSE = r"[0-9]{8}\.[0-9]|\.[0-9]{9}|[0-9]{16}[eE]|[eE]-[0-9]{3}"
_TOO_CLOSE = (
    "the document holds several numbers that differ only beyond the precision of a double; which one is meant by "
)

MACROS = (
    f"""CREATE MACRO _lakestream_as_written(numbers, double, path) AS CASE len(numbers)
        WHEN 1 THEN numbers[1] ELSE CAST(CAST('{_TOO_CLOSE}' || path || ' is not known' AS TINYINT) AS VARCHAR) END""",
    f"""CREATE MACRO _lakestream_number(doc, path, found) AS CASE
        WHEN NOT regexp_matches(doc, '{_MAY_LOSE}') THEN found
        WHEN regexp_full_match(found, '-?[0-9]+') THEN found
        WHEN coalesce(NOT isfinite(TRY_CAST(found AS DOUBLE)), true) THEN found
        ELSE _lakestream_as_written(list_distinct(list_filter(regexp_extract_all(doc, '{_NUMBERS}'),
            lambda n: TRY_CAST(n AS DOUBLE) = CAST(found AS DOUBLE))), found, path) END""",
    """CREATE MACRO json_value(doc, path) AS CASE json_type(doc, path)
        WHEN 'OBJECT' THEN NULL WHEN 'ARRAY' THEN NULL WHEN 'NULL' THEN NULL
        WHEN 'DOUBLE' THEN _lakestream_number(CAST(doc AS VARCHAR), path, json_extract_string(doc, path))
        ELSE json_extract_string(doc, path) END""",
    """CREATE MACRO json_query(doc, path) AS CASE WHEN json_type(doc, path) IN ('OBJECT', 'ARRAY')
        THEN CAST(json_extract(doc, path) AS VARCHAR) END""",
    # json_value, with the texts of all paths looked up at once. A text that looks like an object, an array or a number
    # with a fraction is looked up again, and so is a text of an invalid document, which fails.
    r"""CREATE MACRO _lakestream_json_value(doc, path, texts, found) AS CASE
        WHEN texts IS NULL THEN json_value(doc, path)
        WHEN found IS NULL THEN NULL
        WHEN starts_with(found, '{') OR starts_with(found, '[') THEN json_value(doc, path)
        WHEN (contains(found, '.') OR contains(found, 'e'))
            AND regexp_full_match(found, '-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?')
            AND regexp_matches(CAST(doc AS VARCHAR), '"""
    + _MAY_LOSE
    + """') THEN json_value(doc, path)
        ELSE found END""",
    """CREATE MACRO _lakestream_json_value_or_null(doc, path, texts, found) AS
        CASE WHEN texts IS NOT NULL THEN _lakestream_json_value(doc, path, texts, found) END""",
)


_SETTINGS = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "temp_directory": "",
    "max_temp_directory_size": "0KB",
}

_LOCKED = (
    "SET enable_progress_bar = false",
    # Python variables must not become tables.
    "SET GLOBAL python_enable_replacements = false",
    # A timestamp without zone must mean the same on every machine: a retry may run on another worker.
    "SET GLOBAL TimeZone = 'UTC'",
    # filter_pushdown would move conditions into the Arrow scan, which compares by its own rules, and
    # common_subexpressions would move shared expressions out of the TRY or CASE that guards them.
    "SET GLOBAL disabled_optimizers = 'filter_pushdown,common_subexpressions'",
    "SET GLOBAL lock_configuration = true",
)

# Functions whose results change, though DuckDB lists them as constant.
_MISLABELLED = frozenset({"current_localtime", "current_localtimestamp", "current_setting", "getvariable"})
# Functions whose results do not change, though DuckDB lists them as volatile: `error`, which rejects a record.
_ALLOWED_ANYWAY = frozenset({"error"})

# SQL's functions without parentheses: DuckDB parses them as columns.
BARE_FUNCTIONS = frozenset(
    {
        *("current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp"),
        *("current_user", "localtime", "localtimestamp", "session_user", "user"),
    }
)


def open_database(memory_limit: str, threads: int) -> duckdb.DuckDBPyConnection:
    """Return a new in-memory DuckDB database with MACROS and locked settings.

    Raises InvalidArgument for a memory limit in another form than "256MB".
    """
    size_of(memory_limit)
    config: dict[str, Any] = {**_SETTINGS, "memory_limit": memory_limit, "threads": threads}
    database = duckdb.connect(":memory:", config=config)
    for statement in (*MACROS, *_LOCKED):
        database.execute(statement)
    return database


def parse(database: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """Return DuckDB's parsed form of the statements.

    For invalid SQL, the form has a true `error` and an `error_message`.
    """
    if "\0" in sql:
        # DuckDB's text of a parsed form would end at the zero byte.
        return {"error": True, "error_message": "it has a zero byte. Write 'a' || chr(0) || 'b'"}
    ((text,),) = database.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def unparse(database: duckdb.DuckDBPyConnection, node: dict[str, Any]) -> str:
    """Return the SQL text of a parsed SELECT."""
    text = json.dumps({"error": False, "statements": [{"node": node, "named_param_map": []}]})
    ((sql,),) = database.execute("SELECT json_deserialize_sql(?::JSON)", [text]).fetchall()
    return str(sql)


@cache
def scalar_functions() -> dict[str, str]:
    """Return each function of this DuckDB with the reason against a call, or "" for an allowed function.

    DuckDB's own list of functions is used: the functions of a new version are judged by their properties.
    """
    database = duckdb.connect(":memory:", config=dict(_SETTINGS))
    database.execute("SET threads = 1")
    for macro in MACROS:
        database.execute(macro)
    query = """SELECT DISTINCT lower(function_name), function_type, stability,
        CASE function_type WHEN 'macro' THEN json_serialize_sql('SELECT ' || macro_definition) END
        FROM duckdb_functions()"""
    overloads: dict[str, set[tuple[str, str]]] = {}
    calls: dict[str, set[str]] = {}
    for name, kind, stability, parsed in database.execute(query).fetchall():
        overloads.setdefault(name, set()).add((kind, stability or ""))
        if parsed:
            _collect_calls(json.loads(parsed), calls.setdefault(name, set()))
    database.close()
    verdicts = {name: _refusal_reason(name, kinds) for name, kinds in overloads.items()}
    _judge_macros(verdicts, calls)
    return verdicts


def _refusal_reason(name: str, overloads: set[tuple[str, str]]) -> str:
    """Return the reason to refuse calls of a function in an expression, or "" if calls are allowed.

    :param overloads: type and stability of each overload, as in `duckdb_functions()`.
    """
    kinds = {kind for kind, _ in overloads}
    if "scalar" in kinds:
        # In an expression the scalar overload is called.
        kinds -= {"table", "pragma"}
    if name in BARE_FUNCTIONS or name in _MISLABELLED:
        return CHANGING
    if kinds & {"aggregate", "window"}:
        return AGGREGATE
    if not kinds <= {"scalar", "macro"}:
        return TABLE_FUNCTION
    if name not in _ALLOWED_ANYWAY and any(kind == "scalar" and s != "CONSISTENT" for kind, s in overloads):
        return CHANGING
    return ""


def _judge_macros(verdicts: dict[str, str], calls: dict[str, set[str]]) -> None:
    """Change the verdict of each macro that calls a forbidden function, also through macros of macros.

    :param calls: names of the functions that each macro calls.
    """
    changed = True
    while changed:
        changed = False
        for name, called in calls.items():
            reasons = [CHANGING] if called & BARE_FUNCTIONS else []
            reasons += [reason for c in sorted(called) if (reason := verdicts.get(c, TABLE_FUNCTION))]
            if reasons and not verdicts[name]:
                verdicts[name], changed = reasons[0], True


def _collect_calls(node: Any, names: set[str]) -> None:
    """Add the functions in a parsed macro to `names`; a subquery or window counts as `unnest`, which is forbidden."""
    if isinstance(node, list):
        for child in node:
            _collect_calls(child, names)
    elif isinstance(node, dict):
        kind = node.get("class")
        if kind == "FUNCTION" and is_function(node["function_name"]):
            names.add(node["function_name"].lower())
        elif kind in ("SUBQUERY", "WINDOW"):
            names.add("unnest")
        elif kind == "COLUMN_REF" and node["column_names"][-1].lower() in BARE_FUNCTIONS:
            names.add(node["column_names"][-1].lower())
        for child in node.values():
            _collect_calls(child, names)


def is_function(name: str) -> bool:
    """Return whether a name is of a function, not of an operator; all operators are allowed in a statement."""
    return name[:1].isalpha() or name[:1] == "_"


CHANGING = (
    "its result changes from one try to the next, so a retry would land other rows. "
    "Use the record's own event_timestamp, _kafka_partition and _kafka_offset, or a value that Airflow renders into "
    "the statement, such as TIMESTAMPTZ '{{ ts }}': it is the same for each try"
)
AGGREGATE = (
    "it makes one value of several records, and which records share a batch changes from run to run; such a row "
    "belongs to no one offset either, so that no replay, audit or replace could find it. Land the records, and "
    "aggregate over the table"
)
TABLE_FUNCTION = "it makes rows of its own; a statement turns each record of {{ input }} into one row, or none"
