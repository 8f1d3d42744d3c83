"""Columns with the positions of a table's rows in Kafka, under the names of any tool."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow

from airflow_lakestream.core.codec import decode_ranges
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC

_PARTS = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class PositionColumns:
    """Paths of the columns with the position of each row's record; dots in a path lead into structs.

    :param topic: None without a column for the topic: all rows with an offset are then of `only_topic`.
    """

    topic: str | None = TOPIC
    partition: str = PARTITION
    offset: str = OFFSET
    only_topic: str = ""

    @classmethod
    def parse(cls, text: str, only_topic: str) -> PositionColumns:
        """Parse a text such as "partition=p,offset=meta.offset"; "topic=t" is optional.

        Raises InvalidArgument for an unknown or repeated name, and if partition or offset is missing.

        :param only_topic: the topic of all rows, if the text names no column for the topic.
        """
        paths: dict[str, str] = {}
        for part in filter(None, (text_part.strip() for text_part in text.split(","))):
            name, equals, path = part.partition("=")
            if name not in _PARTS or not equals or not path or name in paths:
                raise InvalidArgument(
                    "--columns", f"{part!r} names no column.", 'Write "topic=a,partition=b,offset=c.d"; topic may go.'
                )
            paths[name] = path
        if lacking := [name for name in _PARTS[1:] if name not in paths]:
            raise InvalidArgument("--columns", f"{' and '.join(lacking)} is missing: rows are identified by both.")
        return cls(paths.get("topic"), paths["partition"], paths["offset"], only_topic)

    @classmethod
    def of_paths(cls, paths: Mapping[str, str], only_topic: str) -> PositionColumns:
        """Return the columns of a mapping like `paths`: paths by the names of the metadata columns of landings."""
        return cls(paths.get(TOPIC), paths[PARTITION], paths[OFFSET], only_topic)

    @property
    def is_own(self) -> bool:
        """Whether the columns are the metadata columns of landings."""
        return (self.topic, self.partition, self.offset) == COORDINATES

    @property
    def paths(self) -> Mapping[str, str]:
        """Paths by the names of the metadata columns of landings; without an entry for the topic if `topic` is None."""
        named = zip(COORDINATES, (self.topic, self.partition, self.offset), strict=True)
        return {name: path for name, path in named if path is not None}

    @property
    def roots(self) -> tuple[str, ...]:
        """The table's top-level columns to read."""
        return tuple(dict.fromkeys(path.split(".")[0] for path in self.paths.values()))

    def missing(self, schema: pa.Schema) -> Sequence[str]:
        """Return the paths missing in the schema.

        Raises InvalidArgument if the type of a column is unfit: topics are strings, partitions and offsets are
        integers.
        """
        lacking = []
        for name, path in self.paths.items():
            kind = _type_at(schema, path)
            if kind is None:
                lacking.append(path)
                continue
            fits = (arrow.is_string, arrow.is_large_string) if name == TOPIC else (arrow.is_integer,)
            if not any(is_(kind) for is_ in fits):
                raise InvalidArgument("--columns", f"{path} is of type {kind}, which can't be a record's {name[7:]}.")
        return lacking

    def of(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        """Return the positions of rows, as a table with the metadata columns of landings.

        Without a column for the topic, rows with an offset get `only_topic`, and rows without an offset get NULL.
        """
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        by_name = {name: _column(table, path) for name, path in self.paths.items()}
        if self.topic is None:
            lacks = pc.is_null(by_name[OFFSET])
            nothing = pa.scalar(None, pa.string())
            by_name[TOPIC] = pc.if_else(lacks, nothing, pa.scalar(self.only_topic))
        return pa.table({name: by_name[name] for name in COORDINATES})


OWN_COLUMNS = PositionColumns()


def _type_at(schema: pa.Schema, path: str) -> pa.DataType | None:
    """Return the type of a column or of a field in structs, or None if the schema lacks the path."""
    first, *inner_names = path.split(".")
    if first not in schema.names:
        return None
    kind = schema.field(first).type
    for name in inner_names:
        if not arrow.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def _column(rows: pa.Table, path: str) -> pa.ChunkedArray:
    first, *inner_names = path.split(".")
    column = rows[first]
    for name in inner_names:
        column = pc.struct_field(column, name)
    return column


# Prefix of a table property, followed by a group's name: the receipts of the group's adoptions.
PREFIX = "lakestream.adopted."


@dataclass(frozen=True, slots=True)
class AdoptionReceipt:
    """Receipt of an adoption: a group's ledger took over the rows of another tool.

    :param source: the other tool, in words.
    :param at: the time of the adoption in UTC, as ISO 8601 text.
    :param landing_id: the landing that wrote the adopted offsets into the ledger. The receipt stays if the table is
        rolled back to before this landing. The ledger then lacks the offsets, and the ledger decides.
    :param columns: the tool's columns with the position of each row. None if the positions are in the metadata columns
        of landings, or if the rows do not prove the adopted offsets.
    :param ranges: the adopted offsets as text, if `columns` is set; else empty.
    """

    source: str
    topic: str
    at: str
    landing_id: str
    columns: Mapping[str, str] | None = None
    ranges: str = ""

    @property
    def verifiable(self) -> RangeSet:
        """Adopted offsets provable by the rows, through the tool's own columns; empty without such columns."""
        return decode_ranges(self.ranges, self.topic)

    def __str__(self) -> str:
        return f"{self.topic} from {self.source} at {self.at}"


def receipts(properties: Mapping[str, str], consumer_group: str) -> Sequence[AdoptionReceipt]:
    """Return the receipts of a group's adoptions, oldest first."""
    return [AdoptionReceipt(**fields) for fields in json.loads(properties.get(PREFIX + consumer_group, "[]"))]


def has_adopted(properties: Mapping[str, str]) -> bool:
    """Return whether the table has a receipt of an adoption by any group."""
    return any(name.startswith(PREFIX) for name in properties)


def noted(properties: Mapping[str, str], consumer_group: str, receipt: AdoptionReceipt) -> dict[str, str]:
    """Return the table property of a group's receipts, with this receipt added.

    The caller sets the property in the commit of the adopted ledger.

    :param properties: the table's present properties, with the earlier receipts.
    """
    receipt_fields = [asdict(known) for known in (*receipts(properties, consumer_group), receipt)]
    return {PREFIX + consumer_group: json.dumps(receipt_fields, separators=(",", ":"), ensure_ascii=False)}
