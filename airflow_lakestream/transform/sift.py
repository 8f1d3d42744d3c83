"""Rewriting of a statement into a form without failures, with a reason for each suspect record.

One failing record makes DuckDB run all records around it one by one, which takes thirty times as long. Most failures
are a cast or an invalid document, and DuckDB can detect these without failing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from airflow_lakestream.transform.statement import Node, arguments_of

LOOKED_UP = "_lakestream_json_value"
# Suffix of a text's column: the column with json_value's result for the text.
VALUE = "_value"
_MOST = 80

# Functions that always need all their arguments.
_PLAIN = frozenset(
    {
        *("abs", "ceil", "concat", "date_part", "date_trunc", "epoch_ms", "floor", "hash", "left", "length", "lower"),
        *("ltrim", "md5", "replace", "right", "round", "rtrim", "strftime", "substr", "substring", "trim", "upper"),
    }
)
_PLAIN_OPERATORS = frozenset({"OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"})

# Builds a SQL expression from a template and its parts.
Build = Callable[..., Any]


class FailureRemover:
    """Removal of failures from expressions: each failure becomes NULL, and a reason.

    :ivar is_exact: all records with a reason really fail. Not if a function may do without one of its arguments, or a
        cast may make NULL of a value without a failure.
    :param build: parses a SQL expression, with the given parts in place of names.
    :param texts: lower-case names of text columns.
    """

    def __init__(self, build: Build, texts: Collection[str]) -> None:
        self._build = build
        self._texts = texts
        self.is_exact = True
        # Whether there are columns with the values of looked-up texts.
        self.is_made = False
        # Casts of looked-up texts, by column name: made once even if mentioned twice.
        self._casts: dict[str, Node] = {}
        self._taken = 0

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
        made, reasons = self._inside(node)
        if reasons and not _needs_all(node):
            self.is_exact = False
        return made, reasons

    def take_casts(self) -> dict[str, Node]:
        """Return the casts found since the last call, by the name of the column for each."""
        found = dict(list(self._casts.items())[self._taken :])
        self._taken = len(self._casts)
        return found

    def first(self, reasons: list[Node]) -> Node:
        """Return an expression for the first reason that is not NULL."""
        parts = {f"_r{index}": reason for index, reason in enumerate(reasons)}
        found: Node = self._build(f"coalesce({', '.join([*parts, 'CAST(NULL AS VARCHAR)'])})", **parts)
        return found

    def _inside(self, node: Any) -> tuple[Any, list[Node]]:
        # Returns an expression with all inner expressions sifted, and their reasons.
        if isinstance(node, dict) and "class" in node:
            reasons: list[Node] = []
            made = {}
            for key, child in node.items():
                made[key], found = self._part(child)
                reasons += found
            return made, reasons
        return self._part(node)

    def _part(self, child: Any) -> tuple[Any, list[Node]]:
        if isinstance(child, list):
            parts = [self._part(one) for one in child]
            return [made for made, _ in parts], [reason for _, found in parts for reason in found]
        if isinstance(child, dict):
            if "class" in child:
                return self.sifted(child)
            made = {key: self._part(one) for key, one in child.items()}
            return {key: one for key, (one, _) in made.items()}, [r for _, found in made.values() for r in found]
        return child, []

    def _cast(self, node: Node) -> tuple[Node, list[Node]]:
        # A cast fails if its result is NULL, and its operand is not.
        child, reasons = self.sifted(node["child"])
        if not self._is_text(node["child"]):
            self.is_exact = False
        cast = {**node, "child": child, "try_cast": True}
        kind = node["type_expr"]["type_name"].replace("'", "''")
        text = f"'Could not convert ''' || left(CAST(_c AS VARCHAR), {_MOST}) || ''' to {kind}'"
        # The cast of a looked-up text becomes a column of its own, so that the text is cast once.
        if self.is_made and node["child"]["class"] == "FUNCTION" and self._is_text(node["child"]):
            name = self._named(child["column_names"][0], cast)
            cast = {**self._build(f'"{name}"'), "alias": node["alias"]}
        parts = {"_c": {**child, "alias": ""}, "_t": {**cast, "alias": ""}}
        return cast, [*reasons, self._build(f"CASE WHEN _c IS NOT NULL AND _t IS NULL THEN {text} END", **parts)]

    def _named(self, text: str, cast: Node) -> str:
        """Return the name of the column for a cast; the same cast of an earlier expression has the same column.

        :param text: name of the column with the text.
        """
        plain = _without_places({**cast, "alias": ""})
        for name, known in self._casts.items():
            if _without_places(known) == plain:
                return name
        name = f"{text}_{len(self._casts)}"
        self._casts[name] = {**cast, "alias": ""}
        return name

    def _is_text(self, node: Node) -> bool:
        if node["class"] == "COLUMN_REF":
            name: str = node["column_names"][-1].lower()
            return name in self._texts
        function: str = node["function_name"].lower() if node["class"] == "FUNCTION" else ""
        return function == LOOKED_UP

    def _function(self, node: Node) -> tuple[Node, list[Node]]:
        # A call of `error` always fails; a looked-up value fails if its document is malformed.
        if node["function_name"].lower() == "error":
            message, reasons = self.sifted(arguments_of(node)[0])
            reason = self._build("'Invalid Input Error: ' || _m", _m={**message, "alias": ""})
            return {**self._build("NULL"), "alias": node["alias"]}, [*reasons, reason]
        document, path, texts, text = arguments_of(node)
        if self.is_made:
            value = self._build(f'"{text["column_names"][0]}{VALUE}"')
        else:
            value = self._build(f"{LOOKED_UP}_or_null(_d, _p, _l, _t)", _d=document, _p=path, _l=texts, _t=text)
        malformed = f"'Malformed JSON: ' || left(_d, {_MOST})"
        reason = self._build(f"CASE WHEN _d IS NOT NULL AND _l IS NULL THEN {malformed} END", _d=document, _l=texts)
        return {**value, "alias": node["alias"]}, [reason]

    def _case(self, node: Node) -> tuple[Node, list[Node]]:
        """Return a CASE without failures, and the reasons: a branch's reasons count only for the branch's records."""
        otherwise, reasons = self.sifted(node["else_expr"])
        checks: list[Node] = []
        for check in reversed(node["case_checks"]):
            condition, of_condition = self.sifted(check["when_expr"])
            value, of_value = self.sifted(check["then_expr"])
            checks.insert(0, {"when_expr": condition, "then_expr": value})
            if of_value or reasons:
                branch = [{"when_expr": condition, "then_expr": self.first(of_value)}]
                rest = {**node, "alias": "", "case_checks": branch, "else_expr": self.first(reasons)}
                reasons = [*of_condition, rest]
            else:
                reasons = of_condition
        return {**node, "case_checks": checks, "else_expr": otherwise}, reasons


def in_order(node: Node | None, build: Build) -> Node | None:
    """Return a condition with the parts evaluated in order, each only if the earlier parts leave the result open.

    DuckDB evaluates the parts in any order, the fastest so far first: then it would be chance which part fails.
    """
    if node is None or node["type"] not in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        return node
    *before, last = (in_order(child, build) for child in node["children"])
    both = "CASE WHEN _a THEN _b ELSE false END" if node["type"] == "CONJUNCTION_AND" else _EITHER
    for condition in reversed(before):
        last = build(both, _a=condition, _b=last)
    return last


_EITHER = "CASE WHEN _a THEN true ELSE _b END"


def _without_places(node: Any) -> Any:
    """Return an expression without the positions in the statement's text, to compare expressions."""
    if isinstance(node, list):
        return [_without_places(child) for child in node]
    if isinstance(node, dict):
        return {key: _without_places(child) for key, child in node.items() if key != "query_location"}
    return node


def _needs_all(node: Node) -> bool:
    kind = node["class"]
    if kind == "FUNCTION":
        name = node["function_name"].lower()
        return name in _PLAIN or not (name[:1].isalpha() or name[:1] == "_")
    return kind == "COMPARISON" or kind == "CAST" or node["type"] in _PLAIN_OPERATORS
