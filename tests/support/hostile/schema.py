"""Random tables, and what the play knows of each: its columns, its key, and what justifies that its mirror stops."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from airflow_lakestream.cdc.stops import StopReason
from tests.support.hostile.features import COLUMNS, KEYS, TYPES, is_on
from tests.support.hostile.kinds import BY_SQL, Kind, key_kinds, kinds

# ASCII: of other names of tables and columns Debezium 3.2 takes each byte for a character.
NAMES = ["select", "UPPER", "with space", "a-b", "1st", "payload", "schema", "a.b", "x" * 60]
# An event's own members, words of the code, and characters that SQL or JSON quote.
NAMES_OF_COLUMNS = [
    *(
        "_before",
        "_after",
        "_ts_ms",
        "_transaction",
        "op",
        "before",
        "after",
        "source",
        "ts_ms",
        "transaction",
        "own",
        "_max",
        "__mine",
        "own_max",
        "_place",
        "row",
    ),
    *(
        'quo"te',
        "apos'",
        "back\\slash",
        "per%cent",
        "semi;colon",
        "{brace}",
        " lead",
        "a,b",
        "upper",
        "tab\t",
    ),
]
# Those that a mirror keeps for itself.
RESERVED = ["_op", "_source", "_cdc_commit", "_cdc_position", "_kafka_offset", "_deleted", "_file"]
NOT_IN_DELTA = set(" ,;{}()\n\t=")
KEPT_STATEMENTS = 60
COMPUTED = "computed"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str | None, kind: Kind) -> str:
    return "null" if text is None else "'" + text.replace("'", "''") + f"'::{kind.sql}"


@dataclass
class Column:
    name: str
    kind: Kind
    large: bool = False
    # PostgreSQL sends it with a snapshot only, so the connector leaves it out.
    generated: bool = False

    @property
    def sql(self) -> str:
        return quoted(self.name)


@dataclass
class Book:
    """What was done to a table: what justifies a stop of its mirror, by reason, and the last statements."""

    justified: dict[StopReason, str] = field(default_factory=dict)
    ddl: Counter[str] = field(default_factory=Counter)
    statements: list[str] = field(default_factory=list)
    transactions: int = 0

    def justify(self, reason: StopReason, why: str) -> None:
        self.justified.setdefault(reason, why)

    def note(self, statement: str) -> None:
        self.statements = [*self.statements[1 - KEPT_STATEMENTS :], statement[:600]]


@dataclass
class HostileTable:
    """One table; `number` and the play's seed tell all that becomes of it.

    :param key: the names of the columns that a row is known by.
    :param has_primary_key: else its replica identity is full, and a mirror is told the key.
    """

    schema: str
    number: int
    random: Random
    columns: list[Column] = field(default_factory=list)
    key: list[str] = field(default_factory=list)
    pools: dict[str, list[str]] = field(default_factory=dict)
    has_primary_key: bool = True
    # The key is checked when a transaction ends.
    is_deferrable: bool = False
    is_full: bool = False
    # What the database sends of old rows is in another index than the key's.
    is_by_index: bool = False
    partitions: int = 0
    # Whether some values are beyond what a column of the lake can hold, and what becomes of those.
    is_beyond: bool = False
    out_of_range: str = "reject"
    # Whether it is mirrored into Delta, too.
    delta: bool = False
    name: str = ""
    book: Book = field(default_factory=Book)
    named: int = 0
    # All names that it ever had: a mirror keeps dropped columns, and names that differ in case only are the same there.
    names: set[str] = field(default_factory=set)
    # Columns whose values the database makes.
    own_values: set[str] = field(default_factory=set)
    has_had_others_than_delta: bool = False

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def topic(self) -> str:
        """Debezium's topic for it: its prefix is the schema's name, and what Kafka does not take is an underscore."""
        return re.sub(r"[^a-zA-Z0-9._\-]", "_", f"{self.schema}.{self.schema}.{self.name}")

    @property
    def others(self) -> list[Column]:
        """The columns that are not of the key, and may be written."""
        beside = {*self.key, *self.own_values}
        return [one for one in self.columns if one.name not in beside and not one.generated]

    def column(self, name: str) -> Column:
        return next(one for one in self.columns if one.name == name)

    def new_column(self, kind: Kind, name: str = "") -> Column:
        """Return a column of a name that the table has not had before; it is not added."""
        self.named += 1
        name = name or self._name()
        self.names.add(name.lower())
        self.has_had_others_than_delta |= not kind.in_delta
        return Column(name, kind)

    def _name(self) -> str:
        odd = NAMES + (NAMES_OF_COLUMNS if is_on(COLUMNS) else [])
        if self.delta:
            odd = [name for name in odd if not NOT_IN_DELTA & set(name)]
        name = self.random.choice(odd) if self.random.random() < 0.4 else f"c{self.named}"
        return f"{name[:50]}{self.named}" if name.lower() in self.names else name

    def some_key(self) -> list[str]:
        """Return the values of some key, as text."""
        return [self.random.choice(self.pools[name]) for name in self.key]

    def is_key(self, values: list[str], alias: str = "") -> str:
        """Return the condition that a row has this key."""
        named = zip(self.key, values, strict=True)
        return " and ".join(f"{alias}{quoted(n)} = {literal(v, self.column(n).kind)}" for n, v in named)

    def value(self, column: Column) -> str:
        """Return a random value of a column, as SQL."""
        random = self.random
        if random.random() < 0.15:
            return "null"
        if column.large and column.kind.large is not None and random.random() < 0.5:
            return literal(column.kind.large(random), column.kind)
        value = column.kind.value(random, beyond=self.is_beyond)
        if value in column.kind.beyond and self.out_of_range == "reject":
            self.book.justify(StopReason.VALUE_OUT_OF_RANGE, f"{column.name} was to be {value}")
        return literal(value, column.kind)


def make_table(schema: str, number: int, seed: str, *, delta: bool, by_root: bool, out_of_range: str) -> HostileTable:
    """Return a random table; it is not in the database yet."""
    random = Random(f"{seed}/{number}")
    table = HostileTable(schema, number, random, delta=delta, out_of_range=out_of_range)
    table.name = f"t{number}" if random.random() < 0.7 else f"{random.choice(NAMES[:5])}{number}"
    table.is_beyond = is_on(TYPES) and random.random() < (0.15 if out_of_range == "reject" else 0.5)
    table.has_primary_key = random.random() < (0.8 if is_on(KEYS) else 1)
    for kind in random.choices(
        key_kinds(delta=delta, whole=out_of_range != "reject"), k=random.choices([1, 2, 3], [6, 3, 1])[0]
    ):
        column = table.new_column(kind)
        table.columns.append(column)
        table.key.append(column.name)
        values = {kind.value(random) for _ in range(25 if len(table.key) == 1 else 6)}
        table.pools[column.name] = sorted(values)
    for kind in [BY_SQL["text"], *kinds(random, random.randint(2, 9), delta=delta)]:
        column = table.new_column(kind)
        column.large = kind.large is not None and random.random() < 0.5
        table.columns.append(column)
    if is_on(KEYS) and random.random() < 0.25:
        table.columns.append(replace(table.new_column(BY_SQL["integer"], COMPUTED), generated=True))
    random.shuffle(table.columns)
    table.is_deferrable = table.has_primary_key and is_on(KEYS) and random.random() < 0.12
    # PostgreSQL takes no such key for telling rows.
    table.is_full = table.is_deferrable or not table.has_primary_key or random.random() < 0.25
    # By their own names, the partitions' events would come to as many mirrors.
    may_be_split = by_root and table.has_primary_key and not table.is_deferrable
    table.partitions = random.choice([2, 3]) if may_be_split and random.random() < 0.2 else 0
    return table


def _rule(column: Column, table: HostileTable) -> str:
    if column.generated:
        return " generated always as (6 * 7) stored"
    return " not null" if column.name in table.key else ""


def definition(table: HostileTable) -> list[str]:
    """Return the statements that make a table."""
    columns = [f"{one.sql} {one.kind.sql}{_rule(one, table)}" for one in table.columns]
    keys = ", ".join(quoted(name) for name in table.key)
    if table.has_primary_key:
        columns.append(f"primary key ({keys}){' deferrable initially deferred' if table.is_deferrable else ''}")
    split = f" partition by hash ({keys})" if table.partitions else ""
    made = [f"create table {table.sql} ({', '.join(columns)}){split}"]
    made += [
        f"create table {quoted(table.schema)}.{quoted(f'{table.name}_p{n}')} partition of {table.sql} "
        f"for values with (modulus {table.partitions}, remainder {n})"
        for n in range(table.partitions)
    ]
    made += [
        f"alter table {table.sql} alter column {one.sql} set storage external" for one in table.columns if one.large
    ]
    if table.is_full:
        made.append(f"alter table {table.sql} replica identity full")
        made += [
            f"alter table {quoted(table.schema)}.{quoted(f'{table.name}_p{n}')} replica identity full"
            for n in range(table.partitions)
        ]
    return made
