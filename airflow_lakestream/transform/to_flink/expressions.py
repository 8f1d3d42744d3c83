"""Translation of expressions from DuckDB's parsed form to Flink's SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_lakestream.transform.statement import Node, arguments_of, constant, literal
from airflow_lakestream.transform.to_flink.functions import (
    FORMS,
    INTEGERS,
    NULL,
    SAME,
    FlinkExpression,
    NotCommon,
    digits_of,
    fitting,
    flink_type,
    is_lost,
    is_number,
    unlike,
    written,
)

# Digits that a double represents exactly.
EXACT_DIGITS = 15
# Texts whose number surely fits the type.
_WHOLE = {"INTEGER": r"^-?(0|[1-9][0-9]{0,8})$", "BIGINT": r"^-?(0|[1-9][0-9]{0,17})$"}
# Texts of doubles that both engines read as the same double.
_DOUBLE = r"^-?[0-9]{1,15}(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?$"
# Texts of times that both engines read as the same time.
_TIME = r"^(19|2[0-9])[0-9]{2}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
_TIME_UTC = _TIME.removesuffix("$") + "(Z|[+]00:?00|[+]00)?$"
# Ranges of whole numbers, for casts of fractions: up to 2**53 a double has all whole numbers.
_RANGES = {"INTEGER": (-(2**31), 2**31 - 1), "BIGINT": (-(2**53), 2**53)}


def cast(part: FlinkExpression, kind: str, node: Node) -> FlinkExpression:
    """Return an expression cast to another type of DuckDB. Raises NotCommon.

    A record for which the engines may cast in different ways is in doubt: see `FlinkExpression.doubts`.

    :param kind: DuckDB's name of the type.
    :param node: the expression in the statement, for the error's place.
    """
    if part.kind == kind:
        return part
    target = flink_type(kind, node)
    if part.kind == NULL:
        return FlinkExpression(f"CAST(NULL AS {target})", kind)
    flink_type(part.kind, node)
    convert = _CASTS.get((_class_of(part.kind), _class_of(kind)))
    if convert is None:
        raise NotCommon(f"a cast of {part.kind} to {kind}", node)
    sql, doubts = convert(part.sql, part.kind, kind)
    return FlinkExpression(sql, kind, (*part.doubts, *doubts))


def out_of(sql: str, kind: str) -> str:
    """Return the SQL condition for a whole number out of the range of an integer type."""
    low, high = (-(2**63) + 1, 2**63 - 1) if kind == "BIGINT" else _RANGES[kind]
    return f"({sql} NOT BETWEEN {low} AND {high})"


def _class_of(kind: str) -> str:
    """Return "whole" for integers, "decimal" for decimals, and the name of any other type."""
    if kind in INTEGERS:
        return "whole"
    return "decimal" if digits_of(kind) is not None else kind


# Flink's SQL of a cast, and the doubts. The arguments of each cast are Flink's SQL of the operand, DuckDB's type of the
# operand, and DuckDB's type of the result.
SqlAndDoubts = tuple[str, list[str]]


def _text_to_whole(sql: str, _: str, kind: str) -> SqlAndDoubts:
    return f"TRY_CAST({sql} AS {flink_type(kind)})", [unlike(sql, _WHOLE[kind])]


def _text_to_decimal(sql: str, _: str, kind: str) -> SqlAndDoubts:
    digits, scale = digits_of(kind) or (0, 0)
    fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    whole = f"[0-9]{{1,{digits - scale}}}" if digits > scale else "0"
    return f"TRY_CAST({sql} AS {flink_type(kind)})", [unlike(sql, f"^-?{whole}{fraction}$")]


def _text_to_double(sql: str, _: str, kind: str) -> SqlAndDoubts:
    return f"TRY_CAST({sql} AS DOUBLE)", [unlike(sql, _DOUBLE)]


def _text_to_boolean(sql: str, _: str, kind: str) -> SqlAndDoubts:
    return f"({sql} = 'true')", [unlike(sql, "^(true|false)$")]


def _text_to_date(sql: str, _: str, kind: str) -> SqlAndDoubts:
    date = f"TRY_CAST({sql} AS DATE)"
    # Flink turns a day that the month does not have into a day of the next month.
    return date, [f"(COALESCE(CAST({date} AS STRING), '') <> {sql})"]


def _text_to_timestamp(sql: str, _: str, kind: str, pattern: str = _TIME) -> SqlAndDoubts:
    plain = f"REPLACE(REGEXP_EXTRACT({sql}, '^([0-9]+-[0-9]+-[0-9]+[ T][0-9:.]+)', 1), 'T', ' ')"
    timestamp = f"TRY_CAST({plain} AS TIMESTAMP(6))"
    # As with dates, Flink would change an impossible day.
    is_other_time = f"(COALESCE(SUBSTRING(CAST({timestamp} AS STRING), 1, 19), '') <> SUBSTRING({plain}, 1, 19))"
    return timestamp, [unlike(sql, pattern), is_other_time]


def _text_to_instant(sql: str, operand_kind: str, kind: str) -> SqlAndDoubts:
    timestamp, doubts = _text_to_timestamp(sql, operand_kind, kind, _TIME_UTC)
    return f"CAST({timestamp} AS TIMESTAMP_LTZ(6))", doubts


def _whole_to_whole(sql: str, _: str, kind: str) -> SqlAndDoubts:
    # Flink drops the upper bits of a number that is too large.
    return f"CAST({sql} AS {flink_type(kind)})", [out_of(sql, kind)] if kind == "INTEGER" else []


def _to_decimal(sql: str, _: str, kind: str) -> SqlAndDoubts:
    decimal = f"CAST({sql} AS {flink_type(kind)})"
    return decimal, [is_lost(sql, decimal)]


def _decimal_to_double(sql: str, operand_kind: str, kind: str) -> SqlAndDoubts:
    precision, scale = digits_of(operand_kind) or (0, 0)
    doubts = [f"(ABS({sql}) >= 1E{EXACT_DIGITS - scale})"] if precision > EXACT_DIGITS else []
    return f"CAST({sql} AS DOUBLE)", doubts


def _fraction_to_whole(sql: str, _: str, kind: str) -> SqlAndDoubts:
    # DuckDB rounds, Flink cuts off.
    low, high = _RANGES[kind]
    inside = f"({sql} = FLOOR({sql}) AND {sql} BETWEEN {low} AND {high})"
    return f"CAST({sql} AS {flink_type(kind)})", [f"(NOT {inside})"]


def _plain_cast(sql: str, _: str, kind: str) -> SqlAndDoubts:
    return f"CAST({sql} AS {flink_type(kind)})", []


def _boolean_to_text(sql: str, _: str, kind: str) -> SqlAndDoubts:
    return f"CASE WHEN {sql} THEN 'true' WHEN NOT {sql} THEN 'false' END", []


_TEXT, _INSTANT = "VARCHAR", "TIMESTAMP WITH TIME ZONE"
_CASTS: Mapping[tuple[str, str], Callable[[str, str, str], SqlAndDoubts]] = {
    (_TEXT, "whole"): _text_to_whole,
    (_TEXT, "decimal"): _text_to_decimal,
    (_TEXT, "DOUBLE"): _text_to_double,
    (_TEXT, "BOOLEAN"): _text_to_boolean,
    (_TEXT, "DATE"): _text_to_date,
    (_TEXT, "TIMESTAMP"): _text_to_timestamp,
    (_TEXT, _INSTANT): _text_to_instant,
    ("whole", "whole"): _whole_to_whole,
    ("whole", "decimal"): _to_decimal,
    ("whole", "DOUBLE"): _plain_cast,
    ("whole", _TEXT): _plain_cast,
    ("FLOAT", "DOUBLE"): _plain_cast,
    ("DOUBLE", "whole"): _fraction_to_whole,
    ("decimal", "whole"): _fraction_to_whole,
    ("decimal", "decimal"): _to_decimal,
    ("decimal", "DOUBLE"): _decimal_to_double,
    ("decimal", _TEXT): _plain_cast,
    ("BOOLEAN", _TEXT): _boolean_to_text,
    ("DATE", _TEXT): _plain_cast,
    ("DATE", "TIMESTAMP"): _plain_cast,
    ("DATE", _INSTANT): _plain_cast,
    ("TIMESTAMP", "DATE"): _plain_cast,
    ("TIMESTAMP", _INSTANT): _plain_cast,
    (_INSTANT, "TIMESTAMP"): _plain_cast,
    (_INSTANT, "DATE"): _plain_cast,
}


def alike(left: FlinkExpression, right: FlinkExpression, node: Node) -> tuple[FlinkExpression, FlinkExpression]:
    """Return two expressions for a comparison with the same result in both engines, cast to one type if necessary.

    Raises NotCommon.
    """
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


_COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}
# By operator: no result of two numbers up to this bound overflows a BIGINT.
_NO_OVERFLOW = {"+": 2**62 - 1, "-": 2**62 - 1, "*": 3037000498}
# Operators with one operand.
_OPERATORS = {
    "OPERATOR_NOT": "(NOT {})",
    "OPERATOR_IS_NULL": "({} IS NULL)",
    "OPERATOR_IS_NOT_NULL": "({} IS NOT NULL)",
}
_BOOLEAN = "BOOLEAN"
# Operators as written in SQL, by their names in DuckDB's parsed form.
_NAMES = {"~~*": "ILIKE", "!~~*": "NOT ILIKE", "to_days": "INTERVAL"}


class ExpressionTranslator:
    """Translator of the expressions of a SELECT.

    :param column: returns Flink's expression for a reference to a column.
    :param kind_of: returns DuckDB's type of an expression.
    """

    def __init__(self, column: Callable[[Node], FlinkExpression], kind_of: Callable[[Node], str]) -> None:
        self._column = column
        self._kind_of = kind_of
        self._by_class: Mapping[str, Callable[[Node], FlinkExpression]] = {
            "COLUMN_REF": column,
            "CONSTANT": self._constant,
            "CAST": self._cast,
            "CASE": self._case,
            "COMPARISON": self._comparison,
            "CONJUNCTION": self._conjunction,
            "BETWEEN": self._between,
            "OPERATOR": self._operator,
            "FUNCTION": self._function,
        }

    def of(self, node: Node) -> FlinkExpression:
        """Return Flink's expression for a parsed expression. Raises NotCommon."""
        translate = self._by_class.get(node["class"])
        if translate is None:
            raise NotCommon(node["class"].lower().replace("_", " "), node)
        return translate(node)

    def as_kind(self, node: Node, kind: str) -> FlinkExpression:
        """Return Flink's expression for a parsed expression, cast to a type of DuckDB. Raises NotCommon."""
        return cast(self.of(node), kind, node)

    def _constant(self, node: Node) -> FlinkExpression:
        kind = self._kind_of(node)
        if (string := constant(node)) is not None:
            return FlinkExpression(literal(string), "VARCHAR")
        if kind == NULL:
            return FlinkExpression("NULL", NULL)
        value = node["literal"]["text"] if "literal" in node else str(node["value"]["value"])
        if kind == _BOOLEAN:
            return FlinkExpression("TRUE" if value.lower() == "true" else "FALSE", kind)
        if not is_number(kind):
            raise NotCommon(f"a value of type {kind}", node)
        return FlinkExpression(f"CAST({literal(value)} AS {flink_type(kind, node)})", kind)

    def _cast(self, node: Node) -> FlinkExpression:
        kind = self._kind_of(node)
        # Raises NotCommon for a type that Flink does not have.
        flink_type(kind, node)
        return self.as_kind(node["child"], kind)

    def _case(self, node: Node) -> FlinkExpression:
        kind, doubts = self._kind_of(node), list[str]()
        sql = "CASE"
        for check in node["case_checks"]:
            when, then = self.as_kind(check["when_expr"], _BOOLEAN), self.as_kind(check["then_expr"], kind)
            doubts += [*when.doubts, *then.doubts]
            sql += f" WHEN {when.sql} THEN {then.sql}"
        last = self.as_kind(node["else_expr"], kind)
        return FlinkExpression(f"{sql} ELSE {last.sql} END", kind, (*doubts, *last.doubts))

    def _if(self, node: Node, arguments: list[Node]) -> FlinkExpression:
        kind = self._kind_of(node)
        condition, value, other_value = arguments
        when, then = self.as_kind(condition, _BOOLEAN), self.as_kind(value, kind)
        other = self.as_kind(other_value, kind)
        sql = f"CASE WHEN {when.sql} THEN {then.sql} ELSE {other.sql} END"
        return FlinkExpression(sql, kind, doubts_of([when, then, other]))

    def _comparison(self, node: Node) -> FlinkExpression:
        sign = _COMPARISONS.get(node["type"])
        if sign is None:
            raise NotCommon(node["type"].lower().replace("_", " "), node)
        return self._compared(node["left"], sign, node["right"], node)

    def _compared(self, first: Node, sign: str, second: Node, node: Node) -> FlinkExpression:
        """Return the comparison of two expressions; an error has the place of `node`."""
        left, right = self._alike(first, second, node)
        return FlinkExpression(f"({left.sql} {sign} {right.sql})", _BOOLEAN, (*left.doubts, *right.doubts))

    def _alike(self, first: Node, second: Node, node: Node) -> tuple[FlinkExpression, FlinkExpression]:
        left, right = self.of(first), self.of(second)
        # A text literal gets the type of the other side.
        if constant(second) is not None and left.kind != NULL:
            right = cast(right, left.kind, second)
        elif constant(first) is not None and right.kind != NULL:
            left = cast(left, right.kind, first)
        return alike(left, right, node)

    def _conjunction(self, node: Node) -> FlinkExpression:
        parts = [self.as_kind(child, _BOOLEAN) for child in node["children"]]
        sign = " AND " if node["type"] == "CONJUNCTION_AND" else " OR "
        return FlinkExpression(f"({sign.join(part.sql for part in parts)})", _BOOLEAN, doubts_of(parts))

    def _between(self, node: Node) -> FlinkExpression:
        low = self._compared(node["input"], ">=", node["lower"], node)
        high = self._compared(node["input"], "<=", node["upper"], node)
        return FlinkExpression(f"({low.sql} AND {high.sql})", _BOOLEAN, (*low.doubts, *high.doubts))

    def _operator(self, node: Node) -> FlinkExpression:
        kind, children = node["type"], node["children"]
        if kind == "OPERATOR_COALESCE":
            result = self._kind_of(node)
            parts = [self.as_kind(child, result) for child in children]
            return FlinkExpression(f"COALESCE({', '.join(part.sql for part in parts)})", result, doubts_of(parts))
        if kind == "COMPARE_IN":
            parts = [self._compared(children[0], "=", child, node) for child in children[1:]]
            return FlinkExpression(f"({' OR '.join(part.sql for part in parts)})", _BOOLEAN, doubts_of(parts))
        if kind not in _OPERATORS:
            raise NotCommon(kind.lower().removeprefix("operator_").replace("_", " "), node)
        part = self.as_kind(children[0], _BOOLEAN) if kind == "OPERATOR_NOT" else self.of(children[0])
        return FlinkExpression(_OPERATORS[kind].format(part.sql), _BOOLEAN, part.doubts)

    def _function(self, node: Node) -> FlinkExpression:
        name, arguments = node["function_name"].lower(), arguments_of(node)
        if name in ("+", "-", "*", "/", "%", "//"):
            return self._arithmetic(node, name, arguments)
        if name in ("~~", "!~~"):
            return self._like(node, name, arguments)
        if name in ("||", "concat"):
            parts = [self.as_kind(argument, "VARCHAR") for argument in arguments]
            # concat leaves NULL out; the operator || returns NULL.
            texts = [part.sql if name == "||" else f"COALESCE({part.sql}, '')" for part in parts]
            return FlinkExpression(f"({' || '.join(texts)})", "VARCHAR", doubts_of(parts))
        if name in ("if", "iff") and len(arguments) == 3:
            return self._if(node, arguments)
        if name == "nullif":
            kind = self._kind_of(node)
            same = self._compared(arguments[0], "=", arguments[1], node)
            first = self.as_kind(arguments[0], kind)
            return FlinkExpression(
                f"CASE WHEN {same.sql} THEN NULL ELSE {first.sql} END", kind, (*same.doubts, *first.doubts)
            )
        return self._call(node, name, arguments)

    def _call(self, node: Node, name: str, arguments: list[Node]) -> FlinkExpression:
        """Return the call of a function in `FORMS`: literals get Flink's form, other arguments are translated."""
        form = FORMS.get(SAME.get(name, name))
        if SAME.get(name) == "date_part" and name != "datepart":
            # year(x) is date_part('year', x).
            arguments = [{"class": "CONSTANT", "literal": {"kind": "STRING", "text": name}}, *arguments]
        if form is None:
            raise NotCommon(_NAMES.get(name, name), node)
        if name in ("substr", "substring") and len(arguments) == 2:
            arguments = [*arguments, {"class": "CONSTANT", "literal": {"kind": "INTEGER", "text": "999999999"}}]
        if len(arguments) != len(form.takes):
            raise NotCommon(f"{name} with {len(arguments)} arguments", node)
        parts, expressions = list[FlinkExpression](), list[str]()
        for takes, argument in zip(form.takes, arguments, strict=True):
            if (sql := written(takes, argument, name, node)) is None:
                part = self.of(argument)
                parts.append(part)
                sql = fitting(takes, part, name, node)
            expressions.append(sql)
        kind = self._kind_of(node)
        call = form.flink.format(*expressions)
        doubts = tuple(doubt.format(*expressions) for doubt in form.doubts)
        # A text needs no cast: Flink's types of texts differ only by length.
        sql = call if kind == "VARCHAR" else f"CAST({call} AS {flink_type(kind, node)})"
        return FlinkExpression(sql, kind, (*doubts_of(parts), *doubts))

    def _like(self, node: Node, name: str, arguments: list[Node]) -> FlinkExpression:
        part, pattern = self.as_kind(arguments[0], "VARCHAR"), constant(arguments[1])
        if pattern is None or "\\" in pattern:
            raise NotCommon("LIKE", node, "takes a pattern that is written out, without a backslash, on Flink")
        sign = "NOT LIKE" if name == "!~~" else "LIKE"
        return FlinkExpression(f"({part.sql} {sign} {literal(pattern)})", _BOOLEAN, part.doubts)

    def _arithmetic(self, node: Node, sign: str, arguments: list[Node]) -> FlinkExpression:
        kind = self._kind_of(node)
        if not is_number(kind):
            raise NotCommon(f"{sign} for {kind}", node)
        if len(arguments) == 1:
            # A minus sign alone is a subtraction from 0.
            arguments = [{"class": "CONSTANT", "literal": {"kind": "INTEGER", "text": "0"}}, *arguments]
        if kind in INTEGERS:
            return self._integer_arithmetic(node, sign, kind, arguments)
        if kind == "DOUBLE":
            return self._double_arithmetic(node, sign, arguments)
        if sign not in "+-*" or digits_of(kind) is None:
            raise NotCommon(f"{sign} for {kind}", node)
        left, right = map(self.of, arguments)
        result = f"CAST({left.sql} {sign} {right.sql} AS {flink_type(kind, node)})"
        lost = f"({left.sql} IS NOT NULL AND {is_lost(right.sql, result)})"
        return FlinkExpression(result, kind, (*doubts_of([left, right]), lost))

    def _integer_arithmetic(self, node: Node, sign: str, kind: str, arguments: list[Node]) -> FlinkExpression:
        """Return arithmetic by BIGINT; a divisor of 0, and operands or a result that may overflow, are doubts."""
        left, right = (self.as_kind(argument, "BIGINT") for argument in arguments)
        doubts = [*left.doubts, *right.doubts]
        if sign in ("/", "//", "%"):
            result = f"MOD({left.sql}, {right.sql})" if sign == "%" else f"({left.sql} / {right.sql})"
            result = f"CASE WHEN {right.sql} <> 0 THEN {result} END"
            doubts.append(_is_division_by_zero(right))
        else:
            result, bound = f"({left.sql} {sign} {right.sql})", _NO_OVERFLOW[sign]
            doubts += [f"({operand.sql} NOT BETWEEN -{bound} AND {bound})" for operand in (left, right)]
        if kind == "INTEGER":
            doubts.append(out_of(result, kind))
        return FlinkExpression(f"CAST({result} AS {flink_type(kind)})", kind, tuple(doubts))

    def _double_arithmetic(self, node: Node, sign: str, arguments: list[Node]) -> FlinkExpression:
        """Return arithmetic by DOUBLE; a divisor of 0, and a result close to infinity, are doubts."""
        left, right = (self.as_kind(argument, "DOUBLE") for argument in arguments)
        if sign in ("//", "%"):
            raise NotCommon(f"{sign} for DOUBLE", node)
        result, doubts = f"({left.sql} {sign} {right.sql})", [*left.doubts, *right.doubts]
        if sign == "/":
            result = f"CASE WHEN {right.sql} <> 0 THEN {result} END"
            doubts.append(_is_division_by_zero(right))
        return FlinkExpression(result, "DOUBLE", (*doubts, f"(ABS({result}) > 1E300)"))


def _is_division_by_zero(divisor: FlinkExpression) -> str:
    """Return the SQL condition of a division by 0, for which DuckDB fails or returns infinity."""
    return f"({divisor.sql} = 0)"


def doubts_of(parts: list[FlinkExpression]) -> tuple[str, ...]:
    """Return the doubts of all parts, each once."""
    return tuple(dict.fromkeys(doubt for part in parts for doubt in part.doubts))
