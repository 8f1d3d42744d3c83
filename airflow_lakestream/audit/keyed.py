"""Tables by key, such as mirrors: reading them for an audit, the rules of a comparison, and its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from airflow_lakestream.audit.rows import UnreadableRows
from airflow_lakestream.audit.statistics import LostFile
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.cdc.columns import TIME, VERSION
from airflow_lakestream.cdc.design import key_noted
from airflow_lakestream.cdc.iceberg import entries_of
from airflow_lakestream.cdc.iceberg_head import IcebergHead
from airflow_lakestream.cdc.merge.entries import EntryFiles
from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.core.printable import printable
from airflow_lakestream.core.ranges import PartitionKey, RangeSet
from airflow_lakestream.tables.schema.types import arrow_schema


@dataclass(frozen=True, kw_only=True)
class KeyedTable:
    """A table by key at a head.

    :param columns: the columns of the table.
    :param key: the columns of its key.
    :param files: the files that are in the store.
    :param entries: the entries of deleted rows, or None without any.
    :param lost: the files that are gone from the store.
    """

    columns: pa.Schema
    key: tuple[str, ...]
    head: MirrorHead
    files: Sequence[File]
    entries: EntryFiles | None
    lost: Sequence[LostFile] = ()

    def rows(self) -> Iterator[pa.Table]:
        """Yield all rows."""
        for file in self.files:
            yield from self.head.read(file)

    def deletions(self) -> Iterator[pa.Table]:
        """Yield the entries: deletions by key, truncations, and marks of snapshots."""
        if self.entries is not None:
            names = (*self.key, *VERSION, *([TIME] if TIME in self.entries.columns.names else []))
            for file in self.entries.files:
                yield from file.read(names)


def keyed_iceberg(catalog: Catalog, table: Table) -> KeyedTable:
    """Return a table by key as the audit reads it. Raises UnreadableRows."""
    head, schema = IcebergHead(table.metadata, table.metadata, table.io), table.schema()
    key = key_noted(table.properties)
    name = ".".join(table.name())
    entries = entries_of(catalog, name, table, key).open()
    try:
        return KeyedTable(columns=arrow_schema(schema), key=key, head=head, files=head.files(), entries=entries)
    except (CannotReplace, OSError) as e:
        raise UnreadableRows(name, e) from e


@dataclass(frozen=True, kw_only=True)
class KeyedRules:
    """Rules of the comparison, by the design of the table and by the topic that Kafka still has.

    :param landed: the landed offsets in the ledgers.
    :param seen: the landed offsets that have a record in Kafka.
    :param lost: the offsets that were never landed.
    :param is_by_log: whether versions have places of a binary log, which a fold from the log's middle counts otherwise.
    :param first_stays: whether the first record of a key stays.
    :param within: whether the first record stays for a limited time only.
    :param keeps_absent: whether a row has values of several records.
    :param by_sequence: whether columns order the records of a key, not their offsets or the log.
    :param by_kafka_key: whether records with the same Kafka key have the same key.
    :param has_other_logs: whether the table counts the places of more logs than the fold.
    :param borrowed: by column, the partitions and offsets of the records that leave the column's value out.
    :param columns: of a history, the columns whose changes begin versions.
    :param repeats: of a history, whether records have positions in a log: a record that is sent again has its old one.
    """

    landed: RangeSet
    seen: Mapping[PartitionKey, OffsetTally]
    lost: RangeSet = RangeSet()
    is_by_log: bool = False
    first_stays: bool = False
    within: bool = False
    keeps_absent: bool = False
    by_sequence: bool = False
    by_kafka_key: bool = False
    has_other_logs: bool = False
    borrowed: Sequence[tuple[str, pa.Table]] = ()
    columns: tuple[str, ...] = ()
    repeats: bool = False


class RowFault(StrEnum):
    """Fault of a row of a table by key."""

    # The fold has a row that the table lacks.
    MISSING = "missing"
    # The table has a row of a key that has none in the fold.
    EXTRA = "extra"
    DIFFERENT = "different"
    # The table has several rows of the key.
    DOUBLED = "doubled"


@dataclass(frozen=True, slots=True, order=True)
class WrongRow:
    """A wrong row, at the partition and offset of its record in the fold, or else in the table; -1 without a record.

    :param key: the values of the key's columns, as text.
    :param columns: of a different row, the columns that differ.
    :param times: of a doubled row, the number of rows.
    :param of: of a different row, the partition and offset of the table's row, if other than the fold's.
    """

    partition: int
    offset: int
    fault: RowFault
    key: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    times: int = 1
    of: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        """The finding as text, without the partition."""
        key = ", ".join(f"{name}={value}" for name, value in self.key)
        more = f" x{self.times}" if self.fault is RowFault.DOUBLED else ""
        more += f" in {', '.join(self.columns)}" if self.columns else ""
        more += f" (the table's row is of [{self.of[0]}] offset {self.of[1]})" if self.of else ""
        place = "" if self.offset < 0 else f"offset {self.offset}, "
        return printable(f"{self.fault} row: {place}{key}{more}")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        values: dict[str, Any] = {"fault": self.fault.value, "partition": self.partition, "offset": self.offset}
        return values | {
            "key": dict(self.key),
            **({"columns": list(self.columns)} if self.columns else {}),
            **({"times": self.times} if self.fault is RowFault.DOUBLED else {}),
            **({"of": list(self.of)} if self.of else {}),
        }


@dataclass
class KeyedVerdict:
    """Result of a comparison by key.

    :param wrong: the wrong rows in the order of partition and offset, at most `MOST_ROWS`.
    :param left_out: the number of further wrong rows.
    :param rows: the number of the table's rows by partition.
    :param unseen: the number of unseen rows by partition.
    :param unseen_gone: the number of the fold's rows that the table lacks, perhaps since a deletion has left Kafka.
    :param unseen_values: the number of rows whose values differ, perhaps since a record has left Kafka.
    """

    wrong: list[WrongRow] = field(default_factory=list)
    left_out: int = 0
    rows: Mapping[int, int] = field(default_factory=dict)
    unseen: Mapping[int, int] = field(default_factory=dict)
    unseen_gone: int = 0
    unseen_values: int = 0
