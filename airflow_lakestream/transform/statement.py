"""Check of a statement: a SELECT with a row for each record of {{ input }}, or without a row for the record.

The check reads DuckDB's parsed form, without data. All forms not known to be harmless are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_lakestream.core.policies import OF_INPUT
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform.messages import HIDDEN, NO_SELECT, NO_SQL
from airflow_lakestream.transform.sandbox import AGGREGATE, BARE_FUNCTIONS, CHANGING, TABLE_FUNCTION, is_function

# A part of DuckDB's parsed form of a statement.
Node = dict[str, Any]

# The name of the input's table, and the prefix of metadata columns.
INPUT = f"{HIDDEN}input"
METADATA = "_kafka_"
_ROW_BY_ROW = "a statement turns each record of {{ input }} into one row, or none, by itself"
_BATCHES = (
    "its result hangs on which records share a batch, and that changes from run to run: a retry would land other rows. "
    "Land the records, and do this over the table"
)
_MODIFIERS = {
    "DISTINCT_MODIFIER": ("DISTINCT", _BATCHES),
    "LIMIT_MODIFIER": ("LIMIT", _BATCHES),
    "LIMIT_PERCENT_MODIFIER": ("LIMIT", _BATCHES),
    "ORDER_MODIFIER": ("ORDER BY", "rows are written in the order of their offsets. To sort files, use sort_order"),
}
_SOURCES = {
    "JOIN": ("a join", _ROW_BY_ROW),
    "TABLE_FUNCTION": ("a table function", _ROW_BY_ROW + ", and reads nothing else"),
    "EXPRESSION_LIST": ("VALUES", _ROW_BY_ROW),
    "COLUMN_DATA": ("VALUES", _ROW_BY_ROW),
    "PIVOT": ("PIVOT", _BATCHES),
    "SHOW_REF": ("DESCRIBE, SHOW or SUMMARIZE", _ROW_BY_ROW),
    "EMPTY": ("a SELECT without FROM", "write SELECT ... FROM {{ input }}"),
}
_NODES = {
    "SET_OPERATION_NODE": ("UNION, INTERSECT or EXCEPT", _ROW_BY_ROW),
    "RECURSIVE_CTE_NODE": ("a recursive query", _ROW_BY_ROW),
}
_EXPRESSIONS = {
    "WINDOW": ("a window function", _BATCHES),
    "SUBQUERY": ("a subquery in an expression", _ROW_BY_ROW),
    "POSITIONAL_REFERENCE": ("a column by its number", "name the column"),
    "PARAMETER": ("a parameter", "let Airflow render the value into the statement: {{ params.x }}"),
    "DEFAULT": ("DEFAULT", _ROW_BY_ROW),
}
_KNOWN_EXPRESSIONS = frozenset(
    {
        *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"),
        *("LAMBDA", "LAMBDA_REF", "OPERATOR", "STAR", "TYPE"),
    }
)
_SCALAR_PATH = re.compile(r"""\$(?:\.[A-Za-z_][A-Za-z0-9_]*|\."[^"*]+"|\[(?:\d+|#-\d+)\])*""")
# Functions and operators that always need all their arguments.
_PLAIN = frozenset(
    {
        *("abs", "ceil", "concat", "date_part", "date_trunc", "epoch_ms", "floor", "hash", "left", "length", "lower"),
        *("ltrim", "md5", "replace", "right", "round", "rtrim", "strftime", "substr", "substring", "trim", "upper"),
    }
)
_PLAIN_OPERATORS = frozenset({"OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"})


def refuse(subject: str, reason: str) -> InvalidArgument:
    """Return the error for a forbidden part of a statement."""
    return InvalidArgument("sql", f"{subject} is not allowed here: {reason}.")


def with_input(sql: str) -> str:
    """Replace {{ input }} by the table's name.

    Raises InvalidArgument for a statement without {{ input }}, or with reserved names.
    """
    if HIDDEN in sql.lower():
        raise refuse(f"a name with {HIDDEN} in it", "such names are taken")
    replaced, count = OF_INPUT.subn(INPUT, sql)
    if not count:
        raise InvalidArgument("sql", "it does not read from {{ input }}.", "Write SELECT ... FROM {{ input }}.")
    return replaced


class StatementChecker:
    """Checker of a parsed statement; refuses all parts that may break the rule of one row per record.

    :param functions: the reason against each function, or an empty text; see `sandbox.scalar_functions`.
    :param columns: names of the input's columns, in lower case.
    """

    def __init__(self, functions: Mapping[str, str], columns: frozenset[str]) -> None:
        self._reasons_against = functions
        self._columns = columns

    def statement(self, parsed: Node) -> Node:
        """Return the parsed SELECT. Raises InvalidArgument with the reason for a forbidden statement."""
        if parsed["error"]:
            message = parsed["error_message"]
            if "Only SELECT" in message:
                raise InvalidArgument("sql", NO_SELECT)
            raise InvalidArgument("sql", f"{NO_SQL}: {message.replace(INPUT, '{{ input }}')}.")
        if len(parsed["statements"]) != 1:
            raise InvalidArgument("sql", f"{len(parsed['statements'])} statements; one SELECT is allowed.")
        node: Node = parsed["statements"][0]["node"]
        self._select(node, frozenset())
        return node

    def _select(self, node: Node, tables: frozenset[str]) -> None:
        """Check a SELECT and all SELECTs in it; `tables` are the names of WITH that the SELECT may read."""
        if node["type"] != "SELECT_NODE":
            raise refuse(*_NODES.get(node["type"], (_words(node["type"]), _ROW_BY_ROW)))
        for modifier in node["modifiers"]:
            raise refuse(*_MODIFIERS.get(modifier["type"], (_words(modifier["type"]), _BATCHES)))
        for name, entry, query in ctes(node):
            if entry["aliases"]:
                raise refuse("a list of column names after WITH", "name the columns in the SELECT")
            self._select(query, tables)
            tables |= {name.lower()}
        self._refuse_groups(node)
        names = tables | self._source(node["from_table"], tables)
        for item in node["select_list"]:
            self._check_name(item)
        for part in expressions([node["select_list"], node["where_clause"]]):
            self._expression(part, names)

    def _check_name(self, item: Node) -> None:
        """Refuse an expression without a name; a forbidden expression is refused for its own reason first."""
        if item["alias"] or item["class"] in ("COLUMN_REF", "STAR"):
            return
        if not any(part["class"] in ("STAR", "WINDOW", "SUBQUERY") for part in expressions(item)):
            self._expression({**item, "alias": ""}, frozenset())
            raise InvalidArgument("sql", "an expression has no name.", "Give each one the name of its column: AS ...")

    def _refuse_groups(self, node: Node) -> None:
        grouped = node["group_expressions"] or node["group_sets"] or node["aggregate_handling"] != "STANDARD_HANDLING"
        for clause, parsed in (("GROUP BY", grouped), ("HAVING", node["having"]), ("QUALIFY", node["qualify"])):
            if parsed:
                raise refuse(clause, AGGREGATE if clause != "QUALIFY" else _BATCHES)
        if node["sample"]:
            raise refuse("a sample", CHANGING)

    def _source(self, source: Node, tables: frozenset[str]) -> frozenset[str]:
        """Check the source of a SELECT; return the table names by which expressions can refer to the source."""
        if source["type"] == "SUBQUERY":
            self._select(source["subquery"]["node"], tables)
            name = ""
        elif source["type"] == "BASE_TABLE":
            name = source["table_name"].lower()
            if source["schema_name"] or source["catalog_name"] or name not in tables | {INPUT}:
                raise refuse(f"the table {source['table_name']!r}", "a statement reads from {{ input }} alone")
            if source.get("at_clause"):
                raise refuse("AT", "{{ input }} has no versions")
        else:
            raise refuse(*_SOURCES.get(source["type"], (_words(source["type"]), _ROW_BY_ROW)))
        if source.get("sample"):
            raise refuse("a sample", CHANGING)
        if source.get("column_name_alias"):
            raise refuse("a list of column names after a table", "name the columns in the SELECT")
        return frozenset({name, source["alias"].lower()} - {""})

    def _expression(self, node: Node, tables: frozenset[str]) -> None:
        """Check an expression without its inner expressions, which the caller checks, too."""
        kind = node["class"]
        if kind not in _KNOWN_EXPRESSIONS:
            raise refuse(*_EXPRESSIONS.get(kind, (_words(kind), _ROW_BY_ROW)))
        if node["type"] == "GROUPING_FUNCTION":
            raise refuse("GROUPING", AGGREGATE)
        if (node.get("alias") or "").lower().startswith(METADATA):
            reason = f"names that begin with {METADATA} specify a record's place in Kafka. Choose another"
            raise refuse(f"the name {node['alias']!r}", reason)
        if kind == "FUNCTION":
            self._function(node)
        elif kind == "COLUMN_REF":
            self._column(node["column_names"], tables)
        elif kind == "CONSTANT" and INPUT in str(node):
            raise refuse("{{ input }} inside a string", "it stands for the table")
        elif kind == "STAR":
            self._star(node)

    def _function(self, node: Node) -> None:
        """Check a call of a function or an operator."""
        name = node["function_name"].lower()
        if node["schema"] not in ("", "main") or node["catalog"]:
            raise refuse(f"{node['schema']}.{name}", "functions are called by their plain names")
        if node["filter"] or node["distinct"] or node["order_bys"]["orders"]:
            raise refuse(f"{name} with FILTER, DISTINCT or ORDER BY", AGGREGATE)
        if is_function(name):
            reason = self._reasons_against.get(
                name, TABLE_FUNCTION if name == "unnest" else "DuckDB has no such function"
            )
            if reason:
                raise refuse(name, reason)
        _check_arguments(name, arguments_of(node))

    def _star(self, node: Node) -> None:
        if node["columns"] and node["expr"]:
            raise refuse("COLUMNS with a pattern", "name the columns, or write COLUMNS(*)")
        if METADATA in str([node["replace_list"], node.get("rename_list")]).lower():
            raise refuse(f"REPLACE or RENAME with a name that begins with {METADATA}", "name the columns")

    def _column(self, names: list[str], tables: frozenset[str]) -> None:
        """Check a column's reference, which may be a function without parentheses, or a table as a struct."""
        name = names[0].lower()
        if len(names) > 1:
            if names[-1].lower().startswith(METADATA) and name not in tables:
                raise refuse(f"the field {'.'.join(names)} without another name", "give it one: AS ...")
            return
        if name in self._columns:
            return
        if name in BARE_FUNCTIONS:
            raise refuse(name, CHANGING)
        if name in tables:
            raise refuse(f"{names[0].replace(INPUT, '{{ input }}')} as a value", "name its columns, or write *")


def _check_arguments(name: str, arguments: list[Node]) -> None:
    """Refuse arguments by which an allowed function's result changes with time, or has no single value.

    Raises InvalidArgument.
    """
    if name == "age" and len(arguments) == 1:
        raise refuse("age of one time", CHANGING)
    # A path with a wildcard has a list of values, and a computed path is not known before the rows are read.
    if name in ("json_value", "json_query"):
        path = constant(arguments[1]) if len(arguments) == 2 else None
        if path is None or not _SCALAR_PATH.fullmatch(path):
            problem = "takes a document and a path of one value, written out, such as '$.items[0].\"unit price\"'"
            raise InvalidArgument("sql", f"{name} {problem}.", "For everything else, use json_extract.")


def ctes(node: Node) -> Iterator[tuple[str, Node, Node]]:
    """Yield name, entry and parsed query of each WITH; the query's place in the entry depends on DuckDB's version."""
    for item in node["cte_map"]["map"]:
        entry = item["value"]
        yield item["key"], entry, entry["query_node"] if "query_node" in entry else entry["query"]["node"]


def expressions(node: Any) -> Iterator[Node]:
    """Yield all expressions in a part of a statement, except inside subqueries, which are refused as a whole."""
    if isinstance(node, list):
        for child in node:
            yield from expressions(child)
    elif isinstance(node, dict):
        if "class" in node:
            yield node
            if node["class"] == "SUBQUERY":
                return
        for child in node.values():
            yield from expressions(child)


def names_read(node: Any, names: set[str], *, of_input: bool = False) -> None:
    """Add the names in a statement to `names`, in lower case, and "*" if it stands for the input's columns.

    :param of_input: whether the part belongs to a SELECT from the input.
    """
    if isinstance(node, list):
        for child in node:
            names_read(child, names, of_input=of_input)
    elif isinstance(node, dict):
        if node.get("type") == "SELECT_NODE":
            of_input = node["from_table"].get("table_name", "").lower() == INPUT
        if node.get("class") == "COLUMN_REF":
            names.update(name.lower() for name in node["column_names"])
        elif node.get("class") == "STAR" and of_input:
            names.add("*")
        for child in node.values():
            names_read(child, names, of_input=of_input)


def arguments_of(function: Node) -> list[Node]:
    """Return a call's arguments, in the form of DuckDB 2, which stores each with a name, or of DuckDB 1."""
    if "arguments" in function:
        return [argument["expression"] for argument in function["arguments"]]
    children: list[Node] = function["children"]
    return children


def constant(node: Node) -> str | None:
    """Return a string literal's text, or None for NULL or another node."""
    if node["class"] != "CONSTANT":
        return None
    if "literal" in node:
        return node["literal"]["text"] if node["literal"]["kind"] == "STRING" else None
    value = node["value"]
    return value["value"] if value["type"]["id"] == "VARCHAR" and not value["is_null"] else None


def in_order(node: Node | None, build: Callable[..., Any]) -> Node | None:
    """Return an AND or OR as a CASE: parts are evaluated in order, each only if the earlier parts decide nothing.

    DuckDB would evaluate the parts in any order, the fastest first, so that the failing part would be chance.
    """
    if node is None or node["type"] not in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        return node
    *before, last = (in_order(child, build) for child in node["children"])
    both = (
        "CASE WHEN _a THEN _b ELSE false END"
        if node["type"] == "CONJUNCTION_AND"
        else "CASE WHEN _a THEN true ELSE _b END"
    )
    for condition in reversed(before):
        last = build(both, _a=condition, _b=last)
    return last


def needs_all(node: Node) -> bool:
    """Return whether an expression always needs all its arguments."""
    kind = node["class"]
    if kind == "FUNCTION":
        name = node["function_name"].lower()
        return name in _PLAIN or not (name[:1].isalpha() or name[:1] == "_")
    return kind == "COMPARISON" or kind == "CAST" or node["type"] in _PLAIN_OPERATORS


def replaced(node: Any, replace: Callable[[Node], Node | None]) -> Any:
    """Return a part of a statement with the results of `replace` in place of expressions, except inside lambdas.

    :param replace: returns an expression, or None to keep the given expression.
    """
    if isinstance(node, list):
        return [replaced(child, replace) for child in node]
    if not isinstance(node, dict) or node.get("class") == "LAMBDA":
        return node
    if "class" in node and (other := replace(node)) is not None:
        return other
    return {key: replaced(child, replace) for key, child in node.items()}


def without_places(node: Any) -> Any:
    """Return an expression without the positions in the statement's text, to compare expressions."""
    if isinstance(node, list):
        return [without_places(child) for child in node]
    if isinstance(node, dict):
        return {key: without_places(child) for key, child in node.items() if key != "query_location"}
    return node


def literal(text: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _words(name: str) -> str:
    """Return the name of a node's type in words, for an error."""
    return name.removesuffix("_NODE").removesuffix("_MODIFIER").replace("_", " ").lower()
