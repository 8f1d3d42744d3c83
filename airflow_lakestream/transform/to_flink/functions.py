"""Functions of the common subset: the kinds of arguments, and the form in Flink.

`{0}`, `{1}`, ... are the arguments. A doubt is a condition for records on which the engines may differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_lakestream.core.policies import OF_INPUT
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.transform.statement import INPUT, Node, constant, literal

ENGINES = "extract, group and spark"
# DuckDB's names of the types that both engines have, each with Flink's name.
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
# DuckDB's position of a node that is not in the statement's text.
_NOWHERE = 2**63
_UNKNOWN = "is not in the SQL that Flink takes"

# Line and column in the user's statement, from 1.
TextPlace = tuple[int, int]


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
    """A part of the statement is outside the SQL that DuckDB and Flink have in common.

    :param subject: the part in words.
    :param node: the part's parsed form; its position becomes `offset`.
    :param place: the part's place in the user's statement; None if unknown.
    :ivar offset: position in bytes, in the statement with its input's name; None if unknown.
    """

    def __init__(
        self, subject: str, node: Node | None = None, reason: str = _UNKNOWN, place: TextPlace | None = None
    ) -> None:
        offset = None if node is None else node.get("query_location")
        self.subject, self.reason, self.place = subject, reason, place
        self.offset = offset if isinstance(offset, int) and offset < _NOWHERE else None
        self.remedy = f"{ENGINES} take it; docs/sql.md has what is common to all."
        where = "" if place is None else f"line {place[0]}, column {place[1]}: "
        super().__init__("sql", f"{where}{subject} {reason}.", self.remedy)

    def placed(self, sql: str) -> NotCommon:
        """Return the error with the place in the user's statement, or this error if the offset is unknown."""
        if self.offset is None:
            return self
        return NotCommon(self.subject, None, self.reason, place_in(sql, self.offset))


def place_in(sql: str, offset: int) -> TextPlace:
    """Return the place of an offset in the user's statement.

    :param sql: the user's statement, with {{ input }}.
    :param offset: position in bytes, in the statement with the input's name in place of {{ input }}.
    """
    # The end of the last {{ input }} before the offset, in the user's statement; and of the input's name, in bytes.
    end, name_end = 0, 0
    for match in OF_INPUT.finditer(sql):
        between = len(sql[end : match.start()].encode())
        if offset < name_end + between + len(INPUT):
            break
        end, name_end = match.end(), name_end + between + len(INPUT)
    text = sql[:end] + sql[end:].encode()[: max(offset - name_end, 0)].decode(errors="ignore")
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def digits_of(kind: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal, or None for another type."""
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]), int(match[2])) if match else None


def is_number(kind: str) -> bool:
    """Return whether values of a DuckDB type are numbers."""
    return kind in (*INTEGERS, "FLOAT", "DOUBLE") or digits_of(kind) is not None


def flink_type(kind: str, node: Node | None = None) -> str:
    """Return Flink's name of a DuckDB type. Raises NotCommon, with the place of `node`."""
    if (digits := digits_of(kind)) is not None:
        return f"DECIMAL({digits[0]}, {digits[1]})"
    if kind not in TYPES:
        raise NotCommon(f"the type {kind}", node)
    return TYPES[kind]


def name(value: str) -> str:
    """Return a name as an identifier of Flink's SQL."""
    return "`" + value.replace("`", "``") + "`"


def unlike(sql: str, pattern: str) -> str:
    """Return the SQL condition for a text that does not match a pattern; NULL for NULL."""
    return f"(NOT REGEXP({sql}, {literal(pattern)}))"


def is_lost(sql: str, converted: str) -> str:
    """Return the SQL condition for a value whose conversion is NULL."""
    return f"({sql} IS NOT NULL AND {converted} IS NULL)"


# Kinds of arguments, as errors call them.
TEXT, NUMBER, WHOLE, INSTANT = "text", "number", "whole number", "time"
# Kinds of arguments that have to be literals.
WRITTEN, COUNT, UNIT, FORMAT, PATH, PATTERN, ZONE = (
    *("a text that is written out", "a number that is written out", "a unit that is written out"),
    *("a format that is written out", "a path that is written out", "a pattern that is written out", "'UTC'"),
)
_NOT_ASCII = "REGEXP({0}, '[^\\x00-\\x7F]')"
# Texts of numbers that Java prints in another form than DuckDB.
_PRINTED = "^-?[0-9]+([.][0-9]{{9,}}|([.][0-9]+)?E[+-]?[0-9]+)$"
_UNITS = ("second", "minute", "hour", "day", "month", "quarter", "year")
_PATH = re.compile(r"""\.([A-Za-z_][A-Za-z0-9_]*)|\."([^"*'\\]+)"|\[(\d+)\]""")
# Patterns with the same meaning in RE2 and Java.
_PORTABLE = re.compile(r"(?:[\w \-/:,@#%&=<>!~\"';_.^$|()\[\]*+?]|\{\d+(?:,\d*)?\}|\\[.\-/\\+*?|()\[\]{}^$dwsDWS])*")
_FORMATS = {"%Y": "yyyy", "%m": "MM", "%d": "dd", "%H": "HH", "%M": "mm", "%S": "ss", "%%": "%"}


@dataclass(frozen=True)
class FunctionForm:
    """Flink's form of a function, with placeholders `{0}`, `{1}`, ... for the arguments.

    :param takes: the kind of each argument.
    :param flink: Flink's expression; the caller casts the expression to DuckDB's type.
    :param doubts: conditions for records on which the engines may differ.
    """

    takes: tuple[str, ...]
    flink: str
    doubts: tuple[str, ...] = ()


def _ascii(*takes: str, flink: str, doubts: tuple[str, ...] = ()) -> FunctionForm:
    """Return the form of a function of a text whose result may differ for characters beyond ASCII."""
    return FunctionForm((TEXT, *takes), flink, (_NOT_ASCII, *doubts))


# Conditions for a document that only one of Flink and DuckDB accepts (Flink ignores text behind a document's end), and
# for a number that is printed in another form.
_BEHIND = "REGEXP({0}, '[}}\\]]\\s*[^\\s,}}\\]]')"
_WHOLE = "REGEXP({0}, '(?s)^\\s*[\\[{{].*[\\]}}]\\s*$')"
_NO_JSON = f"(NOT ({{0}} IS JSON AND {_WHOLE}) OR {_BEHIND} OR {{0}} IS NULL)"
_ESCAPED = "REGEXP({0}, '\\\\u([dD]|0000)')"
_VALUE = "JSON_VALUE({0}, {1})"
_NORMALIZED = f"(REGEXP({_VALUE}, '{_PRINTED}') AND (POSITION('E' IN {_VALUE}) > 0 OR POSITION({_VALUE} IN {{0}}) = 0))"
_QUERY = "JSON_QUERY({0}, {1})"

FORMS: Mapping[str, FunctionForm] = {
    "json_value": FunctionForm((TEXT, PATH), _VALUE, (_NO_JSON, _ESCAPED, _NORMALIZED)),
    "json_query": FunctionForm((TEXT, PATH), _QUERY, (_NO_JSON, _ESCAPED, f"REGEXP({_QUERY}, '[.\\\\]')")),
    "json_valid": FunctionForm((TEXT,), "({0} IS JSON)", (_NO_JSON,)),
    "lower": _ascii(flink="LOWER({0})"),
    "upper": _ascii(flink="UPPER({0})"),
    "trim": _ascii(flink="TRIM({0})"),
    "ltrim": _ascii(flink="LTRIM({0})"),
    "rtrim": _ascii(flink="RTRIM({0})"),
    "length": _ascii(flink="CAST(CHAR_LENGTH({0}) AS BIGINT)"),
    "substr": _ascii(COUNT, COUNT, flink="SUBSTRING({0}, {1}, {2})"),
    "left": _ascii(COUNT, flink="LEFT({0}, {1})"),
    "right": _ascii(COUNT, flink="RIGHT({0}, {1})"),
    "replace": FunctionForm((TEXT, WRITTEN, WRITTEN), "REPLACE({0}, {1}, {2})"),
    "contains": FunctionForm((TEXT, WRITTEN), "(POSITION({1} IN {0}) > 0)"),
    "starts_with": FunctionForm((TEXT, WRITTEN), "(POSITION({1} IN {0}) = 1)"),
    "split_part": FunctionForm(
        (TEXT, WRITTEN, COUNT), "CASE WHEN {0} IS NOT NULL THEN COALESCE(SPLIT_INDEX({0}, {1}, {2} - 1), '') END"
    ),
    "regexp_matches": _ascii(PATTERN, flink="REGEXP({0}, {1})", doubts=("REGEXP({0}, '[\\r\\n]')",)),
    "md5": FunctionForm((TEXT,), "MD5({0})"),
    "sha256": FunctionForm((TEXT,), "SHA256({0})"),
    "abs": FunctionForm((NUMBER,), "ABS({0})"),
    "floor": FunctionForm((NUMBER,), "FLOOR({0})"),
    "ceil": FunctionForm((NUMBER,), "CEIL({0})"),
    "date_trunc": FunctionForm((UNIT, INSTANT), "FLOOR({1} TO {0})", ("({1} < TIMESTAMP '1970-01-01 00:00:00')",)),
    "date_part": FunctionForm((UNIT, INSTANT), "EXTRACT({0} FROM {1})", ("({1} < TIMESTAMP '1970-01-01 00:00:00')",)),
    "strftime": FunctionForm((INSTANT, FORMAT), "DATE_FORMAT({0}, {1})"),
    "epoch_ms": FunctionForm(
        (WHOLE,), "CAST(TO_TIMESTAMP_LTZ({0}, 3) AS TIMESTAMP(6))", ("({0} NOT BETWEEN 0 AND 253402300799999)",)
    ),
    "to_timestamp": FunctionForm(
        (NUMBER,),
        "CAST(TO_TIMESTAMP_LTZ(CAST({0} AS BIGINT), 0) AS TIMESTAMP_LTZ(6))",
        ("(NOT ({0} = FLOOR({0}) AND {0} BETWEEN 0 AND 253402300799))",),
    ),
    "timezone": FunctionForm((ZONE, INSTANT), "{1}"),
}
# Alternative names of functions, each with the name in `FORMS`.
SAME: Mapping[str, str] = {
    **{"substring": "substr", "ceiling": "ceil", "len": "length", "datetrunc": "date_trunc", "datepart": "date_part"},
    **{"lcase": "lower", "ucase": "upper", "prefix": "starts_with"},
    **{f"{unit}": "date_part" for unit in _UNITS},
}


def written(takes: str, node: Node, function: str, call: Node) -> str | None:
    """Return a literal argument in Flink's form, or None if the argument need not be a literal.

    :param takes: the kind of the argument.
    :param call: the call, for the error's place.

    Raises NotCommon if the argument is not a literal, or if Flink does not have the literal.
    """
    if (convert := _WRITTEN.get(takes)) is None:
        return None
    if (sql := convert(node)) is None:
        raise NotCommon(function, call, f"takes {takes} here, of a kind that Flink has")
    return sql


def fitting(takes: str, part: FlinkExpression, function: str, call: Node) -> str:
    """Return the SQL of an argument that need not be a literal. Raises NotCommon for a type unfit for the function."""
    fits = {
        TEXT: part.kind == "VARCHAR",
        NUMBER: part.kind in (*INTEGERS, "DOUBLE") or digits_of(part.kind) is not None,
        WHOLE: part.kind in INTEGERS,
        INSTANT: part.kind in TIMES,
    }
    if not fits[takes]:
        raise NotCommon(f"{function} of {part.kind}", call, f"is not in the SQL that Flink takes: it takes a {takes}")
    # Flink has all units and formats only for times without a zone; sessions are in UTC.
    return f"CAST({part.sql} AS TIMESTAMP(6))" if takes == INSTANT and part.kind != "TIMESTAMP" else part.sql


def _path(node: Node) -> str | None:
    """Return a JSON path as a literal of Flink's SQL, or None if Flink does not have the path."""
    path = constant(node)
    if path is None or not path.startswith("$"):
        return None
    steps = list(_PATH.finditer(path, 1))
    if "".join(step[0] for step in steps) != path[1:]:
        return None
    return literal("$" + "".join(f"[{step[3]}]" if step[3] else f"['{step[1] or step[2]}']" for step in steps))


def _pattern(node: Node) -> str | None:
    """Return a regular expression as a literal of Flink's SQL, or None if its meaning may differ in RE2 and Java."""
    pattern = constant(node)
    if pattern is None or not _PORTABLE.fullmatch(pattern) or "(?" in pattern.replace("(?:", ""):
        return None
    return literal(pattern)


def _nonempty_text(node: Node) -> str | None:
    string = constant(node)
    return literal(string) if string else None


def _count(node: Node) -> str | None:
    """Return the whole number of a literal, or None for 0, a negative number, more than nine digits or another node."""
    if node["class"] != "CONSTANT":
        return None
    value = node["literal"]["text"] if "literal" in node else node["value"].get("value")
    count = int(value) if re.fullmatch(r"\d{1,9}", str(value)) else 0
    return str(count) if count else None


def _unit(node: Node) -> str | None:
    unit = (constant(node) or "").lower()
    return unit.upper() if unit in _UNITS else None


def _format(node: Node) -> str | None:
    """Return a format of times as a literal of Flink's SQL, or None if Flink does not have a part of the format."""
    written_format = constant(node)
    if written_format is None:
        return None
    parts = re.findall(r"%.|[^%A-Za-z']+", written_format)
    if "".join(parts) != written_format or any(part[0] == "%" and part not in _FORMATS for part in parts):
        return None
    return literal("".join(_FORMATS.get(part, part) for part in parts))


def _zone(node: Node) -> str | None:
    return "'UTC'" if (constant(node) or "").upper() == "UTC" else None


# By kind of argument, the function that returns a literal in Flink's form.
_WRITTEN = {
    **{WRITTEN: _nonempty_text, COUNT: _count, UNIT: _unit, FORMAT: _format},
    **{PATH: _path, PATTERN: _pattern, ZONE: _zone},
}
