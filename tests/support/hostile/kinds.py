"""The types of PostgreSQL, with edge values and random ones for each, as PostgreSQL's own text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from tests.support.hostile import forms
from tests.support.hostile.features import TYPES, is_on
from tests.support.hostile.forms import Form
from tests.support.hostile.values import (
    Make,
    address,
    between,
    binary,
    clock,
    day,
    digits,
    document,
    floating,
    identity,
    listed,
    long_numbers,
    long_text,
    long_words,
    moment,
    octet,
    plain,
    whole,
    words,
)


@dataclass(frozen=True)
class Kind:
    """A type: `make` gives any value of it, `edges` are those that are known to hurt.

    :param later: edges that need the feature `TYPES`.
    :param beyond: values that no column of the lake can hold.
    :param key: whether a primary key may have it; `KEYS` and others name the feature that this needs.
    :param needs: the feature without which no table has the type.
    :param large: makes a value that PostgreSQL keeps outside the row, of types where Debezium has a way to say so.
    """

    sql: str
    form: Form
    make: Make
    edges: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    key: bool = False
    key_needs: str = ""
    needs: str = ""
    large: Make | None = None
    wider: str = ""
    other: str = ""
    in_delta: bool = True

    @property
    def may_be_key(self) -> bool:
        return self.key and (not self.key_needs or is_on(self.key_needs))

    def value(self, random: Random, *, beyond: bool = False) -> str:
        """Return a value as text; with `beyond` often one that no column of the lake can hold."""
        if beyond and self.beyond and random.random() < 0.1:
            return random.choice(self.beyond)
        edges = self.edges + (self.later if is_on(TYPES) else ())
        return random.choice(edges) if edges and random.random() < 0.3 else self.make(random)


TEXT_EDGES = (
    "",
    " ",
    "null",
    "NULL",
    '{"op":"d"}',
    '"op":"t"',
    "\\",
    "'",
    "\u2028",
    "a\nb",
    "😀",
    "__debezium_unavailable",
)
# None before the October of 1582: Debezium's snapshot takes them for days of the Julian calendar, and those before
# Christ for days after; its stream does not.
DAY_EDGES = ("1970-01-01", "1582-10-15", "9999-12-31", "2000-02-29")
DAY_BEYOND = ("infinity", "-infinity", "12000-01-01")
MOMENT_EDGES = (
    "1970-01-01 00:00:00",
    "1582-10-16 00:00:00",
    "9999-12-31 23:59:59.999999",
    "1969-12-31 23:59:59.999999",
)
MOMENT_BEYOND = ("infinity", "-infinity", "12000-01-01 00:00:00", "0044-03-15 12:00:00 BC")
FLOAT_EDGES = ("0", "1e-30", "-1.5", "1e30")
FLOAT_LATER = ("NaN", "Infinity", "-Infinity", "-0")

# Not among the edges: NaN as numeric, for which Debezium sends NULL.
KINDS = [
    Kind("smallint", forms.INTEGER, whole(14), ("-32768", "32767", "0"), key=True, wider="integer", other="text"),
    Kind(
        "integer", forms.INTEGER, whole(30), ("-2147483648", "2147483647", "0"), key=True, wider="bigint", other="text"
    ),
    Kind(
        "bigint",
        forms.INTEGER,
        whole(62),
        ("-9223372036854775808", "9223372036854775807", "9007199254740993"),
        key=True,
        other="text",
    ),
    Kind("oid", forms.INTEGER, lambda r: str(r.getrandbits(32)), ("0", "4294967295")),
    Kind("real", forms.REAL, floating, FLOAT_EDGES, FLOAT_LATER, wider="double precision"),
    Kind(
        "double precision",
        forms.DOUBLE,
        floating,
        (*FLOAT_EDGES, "5e-324", "1.7976931348623157e308", "0.1"),
        FLOAT_LATER,
        key=True,
        key_needs=TYPES,
    ),
    Kind(
        "numeric(12,2)",
        forms.NUMBER,
        digits(12, 2),
        ("0", "-0.01", "9999999999.99"),
        key=True,
        wider="numeric(14,2)",
        other="numeric(24,4)",
    ),
    Kind("numeric(38,10)", forms.NUMBER, digits(38, 10), ("9999999999999999999999999999.9999999999",)),
    Kind("numeric(5,0)", forms.NUMBER, digits(5, 0), ("0", "99999")),
    Kind(
        "numeric",
        forms.NUMBER,
        digits(30, 7),
        ("0", "1.50", "123456789012345678901234567890", "0.000000001"),
        key=True,
        key_needs=TYPES,
        needs=TYPES,
    ),
    # Debezium reads it as a double: of more than 15 digits it sends others.
    Kind("money", forms.NUMBER, digits(9, 2), ("0", "-1.00", "9999999999999.99")),
    Kind("boolean", forms.BOOLEAN, lambda r: r.choice(["true", "false"]), key=True),
    Kind("text", forms.TEXT, words(), TEXT_EDGES, key=True, large=long_text),
    Kind("varchar(40)", forms.TEXT, words(), TEXT_EDGES[:8], key=True, wider="varchar(80)"),
    Kind("char(5)", forms.PADDED, plain(5), ("", "ab"), key=True),
    Kind('"char"', forms.TEXT, plain(1)),
    # Debezium's snapshot sends them, its stream sends NULL.
    Kind("name", forms.NOT_SENT, plain(20)),
    Kind("tsvector", forms.NOT_SENT, lambda r: f"{plain()(r)}:1 {plain()(r)}:2A"),
    Kind("citext", forms.TEXT, words()),
    Kind(
        "bytea",
        forms.BYTES,
        binary,
        ("\\x", "\\x00ff", "\\x5f5f"),
        key=True,
        large=lambda r: "\\x" + r.randbytes(4_000).hex(),
    ),
    Kind("date", forms.DATE, day, DAY_EDGES, beyond=DAY_BEYOND, key=True, other="timestamp"),
    Kind("timestamp", forms.MOMENT, moment(), MOMENT_EDGES, beyond=MOMENT_BEYOND, key=True, other="timestamptz"),
    Kind("timestamp(3)", forms.MOMENT, moment(digits=3), MOMENT_EDGES[:2], beyond=MOMENT_BEYOND),
    Kind(
        "timestamptz",
        forms.MOMENT,
        moment("+03"),
        tuple(f"{one}+00" for one in MOMENT_EDGES),
        beyond=MOMENT_BEYOND,
        key=True,
    ),
    Kind("timestamptz(0)", forms.MOMENT, moment("-11", 0), MOMENT_EDGES[:1]),
    Kind("time", forms.TIME, clock(), ("00:00:00", "23:59:59.999999"), beyond=("24:00:00",), key=True, in_delta=False),
    Kind("time(3)", forms.TIME, clock(3), ("00:00:00", "23:59:59.999"), beyond=("24:00:00",), in_delta=False),
    Kind("timetz", forms.ZONED_TIME, lambda r: f"{clock()(r)}{r.choice(['+00', '-08', '+05:30'])}", ("00:00:00+14",)),
    Kind(
        "interval",
        forms.INTERVAL,
        lambda r: f"{r.randint(-9, 9)} mons {r.randint(-99, 99)} days {r.randint(-9999, 9999)}.25 seconds",
        ("0", "178000000 years"),
    ),
    Kind(
        "uuid",
        forms.TEXT,
        identity,
        ("00000000-0000-0000-0000-000000000000",),
        key=True,
        key_needs=TYPES,
        in_delta=False,
    ),
    Kind(
        "json",
        forms.TEXT,
        document,
        ("null", "[]", '{"a":1,"a":2}', '{"op":"d"}'),
        large=lambda r: json.dumps(long_text(r)),
    ),
    Kind("jsonb", forms.TEXT, document, ("null", "[]", "1e5", '{"op":"t"}'), large=lambda r: json.dumps(long_text(r))),
    Kind("xml", forms.TEXT, lambda r: f'<a b="{plain()(r)}">{plain()(r)}</a>', ("<a/>",)),
    Kind("inet", forms.TEXT, address, ("::1", "10.0.0.0/8", "fe80::1/64"), key=True),
    Kind("cidr", forms.TEXT, lambda r: f"{octet(r)}.0.0.0/8", ("::/0",)),
    Kind("macaddr", forms.TEXT, lambda r: r.randbytes(6).hex(":")),
    Kind("macaddr8", forms.TEXT, lambda r: r.randbytes(8).hex(":")),
    Kind("bit(1)", forms.BITS, lambda r: r.choice("01")),
    Kind("bit(13)", forms.BITS, lambda r: f"{r.getrandbits(13):013b}", ("0" * 13, "1" * 13)),
    Kind("bit varying(70)", forms.BITS, lambda r: f"{r.getrandbits(40):b}", ("0", "1" * 70)),
    Kind("point", forms.POINT, lambda r: f"({r.randint(-99, 99)}.5,{r.randint(-99, 99)})"),
    Kind("hostile_mood", forms.TEXT, lambda r: r.choice(["sad", "so so", "Glück"]), key=True),
    Kind("hostile_positive", forms.INTEGER, lambda r: str(r.randint(1, 10**6))),
    Kind("hstore", forms.HSTORE, lambda r: f"{plain()(r)}=>{plain()(r)}, n=>NULL", ("",)),
    Kind("ltree", forms.TEXT, lambda r: f"{plain()(r)}.{plain()(r)}", ("a",)),
    Kind("int4range", forms.TEXT, between(lambda r: str(r.randint(-99, 99)), int), ("empty", "[1,)", "(,)")),
    Kind("int8range", forms.TEXT, between(lambda r: str(r.randint(-(10**12), 10**12)), int), ("empty",)),
    Kind("numrange", forms.TEXT, between(lambda r: f"{r.randint(0, 99)}.5", float), ("empty", "(,1.50]")),
    Kind("tsrange", forms.TEXT, between(moment()), ("empty", "[2026-01-01 00:00:00,infinity)")),
    Kind("tstzrange", forms.TEXT, between(moment("+00")), ("empty",)),
    Kind("daterange", forms.TEXT, between(day), ("empty", "[2026-01-01,)")),
    Kind("text[]", forms.TEXT.of_array(), listed(words()), ("{}", '{"op",NULL,""}'), large=long_words),
    Kind("integer[]", forms.INTEGER.of_array(), listed(whole(30)), ("{}",), large=long_numbers),
    Kind("bigint[]", forms.INTEGER.of_array(), listed(whole(62)), ("{}",)),
    Kind("smallint[]", forms.INTEGER.of_array(), listed(whole(14))),
    Kind("boolean[]", forms.BOOLEAN.of_array(), listed(lambda r: r.choice(["true", "false"]))),
    Kind("double precision[]", forms.DOUBLE.of_array(), listed(floating), (), ("{NaN,Infinity}",)),
    Kind("numeric(12,2)[]", forms.NUMBER.of_array(), listed(digits(12, 2))),
    Kind("uuid[]", forms.TEXT.of_array(), listed(identity), in_delta=False),
    Kind("date[]", forms.DATE.of_array(), listed(day)),
    Kind("timestamp[]", forms.MOMENT.of_array(), listed(moment())),
    Kind("timestamptz[]", forms.MOMENT.of_array(), listed(moment("+00"))),
    Kind("jsonb[]", forms.TEXT.of_array(), listed(document)),
    Kind("bytea[]", forms.BYTES.of_array(), listed(binary)),
    Kind("inet[]", forms.TEXT.of_array(), listed(address)),
    # With a NULL among them Debezium sends NULL for the whole array.
    Kind("hostile_mood[]", forms.TEXT.of_array(), listed(lambda r: r.choice(["sad", "so so"]), nulls=False)),
    *[
        Kind(sql, forms.NOT_SENT, lambda r, text=text: text)
        for sql, text in {
            "line": "{1,2,3}",
            "lseg": "[(0,0),(1,1)]",
            "box": "(1,1),(0,0)",
            "path": "[(0,0),(1,1)]",
            "polygon": "((0,0),(1,1),(1,0))",
            "circle": "<(0,0),1>",
            "tsquery": "'a' & 'b'",
            "pg_lsn": "0/1234",
            "jsonpath": "$.a",
            "int4multirange": "{[1,2),[5,7)}",
            "txid_snapshot": "10:20:10,14",
            "hostile_pair": "(1,b)",
        }.items()
    ],
]
BY_SQL = {kind.sql: kind for kind in KINDS}
# Types that are made by the play itself.
MADE = [
    "type hostile_mood as enum ('sad', 'so so', 'Glück')",
    "domain hostile_positive as integer check (value > 0)",
    "type hostile_pair as (a integer, b text)",
]
# What a database needs to have all of them.
PREPARE = [
    *(f"create extension if not exists {name}" for name in ("hstore", "citext", "ltree")),
    *(f"do $$ begin create {one}; exception when duplicate_object then null; end $$" for one in MADE),
]


def kinds(random: Random, count: int, *, delta: bool) -> list[Kind]:
    """Return some kinds that a table may have today."""
    known = [kind for kind in KINDS if (not kind.needs or is_on(kind.needs)) and (kind.in_delta or not delta)]
    return random.choices(known, k=count)


def key_kinds(*, delta: bool, whole: bool) -> list[Kind]:
    """Return the kinds that a key may have today; `whole` asks for those whose values a lake can all hold."""
    known = [kind for kind in KINDS if kind.may_be_key and (kind.in_delta or not delta)]
    return [kind for kind in known if not (whole and kind.beyond)]
