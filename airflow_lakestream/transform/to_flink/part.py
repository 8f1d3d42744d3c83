"""Parts of a translated statement, and the place of an error in the statement."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_lakestream.core.policies import OF_INPUT
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform.statement import INPUT, Node

ENGINES = "extract, group and spark"
# DuckDB's names of the types that both engines have, with Flink's.
TYPES = {
    "BOOLEAN": "BOOLEAN",
    "INTEGER": "INT",
    "BIGINT": "BIGINT",
    "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE",
    "VARCHAR": "STRING",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP(6)",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP_LTZ(6)",
    "BLOB": "BYTES",
}
INTEGERS = ("INTEGER", "BIGINT")
TIMES = ("DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE")
NULL = '"NULL"'
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
# Position of a node that the parser has made itself.
_NOWHERE = 2**63
_UNKNOWN = "is not in the SQL that Flink takes"

Place = tuple[int, int]


@dataclass(frozen=True)
class FlinkExpression:
    """Flink's form of an expression.

    :param kind: DuckDB's type of the expression.
    :param doubts: conditions, each true for a record whose value may differ from DuckDB's.
    """

    sql: str
    kind: str
    doubts: tuple[str, ...] = ()


class NotCommon(InvalidArgument):
    """Error: a part of the statement is outside Flink's subset of SQL.

    :param subject: the part.
    :param node: the part's parsed form; its position becomes `offset`.
    :param place: line and column in the user's statement, from 1; None if unknown.
    :ivar offset: position in bytes, in the statement with its input's name; None if unknown.
    """

    def __init__(
        self, subject: str, node: Node | None = None, reason: str = _UNKNOWN, place: Place | None = None
    ) -> None:
        at = None if node is None else node.get("query_location")
        self.subject, self.reason, self.place = subject, reason, place
        self.offset = at if isinstance(at, int) and at < _NOWHERE else None
        self.remedy = f"{ENGINES} take it; docs/sql.md has what is common to all."
        where = "" if place is None else f"line {place[0]}, column {place[1]}: "
        super().__init__("sql", f"{where}{subject} {reason}.", self.remedy)

    def placed(self, sql: str) -> NotCommon:
        """Return the error with the place in the user's statement, or this error if the position is unknown."""
        if self.offset is None:
            return self
        return NotCommon(self.subject, None, self.reason, place_in(sql, self.offset))


def place_in(sql: str, offset: int) -> Place:
    """Return line and column in the user's statement, from 1.

    :param sql: the user's statement, with {{ input }}.
    :param offset: position in bytes, in the statement with the input's name in place of {{ input }}.
    """
    at, behind = 0, 0
    for found in OF_INPUT.finditer(sql):
        before = len(sql[behind : found.start()].encode())
        if offset < at + before + len(INPUT):
            break
        at, behind = at + before + len(INPUT), found.end()
    text = sql[:behind] + sql[behind:].encode()[: max(offset - at, 0)].decode(errors="ignore")
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def digits_of(kind: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal, or None for another type."""
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


def is_number(kind: str) -> bool:
    """Return whether values of the type are numbers."""
    return kind in (*INTEGERS, "FLOAT", "DOUBLE") or digits_of(kind) is not None


def flink_type(kind: str, node: Node | None = None) -> str:
    """Return Flink's name of a type. Raises NotCommon."""
    if (digits := digits_of(kind)) is not None:
        return f"DECIMAL({digits[0]}, {digits[1]})"
    if kind not in TYPES:
        raise NotCommon(f"the type {kind}", node)
    return TYPES[kind]


def text(value: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def name(value: str) -> str:
    """Return a name as an identifier of Flink's SQL."""
    return "`" + value.replace("`", "``") + "`"


def matches(sql: str, pattern: str) -> str:
    """Return the condition for a text matching a pattern."""
    return f"REGEXP({sql}, {text(pattern)})"


def unlike(sql: str, pattern: str) -> str:
    """Return the condition for a text not matching a pattern; NULL for NULL."""
    return f"(NOT {matches(sql, pattern)})"


def is_lost(sql: str, made: str) -> str:
    """Return the condition for a value that `made`, the converted value, loses by being NULL."""
    return f"({sql} IS NOT NULL AND {made} IS NULL)"
