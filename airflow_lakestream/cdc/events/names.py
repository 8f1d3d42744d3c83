"""Names of a mirror's columns: those that it keeps for itself, and those that the database's columns get instead."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_lakestream.cdc.columns import DELETED, IMAGE, OFFSET, OP, PARTITION, RECORD_KEY, SOURCE, is_kept
from airflow_lakestream.cdc.stops import name_not_free
from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.decode.connect.debezium import Naming
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes.formats import LAKES, LakeFormat

# What of an event stands beside the columns of its row.
_BESIDE = {OP: "op", SOURCE: "source", IMAGE: "before"}


@dataclass(frozen=True)
class ColumnNames:
    """How the columns of one mirror are named.

    :param table: the mirror's name.
    :param renamed: column names by the names that the columns have in the database.
    :param with_key: whether events carry the keys of their records.
    :param soft_delete: whether deleted rows stay.
    :param lake: the format of the table, some of which need names for themselves.
    """

    table: str = "the table"
    renamed: Mapping[str, str] = field(default_factory=dict)
    with_key: bool = True
    soft_delete: bool = False
    lake: LakeFormat = LAKES[TableFormat.ICEBERG]

    @property
    def naming(self) -> Naming:
        """What the decoder of events needs to know of them."""
        return Naming(_BESIDE, self.renamed)

    @property
    def reserved(self) -> frozenset[str]:
        """The names that no column of the row may have, in lower case: to Spark they are the same in upper case."""
        names = [OP, SOURCE, PARTITION, OFFSET]
        names += [RECORD_KEY] if self.with_key else []
        names += [DELETED] if self.soft_delete else []
        return frozenset([*names, *self.lake.columns_taken])

    def check_argument(self) -> None:
        """Refuse new names that are none. Raises InvalidArgument."""
        taken = Counter(name.lower() for name in self.renamed.values())
        for source, name in self.renamed.items():
            problem = self._problem(name) or ("two columns get it" if taken[name.lower()] > 1 else None)
            if problem:
                raise InvalidArgument("rename_columns", f"{source!r} can't become {name!r}: {problem}.")

    def in_keys(self, names: pa.Array) -> pa.Array:
        """Return the names of the columns in records' keys, lists in JSON, as the mirror's columns are called."""
        if not self.renamed:
            return names
        found = names.dictionary_encode()
        lists = [json.loads(text) for text in found.dictionary.to_pylist()]
        texts = [json.dumps([self.renamed.get(name, name) for name in one]) for one in lists]
        return pa.array(texts, pa.string()).take(found.indices)

    def columns(self, row: Iterable[pa.Field], there: Iterable[str] = ()) -> list[pa.Field]:
        """Return the mirror's columns for those of the database's table.

        :param there: columns that the mirror has already.

        Raises MirrorStopped for a name that the mirror can't have.
        """
        named = {one.lower(): one for one in there}
        found = []
        for one in row:
            name = self.renamed.get(one.name, one.name)
            if (problem := self._problem(name)) is not None:
                raise name_not_free(self.table, one.name, problem)
            if (twin := named.setdefault(name.lower(), name)) != name:
                problem = (
                    f"the mirror has a column {twin!r}, whose name differs in case only: engines take the two for one"
                )
                raise name_not_free(self.table, one.name, problem)
            found.append(one.with_name(name))
        if twice := [name for name, count in Counter(one.name for one in found).items() if count > 1]:
            raise name_not_free(self.table, twice[0], "another column is renamed to its name")
        return found

    def _problem(self, name: str) -> str | None:
        if name.lower() in self.reserved or is_kept(name):
            return f"the mirror keeps the name {name.lower()} for itself"
        if bad := sorted(set(self.lake.characters_refused) & set(name)):
            return f"a {self.lake.format.title()} table takes no {bad[0]!r} in a name"
        return None
