"""Rewriting of a checked statement: the number of each row's record, and forms for finding bad records.

The user's expressions stay as they are; the number is a hidden column, passed from SELECT to SELECT and invisible to
`*`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import duckdb

from airflow_lakestream.transform.messages import HIDDEN, ROW
from airflow_lakestream.transform.sandbox import parse
from airflow_lakestream.transform.sift import LOOKED_UP, VALUE, FailureRemover, in_order
from airflow_lakestream.transform.statement import INPUT, Node, arguments_of, constant, ctes, expressions

BAD = f"{HIDDEN}bad"
SUSPECT = f"{HIDDEN}suspect"
_FILTERED = f"{HIDDEN}where"
_KEPT = f"{HIDDEN}kept"
_JSON = f"{HIDDEN}json_"


class NotTraceable(Exception):
    """Signal: the statement's form allows finding bad records only by halving the batch."""


class StatementRewriter:
    """Rewriter of a checked statement.

    :param columns: the input's columns.
    :param texts: the columns of text.
    :param hidden: the columns that `*` leaves out.
    :ivar sift_is_exact: after `sifting`, whether all suspects are bad.
    """

    def __init__(
        self, database: duckdb.DuckDBPyConnection, columns: list[str], texts: list[str], hidden: list[str]
    ) -> None:
        self._database = database
        self._columns = {name.lower() for name in columns}
        self._texts = {name.lower() for name in texts}
        self._hidden = hidden
        self.sift_is_exact = True

    def carrying(self, node: Node) -> Node:
        """Return the statement with the number of each row's record as the last column."""
        node = deepcopy(node)
        self._carry(node, self._select)
        return node

    def tracing(self, node: Node) -> Node:
        """Return a statement for the failing records: it does not fail, and its last column has the place of a failure.

        The last column is NULL for a record without a failure. Raises NotTraceable if one expression makes several
        columns.
        """
        node = deepcopy(node)
        self._carry(node, self._trace)
        return node

    def sifting(self, node: Node) -> Node:
        """Return a statement for good and suspect records: its last column has the reason of a suspect.

        The last column is NULL for a good record. The statement fails only for rare kinds of failures. Then
        `sift_is_exact` is true if all suspects are bad. Raises NotTraceable if one expression makes several columns.
        """
        node = deepcopy(node)
        self._carry(node, self._sift)
        return node

    def _carry(self, node: Node, rewrite: Callable[[Node, bool], None]) -> None:
        # Rewrites all SELECTs of the statement, the inner ones first.
        for _, entry, query in ctes(node):
            entry["materialized"] = "CTE_MATERIALIZE_NEVER"
            self._carry(query, rewrite)
        source = node["from_table"]
        if source["type"] == "SUBQUERY":
            self._carry(source["subquery"]["node"], rewrite)
        reads_input = source["type"] == "BASE_TABLE" and source["table_name"].lower() == INPUT
        node["where_clause"] = in_order(node["where_clause"], self._expression)
        rewrite(node, reads_input)

    def _select(self, node: Node, reads_input: bool) -> None:
        self._hide(node, [ROW, *self._hidden] if reads_input else [ROW])
        if reads_input:
            self._look_up_json_at_once(node)
        node["select_list"].append(self._expression(ROW))

    def _trace(self, node: Node, reads_input: bool) -> None:
        self._hide(node, [ROW, *self._hidden] if reads_input else [ROW, BAD])
        if reads_input:
            self._look_up_json_at_once(node)
        fails: list[tuple[str, Node]] = [("", self._expression(BAD))] if not reads_input else []
        if condition := _replaced(node["where_clause"], self._failing_by_a_cast):
            fails.append(("WHERE", condition))
            # A record that a condition leaves out is not bad, even if a column would fail. A record for which the
            # condition fails is kept as bad.
            known = self._failures(fails)
            kept = self._expression("_bad IS NOT NULL OR TRY(_e)", _bad=known, _e=condition)
            node["where_clause"] = kept
        for index, item in enumerate(node["select_list"]):
            if item["class"] in ("STAR", "COLUMN_REF", "CONSTANT"):
                continue
            if any(part["class"] == "STAR" for part in expressions(item)):
                raise NotTraceable
            plain = _replaced({**item, "alias": ""}, self._failing_by_a_cast)
            fails.append((f"column {item['alias']}", plain))
            node["select_list"][index] = {**self._expression("TRY(_e)", _e=plain), "alias": item["alias"]}
        node["select_list"] += [self._expression(ROW), {**self._failures(fails), "alias": BAD}]

    def _sift(self, node: Node, reads_input: bool) -> None:
        self._hide(node, [ROW, *self._hidden] if reads_input else [ROW, SUSPECT])
        values = self._look_up_json_at_once(node, guarded=True) if reads_input else {}
        # A column made by another SELECT is unknown here.
        sifter = FailureRemover(self._expression, self._texts if reads_input else ())
        reasons = [] if reads_input else [self._expression(SUSPECT)]
        if node["where_clause"]:
            reasons = self._sift_condition(node, sifter, values, reasons)
        # A value that is mentioned several times is computed once: here, and not for filtered records.
        if values:
            self._add_columns(node, values)
            sifter.is_made = True
        for index, item in enumerate(node["select_list"]):
            if item["class"] in ("STAR", "COLUMN_REF", "CONSTANT"):
                continue
            if any(part["class"] == "STAR" for part in expressions(item)):
                raise NotTraceable
            node["select_list"][index], reason = sifter.sifted(item)
            if reason:
                reasons.append(self._at(f"column {item['alias']}", sifter.first(reason)))
        node["select_list"] += [self._expression(ROW), {**sifter.first(reasons), "alias": SUSPECT}]
        self._add_casts(node, sifter)
        # An unread column fails for no record: with several SELECTs the unread columns are unknown.
        self.sift_is_exact = self.sift_is_exact and sifter.is_exact and reads_input

    def _sift_condition(
        self, node: Node, sifter: FailureRemover, values: dict[str, Node], reasons: list[Node]
    ) -> list[Node]:
        """Sift a SELECT's WHERE, with the looked-up values in it as columns; return the new reasons.

        :param values: expressions of looked-up values by name; the values in the condition are removed, as they become
            columns.
        """
        mentioned = {part["column_names"][0] for part in expressions(node["where_clause"]) if _is_column(part)}
        if early := {name: values.pop(name) for name in list(values) if name.removesuffix(VALUE) in mentioned}:
            self._add_columns(node, early)
            sifter.is_made = True
        condition, reason = sifter.sifted(node["where_clause"])
        self._add_casts(node, sifter)
        if reason:
            reasons = [*reasons, self._at("WHERE", sifter.first(reason))]
        if not reasons:
            node["where_clause"] = condition
            return reasons
        self._add_columns(node, {_FILTERED: sifter.first(reasons)})
        # A suspect passes, even if NULL in place of its failures makes the condition false. random() makes it volatile:
        # DuckDB would otherwise evaluate it before the columns in it, and each column again at each mention.
        kept = self._expression(
            "(_r IS NOT NULL OR _w) AND random() >= 0", _r=self._expression(_FILTERED), _w=condition
        )
        self._add_columns(node, {_KEPT: kept})
        node["where_clause"] = self._expression(_KEPT)
        return [self._expression(_FILTERED)]

    def _add_casts(self, node: Node, sifter: FailureRemover) -> None:
        if casts := sifter.take_casts():
            self._add_columns(node, casts)

    def _add_columns(self, node: Node, columns: dict[str, Node]) -> None:
        """Insert a SELECT with additional columns below a SELECT; `*` does not see the columns."""
        source = node["from_table"]
        name = source["alias"] or source.get("table_name") or f"{HIDDEN}from"
        query = f"SELECT * FROM (SELECT * FROM nothing) AS {_quoted(name)}"
        around = parse(self._database, query)["statements"][0]["node"]["from_table"]
        inner = around["subquery"]["node"]
        inner["from_table"] = source
        inner["select_list"] += [{**expression, "alias": column} for column, expression in columns.items()]
        node["from_table"] = around
        self._hide(node, list(columns))

    def _at(self, place: str, reason: Node) -> Node:
        found: Node = self._expression(f"{_literal(place + ': ')} || _r", _r=reason)
        return found

    def _failing_by_a_cast(self, node: Node) -> Node | None:
        """Return a failing cast for a call of `error`, else None: TRY refuses volatile functions, such as `error`."""
        if node["class"] != "FUNCTION" or node["function_name"].lower() != "error":
            return None
        failing = self._expression("CAST(CAST('!' || _e AS TINYINT) AS \"NULL\")", _e=arguments_of(node)[0])
        return {**failing, "alias": node["alias"]}

    def _failures(self, fails: list[tuple[str, Node]]) -> Node:
        """Return an expression for the first failing place; the place "" was found by an inner SELECT."""
        parts, cases = {}, []
        for index, (name, expression) in enumerate(fails):
            parts[f"_e{index}"] = expression
            if name:
                # A struct is never NULL, so NULL means that making it failed.
                cases.append(f"WHEN TRY({{'e': _e{index}}}) IS NULL THEN {_literal(name)}")
            else:
                cases.append(f"WHEN _e{index} IS NOT NULL THEN _e{index}")
        none = "CAST(NULL AS VARCHAR)"
        first: Node = self._expression(f"CASE {' '.join(cases)} ELSE {none} END" if cases else none, **parts)
        return first

    def _hide(self, node: Node, names: list[str]) -> None:
        for part in expressions([node["select_list"], node["where_clause"]]):
            if part["class"] == "STAR":
                there = {name.lower() for name in part["exclude_list"]}
                part["exclude_list"] += [name for name in names if name.lower() not in there]

    def _look_up_json_at_once(self, node: Node, *, guarded: bool = False) -> dict[str, Node]:
        """Look up all paths of a column at once: otherwise each json_value reads the document twice.

        Returns the expressions for the values of the texts found, by the name of a column.

        :param guarded: check a document first instead of catching its failure.
        """
        source = node["from_table"]
        table = source["alias"] or source["table_name"]
        paths: dict[str, list[str]] = {}
        collect = partial(self._replace_json_value, paths)
        node["select_list"] = [_replaced(item, collect) for item in node["select_list"]]
        node["where_clause"] = _replaced(node["where_clause"], collect)
        if not paths:
            return {}
        texts = [f"{_texts(column, found, guarded)} AS {_quoted(_JSON + column)}" for column, found in paths.items()]
        inner = f"SELECT *, {', '.join(texts)} FROM {INPUT}"
        # A column per text: each mention of a list element would copy it.
        numbered = [(column, i) for column, found in paths.items() for i in range(1, len(found) + 1)]
        single = {f"{_JSON}{column}_{i}": f"{_quoted(_JSON + column)}[{i}]" for column, i in numbered}
        elements = ", ".join(f"{text} AS {_quoted(name)}" for name, text in single.items())
        query = f"SELECT *, {elements} FROM ({inner})"
        outer = f"SELECT * FROM ({query}) AS {_quoted(table)}"
        node["from_table"] = parse(self._database, outer)["statements"][0]["node"]["from_table"]
        self._hide(node, [*(f"{_JSON}{column}" for column in paths), *single])
        return {f"{name}{VALUE}": self._expression(text) for name, text in self._values(paths).items()}

    def _values(self, paths: dict[str, list[str]]) -> dict[str, str]:
        """Return the expression for each text's value, by the name of the text's column."""
        return {
            f"{_JSON}{column}_{i}": (
                f"{LOOKED_UP}_or_null({_quoted(column)}, {_literal(path)}, {_quoted(_JSON + column)}, "
                f"{_quoted(f'{_JSON}{column}_{i}')})"
            )
            for column, found in paths.items()
            for i, path in enumerate(found, 1)
        }

    def _replace_json_value(self, paths: dict[str, list[str]], node: Node) -> Node | None:
        # Returns a look-up in the texts of all paths for a json_value of a column, else None; `paths` gets the path.
        if node["class"] != "FUNCTION" or node["function_name"].lower() != "json_value":
            return None
        document, path = arguments_of(node)
        text = constant(path)
        if document["class"] != "COLUMN_REF" or text is None or len(document["column_names"]) > 2:
            return None
        column = document["column_names"][-1].lower()
        if column not in self._columns:
            return None
        found = paths.setdefault(column, [])
        if text not in found:
            found.append(text)
        texts = f'"{_JSON}{column}"'
        single = f'"{_JSON}{column}_{found.index(text) + 1}"'
        call = f"{LOOKED_UP}(_d, {_literal(text)}, {texts}, {single})"
        replaced: Node = self._expression(call, _d={**document, "alias": ""})
        return {**replaced, "alias": node["alias"]}

    def _expression(self, sql: str, **parts: Node) -> Any:
        """Return the parsed expression, with the parts in place of the names of columns.

        :param parts: parsed expressions by name.
        """
        parsed = parse(self._database, f"SELECT {sql}")["statements"][0]["node"]["select_list"][0]

        def put_in(node: Node) -> Node | None:
            return parts.get(node["column_names"][0]) if node["class"] == "COLUMN_REF" else None

        return _replaced(parsed, put_in)


def _is_column(node: Node) -> bool:
    return bool(node["class"] == "COLUMN_REF")


def _replaced(node: Any, replace: Callable[[Node], Node | None]) -> Any:
    """Return the tree, with expressions replaced by the results of `replace`, except inside lambdas."""
    if isinstance(node, list):
        return [_replaced(child, replace) for child in node]
    if not isinstance(node, dict) or node.get("class") == "LAMBDA":
        return node
    if "class" in node and (other := replace(node)) is not None:
        return other
    return {key: _replaced(child, replace) for key, child in node.items()}


def _texts(column: str, paths: list[str], guarded: bool) -> str:
    extract = f"json_extract_string({_quoted(column)}, [{', '.join(map(_literal, paths))}])"
    # Catching a failure is slow; checking first takes a tenth longer.
    return f"CASE WHEN json_valid({_quoted(column)}) THEN {extract} END" if guarded else f"TRY({extract})"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
