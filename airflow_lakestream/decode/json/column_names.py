"""Rules for the fields of JSON documents that become columns, of a new table or of a table that grows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.values.outcome import quoted

# The most columns: more would result from keys that are data, such as names of users, ids or dates.
MOST_COLUMNS = 1_000
# The deepest level of a column.
DEEPEST = 16
# The most characters of a name: some catalogs and engines refuse longer names.
LONGEST_NAME = 255
METADATA_PREFIX = "_kafka_"
_CONTROL = frozenset([*map(chr, range(32)), "\x7f"])


class FieldRefused(Exception):
    """The values of a field can't be a column; the text has the reason."""


@dataclass(frozen=True)
class NameRules:
    """Rules for names of columns, and for texts that become times.

    :param reserved: names of columns for other values, such as keys, in lower case.
    :param characters: characters that no name may have.
    :param taken: names that the table's readers reserve, in lower case.
    :param renamed: names of fields with renamed columns; the new names are checked separately.
    :param finer: treatment of times finer than microseconds; a text with such a time is a time only if times are cut.
    :param prefixes: beginnings of names, in lower case, that are for the table's own columns only.
    """

    reserved: frozenset[str] = frozenset()
    characters: str = ""
    taken: frozenset[str] = frozenset()
    renamed: frozenset[str] = frozenset()
    finer: TimestampsFiner = TimestampsFiner.REJECT
    prefixes: tuple[str, ...] = (METADATA_PREFIX,)

    @property
    def cuts(self) -> bool:
        """Whether times finer than microseconds are cut."""
        return self.finer is TimestampsFiner.TRUNCATE

    def problem(self, name: str, *, top: bool) -> str | None:
        """Return the reason against a column for a field of this name, or None if the name is possible.

        :param top: the field belongs to the document itself, not to an inner object.
        """
        if top and name in self.renamed:
            return None
        if not name:
            return "it has no name"
        if len(name) > LONGEST_NAME:
            return f"its name has more than {LONGEST_NAME} characters"
        if not _CONTROL.isdisjoint(name):
            return "its name has a control character"
        if bad := sorted(set(self.characters).intersection(name)):
            return f"a Delta table takes no {bad[0]!r} in a name"
        if top and (own := [prefix for prefix in self.prefixes if name.lower().startswith(prefix)]):
            return f"names that begin with {own[0]} are kept for metadata columns"
        if top and name.lower() in self.reserved:
            return "a column of this name is filled with something else"
        if top and name.lower() in self.taken:
            return "readers of Iceberg keep the name for themselves; rename_columns gives the field another one"
        return None


# The rules of any table.
USUAL = NameRules()


@dataclass
class NewColumnNames:
    """Names of a table's columns, with the names that are added.

    :param taken: the paths of all columns and inner fields, in lower case.
    :param refused: the reasons against further fields, by path.
    """

    rules: NameRules
    taken: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: NameRules, schema: Iterable[pa.Field]) -> NewColumnNames:
        """Return the names of an existing schema."""
        return cls(rules, set(_paths(schema, "")))

    def take(self, name: str, path: tuple[str, ...], siblings: dict[str, str]) -> None:
        """Add a field as a column. Raises FieldRefused if the rules, a sibling or another column exclude the field.

        :param path: path of the object around the field, with the steps of lists and maps.
        :param siblings: the names of the columns next to the field, by name in lower case.
        """
        own = ".".join((*path, name))
        if (problem := self.rules.problem(name, top=not path)) is not None:
            raise FieldRefused(problem)
        if (twin := siblings.get(name.lower())) is not None:
            raise FieldRefused(f"{quoted(twin)} is there, and some engines take the two for one")
        if own.lower() in self.taken:
            raise FieldRefused("its name is the path of another column")
        self.inside((*path, name))
        self.taken.add(own.lower())

    def inside(self, path: tuple[str, ...]) -> None:
        """Check the depth of the path and the number of columns. Raises FieldRefused."""
        if len(path) > DEEPEST:
            raise FieldRefused(f"it would be nested deeper than {DEEPEST} levels")
        if len(self.taken) >= MOST_COLUMNS:
            raise FieldRefused(
                f'the table would have more than {MOST_COLUMNS} columns; unknown_fields="rescue" needs only one'
            )


def _paths(fields: Iterable[pa.Field], path: str) -> Iterable[str]:
    """Yield the paths of the fields and of all inner fields, in Iceberg's form, in lower case."""
    for column in fields:
        kind, own = column.type, path + column.name.lower()
        yield own
        if t.is_struct(kind):
            yield from _paths(kind, f"{own}.")
        elif t.is_list(kind) or t.is_large_list(kind):
            yield from _paths([pa.field("element", kind.value_type)], f"{own}.")
        elif t.is_map(kind):
            yield from _paths([pa.field("key", kind.key_type), pa.field("value", kind.item_type)], f"{own}.")
