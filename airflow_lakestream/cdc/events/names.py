"""The names of a mirror's columns: reserved names, and new names for columns of the database."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_lakestream.cdc.columns import IMAGE, OFFSET, OP, PARTITION, RECORD_KEY, SOURCE, is_kept
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.cdc.stops import MirrorStopped, name_garbled, name_not_free
from airflow_lakestream.decode.connect.debezium import EventNaming
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes import DEFAULT, LakeFormat

# Columns for the parts of an event next to its row, and the names of the parts.
_EVENT_PARTS = {OP: "op", SOURCE: "source", IMAGE: "before"}


@dataclass(frozen=True)
class ColumnNames:
    """The names of a mirror's columns.

    :param renamed: column names, by the names in the database.
    :param with_key: whether events have a column with the keys of their records.
    :param rows: the rows of a key, which may have further columns.
    :param lake: the format of the table, which may reserve names.
    :param of_records: whether the columns are those of plain records, not of a database's table.
    :param nested: columns of the key whose values are nested fields, in lower case.
    """

    table: str = "the table"
    renamed: Mapping[str, str] = field(default_factory=dict)
    with_key: bool = True
    rows: RowStrategy = RowStrategy.CURRENT
    lake: LakeFormat = DEFAULT
    of_records: bool = False
    nested: tuple[str, ...] = ()

    @property
    def naming(self) -> EventNaming:
        """The new names and the names of the event's parts, for the decoder of events."""
        return EventNaming(_EVENT_PARTS, self.renamed)

    @property
    def reserved(self) -> frozenset[str]:
        """Reserved names, unfit for columns of the row, in lower case: Spark ignores case."""
        names = [OP, SOURCE, PARTITION, OFFSET]
        names += [RECORD_KEY] if self.with_key or self.of_records else []
        names += self.rows.further.names
        return frozenset([*names, *self.nested, *self.lake.columns_taken])

    def check_argument(self) -> None:
        """Refuse new names that are reserved, unfit for the table's format, or given twice. Raises InvalidArgument."""
        uses = Counter(name.lower() for name in self.renamed.values())
        for source, name in self.renamed.items():
            problem = self.problem(name) or ("two columns get it" if uses[name.lower()] > 1 else None)
            if problem:
                raise InvalidArgument("rename_columns", f"{source!r} can't become {name!r}: {problem}.")

    def in_keys(self, names: pa.Array) -> pa.Array:
        """Return the mirror's names for the columns of records' keys, as lists in JSON.

        :param names: the names in the keys, see `record_keys.names_in`.
        """
        if not self.renamed:
            return names
        encoded = names.dictionary_encode()
        lists = [json.loads(text) for text in encoded.dictionary.to_pylist()]
        texts = [json.dumps([self.renamed.get(name, name) for name in columns]) for columns in lists]
        return pa.array(texts, pa.string()).take(encoded.indices)

    def columns(self, row: Iterable[pa.Field], there: Iterable[str] = ()) -> list[pa.Field]:
        """Return the mirror's columns for the columns of the database's table, or for the fields of records.

        :param there: columns that the mirror has already.

        Raises MirrorStopped for a name that the mirror can't have.
        """
        # By name in lower case, the names of all columns.
        named = {name.lower(): name for name in there}
        columns = []
        for field_ in row:
            if not self.of_records and (meant := _ungarbled(field_.name)) is not None:
                raise name_garbled(self.table, field_.name, meant)
            name = self.renamed.get(field_.name, field_.name)
            if (problem := self.problem(name)) is not None:
                raise self.not_free(field_.name, problem)
            if (twin := named.setdefault(name.lower(), name)) != name:
                problem = (
                    f"the mirror has a column {twin!r}, whose name differs in case only: engines take the two for one"
                )
                raise self.not_free(field_.name, problem)
            columns.append(field_.with_name(name))
        counts = Counter(column.name for column in columns)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise self.not_free(twice[0], "another column is renamed to its name")
        return columns

    def not_free(self, name: str, reason: str) -> MirrorStopped:
        """Return the error for a column or a field with a name that the mirror can't have."""
        return name_not_free(self.table, name, reason, of_records=self.of_records)

    def problem(self, name: str) -> str | None:
        """Return the reason why the mirror can't have a column of this name, or None for a good name."""
        if name.lower() in self.reserved or is_kept(name):
            return f"the mirror keeps the name {name.lower()} for itself"
        if bad := sorted(set(self.lake.characters_refused) & set(name)):
            return f"a {self.lake.format.title()} table takes no {bad[0]!r} in a name"
        return None


def _ungarbled(name: str) -> str | None:
    """Return the database's name of a column garbled by Debezium's pgoutput reader, or None if not garbled.

    The reader widens each byte to a character, with its sign: a byte of 0x80 and more becomes one of U+FF80 to U+FFFF.
    """
    if name.isascii() or not all(ord(char) < 0x80 or 0xFF80 <= ord(char) <= 0xFFFF for char in name):
        return None
    try:
        return bytes(ord(char) & 0xFF for char in name).decode()
    except (UnicodeDecodeError, ValueError):
        return None
