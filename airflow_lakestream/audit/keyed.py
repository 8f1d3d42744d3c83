"""Tables by key as the audit reads them, the rules of their comparison, and its result."""

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
    """A table by key at a head: files that are there, and entries of deleted rows.

    :param columns: the columns of the table, and `key` those of its key.
    :param lost: files that are gone; `files` lacks them.
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

    :param landed: the offsets in the ledgers, `seen` those with a record in Kafka, `lost` those that were never landed.
    :param is_by_log: whether versions count places of a log, which a fold from its middle counts otherwise.
    :param first_stays: whether the first record of a key stays, and `within` whether only for a time.
    :param keeps_absent: whether a row has values of several records.
    :param by_sequence: whether columns order the records of a key, not their offsets or the log.
    :param by_kafka_key: whether records with the same Kafka key have the same key.
    :param has_other_logs: whether the table counts the places of more logs than the fold.
    :param borrowed: by column the partitions and offsets of records that left its value out.
    :param columns: of a history, the columns whose changes begin versions.
    :param repeats: of a history, whether records have positions in a log, and may be sent again with the same ones.
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

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"
    DOUBLED = "doubled"


@dataclass(frozen=True, slots=True, order=True)
class WrongRow:
    """A wrong row, at the record that the row is of, or should be of; at -1 without a record.

    :param key: the values of the key's columns, as text.
    :param columns: of a different row, the columns that differ.
    :param times: of a doubled row, the number of rows.
    :param of: of a different row, the partition and offset that the table has, if they are others.
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
        found: dict[str, Any] = {"fault": self.fault.value, "partition": self.partition, "offset": self.offset}
        return found | {
            "key": dict(self.key),
            **({"columns": list(self.columns)} if self.columns else {}),
            **({"times": self.times} if self.fault is RowFault.DOUBLED else {}),
            **({"of": list(self.of)} if self.of else {}),
        }


@dataclass
class KeyedVerdict:
    """Wrong rows in order of partition and offset, and numbers by partition: of rows, and of rows that are unseen.

    :param left_out: wrong rows beyond `MOST_ROWS`.
    :param unseen_gone: rows of the fold that the table lacks, perhaps by a deletion that has left Kafka.
    :param unseen_values: rows with values that differ from the fold's, perhaps by a record that has left Kafka.
    """

    wrong: list[WrongRow] = field(default_factory=list)
    left_out: int = 0
    rows: Mapping[int, int] = field(default_factory=dict)
    unseen: Mapping[int, int] = field(default_factory=dict)
    unseen_gone: int = 0
    unseen_values: int = 0
