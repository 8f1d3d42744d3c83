"""Which fields of JSON documents can be columns: one rule, whether a table is made of them or grows by them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.values.outcome import quoted

# More columns than anybody reads, from keys that are data: names of users, ids, dates.
MOST_COLUMNS = 1_000
DEEPEST = 16
# No catalog and no engine takes longer ones everywhere.
LONGEST_NAME = 255
_METADATA = "_kafka_"
_CONTROL = frozenset([*map(chr, range(32)), "\x7f"])


class Refused(Exception):
    """A value that can't be a column's, for what is in it; the text tells why."""


@dataclass(frozen=True)
class NameRules:
    """What names a table has no place for, and what text is a time.

    :param reserved: names of columns that are filled otherwise, in lower case.
    :param characters: those that no name may have.
    :param taken: names of columns that the table's readers keep for themselves, in lower case.
    :param renamed: names of fields whose columns have others, which are checked by themselves.
    :param finer: what becomes of times that are finer than microseconds: they are times where they are cut.
    """

    reserved: frozenset[str] = frozenset()
    characters: str = ""
    taken: frozenset[str] = frozenset()
    renamed: frozenset[str] = frozenset()
    finer: TimestampsFiner = TimestampsFiner.REJECT

    @property
    def cuts(self) -> bool:
        """Whether times are cut that are finer than microseconds."""
        return self.finer is TimestampsFiner.TRUNCATE

    def problem(self, name: str, *, top: bool) -> str | None:
        """Return why a field of this name can be no column; None if it can."""
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
        if top and name.lower().startswith(_METADATA):
            return f"names that begin with {_METADATA} are kept for metadata columns"
        if top and name.lower() in self.reserved:
            return "a column of this name is filled with something else"
        if top and name.lower() in self.taken:
            return "readers of Iceberg keep the name for themselves; rename_columns gives the field another one"
        return None


# All that any table takes.
USUAL = NameRules()


@dataclass
class Names:
    """The columns so far, and all that is in them; `refused` are the fields that can't be one, with the reason."""

    rules: NameRules
    taken: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: NameRules, schema: Iterable[pa.Field]) -> Names:
        """Return the names of a schema that is there."""
        return cls(rules, set(_paths(schema, "")))

    def take(self, name: str, path: tuple[str, ...], siblings: dict[str, str]) -> None:
        """Take a field for a column. Raises Refused.

        :param path: of what the field is in, lists and maps included.
        :param siblings: the names beside it, by their names in lower case.
        """
        own = ".".join((*path, name))
        if (problem := self.rules.problem(name, top=not path)) is not None:
            raise Refused(problem)
        if (twin := siblings.get(name.lower())) is not None:
            raise Refused(f"{quoted(twin)} is there, and some engines take the two for one")
        if own.lower() in self.taken:
            raise Refused("its name is the path of another column")
        self.inside((*path, name))
        self.taken.add(own.lower())

    def inside(self, path: tuple[str, ...]) -> None:
        """Make sure that there may be something more, and so deep. Raises Refused."""
        if len(path) > DEEPEST:
            raise Refused(f"it would be nested deeper than {DEEPEST} levels")
        if len(self.taken) >= MOST_COLUMNS:
            raise Refused(
                f'the table would have more than {MOST_COLUMNS} columns; unknown_fields="rescue" needs only one'
            )


def _paths(fields: Iterable[pa.Field], path: str) -> Iterable[str]:
    """Yield the paths of the fields and of all that is in them, as Iceberg writes them, in lower case."""
    for one in fields:
        kind, own = one.type, path + one.name.lower()
        yield own
        if t.is_struct(kind):
            yield from _paths(kind, f"{own}.")
        elif t.is_list(kind) or t.is_large_list(kind):
            yield from _paths([pa.field("element", kind.value_type)], f"{own}.")
        elif t.is_map(kind):
            yield from _paths([pa.field("key", kind.key_type), pa.field("value", kind.item_type)], f"{own}.")
