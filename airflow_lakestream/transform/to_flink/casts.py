"""Casts in Flink's SQL, with doubts: conditions for values on which the engines may differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_lakestream.transform.statement import Node
from airflow_lakestream.transform.to_flink.part import (
    INTEGERS,
    NULL,
    FlinkExpression,
    NotCommon,
    digits_of,
    flink_type,
    is_lost,
    is_number,
    unlike,
)

# Digits that a double represents exactly; and below, the texts of doubles that no engine rounds twice.
EXACT_DIGITS = 15
# Texts that fit the type, with any digits.
_WHOLE = {"INTEGER": r"^-?(0|[1-9][0-9]{0,8})$", "BIGINT": r"^-?(0|[1-9][0-9]{0,17})$"}
_DOUBLE = r"^-?[0-9]{1,15}(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?$"
_TIME = r"^(19|2[0-9])[0-9]{2}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
_TIME_UTC = _TIME.removesuffix("$") + "(Z|[+]00:?00|[+]00)?$"
_RANGES = {"INTEGER": (-(2**31), 2**31 - 1), "BIGINT": (-(2**53), 2**53)}


def cast(part: FlinkExpression, kind: str, node: Node) -> FlinkExpression:
    """Return an expression with another type. Raises NotCommon."""
    if part.kind == kind:
        return part
    target = flink_type(kind, node)
    if part.kind == NULL:
        return FlinkExpression(f"CAST(NULL AS {target})", kind)
    flink_type(part.kind, node)
    made = _CASTS.get((_class_of(part.kind), _class_of(kind)))
    if made is None:
        raise NotCommon(f"a cast of {part.kind} to {kind}", node)
    sql, doubts = made(part.sql, part.kind, kind)
    return FlinkExpression(sql, kind, (*part.doubts, *doubts))


def out_of(sql: str, kind: str) -> str:
    """Return the condition for a whole number out of the range of an integer type."""
    low, high = (-(2**63) + 1, 2**63 - 1) if kind == "BIGINT" else _RANGES[kind]
    return f"({sql} NOT BETWEEN {low} AND {high})"


def _class_of(kind: str) -> str:
    if kind in INTEGERS:
        return "whole"
    return "decimal" if digits_of(kind) is not None else kind


Made = tuple[str, list[str]]


def _text_to_whole(sql: str, _: str, kind: str) -> Made:
    return f"TRY_CAST({sql} AS {flink_type(kind)})", [unlike(sql, _WHOLE[kind])]


def _text_to_decimal(sql: str, _: str, kind: str) -> Made:
    digits, scale = digits_of(kind) or (0, 0)
    behind = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    before = f"[0-9]{{1,{digits - scale}}}" if digits > scale else "0"
    return f"TRY_CAST({sql} AS {flink_type(kind)})", [unlike(sql, f"^-?{before}{behind}$")]


def _text_to_double(sql: str, _: str, kind: str) -> Made:
    return f"TRY_CAST({sql} AS DOUBLE)", [unlike(sql, _DOUBLE)]


def _text_to_boolean(sql: str, _: str, kind: str) -> Made:
    return f"({sql} = 'true')", [unlike(sql, "^(true|false)$")]


def _text_to_date(sql: str, _: str, kind: str) -> Made:
    made = f"TRY_CAST({sql} AS DATE)"
    # Flink turns a day that the month does not have into a day of the next month.
    return made, [f"(COALESCE(CAST({made} AS STRING), '') <> {sql})"]


def _text_to_timestamp(sql: str, _: str, kind: str, pattern: str = _TIME) -> Made:
    plain = f"REPLACE(REGEXP_EXTRACT({sql}, '^([0-9]+-[0-9]+-[0-9]+[ T][0-9:.]+)', 1), 'T', ' ')"
    made = f"TRY_CAST({plain} AS TIMESTAMP(6))"
    other = f"(COALESCE(SUBSTRING(CAST({made} AS STRING), 1, 19), '') <> SUBSTRING({plain}, 1, 19))"
    return made, [unlike(sql, pattern), other]


def _text_to_instant(sql: str, of: str, kind: str) -> Made:
    made, doubts = _text_to_timestamp(sql, of, kind, _TIME_UTC)
    return f"CAST({made} AS TIMESTAMP_LTZ(6))", doubts


def _whole_to_whole(sql: str, _: str, kind: str) -> Made:
    # Flink drops the upper bits of a number that is too large.
    return f"CAST({sql} AS {flink_type(kind)})", [out_of(sql, kind)] if kind == "INTEGER" else []


def _to_decimal(sql: str, _: str, kind: str) -> Made:
    made = f"CAST({sql} AS {flink_type(kind)})"
    return made, [is_lost(sql, made)]


def _decimal_to_double(sql: str, of: str, kind: str) -> Made:
    digits = digits_of(of)
    doubts = [f"(ABS({sql}) >= 1E{EXACT_DIGITS - digits[1]})"] if digits and digits[0] > EXACT_DIGITS else []
    return f"CAST({sql} AS DOUBLE)", doubts


def _fraction_to_whole(sql: str, _: str, kind: str) -> Made:
    # DuckDB rounds, Flink cuts off.
    low, high = _RANGES[kind]
    inside = f"({sql} = FLOOR({sql}) AND {sql} BETWEEN {low} AND {high})"
    return f"CAST({sql} AS {flink_type(kind)})", [f"(NOT {inside})"]


def _as(sql: str, _: str, kind: str) -> Made:
    return f"CAST({sql} AS {flink_type(kind)})", []


def _boolean_to_text(sql: str, _: str, kind: str) -> Made:
    return f"CASE WHEN {sql} THEN 'true' WHEN NOT {sql} THEN 'false' END", []


_TEXT, _INSTANT = "VARCHAR", "TIMESTAMP WITH TIME ZONE"
_CASTS: Mapping[tuple[str, str], Callable[[str, str, str], Made]] = {
    (_TEXT, "whole"): _text_to_whole,
    (_TEXT, "decimal"): _text_to_decimal,
    (_TEXT, "DOUBLE"): _text_to_double,
    (_TEXT, "BOOLEAN"): _text_to_boolean,
    (_TEXT, "DATE"): _text_to_date,
    (_TEXT, "TIMESTAMP"): _text_to_timestamp,
    (_TEXT, _INSTANT): _text_to_instant,
    ("whole", "whole"): _whole_to_whole,
    ("whole", "decimal"): _to_decimal,
    ("whole", "DOUBLE"): _as,
    ("whole", _TEXT): _as,
    ("FLOAT", "DOUBLE"): _as,
    ("DOUBLE", "whole"): _fraction_to_whole,
    ("decimal", "whole"): _fraction_to_whole,
    ("decimal", "decimal"): _to_decimal,
    ("decimal", "DOUBLE"): _decimal_to_double,
    ("decimal", _TEXT): _as,
    ("BOOLEAN", _TEXT): _boolean_to_text,
    ("DATE", _TEXT): _as,
    ("DATE", "TIMESTAMP"): _as,
    ("DATE", _INSTANT): _as,
    ("TIMESTAMP", "DATE"): _as,
    ("TIMESTAMP", _INSTANT): _as,
    (_INSTANT, "TIMESTAMP"): _as,
    (_INSTANT, "DATE"): _as,
}


def alike(left: FlinkExpression, right: FlinkExpression, node: Node) -> tuple[FlinkExpression, FlinkExpression]:
    """Return two expressions of a type that both engines compare alike. Raises NotCommon."""
    kinds = (left.kind, right.kind)
    if NULL in kinds:
        kind = next((kind for kind in kinds if kind != NULL), "INTEGER")
        return cast(left, kind, node), cast(right, kind, node)
    if left.kind == right.kind:
        return left, right
    if all(map(is_number, kinds)):
        if {"FLOAT", "DOUBLE"} & set(kinds):
            return cast(left, "DOUBLE", node), cast(right, "DOUBLE", node)
        return left, right
    raise NotCommon(f"{left.kind} next to {right.kind}", node, "is not a comparison that Flink takes: cast one of them")
