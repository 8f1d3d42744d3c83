"""A schema as text: `id bigint not null, tags array<string>`, in Spark's or Iceberg's type names.

This project has two rules of its own: `timestamp` has a zone and `timestamp_ntz` has none, as in Spark; and a
`timestamp` may name its source in records: `from epoch_ms`, `at time zone 'Europe/Berlin'`. Imports pyiceberg only.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.types import (
    ELEMENT,
    MAP_STEP,
    PLAIN_TYPES,
    EpochUnit,
    Path,
    TimeSource,
    build_schema,
    did_you_mean,
)

# Digits of a decimal, at most.
MAX_PRECISION = 38

_OTHER_TYPES = ("decimal", "dec", "numeric", "varchar", "char", "fixed", "array", "list", "map", "struct")
_TYPES = (*PLAIN_TYPES, *_OTHER_TYPES)

# Names of types in databases and libraries, with the names here.
_ELSEWHERE = {
    **dict.fromkeys(("datetime", "datetime2", "timestamp_tz", "timestamp_utc"), "timestamp"),
    **dict.fromkeys(("int64", "int8", "uint32", "serial", "bigserial"), "bigint"),
    **dict.fromkeys(("int32", "int4", "int16", "int2", "uint16", "uint8"), "int"),
    **dict.fromkeys(("float64", "float8"), "double"),
    **dict.fromkeys(("float32", "float4"), "float"),
    **dict.fromkeys(("str", "object", "json", "jsonb", "variant", "nvarchar", "varchar2", "clob", "enum"), "string"),
    **dict.fromkeys(("blob", "bytea", "varbinary"), "binary"),
    **dict.fromkeys(("number", "money"), "decimal(38, 10)"),
    "uint64": "decimal(20, 0)",
}
_CONSTRAINTS = {
    **dict.fromkeys(("notnull", "nonnull", "required"), "Write 'not null'."),
    **dict.fromkeys(("null", "nullable"), "Leave it out: a column without 'not null' may be null."),
    **dict.fromkeys(
        ("primary", "unique", "default", "references", "check", "auto_increment"),
        "Leave it out: a table here has no such constraint.",
    ),
}

_TOKEN = re.compile(
    r"""\s*(?:(?P<word>\w+)
    |(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)
    |(?P<text>'(?:[^'\\]|''|\\.)*')
    |(?P<mark>[<>()\[\],:])
    |(?P<end>\Z))""",
    re.VERBOSE | re.DOTALL,
)


def parse_schema(text: str, argument: str = "schema") -> Schema:
    """Return the Iceberg schema of a DDL string, with fresh field ids; errors name `argument`.

    Raises InvalidArgument, also for a column with a source of its times.
    """
    schema, times = parse_timed_schema(text, argument)
    for path, source in times.items():
        problem = f"column {'.'.join(path)!r} is made {source}: only extract tasks, groups and Spark make such times."
        raise InvalidArgument(argument, problem, f"Leave '{source}' out, or land by one of these.")
    return schema


# A configuration asks for its columns some twenty times. A schema is never changed.
@lru_cache(maxsize=32)
def parse_timed_schema(text: str, argument: str = "schema") -> tuple[Schema, Mapping[Path, TimeSource]]:
    """Return the Iceberg schema of a DDL string as `parse_schema` does, and the sources of times by path.

    Here columns may have sources of times. Raises InvalidArgument.
    """
    parser = _DdlParser(text, argument)
    return build_schema(parser.columns(), argument), MappingProxyType(parser.times)


@dataclass(frozen=True, slots=True)
class _DdlToken:
    """Token of a DDL string: a group of _TOKEN, the text, and the position of the first character."""

    kind: str
    value: str
    at: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.value.lower() in words

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.value)


class _DdlParser:
    """Parser in a single pass over the tokens, with a method per rule of the grammar."""

    def __init__(self, text: str, argument: str) -> None:
        self._text = text
        self._argument = argument
        self._ids = itertools.count(1)
        self._tokens = list(self._scan())
        self._next = 0
        self._path: list[str] = []
        self.times: dict[Path, TimeSource] = {}
        self._rules: dict[str, Callable[[], iceberg.IcebergType]] = {
            **dict.fromkeys(("decimal", "dec", "numeric"), self._decimal),
            **dict.fromkeys(("varchar", "char"), self._string),
            **dict.fromkeys(("array", "list"), self._list),
            "fixed": self._fixed,
            "map": self._map,
            "struct": self._struct,
        }

    def columns(self) -> list[iceberg.NestedField]:
        """Parse the whole text. Raises InvalidArgument."""
        if self._tokens[0].kind == "end":
            return []
        # A text may also be a whole struct: its fields are the columns.
        if self._tokens[0].is_word("struct") and self._tokens[1].value == "<":
            self._take()
            fields = list(self._struct().fields)
        else:
            fields = self._comma_list(self._column)
        if self._peek().kind != "end":
            raise self._error("',' or the end", self._peek())
        return fields

    def _scan(self) -> Iterator[_DdlToken]:
        """Yield the tokens, the last of kind "end". Raises InvalidArgument for an unknown character."""
        position = 0
        while True:
            match = _TOKEN.match(self._text, position)
            if match is None:
                rest = self._text[position:].lstrip()
                raise self._error("a name, a type or ','", _DdlToken("mark", rest[:1], len(self._text) - len(rest)))
            kind = str(match.lastgroup)
            yield _DdlToken(kind, match.group(kind), match.start(kind))
            if kind == "end":
                return
            position = match.end()

    def _error(self, expected: str, got: _DdlToken, hint: str = "") -> InvalidArgument:
        """Return the error for a token in the place of an expected one, with the text around it."""
        # The excerpt is cut at blanks: a word without its first letters would look like another mistake.
        begin = self._text.rfind(" ", 0, max(0, got.at - 20)) + 1
        end = self._text.find(" ", got.at + 20)
        excerpt = self._text[max(begin, got.at - 40) : min(got.at + 40, end if end >= 0 else len(self._text))]
        return InvalidArgument(
            self._argument, f"expected {expected} at position {got.at + 1}, got {got} (near {excerpt!r}).{hint}"
        )

    def _peek(self) -> _DdlToken:
        return self._tokens[self._next]

    def _take(self) -> _DdlToken:
        """Return the next token, and go on behind it."""
        token = self._peek()
        # The last token, the end, is never passed: rules look at it again and again.
        self._next += token.kind != "end"
        return token

    def _take_mark(self, mark: str) -> bool:
        """Go on behind the next token if it is this mark; return whether it is."""
        is_mark = self._peek().kind == "mark" and self._peek().value == mark
        self._next += is_mark
        return is_mark

    def _take_word(self, *words: str) -> bool:
        """Go on behind the next token if it is one of these words; return whether it is."""
        is_word = self._peek().is_word(*words)
        self._next += is_word
        return is_word

    def _expect(self, mark: str) -> None:
        if not self._take_mark(mark):
            raise self._error(repr(mark), self._peek())

    def _comma_list(self, rule: Callable[[], iceberg.NestedField]) -> list[iceberg.NestedField]:
        items = [rule()]
        while self._take_mark(","):
            items.append(rule())
        return items

    def _column(self) -> iceberg.NestedField:
        name = self._name()
        # Spark writes a colon in structs; it is optional everywhere.
        self._take_mark(":")
        field_id, kind = next(self._ids), self._type_of(name)
        column = iceberg.NestedField(field_id, name, kind, required=self._not_null(), doc=self._comment())
        if self._peek().is_word(*_CONSTRAINTS):
            raise self._error("',' or the end", self._peek(), f" {_CONSTRAINTS[self._peek().value.lower()]}")
        return column

    def _name(self) -> str:
        token = self._take()
        if token.kind == "word":
            return token.value
        if token.kind == "quoted" and len(token.value) > 2:
            quote = token.value[0]
            return token.value[1:-1].replace(quote * 2, quote)
        raise self._error("a column name", token)

    def _not_null(self) -> bool:
        if not self._take_word("not"):
            return False
        if not self._take_word("null"):
            raise self._error("'null' after 'not'", self._peek())
        return True

    def _comment(self) -> str | None:
        if not self._take_word("comment"):
            return None
        token = self._take()
        if token.kind != "text":
            raise self._error("a text in single quotes after 'comment'", token)
        return _unquoted(token.value)

    def _type_of(self, step: str) -> iceberg.IcebergType:
        """Parse a type; keep a source of times behind the type in `times`.

        :param step: the step of the path to the type: a name of a column or field, ELEMENT or MAP_STEP.
        """
        self._path.append(step)
        kind = self._type()
        behind_type = self._peek()
        if (source := self._time_source()) is not None:
            if not isinstance(kind, iceberg.TimestamptzType):
                hint = " An instant is a 'timestamp'." if isinstance(kind, iceberg.TimestampType) else ""
                raise self._error("',' or the end", behind_type, f"{hint} Only a timestamp is made {source}.")
            if MAP_STEP in self._path:
                raise self._error("',' or '>'", behind_type, " Times inside a map are not made from something else.")
            self.times[tuple(self._path)] = source
        self._path.pop()
        return kind

    def _time_source(self) -> TimeSource | None:
        """Parse the source of a column's times, such as `from epoch_ms`; return None without a source."""
        if self._take_word("from"):
            token, units = self._take(), {str(unit): unit for unit in EpochUnit}
            if token.value.lower() not in units:
                raise self._error(f"one of {', '.join(units)} after 'from'", token)
            return TimeSource(unit=units[token.value.lower()])
        if not self._take_word("at"):
            return None
        if not (self._take_word("time") and self._take_word("zone")):
            raise self._error("'at time zone'", self._peek())
        token = self._take()
        if token.kind != "text":
            raise self._error("a zone in single quotes after 'at time zone', such as 'Europe/Berlin'", token)
        return TimeSource(zone=_unquoted(token.value))

    def _type(self) -> iceberg.IcebergType:
        token = self._take()
        name = token.value.lower() if token.kind == "word" else ""
        rule = self._rules.get(name)
        if rule is not None:
            return rule()
        if name == "timestamp" and self._peek().is_word("with", "without"):
            return self._zoned()
        if name not in PLAIN_TYPES:
            hint = f"Did you mean {_ELSEWHERE[name]!r}?" if name in _ELSEWHERE else did_you_mean(name, _TYPES)
            raise self._error("a type", token, f" {hint}" if name else "")
        if name == "double":
            self._take_word("precision")
        return PLAIN_TYPES[name]

    def _zoned(self) -> iceberg.IcebergType:
        """Parse the rest of `timestamp with time zone`, or of `timestamp without time zone`."""
        without = self._take().is_word("without")
        self._take_word("local")
        self._take_word("time")
        if not self._take_word("zone"):
            raise self._error("'time zone'", self._peek())
        return iceberg.TimestampType() if without else iceberg.TimestamptzType()

    def _string(self) -> iceberg.StringType:
        if self._peek().value == "(":
            self._length()
        return iceberg.StringType()

    def _fixed(self) -> iceberg.FixedType:
        return iceberg.FixedType(self._length())

    def _struct(self) -> iceberg.StructType:
        self._expect("<")
        fields = self._comma_list(self._column)
        self._expect(">")
        return iceberg.StructType(*fields)

    def _list(self) -> iceberg.ListType:
        self._expect("<")
        element = self._type_of(ELEMENT)
        required = self._not_null()
        self._expect(">")
        return iceberg.ListType(next(self._ids), element, element_required=required)

    def _map(self) -> iceberg.MapType:
        self._expect("<")
        key = self._type_of(MAP_STEP)
        self._expect(",")
        value = self._type_of(MAP_STEP)
        required = self._not_null()
        self._expect(">")
        return iceberg.MapType(next(self._ids), key, next(self._ids), value, value_required=required)

    def _decimal(self) -> iceberg.DecimalType:
        start = self._peek()
        if not self._take_mark("("):
            return iceberg.DecimalType(10, 0)
        precision = self._number()
        scale = self._number() if self._take_mark(",") else 0
        self._expect(")")
        if not 1 <= precision <= MAX_PRECISION or scale > precision:
            raise self._error(f"a precision of 1 to {MAX_PRECISION} and a scale no greater", start)
        return iceberg.DecimalType(precision, scale)

    def _length(self) -> int:
        """Parse a length in brackets or parentheses, 1 or more."""
        # Iceberg writes fixed[16], and fixed(16) is accepted, too.
        close = "]" if self._take_mark("[") else ")"
        if close == ")":
            self._expect("(")
        start = self._peek()
        length = self._number()
        if length < 1:
            raise self._error("a length of 1 or more", start)
        self._expect(close)
        return length

    def _number(self) -> int:
        token = self._take()
        if token.kind != "word" or not token.value.isascii() or not token.value.isdigit():
            raise self._error("a whole number", token)
        return int(token.value)


def _unquoted(text: str) -> str:
    # A backslash keeps the character behind it, and two quotes are one quote.
    return re.sub(r"\\(.)|''", lambda match: match[1] or "'", text[1:-1], flags=re.DOTALL)
