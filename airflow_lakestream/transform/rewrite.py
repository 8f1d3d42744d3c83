"""Rewriting of a checked statement: the number of each row's record, and forms that find bad records.

The user's expressions stay as they are; the number is a hidden column, passed from SELECT to SELECT and invisible to
`*`. DuckDB fails as a whole for one failing record, and a search by single records takes thirty times as long. Most
failures are a cast or an invalid document: a form of the statement that does not fail has a reason for each suspect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from functools import partial
from typing import Any

import duckdb

from airflow_lakestream.transform.messages import HIDDEN, ROW
from airflow_lakestream.transform.sandbox import parse
from airflow_lakestream.transform.statement import (
    INPUT,
    Node,
    arguments_of,
    constant,
    ctes,
    expressions,
    in_order,
    literal,
    needs_all,
    quoted,
    replaced,
    without_places,
)

# The macro of json_value that uses texts of a document that were looked up before; see `sandbox.MACROS`.
LOOKED_UP = "_lakestream_json_value"
# Suffix of a looked-up text's column, for the column with json_value's result.
VALUE = "_value"
# The most characters of a value in a reason.
_LONGEST_VALUE = 80


class FailureRemover:
    """Removal of failures from expressions: each failure becomes NULL, and a reason.

    :ivar is_exact: whether all records with a reason really fail: false if a function may not need an argument, or if
        a cast may return NULL without a failure.
    :param build: parses a SQL expression, with the given parts in place of names.
    :param texts: lower-case names of text columns.
    """

    def __init__(self, build: Callable[..., Any], texts: Collection[str]) -> None:
        self._build = build
        self._texts = texts
        self.is_exact = True
        # Whether there are columns with the values of looked-up texts.
        self.has_value_columns = False
        # Casts of looked-up texts, by the name of a column for each; and the number that `take_casts` has returned.
        self._casts: dict[str, Node] = {}
        self._taken_casts = 0

    def sifted(self, node: Node) -> tuple[Node, list[Node]]:
        """Return the expression with NULL in place of failures, and an expression for each possible reason.

        The value of a reason is NULL for a record without the failure.
        """
        kind = node["class"]
        if kind in ("LAMBDA", "TYPE") or node["type"] == "OPERATOR_TRY":
            return node, []
        if kind == "CASE":
            return self._case(node)
        if kind == "CAST" and not node["try_cast"]:
            return self._cast(node)
        if kind == "FUNCTION" and node["function_name"].lower() in (LOOKED_UP, "error"):
            return self._function(node)
        sifted, reasons = self._inside(node)
        if reasons and not needs_all(node):
            self.is_exact = False
        return sifted, reasons

    def take_casts(self) -> dict[str, Node]:
        """Return the casts of looked-up texts since the last call, by the name of the column for each."""
        casts = dict(list(self._casts.items())[self._taken_casts :])
        self._taken_casts = len(self._casts)
        return casts

    def first(self, reasons: list[Node]) -> Node:
        """Return an expression for the first reason that is not NULL."""
        parts = {f"_r{index}": reason for index, reason in enumerate(reasons)}
        return dict(self._build(f"coalesce({', '.join([*parts, 'CAST(NULL AS VARCHAR)'])})", **parts))

    def _inside(self, node: Any) -> tuple[Any, list[Node]]:
        """Return the expression with all inner expressions sifted, and their reasons."""
        reasons: list[Node] = []
        sifted = {}
        for key, child in node.items():
            sifted[key], child_reasons = self._part(child)
            reasons += child_reasons
        return sifted, reasons

    def _part(self, part: Any) -> tuple[Any, list[Node]]:
        """Return a list or mapping in a parsed statement with all expressions sifted, and their reasons."""
        if isinstance(part, list):
            children = [self._part(child) for child in part]
            return [sifted for sifted, _ in children], [reason for _, reasons in children for reason in reasons]
        if not isinstance(part, dict):
            return part, []
        return self.sifted(part) if "class" in part else self._inside(part)

    def _cast(self, node: Node) -> tuple[Node, list[Node]]:
        """Return a cast that can't fail, and the reasons: the cast fails if its result is NULL, but its operand not."""
        child, reasons = self.sifted(node["child"])
        if not self._is_text(node["child"]):
            self.is_exact = False
        cast = {**node, "child": child, "try_cast": True}
        kind = node["type_expr"]["type_name"].replace("'", "''")
        text = f"'Could not convert ''' || left(CAST(_c AS VARCHAR), {_LONGEST_VALUE}) || ''' to {kind}'"
        # The cast of a looked-up text becomes a column of its own, so that the text is cast once.
        if self.has_value_columns and node["child"]["class"] == "FUNCTION" and self._is_text(node["child"]):
            name = self._cast_column(child["column_names"][0], cast)
            cast = {**self._build(f'"{name}"'), "alias": node["alias"]}
        parts = {"_c": {**child, "alias": ""}, "_t": {**cast, "alias": ""}}
        return cast, [*reasons, self._build(f"CASE WHEN _c IS NOT NULL AND _t IS NULL THEN {text} END", **parts)]

    def _cast_column(self, text: str, cast: Node) -> str:
        """Return the name of the column for a cast of the column `text`; equal casts share a column."""
        plain = without_places({**cast, "alias": ""})
        for name, earlier in self._casts.items():
            if without_places(earlier) == plain:
                return name
        name = f"{text}_{len(self._casts)}"
        self._casts[name] = {**cast, "alias": ""}
        return name

    def _is_text(self, node: Node) -> bool:
        """Return whether an expression is surely a text: a text column, or a looked-up text."""
        if node["class"] == "COLUMN_REF":
            name: str = node["column_names"][-1].lower()
            return name in self._texts
        function: str = node["function_name"].lower() if node["class"] == "FUNCTION" else ""
        return function == LOOKED_UP

    def _function(self, node: Node) -> tuple[Node, list[Node]]:
        """Return a call that can't fail, and the reasons: `error` always fails, a look-up by a malformed document."""
        if node["function_name"].lower() == "error":
            message, reasons = self.sifted(arguments_of(node)[0])
            reason = self._build("'Invalid Input Error: ' || _m", _m={**message, "alias": ""})
            return {**self._build("NULL"), "alias": node["alias"]}, [*reasons, reason]
        document, path, texts, text = arguments_of(node)
        if self.has_value_columns:
            value = self._build(f'"{text["column_names"][0]}{VALUE}"')
        else:
            value = self._build(f"{LOOKED_UP}_or_null(_d, _p, _l, _t)", _d=document, _p=path, _l=texts, _t=text)
        malformed = f"'Malformed JSON: ' || left(_d, {_LONGEST_VALUE})"
        reason = self._build(f"CASE WHEN _d IS NOT NULL AND _l IS NULL THEN {malformed} END", _d=document, _l=texts)
        return {**value, "alias": node["alias"]}, [reason]

    def _case(self, node: Node) -> tuple[Node, list[Node]]:
        """Return a CASE without failures, and the reasons: a branch's reasons count only for the branch's records."""
        otherwise, reasons = self.sifted(node["else_expr"])
        checks: list[Node] = []
        # From the last branch to the first: `reasons` are the reasons if no earlier branch applies.
        for check in reversed(node["case_checks"]):
            condition, condition_reasons = self.sifted(check["when_expr"])
            value, value_reasons = self.sifted(check["then_expr"])
            checks.insert(0, {"when_expr": condition, "then_expr": value})
            if value_reasons or reasons:
                branch = [{"when_expr": condition, "then_expr": self.first(value_reasons)}]
                by_branch = {**node, "alias": "", "case_checks": branch, "else_expr": self.first(reasons)}
                reasons = [*condition_reasons, by_branch]
            else:
                reasons = condition_reasons
        return {**node, "case_checks": checks, "else_expr": otherwise}, reasons


# Hidden columns: the failing part of a bad record, the reason of a suspect, the first reason in a WHERE, whether a row
# passes the WHERE; and the prefix of columns with texts looked up in JSON documents.
BAD = f"{HIDDEN}bad"
SUSPECT = f"{HIDDEN}suspect"
_WHERE_REASON = f"{HIDDEN}where"
_KEPT = f"{HIDDEN}kept"
_JSON = f"{HIDDEN}json_"


class NotTraceable(Exception):
    """The statement's form allows neither tracing nor sifting: only halves of the batch find bad records."""


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

    def with_row_numbers(self, node: Node) -> Node:
        """Return the statement with the number of each row's record as the last column."""
        node = deepcopy(node)
        self._carry(node, self._select)
        return node

    def tracing(self, node: Node) -> Node:
        """Return a statement that does not fail, with the first failing part, a column or WHERE, as the last column.

        The last column is NULL for a record without a failure. Raises NotTraceable if one expression makes several
        columns.
        """
        node = deepcopy(node)
        self._carry(node, self._trace)
        return node

    def sifting(self, node: Node) -> Node:
        """Return a statement that rarely fails, with the reason of a suspect record as the last column.

        The last column is NULL for a good record. Afterwards `sift_is_exact` is true if all suspects are bad. Raises
        NotTraceable if one expression makes several columns.
        """
        node = deepcopy(node)
        self._carry(node, self._sift)
        return node

    def _carry(self, node: Node, rewrite: Callable[[Node, bool], None]) -> None:
        """Rewrite all SELECTs of a statement in place, the inner SELECTs first.

        :param rewrite: rewrites a SELECT; its second argument is true if the SELECT reads the input.
        """
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
        tried: list[tuple[str, Node]] = [("", self._expression(BAD))] if not reads_input else []
        if condition := replaced(node["where_clause"], self._failing_cast):
            tried.append(("WHERE", condition))
            # A record that a condition leaves out is not bad, even if a column would fail. A record for which the
            # condition fails is kept as bad.
            failure = self._first_failure(tried)
            node["where_clause"] = self._expression("_bad IS NOT NULL OR TRY(_e)", _bad=failure, _e=condition)
        for index, item in enumerate(node["select_list"]):
            if item["class"] in ("STAR", "COLUMN_REF", "CONSTANT"):
                continue
            if any(part["class"] == "STAR" for part in expressions(item)):
                raise NotTraceable
            plain = replaced({**item, "alias": ""}, self._failing_cast)
            tried.append((f"column {item['alias']}", plain))
            node["select_list"][index] = {**self._expression("TRY(_e)", _e=plain), "alias": item["alias"]}
        node["select_list"] += [self._expression(ROW), {**self._first_failure(tried), "alias": BAD}]

    def _sift(self, node: Node, reads_input: bool) -> None:
        self._hide(node, [ROW, *self._hidden] if reads_input else [ROW, SUSPECT])
        values = self._look_up_json_at_once(node, guarded=True) if reads_input else {}
        # The types of another SELECT's columns are unknown here.
        sifter = FailureRemover(self._expression, self._texts if reads_input else ())
        reasons = [] if reads_input else [self._expression(SUSPECT)]
        if node["where_clause"]:
            reasons = self._sift_condition(node, sifter, values, reasons)
        # As columns, values with several mentions are computed once, and not for filtered records.
        if values:
            self._add_columns(node, values)
            sifter.has_value_columns = True
        for index, item in enumerate(node["select_list"]):
            if item["class"] in ("STAR", "COLUMN_REF", "CONSTANT"):
                continue
            if any(part["class"] == "STAR" for part in expressions(item)):
                raise NotTraceable
            node["select_list"][index], item_reasons = sifter.sifted(item)
            if item_reasons:
                reasons.append(self._with_place(f"column {item['alias']}", sifter.first(item_reasons)))
        node["select_list"] += [self._expression(ROW), {**sifter.first(reasons), "alias": SUSPECT}]
        self._add_casts(node, sifter)
        # With several SELECTs, a suspect may be good: an outer SELECT need not read the column that would fail.
        self.sift_is_exact = self.sift_is_exact and sifter.is_exact and reads_input

    def _sift_condition(
        self, node: Node, sifter: FailureRemover, values: dict[str, Node], reasons: list[Node]
    ) -> list[Node]:
        """Sift a SELECT's WHERE in place; return the reasons for the SELECT's columns.

        :param values: expressions of looked-up values; values in the condition become columns here, and are removed.
        """
        mentioned = {
            part["column_names"][0] for part in expressions(node["where_clause"]) if part["class"] == "COLUMN_REF"
        }
        if early := {name: values.pop(name) for name in list(values) if name.removesuffix(VALUE) in mentioned}:
            self._add_columns(node, early)
            sifter.has_value_columns = True
        condition, where_reasons = sifter.sifted(node["where_clause"])
        self._add_casts(node, sifter)
        if where_reasons:
            reasons = [*reasons, self._with_place("WHERE", sifter.first(where_reasons))]
        if not reasons:
            node["where_clause"] = condition
            return reasons
        self._add_columns(node, {_WHERE_REASON: sifter.first(reasons)})
        # A suspect passes, even if NULL in place of its failures makes the condition false. random() is volatile, so
        # that DuckDB evaluates the condition after the columns in it, and each column only once.
        suspect = self._expression(_WHERE_REASON)
        kept = self._expression("(_r IS NOT NULL OR _w) AND random() >= 0", _r=suspect, _w=condition)
        self._add_columns(node, {_KEPT: kept})
        node["where_clause"] = self._expression(_KEPT)
        return [self._expression(_WHERE_REASON)]

    def _add_casts(self, node: Node, sifter: FailureRemover) -> None:
        if casts := sifter.take_casts():
            self._add_columns(node, casts)

    def _add_columns(self, node: Node, columns: dict[str, Node]) -> None:
        """Add columns to a SELECT's source by a SELECT around the source; `*` does not see the columns."""
        source = node["from_table"]
        name = source["alias"] or source.get("table_name") or f"{HIDDEN}from"
        query = f"SELECT * FROM (SELECT * FROM nothing) AS {quoted(name)}"
        wrapper = parse(self._database, query)["statements"][0]["node"]["from_table"]
        inner = wrapper["subquery"]["node"]
        inner["from_table"] = source
        inner["select_list"] += [{**expression, "alias": column} for column, expression in columns.items()]
        node["from_table"] = wrapper
        self._hide(node, list(columns))

    def _with_place(self, place: str, reason: Node) -> Node:
        return self._expression(f"{literal(place + ': ')} || _r", _r=reason)

    def _failing_cast(self, node: Node) -> Node | None:
        """Return a failing cast in place of a call of `error`, which TRY refuses as volatile; None for other nodes."""
        if node["class"] != "FUNCTION" or node["function_name"].lower() != "error":
            return None
        failing = self._expression("CAST(CAST('!' || _e AS TINYINT) AS \"NULL\")", _e=arguments_of(node)[0])
        return {**failing, "alias": node["alias"]}

    def _first_failure(self, tried: list[tuple[str, Node]]) -> Node:
        """Return an expression for the place of a record's first failure, with the value NULL without a failure.

        :param tried: places, each with its expression; the expression for "" has the place that an inner SELECT found.
        """
        parts, cases = {}, []
        for index, (place, expression) in enumerate(tried):
            parts[f"_e{index}"] = expression
            if place:
                # A struct is never NULL, so NULL means that making it failed.
                cases.append(f"WHEN TRY({{'e': _e{index}}}) IS NULL THEN {literal(place)}")
            else:
                cases.append(f"WHEN _e{index} IS NOT NULL THEN _e{index}")
        none = "CAST(NULL AS VARCHAR)"
        return self._expression(f"CASE {' '.join(cases)} ELSE {none} END" if cases else none, **parts)

    def _hide(self, node: Node, names: list[str]) -> None:
        """Exclude columns from each `*` of a SELECT."""
        for part in expressions([node["select_list"], node["where_clause"]]):
            if part["class"] == "STAR":
                excluded = {name.lower() for name in part["exclude_list"]}
                part["exclude_list"] += [name for name in names if name.lower() not in excluded]

    def _look_up_json_at_once(self, node: Node, *, guarded: bool = False) -> dict[str, Node]:
        """Look up all paths of a column at once: otherwise each json_value of a SELECT reads the document twice.

        Returns the expressions for json_value's results, by the name of a column for each. If `guarded`, documents are
        checked first, instead of TRY for their failures.
        """
        source = node["from_table"]
        table = source["alias"] or source["table_name"]
        paths: dict[str, list[str]] = {}
        collect = partial(self._replace_json_value, paths)
        node["select_list"] = [replaced(item, collect) for item in node["select_list"]]
        node["where_clause"] = replaced(node["where_clause"], collect)
        if not paths:
            return {}
        lists = [f"{_texts(column, texts, guarded)} AS {quoted(_JSON + column)}" for column, texts in paths.items()]
        inner = f"SELECT *, {', '.join(lists)} FROM {INPUT}"
        # A column per text: each mention of a list's element would copy the element.
        numbered = [(column, i) for column, texts in paths.items() for i in range(1, len(texts) + 1)]
        single = {f"{_JSON}{column}_{i}": f"{quoted(_JSON + column)}[{i}]" for column, i in numbered}
        elements = ", ".join(f"{text} AS {quoted(name)}" for name, text in single.items())
        query = f"SELECT *, {elements} FROM ({inner})"
        outer = f"SELECT * FROM ({query}) AS {quoted(table)}"
        node["from_table"] = parse(self._database, outer)["statements"][0]["node"]["from_table"]
        self._hide(node, [*(f"{_JSON}{column}" for column in paths), *single])
        return {f"{name}{VALUE}": self._expression(text) for name, text in self._values(paths).items()}

    def _values(self, paths: dict[str, list[str]]) -> dict[str, str]:
        """Return the expression for each text's value, by the name of the text's column."""
        return {
            f"{_JSON}{column}_{i}": (
                f"{LOOKED_UP}_or_null({quoted(column)}, {literal(path)}, {quoted(_JSON + column)}, "
                f"{quoted(f'{_JSON}{column}_{i}')})"
            )
            for column, texts in paths.items()
            for i, path in enumerate(texts, 1)
        }

    def _replace_json_value(self, paths: dict[str, list[str]], node: Node) -> Node | None:
        """Return a look-up in place of a column's json_value, whose path is added to `paths`; None for other nodes."""
        if node["class"] != "FUNCTION" or node["function_name"].lower() != "json_value":
            return None
        document, path = arguments_of(node)
        text = constant(path)
        if document["class"] != "COLUMN_REF" or text is None or len(document["column_names"]) > 2:
            return None
        column = document["column_names"][-1].lower()
        if column not in self._columns:
            return None
        column_paths = paths.setdefault(column, [])
        if text not in column_paths:
            column_paths.append(text)
        texts = f'"{_JSON}{column}"'
        single = f'"{_JSON}{column}_{column_paths.index(text) + 1}"'
        call = f"{LOOKED_UP}(_d, {literal(text)}, {texts}, {single})"
        return {**self._expression(call, _d={**document, "alias": ""}), "alias": node["alias"]}

    def _expression(self, sql: str, **parts: Node) -> Node:
        """Return the parsed form of an expression; the `parts` are parsed expressions in place of column names."""
        parsed = parse(self._database, f"SELECT {sql}")["statements"][0]["node"]["select_list"][0]

        def put_in(node: Node) -> Node | None:
            return parts.get(node["column_names"][0]) if node["class"] == "COLUMN_REF" else None

        expression: Node = replaced(parsed, put_in)
        return expression


def _texts(column: str, paths: list[str], guarded: bool) -> str:
    """Return SQL for the list of the texts at all paths of a document; NULL for an invalid document."""
    extract = f"json_extract_string({quoted(column)}, [{', '.join(map(literal, paths))}])"
    # TRY is slow for a failure; a check of each document takes a tenth longer.
    return f"CASE WHEN json_valid({quoted(column)}) THEN {extract} END" if guarded else f"TRY({extract})"
